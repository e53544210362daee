// Sums over the threads of a column. A group has COLUMNS columns, whose threads are COLUMNS apart. A column has MEMBERS threads, and
// WORKER is the number of a thread among them.
//
// THREADS: 1 .. 1024, threads of a group
// COLUMNS: power of 2 up to THREADS
// ACC: f32 or f64, dtype of the arithmetic

#define MEMBERS (THREADS / COLUMNS)
#define WORKER (MEMBERS == 1 ? 0 : LANE / COLUMNS)

// The sums of `n` numbers over each column's threads, in a fixed order, for all of them. Every thread of the group must call this.
// `shared` is the memory of COLUMN_JOINS for as many numbers.
#if WAVE > 1
// A column's threads in a wave exchange their numbers. Then one thread for each sum adds those of the waves, or of all threads where a wave
// has no two of a column.
#define ACROSS (THREADS < WAVE ? THREADS : WAVE)
#define PER_ADDEND (COLUMNS < ACROSS ? ACROSS : COLUMNS)
#define ADDENDS (THREADS / PER_ADDEND)
#define COLUMN_JOINS(n) SHARED(A, shared, (n) * ADDENDS * COLUMNS)

LOCAL_FUNCTION void column_sums(A *v, int n, LOCAL A *shared) {
#pragma unroll
    for (int i = 0; i < n; i++) {
#pragma unroll
        for (int by = COLUMNS; by < ACROSS; by *= 2) v[i] += from_lane(v[i], by);
    }
    if (ADDENDS == 1) return;
    BARRIER();
    if (LANE % PER_ADDEND < COLUMNS) {
#pragma unroll
        for (int i = 0; i < n; i++) shared[(i * ADDENDS + LANE / PER_ADDEND) * COLUMNS + LANE % COLUMNS] = v[i];
    }
    BARRIER();
    for (int sum = LANE; sum < n * COLUMNS; sum += THREADS) {
        LOCAL A *addends = shared + (sum / COLUMNS * ADDENDS * COLUMNS + sum % COLUMNS);
        A all = addends[0];
#pragma unroll
        for (int k = 1; k < ADDENDS; k++) all += addends[k * COLUMNS];
        addends[0] = all;
    }
    BARRIER();
#pragma unroll
    for (int i = 0; i < n; i++) v[i] = shared[i * ADDENDS * COLUMNS + LANE % COLUMNS];
}
#else
#define COLUMN_JOINS(n) SHARED(A, shared, (n) * THREADS)

LOCAL_FUNCTION void column_sums(A *v, int n, LOCAL A *shared) {
    if (MEMBERS == 1) return;
    BARRIER();
#pragma unroll
    for (int i = 0; i < n; i++) shared[i * THREADS + LANE] = v[i];
    for (int below = MEMBERS / 2; below > 0; below /= 2) {
        BARRIER();
        if (WORKER < below) {
#pragma unroll
            for (int i = 0; i < n; i++) shared[i * THREADS + LANE] += shared[i * THREADS + LANE + below * COLUMNS];
        }
    }
    BARRIER();
#pragma unroll
    for (int i = 0; i < n; i++) v[i] = shared[i * THREADS + LANE % COLUMNS];
}
#endif
