// Sums, means and maxima over the entries of a sparse matrix or the edges of a graph, and their gradients.
//
// The term of entry e in head h is weight[e, h] (x[column of e, h, ..] + attribute[e, h, ..]). A row has `width` words, and each head
// `per_head` of them.
//
// A team takes a slice of a row, a word for each of its threads, and BATCH entries are in flight at once. All rows of a slice precede
// those of the next, so that the cache has to hold a slice of x, not all of it.
//
// I, T, VECTOR, WORD: as in index.h
// THREADS: 1 .. 1024, threads of a group
// TEAM: power of 2 up to 32, threads of a row
// ACC: f32 or f64, dtype of the arithmetic
// WEIGHTED: flag, entries have weights
// ATTRIBUTES: flag, entries have attributes
// PERMUTED: flag, `entries` has the entry at each position; otherwise it is the position
// HEADS: flag, there are several heads
// MEAN: flag, the reduction is a mean
// MAX: flag, the reduction is a maximum
// LONG_LISTS: flag, sparse_reduce shares lists of more than LONG entries among all teams of a group; not with MAX
// KEEPS_BEST: flag, `best` has the maxima; otherwise y has them
// BEST: T, or ACC if the maxima are kept in the dtype in which they were compared
// BEST_WORD, BEST_WORDS: type and number of words of VECTOR maxima
// COUNT_WORD, COUNT_WORDS: type and number of words of VECTOR counts (i32)
// DOT: defined for sparse_backward and sparse_weights: T, or ACC if there are several slices
// OF_INPUT, OF_WEIGHTS, OF_ATTRIBUTES: flags, the gradients that are wanted
// NEEDS_F64: flag, x is f64
// WIDE: flag, positions have 64 bits

#include "indexing/index.h"

#define BATCH 4
// Entries of a partial sum. Sums of sums lose less to rounding.
#define PART 128
// Entries of the longest row that one team adds up alone.
#define LONG 512

#ifdef PERMUTED
#define ENTRY(k) ((idx)entries[k])
#else
#define ENTRY(k) (k)
#endif
// The weight of an entry in a head, and the head of a word of a row.
#ifdef HEADS
#define WEIGHT_OF(e, h) ((A)LOAD(T, weights, (idx)(e) * (idx)heads + (h)))
#define HEAD_OF(word) QUOTIENT(word, per_head, by_head)
#else
#define WEIGHT_OF(e, h) ((A)LOAD(T, weights, e))
#define HEAD_OF(word) 0
#endif
#define READ(p, at) (((GLOBAL const WORD *)(p))[at])

#ifdef MAX
typedef STORAGE(BEST) SB;
typedef union {
    BEST_WORD all[BEST_WORDS];
    SB each[VECTOR];
} Best;
typedef union {
    COUNT_WORD all[COUNT_WORDS];
    i32 each[VECTOR];
} Counts;

// The gradient of a term from the word `at` of dy: an equal part for each term that has the maximum. A product: a NaN maximum, whose
// count is 0, equals no term, and makes all gradients NaN.
FUNCTION void of_largest(A *part, const A *term, Word g, GLOBAL const SB *best, GLOBAL const i32 *ties, idx at) {
    Best most;
    Counts count;
    _Pragma("unroll") for (int k = 0; k < BEST_WORDS; k++) most.all[k] = ((GLOBAL const BEST_WORD *)best)[(i64)at * BEST_WORDS + k];
    _Pragma("unroll") for (int k = 0; k < COUNT_WORDS; k++)
        count.all[k] = ((GLOBAL const COUNT_WORD *)ties)[(i64)at * COUNT_WORDS + k];
    EACH_PART(j) part[j] = (A)LOAD(T, g.each, j) / (A)count.each[j] * (A)(term[j] == (A)LOAD(BEST, most.each, j));
}
#endif

// x + attribute, of a word.
#ifdef ATTRIBUTES
#define PLAIN_TERM(v, x, a) EACH_PART(j) (v)[j] = (A)LOAD(T, (x).each, j) + (A)LOAD(T, (a).each, j)
#else
#define PLAIN_TERM(v, x, a) EACH_PART(j) (v)[j] = (A)LOAD(T, (x).each, j)
#endif

// Entries in flight at once: the words of x or dy, those of the attributes, and the weights.
typedef struct {
    Word read[BATCH];
#ifdef ATTRIBUTES
    Word attribute[BATCH];
#endif
    A weight[BATCH];
} Batch;
#define EACH_READ(b) _Pragma("unroll") for (int b = 0; b < BATCH; b++)

#ifndef DOT

// A group has `together` lists at once, from `base` on: one for each team or, if there are few lists, for some of them. First each
// team takes its own list (`whose` is -1), unless it is long. Then all teams share each long list: that of the team `whose`.
#define EACH_LIST(base, whose) \
    for (i64 base = GROUP * together; base < count; base += GROUPS * together) \
        for (int whose = -1; whose < LISTS_TO_SHARE; whose++)
#ifdef LONG_LISTS
#define LISTS_TO_SHARE (int)together

// Whether the group has a long list. All threads call this before the first of them.
LOCAL_FUNCTION int has_long(LOCAL const u8 *are_long) {
    int found = 0;
    BARRIER();
    _Pragma("unroll") for (int team = 0; team < TEAMS; team++) found |= are_long[team];
    return found;
}

// This team's piece of a long list.
FUNCTION void take_piece(idx *first, idx *end) {
    idx piece = (*end - *first + TEAMS * BATCH - 1) / (TEAMS * BATCH) * BATCH, before = LANE / TEAM * piece;
    *first = before < *end - *first ? *first + before : *end;
    if (*end - *first > piece) *end = *first + piece;
}

// Adds the sums of all teams, in their order, to that of the first.
LOCAL_FUNCTION void join_pieces(A *sum, LOCAL A *pieces) {
    EACH_PART(j) pieces[LANE * VECTOR + j] = sum[j];
    BARRIER();
    if (LANE < TEAM)
        for (int team = 1; team < TEAMS; team++) EACH_PART(j) sum[j] += pieces[(team * TEAM + LANE) * VECTOR + j];
    BARRIER();
}

// Shares the long lists after the others. No team reads the flags of the lists before any more.
#define NEXT_LONG(base, whose) \
    if (whose < 0 && base != GROUP * together) BARRIER(); \
    if (whose == 0 && !has_long(are_long)) break; \
    if (whose >= 0 && !are_long[whose]) continue
#else
#define LISTS_TO_SHARE 0
#endif

// sparse_reduce: y [rows, width] from x. List i is the positions starts[i] .. starts[i + 1]; others[k] is the row of x of position k.
// Lists are reduced in order. A maximum also writes the number of terms that have it, and `best` if its dtype is not T. `count`: rows
// of all slices.
KERNEL(sparse_reduce)(GLOBAL const SI *starts, GLOBAL const SI *others, GLOBAL const S *x, GLOBAL const SI *entries,
                      GLOBAL const S *weights, GLOBAL const S *attributes, GLOBAL S *y,
#ifdef MAX
                      GLOBAL i32 *ties, GLOBAL SB *best,
#endif
                      i64 count, i64 together, i64 rows, i64 by_rows, i64 width, i64 heads, i64 per_head, i64 by_head) {
#ifdef LONG_LISTS
    SHARED(u8, are_long, TEAMS);
    SHARED(A, pieces, THREADS * VECTOR);
#endif
    EACH_LIST(base, whose) {
#ifdef LONG_LISTS
        NEXT_LONG(base, whose);
#endif
        int team = whose < 0 ? LANE / TEAM : whose, has_list = team < (int)together && base + team < count;
        idx item = (idx)(has_list ? base + team : count - 1), slice = QUOTIENT(item, rows, by_rows);
        idx row = item - slice * (idx)rows, u = slice * TEAM + MEMBER;
        idx first = (idx)starts[row], end = (idx)starts[row + 1], length = end - first;
        int is_there = has_list && u < (idx)width;
#ifdef LONG_LISTS
        if (whose < 0 && MEMBER == 0) are_long[LANE / TEAM] = has_list && length > LONG;
        if (whose < 0 && length > LONG) continue;
        if (whose >= 0) take_piece(&first, &end);
#endif
        if (!is_there) end = first;
        idx head = HEAD_OF(u);
        A sum[VECTOR], part[VECTOR];
        EACH_PART(j) sum[j] = 0;
#ifdef MAX
        Counts ties_of;
        EACH_PART(j) ties_of.each[j] = 0;
#endif
        for (idx start = first; start < end; start += PART) {
            idx stop = end - start < PART ? end : start + PART;
            EACH_PART(j) part[j] = 0;
            for (idx k = start; k < stop; k += BATCH) {
                Batch of;
                EACH_READ(b) {
                    // Past the end the last entry is read again.
                    idx at = k + b < stop ? k + b : stop - 1;
                    SET_WORD(of.read[b], READ(x, (idx)others[at] * (idx)width + u));
#if defined(WEIGHTED) || defined(ATTRIBUTES)
                    idx entry = ENTRY(at);
#endif
#ifdef WEIGHTED
                    of.weight[b] = WEIGHT_OF(entry, head);
#endif
#ifdef ATTRIBUTES
                    SET_WORD(of.attribute[b], READ(attributes, entry * (idx)width + u));
#endif
                }
                EACH_READ(b) {
                    A v[VECTOR];
                    if (k + b >= stop) break;
                    PLAIN_TERM(v, of.read[b], of.attribute[b]);
#ifdef MAX
#ifdef WEIGHTED
                    EACH_PART(j) v[j] *= of.weight[b];
#endif
                    EACH_PART(j) {
                        int is_more = k + b == first || v[j] > sum[j] || IS_NAN(v[j]), is_equal = v[j] == sum[j];
                        ties_of.each[j] = is_more ? 1 : ties_of.each[j] + is_equal;
                        sum[j] = is_more ? v[j] : sum[j];
                    }
#elif defined(WEIGHTED)
                    EACH_PART(j) part[j] = fma_(of.weight[b], v[j], part[j]);
#else
                    EACH_PART(j) part[j] += v[j];
#endif
                }
            }
            EACH_PART(j) sum[j] += part[j];
        }
#ifdef LONG_LISTS
        if (whose >= 0) join_pieces(sum, pieces);
#endif
        if (!is_there || (whose >= 0 && LANE >= TEAM)) continue;
        Word made;
#ifdef MEAN
        EACH_PART(j) sum[j] /= (A)(length > 0 ? length : 1);
#endif
        EACH_PART(j) STORE(T, made.each, j, sum[j]);
        idx to = row * (idx)width + u;
        ((GLOBAL WORD *)y)[to] = made.all;
#ifdef MAX
        EACH_PART(j) if (IS_NAN(sum[j])) ties_of.each[j] = 0;
        _Pragma("unroll") for (int k = 0; k < COUNT_WORDS; k++)
            ((GLOBAL COUNT_WORD *)ties)[(i64)to * COUNT_WORDS + k] = ties_of.all[k];
#ifdef KEEPS_BEST
        Best kept;
        EACH_PART(j) STORE(BEST, kept.each, j, sum[j]);
        _Pragma("unroll") for (int k = 0; k < BEST_WORDS; k++)
            ((GLOBAL BEST_WORD *)best)[(i64)to * BEST_WORDS + k] = kept.all[k];
#endif
#endif
    }
}

#else

// Teams that join sums take their turns together: the teams of a wave or, without waves, of a group. This is the largest of the
// numbers of entries of these teams.
#if !defined(OF_WEIGHTS)
#define LONGEST(count) (count)
#elif WAVE > 1
WAVE_EXCHANGE(count_of_lane, idx)
FUNCTION idx longest(idx count) {
    _Pragma("unroll") for (int by = TEAM; by < WAVE; by *= 2) {
        idx other = count_of_lane(count, by);
        count = other > count ? other : count;
    }
    return count;
}
#define LONGEST(count) longest(count)
#else
LOCAL_FUNCTION idx longest(idx count, LOCAL idx *counts) {
    if (MEMBER == 0) counts[LANE / TEAM] = count;
    BARRIER();
    for (int team = 0; team < TEAMS; team++) count = counts[team] > count ? counts[team] : count;
    BARRIER();
    return count;
}
#define LONGEST(count) longest(count, counts)
#endif

typedef STORAGE(DOT) SD;

// sparse_backward: from dy [rows, width], the gradients dx [columns, width] of x, dweights [entries, heads], and dattributes
// [entries, width]. List j is the positions of the entries in column j; others[k] is the row of position k. A team takes a slice of a
// head of a column. It keeps its words of x, and reads those of dy once for all gradients. `divisors` begins the list of each row, for
// a mean. `count`: columns and heads of all slices; `of_slice`: those of one. With a DOT of ACC, each slice has its own dweights.
KERNEL(sparse_backward)(GLOBAL const SI *starts, GLOBAL const SI *others, GLOBAL const S *x, GLOBAL const SI *entries,
                        GLOBAL const S *weights, GLOBAL const S *attributes, GLOBAL const SI *divisors, GLOBAL const S *dy,
#ifdef MAX
                        GLOBAL const SB *best, GLOBAL const i32 *ties,
#endif
                        GLOBAL S *dx, GLOBAL SD *dweights, GLOBAL S *dattributes, i64 count, i64 of_slice, i64 by_slice, i64 heads,
                        i64 by_heads, i64 per_head, i64 weights_of_slice) {
#ifdef OF_WEIGHTS
    JOINS(BATCH);
#if WAVE == 1
    SHARED(idx, counts, TEAMS);
#endif
#endif
    // All threads of a group take the same number of turns. A team without a list has no entries.
    for (i64 base = GROUP * TEAMS; base < count; base += GROUPS * TEAMS) {
        int has_list = base + LANE / TEAM < count;
        idx item = (idx)(has_list ? base + LANE / TEAM : count - 1), slice = QUOTIENT(item, of_slice, by_slice);
        idx place = item - slice * (idx)of_slice, column = place, head = 0, u = slice * TEAM + MEMBER;
#ifdef HEADS
        column = QUOTIENT(place, heads, by_heads);
        head = place - column * (idx)heads;
#endif
        idx first = (idx)starts[column], end = has_list ? (idx)starts[column + 1] : first;
        // A thread without a word reads the first one.
        int has_word = has_list && u < (idx)per_head;
        if (!has_word) u = 0;
#if defined(OF_WEIGHTS) || defined(MAX)
        Word own;
        SET_WORD(own, READ(x, place * (idx)per_head + u));
#endif
        A sum[VECTOR], part[VECTOR];
        EACH_PART(j) sum[j] = 0;
        idx turns = LONGEST(end - first);
        for (idx start = 0; start < turns; start += PART) {
            EACH_PART(j) part[j] = 0;
            for (idx turn = start; turn < turns && turn < start + PART; turn += BATCH) {
                Batch of;
                idx k = first + turn, entry[BATCH], from[BATCH];
                A length[BATCH], dot[BATCH];
                EACH_READ(b) {
                    // Past the end the last entry is read again.
                    idx at = k + b < end ? k + b : end > 0 ? end - 1 : 0, row = (idx)others[at];
                    from[b] = (row * (idx)heads + head) * (idx)per_head + u;
                    SET_WORD(of.read[b], READ(dy, from[b]));
                    entry[b] = ENTRY(at) * (idx)heads + head;
                    of.weight[b] = 1;
#ifdef WEIGHTED
                    of.weight[b] = (A)LOAD(T, weights, entry[b]);
#endif
#ifdef ATTRIBUTES
                    SET_WORD(of.attribute[b], READ(attributes, entry[b] * (idx)per_head + u));
#endif
#ifdef MEAN
                    length[b] = (A)(divisors[row + 1] - divisors[row]);
#endif
                }
                EACH_READ(b) {
                    A g[VECTOR], factor = of.weight[b];
                    int is_entry = k + b < end && has_word;
                    dot[b] = 0;
                    EACH_PART(j) g[j] = (A)LOAD(T, of.read[b].each, j);
#if defined(OF_WEIGHTS) || defined(MAX)
                    A plain[VECTOR];
                    PLAIN_TERM(plain, own, of.attribute[b]);
#endif
#ifdef MAX
                    A term[VECTOR];
                    EACH_PART(j) term[j] = factor * plain[j];
                    of_largest(g, term, of.read[b], best, ties, from[b]);
#endif
#ifdef OF_WEIGHTS
                    EACH_PART(j) dot[b] = fma_(g[j], plain[j], dot[b]);
                    if (!is_entry) dot[b] = 0;
#endif
#ifdef MEAN
                    factor /= length[b];
                    dot[b] /= length[b];
#endif
#ifdef OF_INPUT
                    EACH_PART(j) part[j] = is_entry ? fma_(factor, g[j], part[j]) : part[j];
#endif
#ifdef OF_ATTRIBUTES
                    Word made;
                    EACH_PART(j) STORE(T, made.each, j, factor * g[j]);
                    if (is_entry) ((GLOBAL WORD *)dattributes)[entry[b] * (idx)per_head + u] = made.all;
#endif
                }
#ifdef OF_WEIGHTS
                team_join(dot, BATCH, SIDE(BATCH), JOIN_TO_SUM);
                EACH_READ(b)
                    if (k + b < end && MEMBER == b % TEAM) STORE(DOT, dweights, slice * weights_of_slice + entry[b], dot[b]);
#endif
            }
            EACH_PART(j) sum[j] += part[j];
        }
#ifdef OF_INPUT
        Word made;
        EACH_PART(j) STORE(T, made.each, j, sum[j]);
        if (has_word) ((GLOBAL WORD *)dx)[place * (idx)per_head + u] = made.all;
#endif
    }
}

// sparse_weights: the sums over all slices of the gradients of `count` weights.
KERNEL(sparse_weights)(GLOBAL const SD *of_slices, GLOBAL S *dweights, i64 count, i64 slices) {
    for (i64 i = GROUP * THREADS + LANE; i < count; i += GROUPS * THREADS) {
        A sum = 0;
        for (i64 slice = 0; slice < slices; slice++) sum += LOAD(DOT, of_slices, slice * count + i);
        STORE(T, dweights, i, sum);
    }
}

#endif
