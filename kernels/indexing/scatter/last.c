// last: assigns in many long lists of rows of one word. Of the rows with the same position, the last is written.
//
// A group takes TOGETHER lists. Local memory has 16 bits for each of PLACES positions: the number of its last row, from 1 on. If
// there are more positions, the group makes several passes.
//
// I, T, VECTOR, WORD: as in index.h
// THREADS: 1 .. 1024, threads of a group
// ROWS, INNER: 1.., dimensions of the index's rows and of a row's words; ROW_SPACE and WORD_SPACE, with strides of the operands, for WALK
// TOGETHER, KEPT, AT_ONCE: as in scatter/long.h
// PLACES: multiple of 1024, positions of a pass
// WIDE: flag, positions have 64 bits

#include "indexing/index.h"

#ifdef KEPT
#define AHEAD 4
#else
#define AHEAD 8
#endif
#define IS_GOOD(v) ((u64)(v) < (u64)extent)
#include "indexing/scatter/long.h"

// The word with the number of the last row of a position, 0 if there is none yet, and its atomic maximum.
#define LAST(v) rows[(v) / 2 * TOGETHER + own]
LOCAL_FUNCTION void raise_half(LOCAL u32 *word, int place, u32 number) {
    u32 had = 0;
    while (HALF(had, place) < number) {
        u32 raised = (had & ~(0xffffu << place % 2 * 16)) | number << place % 2 * 16;
        u32 found = compare_and_swap_local(word, had, raised);
        if (found == had) break;
        had = found;
    }
}

KERNEL(last)(GLOBAL const SI *index, GLOBAL const S *source, GLOBAL S *y, ARGUMENT(Ints) p, i64 along, i64 extent, i64 total, i64 count,
             i64 apart, i64 index_step, i64 source_step, GLOBAL i64 *status) {
    SHARED_GIVEN(u32, rows, TOGETHER * (PLACES / 2));
    int own = LANE % TOGETHER, member = LANE / TOGETHER;
    i64 list = GROUP * TOGETHER + own;
    int n = list < total ? (int)count : 0;
    idx row = n > 0 ? FIRST_ROW((idx)list, (idx)count, (idx)apart) : 0;
    GLOBAL const SI *at = index + WALK(ROW_SPACE, INDEX_STRIDES, ROWS, row);
    idx to = WALK(ROW_SPACE, Y_STRIDES, ROWS, row), from = WALK(ROW_SPACE, SOURCE_STRIDES, ROWS, row), step = (idx)source_step;
    READ_KEPT
    for (int low = 0; low < (int)extent; low += PLACES) {
        for (int k = LANE; k < TOGETHER * (PLACES / 2); k += THREADS) rows[k] = 0;
        BARRIER();
#ifdef KEPT
        EACH_TURN(t) {
            TAKE_KEPT(pairs, t)
            EACH_AHEAD(a) {
                int v = (int)HALF(pairs[a / 2], a);
                if (v < PLACES) raise_half(&LAST(v), v, (u32)ROW_OF(t, a) + 1);
                KEEP(t + a, v < PLACES || v == NOWHERE ? NOWHERE : v - PLACES);
            }
        }
#else
        EACH_TURN(t) {
            READ_INDICES(v, t)
            EACH_AHEAD(a) {
                int i = ROW_OF(t, a), place = (int)v[a] - low;
                if (IS_GOOD(v[a]) && (u32)place < PLACES) raise_half(&LAST(place), place, (u32)i + 1);
                if (i < n && (u64)v[a] >= (u64)extent && low == 0) note(status, row + i * (idx)apart, v[a]);
            }
        }
#endif
        BARRIER();
        int stop = (int)extent - low < PLACES ? (int)extent - low : PLACES;
        for (int v = member; v < stop && n > 0; v += AHEAD * MEMBERS) {
            idx last[AHEAD];
            Word read[AHEAD];
            EACH_AHEAD(a) last[a] = v + a * MEMBERS < stop ? (idx)HALF(LAST(v + a * MEMBERS), v + a * MEMBERS) - 1 : -1;
            EACH_AHEAD(a) if (last[a] >= 0) SET_WORD(read[a], ((GLOBAL const WORD *)source)[from + last[a] * step]);
            EACH_AHEAD(a) if (last[a] >= 0) ((GLOBAL WORD *)y)[to + (low + v + a * MEMBERS) * (idx)along] = read[a].all;
        }
        BARRIER();
    }
}
