// Mean and variance of values that are seen once.

// How many values, their mean, and the sum of the squares of what differs from it.
typedef struct {
    A count, mean, squares;
} Moments;
#define NO_MOMENTS {0, 0, 0}

// Of two sets, the squares are those of each, and d^2 m n / (m + n) for means that differ by d. Chan, Golub and LeVeque 1983. Of none, 0
// whatever the difference: counts are multiplied before its square could be infinite.
FUNCTION void add_values(Moments *m, const A *v, int n) {
    A sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < n; i++) sum += v[i];
    A mean = sum / (A)n;
#pragma unroll
    for (int i = 0; i < n; i++) squares += (v[i] - mean) * (v[i] - mean);
    A apart = mean - m->mean, share = (A)n / (m->count + (A)n);
    m->squares += squares + apart * share * m->count * apart;
    m->mean += apart * share;
    m->count += (A)n;
}

// What these values add to the squares of all, whose mean is given.
FUNCTION A squares_about(A mean, Moments m) {
    A apart = m.mean - mean;
    return m.squares + apart * m.count * apart;
}
