// teams: for short lists of wide rows. A team of threads moves a row. While the row's words are in flight, the team compares the
// row's position with those of all rows of the list.
//
// Of the rows with the same position, the first adds all, in order; in an assignment, the last writes. A row with a position of its
// own is added by an atomic operation of the memory, if it supports words (WHOLE). The bits are the same, and no thread waits for
// the previous value.
//
// I, T, VECTOR, WORD: as in index.h
// THREADS: 1 .. 1024, threads of a group
// ROWS, INNER: 1.., dimensions of the index's rows and of a row's words; ROW_SPACE and WORD_SPACE, with strides of the operands, for WALK
// TEAM: power of 2, threads of a team
// COUNT: power of 2 from 32 on, largest number of rows of a list
// WHOLE: flag, a word has 16 bytes and the memory may add it atomically
// ADDING: flag, rows with the same position are added, see sum.h; otherwise the last one is written
// WIDE: flag, positions have 64 bits

#include "indexing/index.h"
#include "indexing/scatter/sum.h"

// Rows of a list that a thread compares at once, and rows that it reads at once.
#define LOOKED (COUNT >= 8 * TEAM ? 8 : COUNT > TEAM ? COUNT / TEAM : 1)
#define EACH_LOOKED(a) _Pragma("unroll") for (int a = 0; a < LOOKED; a++)
#define AHEAD 4
#define EACH_AHEAD(a) _Pragma("unroll") for (int a = 0; a < AHEAD; a++)
// Word w of the row in the source, and in y without the index.
#define FROM(w) (from + WALK(WORD_SPACE, SOURCE_WORD_STRIDES, INNER, w))
#define TO(w) (to + WALK(WORD_SPACE, Y_WORD_STRIDES, INNER, w))

// The first row of the list from `j` on that has the same position; there is one.
FUNCTION int next_met(LOCAL const u32 *met, int j) {
    u32 bits = met[j / 32] >> (j & 31);
    while (bits == 0) {
        j = (j | 31) + 1;
        bits = met[j / 32];
    }
    return j + 63 - leading_zeros_u64((u64)(bits & (0 - bits)));
}

#if TEAM <= WAVE
#define TEAM_BARRIER() WAVE_BARRIER()
#else
#define TEAM_BARRIER() BARRIER()
#endif
KERNEL(teams)(GLOBAL const SI *index, GLOBAL const S *source, GLOBAL S *y, ARGUMENT(Ints) p, i64 rows, i64 width, i64 along,
              i64 extent, i64 count, i64 apart, i64 index_step, i64 source_step, GLOBAL i64 *status) {
    SHARED(u32, bits, TEAMS * (COUNT / 32));
    SHARED(u32, others, TEAMS);
    int team = LANE / TEAM, member = LANE % TEAM, n = (int)count;
    i64 number = GROUP * TEAMS + team;
    int is_there = number < rows;
    idx row = is_there ? (idx)number : 0;
    int own = (int)(rows == count ? row : row / (idx)apart % (idx)n);
    LOCAL u32 *met = bits + team * (COUNT / 32);
    GLOBAL const SI *at = index + WALK(ROW_SPACE, INDEX_STRIDES, ROWS, row);
    GLOBAL const SI *list = at - own * (idx)index_step;
    idx to = WALK(ROW_SPACE, Y_STRIDES, ROWS, row), from = WALK(ROW_SPACE, SOURCE_STRIDES, ROWS, row);
    for (int i = member; i < COUNT / 32; i += TEAM) met[i] = 0;
    if (member == 0) others[team] = 0;
    TEAM_BARRIER();
    // These reads do not wait for each other.
    Word first;
    if (member < (int)width) first.all = ((GLOBAL const WORD *)source)[FROM(member)];
    i64 v = *at;
    for (int j = member; j < n; j += LOOKED * TEAM) {
        SI read[LOOKED];
        EACH_LOOKED(a) read[a] = list[(j + a * TEAM < n ? j + a * TEAM : own) * (idx)index_step];
        EACH_LOOKED(a) {
            int other = j + a * TEAM;
            if (other >= n || other == own || read[a] != v) continue;
            or_local(&met[other / 32], 1u << (other & 31));
            // Bit 0: there are rows before this one. The bits above: the number of rows after it.
            if (other < own)
                or_local(&others[team], 1);
            else
                add_local(&others[team], 2);
        }
    }
    if (is_there && (u64)v >= (u64)extent) {
        if (member == 0) note(status, row, v);
        is_there = 0;
    }
    TEAM_BARRIER();
    u32 found = others[team];
#ifdef ADDING
    if (!is_there || (found & 1)) return;
#if defined(HAS_ADDS) && defined(WHOLE)
    if (!found) {
        for (idx w = member; w < (idx)width; w += TEAM) {
            if (w != member) first.all = ((GLOBAL const WORD *)source)[FROM(w)];
            CAT(add_word_any_, T)(y + (TO(w) + (idx)v * (idx)along) * VECTOR, first.all);
        }
        return;
    }
#endif
    for (idx w = member; w < (idx)width; w += TEAM) {
        Word had, words[AHEAD];
        had.all = ((GLOBAL const WORD *)y)[TO(w) + (idx)v * (idx)along];
        if (w != member) first.all = ((GLOBAL const WORD *)source)[FROM(w)];
        Sum sum = joined(sum_of(had, 0), sum_of(first, own));
        // Added in blocks, which keeps the errors of long sums small.
        for (int j = own + 1, later = (int)(found >> 1); later > 0;) {
            Sum block = zero();
            for (int left = 64; later > 0 && left > 0; left -= AHEAD) {
                int next[AHEAD];
                EACH_AHEAD(a) {
                    next[a] = -1;
                    if (later == 0) continue;
                    j = next_met(met, j);
                    next[a] = j++;
                    later--;
                }
                EACH_AHEAD(a) if (next[a] >= 0)
                    words[a].all = ((GLOBAL const WORD *)source)[FROM(w) + (next[a] - own) * (idx)source_step];
                EACH_AHEAD(a) if (next[a] >= 0) block = joined(block, sum_of(words[a], next[a]));
            }
            sum = joined(sum, block);
        }
        store(y, TO(w) + (idx)v * (idx)along, sum);
    }
#else
    if (!is_there || found > 1) return;
    for (idx w = member; w < (idx)width; w += TEAM) {
        if (w != member) first.all = ((GLOBAL const WORD *)source)[FROM(w)];
        ((GLOBAL WORD *)y)[TO(w) + (idx)v * (idx)along] = first.all;
    }
#endif
}
