// The coordinates a client holds of a flat vector. They are all different, so no two threads write the same one.

extern "C" __global__ void gather_coordinates(
    long long count, const REAL *__restrict__ x, const long long *__restrict__ held, REAL *__restrict__ values)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        values[i] = x[held[i]];
}

extern "C" __global__ void scatter_coordinates(
    long long count, const REAL *__restrict__ values, const long long *__restrict__ held, REAL *__restrict__ x)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        x[held[i]] = values[i];
}

extern "C" __global__ void scatter_add(
    long long count, REAL factor, const REAL *__restrict__ values, const long long *__restrict__ held,
    REAL *__restrict__ x)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        x[held[i]] += factor * values[i];
}

// Row p of `out` is x with coordinate index[p] moved by mu[p].
extern "C" __global__ void perturbed_copies(
    long long copies, long long size, const REAL *__restrict__ x, const long long *__restrict__ index,
    const REAL *__restrict__ mu, REAL *__restrict__ out)
{
    const long long k = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= size)
        return;
    for (long long p = blockIdx.y; p < copies; p += gridDim.y)
        out[p * size + k] = k == index[p] ? x[k] + mu[p] : x[k];
}

// out[p] = <w, y_p - y> / mu[p], a block per p: how <w, y> answers to coordinate p of x.
extern "C" __global__ void difference_quotients(
    long long size, const REAL *__restrict__ moved, const REAL *__restrict__ y, const REAL *__restrict__ w,
    const REAL *__restrict__ mu, REAL *__restrict__ out)
{
    const long long p = blockIdx.x;
    REAL product = 0;
    for (long long k = threadIdx.x; k < size; k += blockDim.x)
        product += w[k] * (moved[p * size + k] - y[k]);
    const REAL sum = block_sum(product, 0);
    if (threadIdx.x == 0)
        out[p] = sum / mu[p];
}
