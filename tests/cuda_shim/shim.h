// Enough of CUDA for g++ to run our kernels on the CPU. The threads of a block are fibers: each runs until it has to
// wait (for its block or for its warp) and then the next one runs, in an order that the test chooses. Code that
// depends on the order, for want of a barrier, gives different numbers in different orders.
//
// Stricter than a GPU, because these are mistakes even where a GPU happens to forgive them: all threads of a block have
// to reach the same barrier, all lanes of a warp the same shuffle, and shared memory starts out as NaN.

// The fibers are in shim.cpp, compiled once; this header is compiled with every source.

#include <cmath>
#include <cstring>
#include <utility>

using std::exp; using std::log; using std::log1p; using std::sqrt;

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ thread_local  // in a function that implies static: one for all fibers

struct Dimensions { unsigned x, y, z; };
extern Dimensions gridDim, blockDim, blockIdx, threadIdx;

namespace shim {

enum State { ready, at_barrier, at_shuffle, finished };

struct Launch {
    unsigned grid[3], threads;
    unsigned long asked, capacity;  // bytes of shared memory
    int order;
    unsigned seed;
};

// Runs body(values) for every thread; what went wrong, or "".
const char *run(const Launch &launch, void (*body)(void **), void **values, void *shared);

void wait(State state, int line);
double *deposits(unsigned mask, int line);  // 32 places, where the lanes of this warp offer values to each other

template <class T> T shuffle(unsigned mask, T value, unsigned source, int line)
{
    double *offers = deposits(mask, line);
    const unsigned lane = threadIdx.x % 32;
    std::memcpy(&offers[lane], &value, sizeof value);
    wait(at_shuffle, line);
    std::memcpy(&value, &offers[source < 32 ? source : lane], sizeof value);
    return value;
}

// The types of a kernel's parameters, as the loader compares them with what it is given.
template <class T> struct Code;
template <> struct Code<int> { static constexpr const char *text = "i4"; };
template <> struct Code<long long> { static constexpr const char *text = "i8"; };
template <> struct Code<float> { static constexpr const char *text = "f4"; };
template <> struct Code<double> { static constexpr const char *text = "f8"; };
template <> struct Code<float *> { static constexpr const char *text = "*f4"; };
template <> struct Code<double *> { static constexpr const char *text = "*f8"; };
template <> struct Code<const float *> { static constexpr const char *text = "const *f4"; };
template <> struct Code<const double *> { static constexpr const char *text = "const *f8"; };
template <> struct Code<const long long *> { static constexpr const char *text = "const *i8"; };
template <> struct Code<const unsigned char *> { static constexpr const char *text = "const *u1"; };

template <auto kernel> struct Call;
template <class... A, void (*kernel)(A...)> struct Call<kernel> {
    static const char *type(unsigned number)
    {
        const char *texts[] = {Code<A>::text..., nullptr};
        return texts[number];
    }
    template <size_t... I> static void with(void **values, std::index_sequence<I...>) { kernel(*(A *)values[I]...); }
    static void body(void **values) { with(values, std::index_sequence_for<A...>()); }
};

}  // namespace shim

#define __syncthreads() shim::wait(shim::at_barrier, __LINE__)
#define __shfl_xor_sync(mask, value, lanes) shim::shuffle(mask, value, threadIdx.x % 32 ^ (lanes), __LINE__)

// After the kernels: their shared memory, and a way to ask for the parameters of each and to call it, by name.
#define SHIM_SHARED(capacity) alignas(16) thread_local REAL shared[(capacity) / sizeof(REAL)];
#define SHIM_KERNEL(name)                                                                                   \
    extern "C" const char *type_##name(unsigned number) { return shim::Call<name>::type(number); }          \
    extern "C" const char *run_##name(const shim::Launch *launch, void **values)                            \
    {                                                                                                       \
        return shim::run(*launch, shim::Call<name>::body, values, shared);                                  \
    }
