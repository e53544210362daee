// Where results lie side by side.

// Adjacent threads compute adjacent results, VECTOR each. A group covers `width` vectors of results, a power of 2; the threads
// beyond `width` take other lines. `results` and the last kept extent count vectors.
KERNEL(reduce_columns)(GLOBAL const From *x, GLOBAL To *y, GLOBAL A *second SUM_PARAMETERS, Ints p, i64 results, i64 count,
                       i64 part, i64 step, i64 shift, i64 width, Divisor divisor ROW_PARAMETERS) {
    AWAIT_PREVIOUS();
    LET_NEXT_START();
    // The upper half of the threads passes its values to the lower half.
    SHARED(P, shared, (THREADS + 1) / 2 * VECTOR);
    int columns = (int)width, member = LANE >> LOG2(columns), members = THREADS >> LOG2(columns);
    i64 number = GROUP * columns + (LANE & (columns - 1));
    idx from = (idx)shift, to = (idx)(GROUP_Y * step);
    P acc[VECTOR];
#pragma unroll
    for (int j = 0; j < VECTOR; j++) acc[j] = NOTHING;
    State state[1];
    START(VECTOR);
    if (number < results) {
        place(p, (idx)number, VECTOR, &from, &to);
        FIXED(number);
#pragma unroll
        for (int j = 0; j < VECTOR; j++) SET_PIVOT(x, from + j, j);
        idx start = (idx)(GROUP_Y * part), end = (idx)count - start > (idx)part ? start + (idx)part : (idx)count;
        idx line = start + member;
        for (; line + (UNROLL - 1) * members < end; line += UNROLL * members) {
            Read w[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) READ(w[u], x, from + element(p, line + u * members));
#pragma unroll
            for (int u = 0; u < UNROLL; u++) TAKE(w + u, 1, from + element(p, line + u * members), line + u * members);
        }
        for (; line < end; line += members) {
            Read w;
            READ(w, x, from + element(p, line));
            TAKE(&w, 1, from + element(p, line), line);
        }
#ifdef EDGES
        for (int j = 0; j < VECTOR; j++) {
            if (HAS_SQUARES(acc[j]) || state->marks == 0) continue;
            Root r = NO_ROOT;
            for (line = start + member; line < end; line += members)
                add_to_root(&r, (A)LOAD(X, x, from + element(p, line) + j));
            acc[j] = negative_root(r);
        }
#endif
    }
    for (int below = members / 2; below > 0; below /= 2) {
        int at = LANE - below * columns;
        if (member >= below && member < 2 * below) {
#pragma unroll
            for (int j = 0; j < VECTOR; j++) shared[j * (THREADS / 2) + at] = acc[j];
        }
        BARRIER();
        if (member < below) {
#pragma unroll
            for (int j = 0; j < VECTOR; j++) acc[j] = join(acc[j], shared[j * (THREADS / 2) + LANE]);
        }
        BARRIER();
    }
    if (member == 0 && number < results) {
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            ADD_PIVOT(acc[j], j);
            PUT(y, to + j * KEPT_Y(KEPT - 1), acc[j]);
        }
    }
}
