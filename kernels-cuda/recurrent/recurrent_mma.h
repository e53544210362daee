// Products of recurrent ops by matrix units: rows of shared memory go from global memory to registers, and weights lie in local memory in
// the order in which threads pass them. See recurrent.c.
//
// A turn multiplies four words of each row: a thread has one of them, of two rows. The instructions' numbering along K differs from
// memory's, in the same way for both factors.

#define TILE_K 32
#include "matrix/matrix.h"

// Elements of a word, and of a turn along K.
#define OF_WORD (16 / (int)sizeof(S))
#define OF_TURN (4 * OF_WORD)
#define TURNS (SHARE / OF_TURN)
// Turns whose words are read at once, at most 12: more take too many registers.
#define BATCHES ((TURNS + 11) / 12)
#define AT_A_TIME ((TURNS + BATCHES - 1) / BATCHES)
#define TILES (COLUMNS / 8)
#define REGION (ROWS * COLUMNS)

// The place of the weight of element k and a column.
#define PLACE(k, column) \
    ((((k) / OF_TURN * TILES + (column) / 8) * 32 + (column) % 8 * 4 + (k) / OF_WORD % 4) * OF_WORD + (k) % OF_WORD)
#ifdef TF32
#define WEIGHT(bits) as_f32(f32_to_tf32(bits))
#define FACTOR(bits) f32_to_tf32(as_f32(bits))
#else
#define WEIGHT(bits) (bits)
#define FACTOR(bits) (bits)
#endif

typedef union {
    u32x4 all;
    u32 each[4];
} Four;

FUNCTION u32 is_incomplete(Four w) { return MARK_IN(w.each[0]) | MARK_IN(w.each[1]) | MARK_IN(w.each[2]) | MARK_IN(w.each[3]); }

// A thread's words of rows g and g + 8. Only those that are not complete are read, if `again` is set.
FUNCTION u32 read_words(Four words[][2], GLOBAL const S *rows, i64 n, int k, int again) {
    u32 found = 0;
#pragma unroll
    for (int turn = 0; turn < AT_A_TIME; turn++)
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            int row = LANE % 32 / 4 + pair * 8, at = k + turn * OF_TURN;
            Four *w = &words[turn][pair];
            if (!again) w->each[0] = w->each[1] = w->each[2] = w->each[3] = 0;
            if ((!again || is_incomplete(*w)) && row < n && at < K) w->all = seen_u32x4((GLOBAL const u32x4 *)(rows + (row * (i64)K + at)));
        }
#pragma unroll
    for (int turn = 0; turn < AT_A_TIME; turn++) found |= is_incomplete(words[turn][0]) | is_incomplete(words[turn][1]);
    return found;
}

// The sums of a team for n rows [n, K] of shared memory, to its part of `regions`.
LOCAL_FUNCTION void multiply_rows(GLOBAL const S *rows, i64 n, LOCAL const S *weights, LOCAL f32 *regions) {
    int team = LANE / 32, g = LANE % 32 / 4, t = LANE % 4;
    f32 sums[TILES][4];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) sums[tile][0] = sums[tile][1] = sums[tile][2] = sums[tile][3] = 0;
#pragma unroll 1
    for (int first = 0; first < TURNS; first += AT_A_TIME) {
        Four words[AT_A_TIME][2];
        int k = team * SHARE + first * OF_TURN + t * OF_WORD;
        for (int again = 0; read_words(words, rows, n, k, again); again = 1) {}
        WAVE_BARRIER();
#pragma unroll
        for (int turn = 0; turn < AT_A_TIME; turn++) {
            if (TURNS % AT_A_TIME != 0 && first + turn >= TURNS) break;
            const Four *w = words[turn];
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                Four b;
                b.all = ((LOCAL const u32x4 *)weights)[((team * TURNS + first + turn) * TILES + tile) * 32 + LANE % 32];
#pragma unroll
                for (int pair = 0; pair < 2; pair++) {
                    u32 factor[4] = {FACTOR(w[0].each[2 * pair]), FACTOR(w[1].each[2 * pair]), FACTOR(w[0].each[2 * pair + 1]),
                                     FACTOR(w[1].each[2 * pair + 1])};
                    multiply(sums[tile], factor, &b.each[2 * pair]);
                }
            }
        }
    }
    LOCAL f32 *own = regions + team * REGION;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int pair = 0; pair < 2; pair++)
#pragma unroll
            for (int j = 0; j < 2; j++) own[(g + pair * 8) * COLUMNS + tile * 8 + t * 2 + j] = sums[tile][pair * 2 + j];
}
