// The sums over alignments of frames with labels, y [T, N, L]: up to each of L states, or from each on. A group takes a sequence, and
// frame after frame; it keeps the sums of two frames on chip.
//
// ACC: f32 or f64, dtype of everything
// THREADS: 1 .. 1024, threads of a group
// STATES: 1 .. 1024, L or more
// REVERSED: flag, from the last frame to the first
// NEEDS_F64: flag, ACC is f64

FUNCTION A joined(A a, A b, A c) {
    A most = LARGER(LARGER(a, b), c);
    if (most == LOWEST || most == HIGHEST) return most;
    return most + log_(exp_(a - most) + exp_(b - most) + exp_(c - most));
}

#ifdef REVERSED
#define FRAME(turn) (steps - 1 - (turn))
// The state n moves before s.
#define BEFORE(s, n) ((s) + (n))
#define IS_STATE(s) ((s) < states)
// The state that a skip enters.
#define SKIPPED(s) (IS_STATE((s) + 2) && skip[row + (s) + 2])
#define IS_START(t, s) ((t) == frames - 1 && ((s) == last || (s) == last - 1))
#else
#define FRAME(turn) (turn)
#define BEFORE(s, n) ((s) - (n))
#define IS_STATE(s) ((s) >= 0)
#define SKIPPED(s) (skip[row + (s)])
#define IS_START(t, s) ((t) == 0 && (s) <= 1)
#endif

KERNEL(ctc_scan)(GLOBAL const A *e, GLOBAL const u8 *skip, GLOBAL const i64 *lengths, GLOBAL A *y, i64 steps, i64 batch, i64 states) {
    SHARED(A, sums, 2 * STATES);
    for (i64 n = GROUP; n < batch; n += GROUPS) {
        i64 frames = lengths[2 * n], last = 2 * lengths[2 * n + 1], row = n * states;
        for (i64 turn = 0; turn < steps; turn++) {
            i64 t = FRAME(turn), at = (t * batch + n) * states;
            LOCAL A *to = sums + (turn & 1) * STATES;
            LOCAL const A *from = sums + ((turn + 1) & 1) * STATES;
            for (i64 s = LANE; s < states; s += THREADS) {
                A own = e[at + s], v;
                if (IS_START(t, s)) {
                    v = own;
                } else if (turn == 0) {
                    v = LOWEST + own;
                } else {
                    A next = IS_STATE(BEFORE(s, 1)) ? from[BEFORE(s, 1)] : LOWEST;
                    A skipped = IS_STATE(BEFORE(s, 2)) && SKIPPED(s) ? from[BEFORE(s, 2)] : LOWEST;
                    v = joined(from[s], next, skipped) + own;
                }
                to[s] = v;
                y[at + s] = v;
            }
            BARRIER();
        }
    }
}
