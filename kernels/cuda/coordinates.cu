// Finite differences along coordinates of a flat vector.

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
