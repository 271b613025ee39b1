// Between the two matrix products of a regression: what happens to the few numbers of each row. One thread per row and
// copy (blockIdx.y), classes in order: next to the products, which read all features of the row, this is little.
// A launch treats the `rows` rows from `first` on, out of `total`; scores and the like hold only those rows.

extern "C" __global__ void softmax_rows(
    long long rows, int classes, int logistic,
    const REAL *bias,                   // [copies, classes], or null
    const long long *labels,            // [total]
    const REAL *weights,                // [copies, total], or [total] with stride 0, or null
    long long weight_stride,
    long long first, long long total,
    REAL *scores,                       // [rows, copies, classes]; become weights * (p - onehot), without weights p
    REAL *probabilities,                // [copies, total, classes], or null
    double *losses)                     // [copies, total]; double like all that is summed over samples later
{
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long copy = blockIdx.y, copies = gridDim.y;
    if (row >= rows)
        return;
    REAL *s = scores + (row * copies + copy) * classes;
    const REAL *b = bias ? bias + copy * classes : 0;
    const long long label = labels[first + row], place = copy * total + first + row;
    REAL *p = probabilities ? probabilities + place * classes : 0;
    const REAL weight = weights ? weights[copy * weight_stride + first + row] : (REAL)1;

    if (logistic) {
        const REAL score = b ? s[0] + b[0] : s[0];
        const REAL small = exp(score > 0 ? -score : score);  // never overflows
        const REAL probability = (score > 0 ? (REAL)1 : small) / (1 + small);
        losses[place] = (score > 0 ? score : (REAL)0) - label * score + log1p(small);
        s[0] = weights ? weight * (probability - label) : probability;
        if (p)
            p[0] = probability;
        return;
    }

    REAL top = b ? s[0] + b[0] : s[0];
    for (int c = 0; c < classes; ++c) {
        if (b)
            s[c] += b[c];
        top = s[c] > top ? s[c] : top;
    }
    const REAL score = s[label];
    REAL sum = 0;
    for (int c = 0; c < classes; ++c) {
        s[c] = exp(s[c] - top);
        sum += s[c];
    }
    losses[place] = log(sum) + (top - score);
    for (int c = 0; c < classes; ++c) {
        const REAL probability = s[c] / sum;
        s[c] = weights ? weight * (probability - (c == label)) : probability;
        if (p)
            p[c] = probability;
    }
}

// weights * (p - onehot) where the probabilities are known.
extern "C" __global__ void residual_rows(
    long long rows, int classes, int logistic,
    const long long *labels,            // [total]
    const REAL *weights,                // [total]
    const REAL *probabilities,          // [total, classes]
    long long first,
    REAL *residual)                     // [rows, classes]
{
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows)
        return;
    const REAL *p = probabilities + (first + row) * classes;
    const REAL weight = weights[first + row];
    const long long label = labels[first + row];
    for (int c = 0; c < classes; ++c)
        residual[row * classes + c] = weight * (p[c] - (logistic ? label : c == label));
}

// The Hessian of each row's loss times k right-hand sides: u becomes w p (u - <p, u>); logistic: w p (1 - p) u.
extern "C" __global__ void jacobian_rows(
    long long rows, int classes, int logistic,
    const REAL *bias,                   // [copies, classes], or null
    const REAL *probabilities,          // [total, classes]
    const REAL *weights,                // [total]
    long long first,
    REAL *products)                     // [rows, copies, classes]; u, then the result
{
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long copy = blockIdx.y, copies = gridDim.y;
    if (row >= rows)
        return;
    REAL *u = products + (row * copies + copy) * classes;
    const REAL *b = bias ? bias + copy * classes : 0;
    const REAL *p = probabilities + (first + row) * classes;
    const REAL weight = weights[first + row];

    if (logistic) {
        u[0] = weight * p[0] * (1 - p[0]) * (b ? u[0] + b[0] : u[0]);
        return;
    }
    REAL mean = 0;
    for (int c = 0; c < classes; ++c) {
        if (b)
            u[c] += b[c];
        mean += p[c] * u[c];
    }
    for (int c = 0; c < classes; ++c)
        u[c] = weight * p[c] * (u[c] - mean);
}

// How each row's loss changes along k directions: <p - onehot, u>.
extern "C" __global__ void along_rows(
    long long rows, int classes, int logistic,
    const REAL *bias,                   // [copies, classes], or null
    const REAL *probabilities,          // [total, classes]
    const long long *labels,            // [total]
    long long first, long long total,
    const REAL *products,               // [rows, copies, classes]
    double *slopes)                     // [copies, total]
{
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long copy = blockIdx.y, copies = gridDim.y;
    if (row >= rows)
        return;
    const REAL *u = products + (row * copies + copy) * classes;
    const REAL *b = bias ? bias + copy * classes : 0;
    const REAL *p = probabilities + (first + row) * classes;
    const long long label = labels[first + row];

    REAL slope = 0;
    for (int c = 0; c < classes; ++c) {
        const REAL target = logistic ? (REAL)label : (REAL)(c == label);
        slope += (p[c] - target) * (b ? u[c] + b[c] : u[c]);
    }
    slopes[copy * total + first + row] = slope;
}
