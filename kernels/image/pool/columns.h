// A group reduces columns first, then joins them to adaptive windows.

#include "image/pool/words.h"
#include "image/pool/join.h"

// A band is the lines that adjacent windows read. There are `count` bands, and a group takes `bands` at once. First each thread
// reduces a word of columns of a band, over every `n_parts`-th line. Then `members` threads, a power of 2, compute a window from
// the parts of columns.
//
// BANDS, N_PARTS: bands, n_parts
// SHIFT: the logarithm of members
// TAKEN: words of a group

// Lines that a thread reads at once.
#define BATCH_LINES 4
// The distance between the elements of a thread's word. It puts them, and adjacent elements of a line, in different banks.
#define COLUMN_STEP (THREADS + 32 / VECTOR)

// BATCH_LINES words of columns, `step` lines apart; `lines` of these lines exist.
FUNCTION void read_lines(Read *r, GLOBAL const S *x, idx line_length, idx step, idx lines) {
#pragma unroll
    for (int u = 0; u < BATCH_LINES; u++)
        if (u * step < lines) SET_WORD(r[u], *(GLOBAL const WORD *)(x + u * step * line_length));
}

// A window of columns `begin` to `end` of a band. The words of its n_parts parts begin at `word` and are `step` apart. `member` of
// `members` threads takes every `members`-th column.
LOCAL_FUNCTION Part window_of_columns(LOCAL const Part *columns, idx begin, idx end, int member, int members, int word, int step,
                                      int n_parts) {
    Part own = blank_part();
    for (int k = 0; k < n_parts; k++, word += step)
        for (idx c = begin + member; c < end; c += members)
            own = joined(own, columns[((int)c & (VECTOR - 1)) * COLUMN_STEP + word + (int)((u32)c / VECTOR)]);
    return own;
}

#define EACH_BAND(base) for (idx base = (idx)GROUP * BANDS; base < (idx)count; base += (idx)GROUPS * BANDS)
// The windows of a group's bands, with `members` threads each. All threads take the same number of turns.
#define EACH_WINDOW_OF_BANDS(window) \
    for (idx start = 0, window; window = start + (LANE >> SHIFT), start < BANDS * OUT_W; start += THREADS >> SHIFT)

POOL_COLUMNS {
    SHARED(Part, parts, THREADS);
    SHARED(Part, columns, VECTOR * COLUMN_STEP);
    idx words = STRIPS, taken_words = TAKEN;
    int n_parts = (int)N_PARTS, members = 1 << SHIFT;
    idx part = QUOTIENT((idx)LANE, taken_words, BY_TAKEN);
    EACH_BAND(base) {
        idx item = base * words + LANE - part * taken_words;
        if (part < n_parts && item < (idx)count * words) {
            At at = place(p, item);
            idx front = BEGIN(at.z, D), depth = LENGTH(at.z, D), top = BEGIN(at.y, H), height = LENGTH(at.y, H);
            GLOBAL const S *volume = x + (at.plane * (IN_D * IN_H * IN_W) + at.strip * VECTOR);
            Part own[VECTOR];
            EACH_OF_WORD(j) own[j] = blank_part();
            for (idx z = front; z < front + depth; z++) {
                for (idx row = top + part; row < top + height; row += n_parts * BATCH_LINES) {
                    idx line = z * IN_H + row, lines = top + height - row;
                    Read r[BATCH_LINES];
                    read_lines(r, volume + line * IN_W, IN_W, n_parts, lines);
                    TAKE_LINES(own, r, line, n_parts, lines);
                }
            }
            EACH_OF_WORD(j) {
                NUMBER_ELEMENT(own[j], at, j);
                columns[j * COLUMN_STEP + LANE] = own[j];
            }
        }
        BARRIER();
        int member = LANE & (members - 1);
        EACH_WINDOW_OF_BANDS(window) {
            idx band = QUOTIENT(window, OUT_W, BY_OUT_W), q = window - band * OUT_W;
            int is_there = band < BANDS && base + band < (idx)count;
            idx begin = BEGIN(q, W), end = END(q, W);
            Part own = window_of_columns(columns, begin, end, member, members, (int)(band * words), (int)taken_words,
                                         is_there ? n_parts : 0);
            own = join(own, members, parts);
            if (member > 0 || !is_there) continue;
            At at = place(p, (base + band) * words);
            DIVIDE_BY(own.v, TERMS(at.z, D) * TERMS(at.y, H) * (end - begin));
            STORE(T, y, base * OUT_W + window, own.v);
            WRITE_INDEX(base * OUT_W + window, position(p, NUMBER_OF(own), BEGIN(at.z, D), BEGIN(at.y, H), begin));
        }
        BARRIER();
    }
}
