// The joining of the parts of a result by the last group of them.

#define LAST_PARAMETERS , GLOBAL u64 *left, GLOBAL u32 *begun
// A partial result is written as 32-bit words, each in 64 bits with a mark. A word is therefore either complete or absent, and no
// fence is needed.
#define MARK ((u64)1 << 32)
#define LEFT_WORDS ((int)(sizeof(P) / 4))
#define LEFT_AT_ONCE (LEFT_WORDS > 1 ? 4 : 8)
typedef union {
    P value;
    u32 words[LEFT_WORDS];
} Left;

FUNCTION void leave(GLOBAL u64 *at, P v) {
    Left l;
    l.value = v;
#pragma unroll
    for (int i = 0; i < LEFT_WORDS; i++) leave_word(at + i, MARK | l.words[i]);
}

// Joins a thread's share of `n` parts in a fixed order. The group itself has computed part `own_at`. The other parts may still be
// in flight. Resets them to 0.
FUNCTION P take_left(GLOBAL u64 *left, int n, int own_at, P own) {
    P mine = NOTHING;
    for (int k = LANE; k < n; k += LEFT_AT_ONCE * THREADS) {
        Left l[LEFT_AT_ONCE];
        u64 marks;
        do {
            marks = MARK;
#pragma unroll
            for (int u = 0; u < LEFT_AT_ONCE; u++) {
#pragma unroll
                for (int i = 0; i < LEFT_WORDS; i++) {
                    int at = k + u * THREADS;
                    u64 w = at < n && at != own_at ? left_word(left + at * LEFT_WORDS + i) : MARK;
                    l[u].words[i] = (u32)w;
                    marks &= w;
                }
            }
        } while (marks == 0);
#pragma unroll
        for (int u = 0; u < LEFT_AT_ONCE; u++) {
            int at = k + u * THREADS;
            if (at < n) {
                mine = join(mine, at == own_at ? own : l[u].value);
#pragma unroll
                for (int i = 0; i < LEFT_WORDS; i++) leave_word(left + at * LEFT_WORDS + i, 0);
            }
        }
    }
    return mine;
}
