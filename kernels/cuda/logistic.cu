// One sweep of projected incremental steps on log(1 + exp(-t <a, x>)), a client per block, its features over the threads:
//
//     x <- clip(x + gamma t a / (1 + exp(t <a, x>)) - (shift + l1 sign(x) + l2 x), low, high)
//
// A thread only ever touches its own features of x, so the barrier in block_sum is the only one; the next row's product is
// taken while x is being updated. x lives in shared memory where it fits (after the partial sums), else in `result`.
extern "C" __global__ void logistic_sweep(
    long long features, const FEATURE *__restrict__ X, REAL scale, REAL offset,
    const REAL *__restrict__ signs,                             // t, one a row: -1 or 1
    const long long *__restrict__ bounds,                       // client i sweeps steps bounds[i] .. bounds[i + 1]
    const long long *__restrict__ order,                        // the row of each step, or null: the step's own number
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
    const FEATURE *a = X + first * features;
    REAL sign = begin < end ? signs[first] : (REAL)0, product = 0;
    for (long long k = threadIdx.x; k < features; k += blockDim.x) {
        x[k] = start[client * start_stride + k];
        if (begin < end)
            product += x[k] * (scale * (REAL)a[k] + offset);
    }
    for (long long j = begin; j < end; ++j) {
        const REAL score = block_sum(product, j & 1);
        const REAL slope = step * sign / (1 + exp(sign * score));
        const bool more = j + 1 < end;
        const long long row = more ? (order ? order[j + 1] : j + 1) : 0;
        const FEATURE *next = X + row * features;
        sign = more ? signs[row] : (REAL)0;
        product = 0;
        for (long long k = threadIdx.x; k < features; k += blockDim.x) {
            const REAL old = x[k];
            const REAL outer = (shift ? shift[k] : 0) + (fresh ? one * ((old > 0) - (old < 0)) + two * old : 0);
            x[k] = clip(old + slope * (scale * (REAL)a[k] + offset) - outer, low, high);
            if (more)
                product += x[k] * (scale * (REAL)next[k] + offset);
        }
        a = next;
    }
    if (in_shared)
        for (long long k = threadIdx.x; k < features; k += blockDim.x)
            result[client * features + k] = x[k];
}
