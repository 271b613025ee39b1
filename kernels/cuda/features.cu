// out[i, k] = scale * X[index[i], k] + offset, as REAL; without an index, the rows from `first` on. A block per row.
extern "C" __global__ void gather_rows(
    long long rows, long long columns, const FEATURE *__restrict__ X, const long long *__restrict__ index,
    long long first, REAL scale, REAL offset, REAL *__restrict__ out)
{
    for (long long i = blockIdx.x; i < rows; i += gridDim.x) {
        const FEATURE *row = X + (index ? index[i] : first + i) * columns;
        for (long long k = threadIdx.x; k < columns; k += blockDim.x)
            out[i * columns + k] = scale * (REAL)row[k] + offset;
    }
}
