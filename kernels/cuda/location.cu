// One sweep of projected incremental subgradient steps on the distances to balls, a client per block:
//
//     x <- clip(x - gamma (x - c) / |x - c| [outside the ball] - (shift + l1 sign(x) + l2 x), low, high)
//
// Otherwise as in logistic.cu.
extern "C" __global__ void location_sweep(
    long long features, const REAL *__restrict__ centers, const REAL *__restrict__ radii,
    const long long *__restrict__ bounds,                       // client i sweeps steps bounds[i] .. bounds[i + 1]
    const long long *__restrict__ order,                        // the ball of each step, or null: the step's own number
    const REAL *__restrict__ gamma,                             // one a client
    const REAL *__restrict__ shifts, long long shift_stride,    // or null
    const REAL *__restrict__ l1, const REAL *__restrict__ l2,   // one a client
    REAL low, REAL high,
    const REAL *__restrict__ start, long long start_stride,
    int in_shared, REAL *__restrict__ result)                   // [clients, features]
{
    const long long client = blockIdx.x, begin = bounds[client], end = bounds[client + 1];
    REAL *x = in_shared ? shared + 2 * (blockDim.x / 32) : result + client * features;
    const REAL *shift = shifts ? shifts + client * shift_stride : 0;
    const REAL step = gamma[client], one = l1[client], two = l2[client];
    const bool fresh = one != 0 || two != 0;  // else 0 * x would make a NaN of an infinite x

    const long long first = begin < end && order ? order[begin] : begin;
    const REAL *c = centers + first * features;
    REAL radius = begin < end ? radii[first] : (REAL)0, square = 0;
    for (long long k = threadIdx.x; k < features; k += blockDim.x) {
        x[k] = start[client * start_stride + k];
        if (begin < end)
            square += (x[k] - c[k]) * (x[k] - c[k]);
    }
    for (long long j = begin; j < end; ++j) {
        const REAL distance = sqrt(block_sum(square, j & 1));
        const REAL slope = distance <= radius ? (REAL)0 : step / distance;  // a NaN spreads to all of x
        const bool more = j + 1 < end;
        const long long ball = more ? (order ? order[j + 1] : j + 1) : 0;
        const REAL *next = centers + ball * features;
        radius = more ? radii[ball] : (REAL)0;
        square = 0;
        for (long long k = threadIdx.x; k < features; k += blockDim.x) {
            const REAL old = x[k];
            const REAL outer = (shift ? shift[k] : 0) + (fresh ? one * ((old > 0) - (old < 0)) + two * old : 0);
            x[k] = clip(old - slope * (old - c[k]) - outer, low, high);
            if (more)
                square += (x[k] - next[k]) * (x[k] - next[k]);
        }
        c = next;
    }
    if (in_shared)
        for (long long k = threadIdx.x; k < features; k += blockDim.x)
            result[client * features + k] = x[k];
}
