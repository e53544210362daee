// The softmax of the entries of each row of a sparse matrix, or of the edges of each node of a graph, and its gradient.
//
// Entries are [E, heads]; each has `words` words. List i is the positions starts[i] .. starts[i + 1]. A team takes a row and a word of
// its entries, and its threads the entries in turn. A thread keeps its first KEPT words in registers, and rereads the others.
//
// I, T, VECTOR, WORD: as in index.h
// THREADS: 1 .. 1024, threads of a group
// TEAM: power of 2 up to THREADS, threads of a row and word
// ACC: f32 or f64, dtype of the arithmetic
// KEPT: 1.., words that a thread keeps
// PERMUTED: flag, `entries` has the entry at each position; otherwise it is the position
// NEEDS_F64: flag, x is f64
// WIDE: flag, positions have 64 bits

#include "indexing/index.h"

// Entries of a partial sum. Sums of sums lose less to rounding.
#define PART 128

#ifdef PERMUTED
#define ENTRY(k) ((idx)entries[k])
#else
#define ENTRY(k) (k)
#endif
#define PLACE(k) (ENTRY(k) * (idx)words + u)
#define READ(p, at) (((GLOBAL const WORD *)(p))[at])
#define PUT(p, at, word) (((GLOBAL WORD *)(p))[at] = (word))

// All threads of a group take the same number of turns. A team without a row has no entries.
#define EACH_LIST(first, end, u) \
    for (i64 base = GROUP * TEAMS; base < count; base += GROUPS * TEAMS) { \
        i64 item = base + LANE / TEAM; \
        int is_there = item < count; \
        idx of = (idx)(is_there ? item : count - 1), row = QUOTIENT(of, words, by_words), u = of - row * (idx)words; \
        idx first = (idx)starts[row], end = is_there ? (idx)starts[row + 1] : first;
#define END_LIST }
// The kept words of a thread, and the position of each.
#define EACH_KEPT(n) _Pragma("unroll") for (int n = 0; n < KEPT; n++)
#define KEPT_AT(n) (first + MEMBER + (n) * TEAM)
// The positions of its other words.
#define EACH_OTHER(k) for (idx k = KEPT_AT(KEPT); k < end; k += TEAM)

// Powers take the place of the logits, unless that would round them: then they are computed again.
#define KEEPS_POWERS (sizeof(S) == sizeof(A))

// A quotient of a power and a sum, of which `by` is the inverse. In 16 bits the product with that is exact enough.
#define SHARE_OF(power, sum, by) (sizeof(S) == 2 ? (power) * (by) : (power) / (sum))

// edge_softmax: y [E, heads] of x: e^(x - max) / (sum + 1e-16).
KERNEL(edge_softmax)(GLOBAL const SI *starts, GLOBAL const S *x, GLOBAL const SI *entries, GLOBAL S *y, i64 count, i64 words,
                     i64 by_words) {
    JOINS(VECTOR);
    EACH_LIST(first, end, u)
    Word own[KEPT];
    A most[VECTOR], sum[VECTOR];
    EACH_KEPT(n) if (KEPT_AT(n) < end) SET_WORD(own[n], READ(x, PLACE(KEPT_AT(n))));
    EACH_PART(j) most[j] = LOWEST;
    EACH_KEPT(n) if (KEPT_AT(n) < end) EACH_PART(j) {
        A v = (A)LOAD(T, own[n].each, j);
        most[j] = LARGER(most[j], v);
    }
    EACH_OTHER(k) {
        Word w;
        SET_WORD(w, READ(x, PLACE(k)));
        EACH_PART(j) {
            A v = (A)LOAD(T, w.each, j);
            most[j] = LARGER(most[j], v);
        }
    }
    team_join(most, VECTOR, SIDE(VECTOR), JOIN_TO_MAX);
    EACH_PART(j) sum[j] = 0;
    EACH_KEPT(n) if (KEPT_AT(n) < end) EACH_PART(j) {
        A power = POWER((A)LOAD(T, own[n].each, j) - most[j]);
        sum[j] += power;
        if (KEEPS_POWERS) STORE(T, own[n].each, j, power);
    }
    idx after = KEPT_AT(KEPT);
    while (after < end) {
        A part[VECTOR];
        EACH_PART(j) part[j] = 0;
        for (int n = 0; n < PART && after < end; n++, after += TEAM) {
            Word w;
            SET_WORD(w, READ(x, PLACE(after)));
            EACH_PART(j) part[j] += POWER((A)LOAD(T, w.each, j) - most[j]);
        }
        EACH_PART(j) sum[j] += part[j];
    }
    team_join(sum, VECTOR, SIDE(VECTOR), JOIN_TO_SUM);
    A by[VECTOR];
    EACH_PART(j) {
        sum[j] += (A)1e-16f;
        by[j] = 1 / sum[j];
    }
    EACH_KEPT(n) {
        idx k = KEPT_AT(n);
        if (k >= end) continue;
        EACH_PART(j) {
            A kept = (A)LOAD(T, own[n].each, j), power = KEEPS_POWERS ? kept : POWER(kept - most[j]);
            STORE(T, own[n].each, j, SHARE_OF(power, sum[j], by[j]));
        }
        PUT(y, PLACE(k), own[n].all);
    }
    EACH_OTHER(k) {
        idx at = PLACE(k);
        Word w;
        SET_WORD(w, READ(x, at));
        EACH_PART(j) STORE(T, w.each, j, SHARE_OF(POWER((A)LOAD(T, w.each, j) - most[j]), sum[j], by[j]));
        PUT(y, at, w.all);
    }
    END_LIST
}

// edge_softmax_backward: dx = y (dy - sum of dy y over the row), all [E, heads].
KERNEL(edge_softmax_backward)(GLOBAL const SI *starts, GLOBAL const S *dy, GLOBAL const S *y, GLOBAL const SI *entries, GLOBAL S *dx,
                              i64 count, i64 words, i64 by_words) {
    JOINS(VECTOR);
    EACH_LIST(first, end, u)
    Word g[KEPT], share[KEPT];
    A dot[VECTOR];
    EACH_PART(j) dot[j] = 0;
    EACH_KEPT(n) {
        idx k = KEPT_AT(n);
        if (k < end) {
            idx at = PLACE(k);
            SET_WORD(g[n], READ(dy, at));
            SET_WORD(share[n], READ(y, at));
        }
    }
    EACH_KEPT(n) if (KEPT_AT(n) < end) EACH_PART(j) dot[j] = fma_((A)LOAD(T, g[n].each, j), (A)LOAD(T, share[n].each, j), dot[j]);
    idx after = KEPT_AT(KEPT);
    while (after < end) {
        A part[VECTOR];
        EACH_PART(j) part[j] = 0;
        for (int n = 0; n < PART && after < end; n++, after += TEAM) {
            idx at = PLACE(after);
            Word a, b;
            SET_WORD(a, READ(dy, at));
            SET_WORD(b, READ(y, at));
            EACH_PART(j) part[j] = fma_((A)LOAD(T, a.each, j), (A)LOAD(T, b.each, j), part[j]);
        }
        EACH_PART(j) dot[j] += part[j];
    }
    team_join(dot, VECTOR, SIDE(VECTOR), JOIN_TO_SUM);
    EACH_KEPT(n) {
        idx k = KEPT_AT(n);
        if (k < end) {
            EACH_PART(j) STORE(T, g[n].each, j, ((A)LOAD(T, g[n].each, j) - dot[j]) * (A)LOAD(T, share[n].each, j));
            PUT(dx, PLACE(k), g[n].all);
        }
    }
    EACH_OTHER(k) {
        idx at = PLACE(k);
        Word a, b;
        SET_WORD(a, READ(dy, at));
        SET_WORD(b, READ(y, at));
        EACH_PART(j) STORE(T, a.each, j, ((A)LOAD(T, a.each, j) - dot[j]) * (A)LOAD(T, b.each, j));
        PUT(dx, at, a.all);
    }
    END_LIST
}
