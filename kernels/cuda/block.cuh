// What the kernels share. REAL (and FEATURE) are defined above this text; see device.py.

extern __shared__ REAL shared[];  // its size is given at launch

// The sum of `value` over the block, known to every thread, and in the same order on every run: that is why there
// are no atomics. `turn` alternates between two places in shared memory (2 × number of warps), so that one barrier
// a call is enough: nobody can write a place before all have read what was there two calls ago.
static __device__ __forceinline__ REAL block_sum(REAL value, int turn)
{
    const int warps = blockDim.x / 32;
    REAL *partial = shared + (turn & 1) * warps;
    for (int step = 16; step > 0; step /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, step);
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = value;
    __syncthreads();
    REAL sum = 0;
    for (int w = 0; w < warps; ++w)
        sum += partial[w];
    return sum;
}

// By comparisons and not by fmin and fmax, which would turn a NaN into a bound.
static __device__ __forceinline__ REAL clip(REAL value, REAL low, REAL high)
{
    return value < low ? low : value > high ? high : value;
}
