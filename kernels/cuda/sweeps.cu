// One sweep of projected incremental subgradient steps, a client per block, its features over the threads:
//
//     x <- clip(x - gamma g - (shift + l1 sign(x) + l2 x), low, high),     g a subgradient of the row's function at x
//
// A thread only ever touches its own features of x, so the barrier in block_sum is the only one; what the next step needs
// of its row is summed while x is being updated. x lives in shared memory where it fits (after the partial sums), else in
// `result`.

// log(1 + exp(-t <a, x>)), where the number of a row is t: -1 or 1.
struct Logistic {
    static __device__ REAL term(REAL x, REAL a) { return x * a; }
    static __device__ REAL size(REAL t, REAL product) { return -t / (1 + exp(t * product)); }
    static __device__ REAL along(REAL, REAL a) { return a; }
};

// The distance to a ball, where the number of a row is the radius; 0 inside. A NaN spreads to all of x.
struct Location {
    static __device__ REAL term(REAL x, REAL a) { return (x - a) * (x - a); }
    static __device__ REAL size(REAL radius, REAL square)
    {
        const REAL distance = sqrt(square);
        return distance <= radius ? (REAL)0 : distance > radius ? 1 / distance : distance - radius;
    }
    static __device__ REAL along(REAL x, REAL a) { return x - a; }
};

#define PARAMETERS                                                                                                  \
    long long features, const FEATURE *__restrict__ X, REAL scale, REAL offset, /* rows are scale X + offset */     \
    const REAL *__restrict__ numbers,         /* one a row */                                                       \
    const long long *__restrict__ bounds,     /* client i takes the steps bounds[i] .. bounds[i + 1] */             \
    const long long *__restrict__ order,      /* the row of each step, or null: the step's own number */            \
    const REAL *__restrict__ gamma,           /* one a client, like l1 and l2 */                                    \
    const REAL *__restrict__ shifts, long long shift_stride, /* or null */                                          \
    const REAL *__restrict__ l1, const REAL *__restrict__ l2, REAL low, REAL high,                                  \
    const REAL *__restrict__ start, long long start_stride, int in_shared,                                          \
    REAL *__restrict__ result                 /* [clients, features] */
#define ARGUMENTS                                                                                            \
    features, X, scale, offset, numbers, bounds, order, gamma, shifts, shift_stride, l1, l2, low, high,      \
    start, start_stride, in_shared, result

template <class Function> static __device__ void sweep(PARAMETERS)
{
    const long long client = blockIdx.x, begin = bounds[client], end = bounds[client + 1];
    REAL *x = in_shared ? shared + 2 * (blockDim.x / 32) : result + client * features;
    const REAL *shift = shifts ? shifts + client * shift_stride : 0;
    const REAL one = l1[client], two = l2[client];
    const bool fresh = one != 0 || two != 0;  // else 0 * x would make a NaN of an infinite x

    const long long first = begin < end && order ? order[begin] : begin;
    const FEATURE *a = X + first * features;
    REAL number = begin < end ? numbers[first] : (REAL)0, sum = 0;
    for (long long k = threadIdx.x; k < features; k += blockDim.x) {
        x[k] = start[client * start_stride + k];
        if (begin < end)
            sum += Function::term(x[k], scale * (REAL)a[k] + offset);
    }
    for (long long j = begin; j < end; ++j) {
        const REAL size = gamma[client] * Function::size(number, block_sum(sum, j & 1));
        const bool more = j + 1 < end;
        const long long row = more ? (order ? order[j + 1] : j + 1) : 0;
        const FEATURE *next = X + row * features;
        number = more ? numbers[row] : (REAL)0;
        sum = 0;
        for (long long k = threadIdx.x; k < features; k += blockDim.x) {
            const REAL old = x[k];
            const REAL outer = (shift ? shift[k] : 0) + (fresh ? one * ((old > 0) - (old < 0)) + two * old : 0);
            x[k] = clip(old - size * Function::along(old, scale * (REAL)a[k] + offset) - outer, low, high);
            if (more)
                sum += Function::term(x[k], scale * (REAL)next[k] + offset);
        }
        a = next;
    }
    if (in_shared)
        for (long long k = threadIdx.x; k < features; k += blockDim.x)
            result[client * features + k] = x[k];
}

extern "C" __global__ void logistic_sweep(PARAMETERS) { sweep<Logistic>(ARGUMENTS); }
extern "C" __global__ void location_sweep(PARAMETERS) { sweep<Location>(ARGUMENTS); }
