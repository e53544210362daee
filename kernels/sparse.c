// Sums, means and maxima over the entries of a sparse matrix or the edges of a graph, and their gradients.
//
// The term of entry e in head h is weight[e, h] (x[column of e, h, ..] + attribute[e, h, ..]). A row has `width` words, and each head
// `per_head` of them.
//
// A team takes a row, or an entry and head, and each of its threads some words. Threads of a team read neighbouring words of x, and
// BATCH entries are in flight at once.
//
// I, T, VECTOR, WORD: as in index.h
// THREADS: 1 .. 1024, threads of a group
// TEAM: power of 2 up to THREADS, threads of a row
// ACC: f32 or f64, dtype of the arithmetic
// WEIGHTED: flag, entries have weights
// ATTRIBUTES: flag, entries have attributes
// PERMUTED: flag, `entries` has the entry at each position; otherwise it is the position
// HEADS: flag, there are several heads
// DIVIDED: flag, rows of x are divided by the lengths of the lists that begin at `divisors`
// MEAN: flag, the reduction is a mean
// MAX: flag, the reduction is a maximum
// BEST: T, or ACC if the maxima are kept in the dtype in which they were compared
// BEST_WORD, BEST_WORDS: type and number of words of VECTOR maxima
// COUNT_WORD, COUNT_WORDS: type and number of words of VECTOR counts (i32)
// OF_WEIGHTS, OF_ATTRIBUTES: flags, the gradients that are wanted
// NEEDS_F64: flag, x is f64
// WIDE: flag, positions have 64 bits

#include "index.h"

#define BATCH 4
// Entries of a partial sum. Sums of sums lose less to rounding.
#define PART 128

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

// Entries from `k` on, in flight at once: the words of x and of the attributes, and the factors.
typedef struct {
    Word x[BATCH];
#ifdef ATTRIBUTES
    Word attribute[BATCH];
#endif
    A factor[BATCH];
} Batch;
#define EACH_READ(b) _Pragma("unroll") for (int b = 0; b < BATCH; b++)

// sparse_reduce: y [rows, width] from x. List i is the positions starts[i] .. starts[i + 1]; others[k] is the row of x of position k.
// Lists are reduced in order. A maximum also writes the number of terms that have it, and `best` if its dtype is not T.
KERNEL(sparse_reduce)(GLOBAL const SI *starts, GLOBAL const SI *others, GLOBAL const S *x, GLOBAL const SI *entries,
                      GLOBAL const S *weights, GLOBAL const S *attributes, GLOBAL const SI *divisors, GLOBAL S *y,
#ifdef MAX
                      GLOBAL i32 *ties, GLOBAL SB *best,
#endif
                      i64 rows, i64 width, i64 heads, i64 per_head, i64 by_head) {
    for (i64 row = GROUP * TEAMS + LANE / TEAM; row < rows; row += GROUPS * TEAMS) {
        idx first = (idx)starts[row], end = (idx)starts[row + 1];
        for (idx u = MEMBER; u < (idx)width; u += TEAM) {
            idx head = HEAD_OF(u);
            A sum[VECTOR], part[VECTOR];
            EACH_PART(j) sum[j] = 0;
#ifdef MAX
            Counts count;
            EACH_PART(j) count.each[j] = 0;
#endif
            for (idx start = first; start < end; start += PART) {
                idx stop = end - start < PART ? end : start + PART;
                EACH_PART(j) part[j] = 0;
                for (idx k = start; k < stop; k += BATCH) {
                    Batch of;
                    EACH_READ(b) {
                        // Past the end the last entry is read again.
                        idx at = k + b < stop ? k + b : stop - 1, other = (idx)others[at];
                        SET_WORD(of.x[b], READ(x, other * (idx)width + u));
                        of.factor[b] = 1;
#if defined(WEIGHTED) || defined(ATTRIBUTES)
                        idx entry = ENTRY(at);
#endif
#ifdef WEIGHTED
                        of.factor[b] = WEIGHT_OF(entry, head);
#endif
#ifdef ATTRIBUTES
                        SET_WORD(of.attribute[b], READ(attributes, entry * (idx)width + u));
#endif
#ifdef DIVIDED
                        of.factor[b] /= (A)(divisors[other + 1] - divisors[other]);
#endif
                    }
                    EACH_READ(b) {
                        A v[VECTOR];
                        if (k + b >= stop) break;
                        PLAIN_TERM(v, of.x[b], of.attribute[b]);
#ifdef MAX
#ifdef WEIGHTED
                        EACH_PART(j) v[j] *= of.factor[b];
#endif
                        EACH_PART(j) {
                            int is_more = k + b == first || v[j] > sum[j] || IS_NAN(v[j]), is_equal = v[j] == sum[j];
                            count.each[j] = is_more ? 1 : count.each[j] + is_equal;
                            sum[j] = is_more ? v[j] : sum[j];
                        }
#elif defined(WEIGHTED) || defined(DIVIDED)
                        EACH_PART(j) part[j] = fma_(of.factor[b], v[j], part[j]);
#else
                        EACH_PART(j) part[j] += v[j];
#endif
                    }
                }
                EACH_PART(j) sum[j] += part[j];
            }
            Word made;
#ifdef MEAN
            A length = (A)(end > first ? end - first : 1);
            EACH_PART(j) sum[j] /= length;
#endif
            EACH_PART(j) STORE(T, made.each, j, sum[j]);
            idx to = (idx)row * (idx)width + u;
            ((GLOBAL WORD *)y)[to] = made.all;
#ifdef MAX
            EACH_PART(j) if (IS_NAN(sum[j])) count.each[j] = 0;
            _Pragma("unroll") for (int k = 0; k < COUNT_WORDS; k++)
                ((GLOBAL COUNT_WORD *)ties)[(i64)to * COUNT_WORDS + k] = count.all[k];
#ifdef KEEPS_BEST
            Best kept;
            EACH_PART(j) STORE(BEST, kept.each, j, sum[j]);
            _Pragma("unroll") for (int k = 0; k < BEST_WORDS; k++)
                ((GLOBAL BEST_WORD *)best)[(i64)to * BEST_WORDS + k] = kept.all[k];
#endif
#endif
        }
    }
}

#ifdef MAX
// sparse_max_backward: dx [columns, width] of x, from dy, the maxima and their numbers. List j is the positions of the entries in
// column j; others[k] is the row of position k.
KERNEL(sparse_max_backward)(GLOBAL const SI *starts, GLOBAL const SI *others, GLOBAL const S *x, GLOBAL const SI *entries,
                            GLOBAL const S *weights, GLOBAL const S *attributes, GLOBAL const S *dy, GLOBAL const SB *best,
                            GLOBAL const i32 *ties, GLOBAL S *dx, i64 columns, i64 width, i64 heads, i64 per_head, i64 by_head) {
    for (i64 column = GROUP * TEAMS + LANE / TEAM; column < columns; column += GROUPS * TEAMS) {
        idx first = (idx)starts[column], end = (idx)starts[column + 1];
        for (idx u = MEMBER; u < (idx)width; u += TEAM) {
            idx head = HEAD_OF(u);
            idx own = (idx)column * (idx)width + u;
            Word v;
            A sum[VECTOR], term[VECTOR], part[VECTOR];
            SET_WORD(v, READ(x, own));
            EACH_PART(j) sum[j] = 0;
            for (idx k = first; k < end; k++) {
                idx at = (idx)others[k] * (idx)width + u;
                A factor = 1;
                Word g, attribute;
                SET_WORD(g, READ(dy, at));
#if defined(WEIGHTED) || defined(ATTRIBUTES)
                idx entry = ENTRY(k);
#endif
#ifdef ATTRIBUTES
                SET_WORD(attribute, READ(attributes, entry * (idx)width + u));
#endif
                PLAIN_TERM(term, v, attribute);
#ifdef WEIGHTED
                factor = WEIGHT_OF(entry, head);
                EACH_PART(j) term[j] *= factor;
#endif
                of_largest(part, term, g, best, ties, at);
                EACH_PART(j) sum[j] = fma_(factor, part[j], sum[j]);
            }
            Word made;
            EACH_PART(j) STORE(T, made.each, j, sum[j]);
            ((GLOBAL WORD *)dx)[own] = made.all;
        }
    }
}
#endif

// sparse_entry_backward: the gradients of the weights [entries, heads] and of the attributes [entries, heads, per_head]. A team takes
// an entry and head. `row_of` and `column_of` are those of each entry; `divisors` begins the list of each row, for a mean.
KERNEL(sparse_entry_backward)(GLOBAL const SI *row_of, GLOBAL const SI *column_of, GLOBAL const S *x, GLOBAL const S *weights,
                              GLOBAL const S *attributes, GLOBAL const S *dy, GLOBAL const SI *divisors,
#ifdef MAX
                              GLOBAL const SB *best, GLOBAL const i32 *ties,
#endif
                              GLOBAL S *dweights, GLOBAL S *dattributes, i64 count, i64 heads, i64 by_heads, i64 per_head) {
#ifdef OF_WEIGHTS
    JOINS(1);
#endif
    for (i64 base = GROUP * TEAMS; base < count; base += GROUPS * TEAMS) {
        i64 all = base + LANE / TEAM;
        int is_there = all < count;
        idx item = (idx)(is_there ? all : count - 1);
#ifdef HEADS
        idx entry = QUOTIENT(item, heads, by_heads), head = item - entry * (idx)heads;
#else
        idx entry = item, head = 0;
#endif
        idx row = (idx)row_of[entry];
        idx of_y = (row * (idx)heads + head) * (idx)per_head;
#if defined(OF_WEIGHTS) || defined(MAX)
        idx of_x = ((idx)column_of[entry] * (idx)heads + head) * (idx)per_head;
#endif
#if defined(WEIGHTED) && (defined(OF_ATTRIBUTES) || defined(MAX))
        A factor = (A)LOAD(T, weights, item);
#endif
#ifdef MEAN
        A length = (A)(divisors[row + 1] - divisors[row]);
#endif
        A dot = 0;
        for (idx u = MEMBER; u < (idx)per_head; u += TEAM) {
            Word g;
            A part[VECTOR];
            SET_WORD(g, READ(dy, of_y + u));
#if defined(OF_WEIGHTS) || defined(MAX)
            Word v, attribute;
            A plain[VECTOR];
            SET_WORD(v, READ(x, of_x + u));
#ifdef ATTRIBUTES
            SET_WORD(attribute, READ(attributes, item * (idx)per_head + u));
#endif
            PLAIN_TERM(plain, v, attribute);
#endif
#ifdef MAX
            A term[VECTOR];
            EACH_PART(j) term[j] = plain[j];
#ifdef WEIGHTED
            EACH_PART(j) term[j] *= factor;
#endif
            of_largest(part, term, g, best, ties, of_y + u);
#else
            EACH_PART(j) part[j] = (A)LOAD(T, g.each, j);
#ifdef MEAN
            EACH_PART(j) part[j] /= length;
#endif
#endif
#ifdef OF_WEIGHTS
            EACH_PART(j) dot = fma_(part[j], plain[j], dot);
#endif
#ifdef OF_ATTRIBUTES
            Word made;
#ifdef WEIGHTED
            EACH_PART(j) part[j] *= factor;
#endif
            EACH_PART(j) STORE(T, made.each, j, part[j]);
            if (is_there) ((GLOBAL WORD *)dattributes)[item * (idx)per_head + u] = made.all;
#endif
        }
#ifdef OF_WEIGHTS
        dot = TEAM_SUM(dot);
        if (MEMBER == 0 && is_there) STORE(T, dweights, item, dot);
#endif
    }
}
