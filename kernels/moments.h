// Mean and variance of values that are seen once.

// How many values, their sum, their mean as it was found on the way, which is NaN where the sum is infinite, and the sum of the
// squares of what differs from that.
typedef struct {
    A count, sum, mean, squares;
} Moments;
#define NO_MOMENTS {0, 0, 0, 0}

// Of two sets, the squares are those of each, and d^2 m n / (m + n) for means that differ by d. Chan, Golub and LeVeque 1983. If
// one is empty that is 0 whatever d is: the counts are multiplied before its square could be infinite.
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
    m->sum += sum;
    m->count += (A)n;
}

// What `count` values of this mean and these squares add to the squares of all, whose mean is given.
FUNCTION A squares_about(A all, A count, A mean, A squares) {
    A apart = mean - all;
    return squares + apart * count * apart;
}
