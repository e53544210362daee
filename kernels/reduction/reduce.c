// Reductions. x has kept dimensions, which are the dimensions of the results, and reduced dimensions.
//
// `p`: extents of the kept dimensions, their strides in x, their strides in y; then extents and strides of the reduced dimensions.
// A result is the reduction of `count` elements. A launch reduces `part` of them per line of groups (GROUP_Y), and writes the
// results `step` elements apart; a further launch joins them. With LAST_JOINS, the last group of a result to begin joins the parts,
// which the other groups leave for it in `left`. `begun` counts groups when they begin: no group waits for one that is not
// resident, and the count arrives while the group reads. Both are 0 before and after the launch.
//
// THREADS: power of 2, threads of a group
// INTS: 1.., length of `p`
// KEPT, REDUCED: 1.., numbers of kept and reduced dimensions
// X, Y, ACC: dtypes of x, of y and of the arithmetic
// PARTIAL_X, PARTIAL_Y: flags, x, y hold partial results, in place of X, Y
// JOIN_SUM, JOIN_PROD, JOIN_SQUARES, JOIN_MAX, JOIN_MIN, JOIN_ARGMAX, JOIN_ARGMIN: flag, the reduction
// JOIN_POWERS: flag, the sum of powers of e
// JOIN_SPREAD: flag, mean and squared deviations
// FINISH_MEAN, FINISH_NORM, FINISH_LOG: flag, the function of the joined result: quotient by `divisor`, root, logarithm
// TWOFOLD: flag, `second` gets 1 over the number of elements equal to the extremum; of JOIN_SPREAD the mean; of JOIN_POWERS the
//   largest elements, then the logarithms of the sums relative to them
// LAST_NAN: flag, a position is that of the last NaN, not of the first
// SQUARES: flag, squares are joined
// EDGES: flag, with SQUARES, sums may leave the range
// SHARES: flag, elements are multiplied by a power of 2 below 1 / count, so that sums stay in range
// ROWS: flag, reduce_rows; otherwise reduce_columns
// VECTOR: 1 .. 16, elements that a thread reads at once
// WORD: type of VECTOR elements
// UNROLL: 1.., reads in flight
// READS_REST: flag, the remaining reads of a part, fewer than UNROLL, are in flight together as well
// LAST_JOINS: flag, the last group joins the parts
// AT_ONCE: groups that a multiprocessor should run together
// ROW: name of a pointwise row whose result is reduced; the generated source before this file reads and writes its other operands
// INTEGER, NEEDS_F64: flags, the arithmetic is i64, f64
// WIDE: flag, positions have 64 bits

#define LOG2(n) (63 - leading_zeros_u64(n))
#define KEPT_EXTENT(d) ((idx)p.v[d])
#define KEPT_X(d) ((idx)p.v[KEPT + (d)])
#define KEPT_Y(d) ((idx)p.v[2 * KEPT + (d)])
#define REDUCED_EXTENT(d) ((idx)p.v[3 * KEPT + (d)])
#define REDUCED_X(d) ((idx)p.v[3 * KEPT + REDUCED + (d)])

#if defined(JOIN_ARGMAX) || defined(JOIN_ARGMIN)
#define ARG
#endif

#if defined(JOIN_POWERS)
// The largest element, and the sum of e^(x - largest).
typedef struct {
    A v;
    A s;
} P;
#elif defined(JOIN_SPREAD)
// The mean relative to the pivot, the mean of squared deviations, and the number of elements. The pivot is the first element of a
// slice, near which the others often are; in a further launch it is 0.
typedef struct {
    A v;
    A s;
    idx i;
} P;
#elif defined(ARG) || defined(TWOFOLD)
#define PAIRS
// A value, and its position among the reduced elements, or the number of elements equal to it.
typedef struct {
    A v;
    idx i;
} P;
#else
typedef A P;
#endif

#if defined(JOIN_SUM)
#define IDENTITY 0
#define JOINED(a, b) ADD(a, b)
#elif defined(JOIN_PROD)
#define IDENTITY 1
#define JOINED(a, b) MULTIPLY(a, b)
#elif defined(JOIN_SQUARES)
#define IDENTITY 0
#define JOINED(a, b) joined_squares(a, b)
#elif defined(JOIN_POWERS) || defined(JOIN_SPREAD)
#elif defined(JOIN_MAX) || defined(JOIN_ARGMAX)
#define IDENTITY LOWEST
#define BETTER(b, a) ((b) > (a))
#define JOINED(a, b) LARGER(a, b)
#else
#define IDENTITY HIGHEST
#define BETTER(b, a) ((b) < (a))
#define JOINED(a, b) SMALLER(a, b)
#endif

#ifdef PAIRS
FUNCTION P pair(A v, idx i) {
    P made;
    made.v = v;
    made.i = i;
    return made;
}
#endif

#ifdef ARG
// The position after all others: every element takes precedence.
#define NOTHING pair(IDENTITY, HIGHEST_IDX)

// NaN beats any number. Of equal elements the first wins, but with LAST_NAN the last NaN.
FUNCTION P join(P a, P b) {
    int is_better = BETTER(b.v, a.v) || (IS_NAN(b.v) && !IS_NAN(a.v));
#ifdef LAST_NAN
    int is_equal = b.v == a.v;
    is_better = is_better || (IS_NAN(b.v) && IS_NAN(a.v) && b.i > a.i);
#else
    int is_equal = b.v == a.v || (IS_NAN(b.v) && IS_NAN(a.v));
#endif
    return is_better || (is_equal && b.i < a.i) ? b : a;
}
#elif defined(JOIN_POWERS)
FUNCTION P powers(A v, A s) {
    P made;
    made.v = v;
    made.s = s;
    return made;
}
#define NOTHING powers(LOWEST, 0)

// If both maxima are equal, which may be infinite, the sums are added unscaled.
FUNCTION P join(P a, P b) {
    int is_larger = b.v > a.v;
    A high = is_larger ? b.v : a.v, low = is_larger ? a.v : b.v;
    A unit = low == high ? (A)1 : exp_(low - high);
    return powers(high, (is_larger ? b.s : a.s) + (is_larger ? a.s : b.s) * unit);
}
#elif defined(JOIN_SPREAD)
FUNCTION P spread(A v, A s, idx i) {
    P made;
    made.v = v;
    made.s = s;
    made.i = i;
    return made;
}
#define NOTHING spread(0, 0, 0)

// Chan et al. 1982. No intermediate value exceeds the result, unless the means are so far apart that the result is infinite.
FUNCTION P join(P a, P b) {
    idx n = a.i + b.i;
    A unit = (A)1 / (A)(n > 0 ? n : 1), rest = (A)a.i * unit, share = (A)b.i * unit, d = b.v - a.v;
    A mean = d - d == 0 ? a.v + d * share : a.v * rest + b.v * share;
    return spread(mean, a.s * rest + b.s * share + d * rest * (d * share), n);
}

FUNCTION A pivot_of(A v) { return fabs_(v) < (A)1e30f ? v : (A)0; }
#elif defined(TWOFOLD)
#define NOTHING pair(IDENTITY, 0)

// NaN beats any number, and no element equals it.
FUNCTION P join(P a, P b) {
    if (b.v == a.v) a.i += b.i;
    return BETTER(b.v, a.v) || IS_NAN(b.v) ? b : a;
}
#else
#define NOTHING ((P)(IDENTITY))

FUNCTION P join(P a, P b) { return JOINED(a, b); }
#endif

#ifdef PARTIAL_X
typedef P From;
#define ELEMENT(x, at, i) ((x)[at])
#else
typedef STORAGE(X) From;
#define ELEMENT(x, at, i) take(LOAD(X, x, at), i)
#endif

#ifdef PARTIAL_Y
typedef P To;
#define PUT(y, at, result) ((y)[at] = (result))
#elif defined(ARG)
typedef S_i64 To;
#define PUT(y, at, result) STORE(i64, y, at, (result).i)
#elif defined(TWOFOLD)
typedef STORAGE(Y) To;
#define PUT(y, at, result) \
    do { \
        STORE(Y, y, at, FINISHED(result)); \
        PUT_SECOND(at, result); \
    } while (0)
#else
typedef STORAGE(Y) To;
#define PUT(y, at, result) STORE(Y, y, at, FINISHED(result))
#endif
#ifdef JOIN_SPREAD
// 0, or NaN for an infinite mean, from which deviations are undefined.
#define NAN_IF_INFINITE(result) ((result).v - (result).v)
#define PUT_SECOND(at, result) second[at] = (result).v + NAN_IF_INFINITE(result)
#elif defined(JOIN_POWERS)
// 0 and 0 for a slice of -infinity alone, but not for NaN, which is in the sum.
#define HAS_LARGEST(result) ((result).v != LOWEST)
#define PUT_SECOND(at, result) \
    do { \
        second[at] = HAS_LARGEST(result) ? (result).v : (A)0; \
        second[RESULTS + (at)] = HAS_LARGEST(result) || IS_NAN((result).s) ? log_((result).s) : (A)0; \
    } while (0)
#else
#define PUT_SECOND(at, result) second[at] = (A)1 / (A)(result).i
#endif

#ifdef INTEGER
typedef f32 Divisor;
#else
typedef A Divisor;
#endif
#if defined(JOIN_SPREAD)
#define FINISHED(result) (((result).s + NAN_IF_INFINITE(result)) * ((A)(result).i / divisor))
#elif defined(FINISH_LOG)
#define FINISHED(result) ((result).v + log_((result).s))
#elif defined(PAIRS)
#define FINISHED(result) ((result).v)
#elif defined(FINISH_MEAN)
#define FINISHED(result) ((result) / divisor)
#elif defined(FINISH_NORM)
#define FINISHED(result) root_of(result)
#else
#define FINISHED(result) (result)
#endif

// The partial result of element `i`.
FUNCTION P take(A v, idx i) {
#if defined(ARG)
    return pair(v, i);
#elif defined(JOIN_POWERS)
    return powers(v, 1);
#elif defined(JOIN_SPREAD)
    return spread(v, 0, 1);
#elif defined(TWOFOLD)
    return pair(v, !IS_NAN(v));
#else
    return v;
#endif
}

// `a` joined with element `at` of x, which is element `i` of a result. MORE: further arguments, for lane `j`.
#if defined(SQUARES)
#define MORE_PARAMETERS , u32 *marks
#define MORE , marks
#define ADDED(a, x, at, i, j) ((a) + square_of((A)LOAD(X, x, at), marks))
FUNCTION A square_of(A v, u32 *marks) {
    marks[0] |= MARK_OF(v);
    return v * v;
}
#elif defined(SHARES)
#define MORE_PARAMETERS , A share
#define MORE , share
#define ADDED(a, x, at, i, j) ((a) + (A)LOAD(X, x, at) * share)
// 2^-n with the smallest n for which `count` is less than 2^n.
#define SHARE_OF(count) as_f32((u32)(126 - LOG2(count)) << 23)
#elif defined(JOIN_SPREAD) && !defined(PARTIAL_X)
#define MORE_PARAMETERS , const A *pivot
#define MORE , pivot
#define ADDED(a, x, at, i, j) join(a, spread((A)LOAD(X, x, at) - pivot[j], 0, 1))
#else
#define MORE_PARAMETERS
#define MORE
#define ADDED(a, x, at, i, j) join(a, ELEMENT(x, at, i))
#endif

#ifdef ROW
#define FIXED(number) Fixed fixed = fixed_of((idx)(number) ROW_ARGUMENTS)
#define TAKE(w, at, i) take_words(acc, w, fixed, at, i ROW_ARGUMENTS)
#else
#define ROW_PARAMETERS
#define FIXED(number)
#if VECTOR > 1
typedef union {
    WORD all;
    From each[VECTOR];
} Read;
#define READ(w, x, at) ((w).all = *(GLOBAL const WORD *)((x) + (at)))
#else
typedef struct {
    From each[1];
} Read;
#define READ(w, x, at) ((w).each[0] = (x)[at])
#endif
#endif

// Adds to `from` and `to` the positions of result `number` in x and y. `unit` results share a number.
FUNCTION void place(Ints p, idx number, int unit, idx *from, idx *to) {
#pragma unroll
    for (int d = KEPT - 1; d >= 0; d--) {
        idx c = d == 0 ? number : number % KEPT_EXTENT(d);
        if (d > 0) number /= KEPT_EXTENT(d);
        if (d == KEPT - 1) c *= unit;
        *from += c * KEPT_X(d);
        *to += c * KEPT_Y(d);
    }
}

// The position in x of element `number` of a result.
FUNCTION idx element(Ints p, idx number) {
    idx at = 0;
#pragma unroll
    for (int d = REDUCED - 1; d >= 0; d--) {
        idx c = d == 0 ? number : number % REDUCED_EXTENT(d);
        if (d > 0) number /= REDUCED_EXTENT(d);
        at += c * REDUCED_X(d);
    }
    return at;
}

#if defined(ROWS) && WAVE > 1
WAVE_EXCHANGE(exchange, P)
#endif

// The state of a thread for its `n` adjacent results.
#if defined(SQUARES)
#define START_OF_RESULTS(n) \
    u32 marks[1]; \
    marks[0] = 0;
#elif defined(SHARES)
#define START_OF_RESULTS(n) A share = SHARE_OF(count);
#elif defined(JOIN_SPREAD) && !defined(PARTIAL_X)
#define HAS_PIVOT
#define START_OF_RESULTS(n) \
    A pivot[n]; \
    _Pragma("unroll") for (int j = 0; j < (n); j++) pivot[j] = 0;
#else
#define START_OF_RESULTS(n)
#endif

#ifdef ROWS
#if defined(ROW)
#define LANES VECTOR
#elif defined(ARG) && !defined(PARTIAL_X)
// A vector counts as one element, with the value of its best element and the position of its first, until the thread has seen all
// of its vectors. Vectors come in ascending order, so an equal value does not replace the kept one.
#define LANES 1
FUNCTION void take_vector(P *best, Read *kept, Read w, idx i) {
    A v = (A)LOAD(X, w.each, 0);
#pragma unroll
    for (int j = 1; j < VECTOR; j++) v = JOINED(v, (A)LOAD(X, w.each, j));
#ifdef LAST_NAN
    int is_first = 1;
#else
    int is_first = !IS_NAN(best->v);
#endif
    if ((BETTER(v, best->v) || IS_NAN(v)) && is_first) {
        *best = pair(v, i);
        *kept = w;
    }
}
#define TAKE(w, at, i) take_vector(acc, &kept, w, i)

// The position of the best element, which is in the vector at `best.i`.
FUNCTION P found(Read kept, P best) {
    int first = 0;
#pragma unroll
    for (int j = VECTOR - 1; j >= 0; j--) {
        A v = (A)LOAD(X, kept.each, j);
        if (v == best.v || (IS_NAN(v) && IS_NAN(best.v))) first = j;
    }
#ifdef LAST_NAN
#pragma unroll
    for (int j = 0; j < VECTOR; j++)
        if (IS_NAN((A)LOAD(X, kept.each, j))) first = j;
#endif
    return pair(best.v, best.i + first);
}
#elif defined(PAIRS) && !defined(PARTIAL_X)
// A vector counts as one element, with the value of its best. The number of elements equal to it is counted only where it matters,
// which is rare.
#define LANES 1
FUNCTION void take_vector(P *acc, Read w) {
    A v = (A)LOAD(X, w.each, 0);
#pragma unroll
    for (int j = 1; j < VECTOR; j++) v = JOINED(v, (A)LOAD(X, w.each, j));
    if (BETTER(v, acc->v) || v == acc->v || IS_NAN(v)) {
        idx n = 0;
#pragma unroll
        for (int j = 0; j < VECTOR; j++) n += (A)LOAD(X, w.each, j) == v;
        *acc = join(*acc, pair(v, n));
    }
}
#define TAKE(w, at, i) take_vector(acc, w)
#elif defined(JOIN_POWERS) && !defined(PARTIAL_X)
// Powers relative to the largest element so far. An element equal to it has power 1, even if it is infinite.
#define LANES 1
#define SHARE(v, high) ((v) == (high) ? (A)1 : POWER((v) - (high)))
FUNCTION void take_vector(P *acc, Read w) {
    A high = acc->v;
#pragma unroll
    for (int j = 0; j < VECTOR; j++) high = fmax_(high, (A)LOAD(X, w.each, j));
    A s = acc->s * SHARE(acc->v, high);
#pragma unroll
    for (int j = 0; j < VECTOR; j++) s += SHARE((A)LOAD(X, w.each, j), high);
    *acc = powers(high, s);
}
#define TAKE(w, at, i) take_vector(acc, w)
#elif defined(JOIN_SPREAD) && !defined(PARTIAL_X)
// The mean of `n` vectors and their deviations, with a single division. Sums that leave the range are recomputed from scaled
// elements.
#define LANES 1
#define OF_VECTORS(i) ((A)LOAD(X, w[(i) / VECTOR].each, (i) % VECTOR) - pivot[0])
#define EACH_OF_VECTORS(i) _Pragma("unroll") for (int i = 0; i < n * VECTOR; i++)
FUNCTION void take_vectors(P *acc, const Read *w, int n, const A *pivot) {
    A share = (A)1 / (A)(n * VECTOR), mean = 0, s = 0;
    EACH_OF_VECTORS(i) mean += OF_VECTORS(i);
    mean *= share;
    EACH_OF_VECTORS(i) {
        A d = OF_VECTORS(i) - mean;
        s += d * d;
    }
    s *= share;
    if (s - s != 0) {
        // Relative to one of the elements, the mean of equal elements is exact. A rounded mean would leave deviations, whose
        // squares could be infinite.
        A first = OF_VECTORS(0) * share;
        mean = s = 0;
        EACH_OF_VECTORS(i) mean += OF_VECTORS(i) * share - first;
        mean += OF_VECTORS(0);
        EACH_OF_VECTORS(i) {
            A d = OF_VECTORS(i) - mean;
            s += d * share * d;
        }
    }
    acc[0] = join(acc[0], spread(mean, s, n * VECTOR));
}
#define TAKE(w, at, i) take_vectors(acc, &w, 1, pivot)
#define TAKE_ALL(w) take_vectors(acc, w, UNROLL, pivot)
#else
#define LANES VECTOR
FUNCTION void take_vector(P *acc, Read w, idx i MORE_PARAMETERS) {
#pragma unroll
    for (int j = 0; j < VECTOR; j++) acc[j] = ADDED(acc[j], w.each, j, i + j, 0);
}
#define TAKE(w, at, i) take_vector(acc, w, i MORE)
#endif

// Joins the values of a team's threads. The first thread gets the result. Every thread of the group must call this.
LOCAL_FUNCTION P team_joined(P mine, int member, int members, LOCAL P *shared) {
#if WAVE > 1
    for (int by = (members < WAVE ? members : WAVE) / 2; by > 0; by /= 2) mine = join(mine, exchange(mine, by));
    if (members > WAVE) {
        if (LANE % WAVE == 0) shared[LANE / WAVE] = mine;
        BARRIER();
        if (member == 0)
            for (int i = 1; i < members / WAVE; i++) mine = join(mine, shared[LANE / WAVE + i]);
    }
#else
    for (int below = members / 2; below > 0; below /= 2) {
        shared[LANE] = mine;
        BARRIER();
        if (member < below) mine = join(mine, shared[LANE + below]);
        BARRIER();
    }
#endif
    return mine;
}

#ifdef LAST_JOINS
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
#else
#define LAST_PARAMETERS
#endif

// A team of threads computes one result; a group has THREADS / team teams. A thread takes every team-th vector, with one
// accumulator per lane of a vector. team: a power of 2.
KERNEL(reduce_rows)(GLOBAL const From *x, GLOBAL To *y, GLOBAL A *second, Ints p, i64 results, i64 count, i64 part, i64 step,
                    i64 shift, i64 team, Divisor divisor LAST_PARAMETERS ROW_PARAMETERS) {
    AWAIT_PREVIOUS();
    LET_NEXT_START();
    SHARED(P, shared, THREADS);
    int members = (int)team, member = LANE & (members - 1), bits = LOG2(members);
    i64 number = GROUP * (THREADS >> bits) + (LANE >> bits);
#ifdef LAST_JOINS
    // The group is a single team.
    int parts = (int)GROUPS_Y;
    u32 before = LANE == 0 ? count_to(begun + number, parts - 1) : 0;
#endif
    idx from = (idx)shift, to = (idx)(GROUP_Y * step);
    P acc[LANES];
#pragma unroll
    for (int j = 0; j < LANES; j++) acc[j] = NOTHING;
#if defined(ARG) && !defined(PARTIAL_X)
    Read kept;
#endif
    START_OF_RESULTS(1)
    if (number < results) {
        place(p, (idx)number, 1, &from, &to);
        FIXED(number);
#ifdef HAS_PIVOT
        pivot[0] = pivot_of((A)LOAD(X, x, from));
#endif
        idx start = (idx)(GROUP_Y * part), n = (idx)count - start;
        if (n > (idx)part) n = (idx)part;
        // Elements before the first aligned word.
        idx head = 0;
#if REDUCED == 1
        idx first = from + start * REDUCED_X(0);
#define AT(k) (first + (k) * REDUCED_X(0))
#if VECTOR > 1
        head = (0 - first) & (VECTOR - 1);
        if (head > n) head = n;
#endif
#else
#define AT(k) (from + element(p, start + (k)))
#endif
        idx vectors = (n - head) / VECTOR, v = member;
        for (; v + (UNROLL - 1) * members < vectors; v += UNROLL * members) {
            Read w[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) READ(w[u], x, AT(head + (v + u * members) * VECTOR));
#ifdef TAKE_ALL
            TAKE_ALL(w);
#else
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                idx k = head + (v + u * members) * VECTOR;
                TAKE(w[u], AT(k), start + k);
            }
#endif
        }
#ifdef READS_REST
        if (v < vectors) {
            Read w[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (v + u * members < vectors) READ(w[u], x, AT(head + (v + u * members) * VECTOR));
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                idx k = head + (v + u * members) * VECTOR;
                if (v + u * members < vectors) TAKE(w[u], AT(k), start + k);
            }
        }
#else
        for (; v < vectors; v += members) {
            Read w;
            idx k = head + v * VECTOR;
            READ(w, x, AT(k));
            TAKE(w, AT(k), start + k);
        }
#endif
#if defined(ARG) && !defined(PARTIAL_X)
        if (acc[0].i != HIGHEST_IDX)
            acc[0] = found(kept, acc[0]);
        else if (member < vectors)
            // No element beat the identity: all are equal to it.
            acc[0] = pair(IDENTITY, start + head + member * VECTOR);
#endif
#if VECTOR > 1 && !defined(ROW)
        for (idx k = member; k < head; k += members) acc[0] = ADDED(acc[0], x, AT(k), start + k, 0);
        for (idx k = head + vectors * VECTOR + member; k < n; k += members)
            acc[0] = ADDED(acc[0], x, AT(k), start + k, 0);
#endif
#ifdef SQUARES
#pragma unroll
        for (int below = LANES / 2; below > 0; below /= 2) {
#pragma unroll
            for (int j = 0; j < below; j++) acc[j] += acc[j + below];
        }
#endif
#ifdef EDGES
        if (!HAS_SQUARES(acc[0]) && marks[0] != 0) {
            Root r = NO_ROOT;
            for (v = member; v < vectors; v += members)
                for (int j = 0; j < VECTOR; j++) add_to_root(&r, (A)LOAD(X, x, AT(head + v * VECTOR + j)));
            for (idx k = member; k < head; k += members) add_to_root(&r, (A)LOAD(X, x, AT(k)));
            for (idx k = head + vectors * VECTOR + member; k < n; k += members) add_to_root(&r, (A)LOAD(X, x, AT(k)));
            acc[0] = negative_root(r);
        }
#endif
    }
#ifndef SQUARES
#pragma unroll
    for (int below = LANES / 2; below > 0; below /= 2) {
#pragma unroll
        for (int j = 0; j < below; j++) acc[j] = join(acc[j], acc[j + below]);
    }
#endif
    P mine = team_joined(acc[0], member, members, shared);
#ifdef LAST_JOINS
    GLOBAL u64 *of_result = left + number * parts * LEFT_WORDS;
    SHARED(int, is_last, 1);
    SHARED(P, own, 1);
    if (LANE == 0) {
        is_last[0] = before == (u32)(parts - 1);
        own[0] = mine;
        if (!is_last[0]) leave(of_result + GROUP_Y * LEFT_WORDS, mine);
    }
    BARRIER();
    if (!is_last[0]) return;
    mine = team_joined(take_left(of_result, parts, (int)GROUP_Y, own[0]), LANE, THREADS, shared);
#endif
    if (member > 0 || number >= results) return;
#ifdef HAS_PIVOT
    mine.v += pivot[0];
#endif
#define RESULTS results
    PUT(y, to, mine);
}

#else
#ifndef ROW
FUNCTION void take_line(P *acc, Read w, idx line MORE_PARAMETERS) {
#pragma unroll
    for (int j = 0; j < VECTOR; j++) acc[j] = ADDED(acc[j], w.each, j, line, j);
}
#define TAKE(w, at, i) take_line(acc, w, i MORE)
#endif

// Adjacent threads compute adjacent results, VECTOR each. A group covers `width` vectors of results, a power of 2; the threads
// beyond `width` take other lines. `results` and the last kept extent count vectors.
KERNEL(reduce_columns)(GLOBAL const From *x, GLOBAL To *y, GLOBAL A *second, Ints p, i64 results, i64 count, i64 part, i64 step,
                       i64 shift, i64 width, Divisor divisor ROW_PARAMETERS) {
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
    START_OF_RESULTS(VECTOR)
    if (number < results) {
        place(p, (idx)number, VECTOR, &from, &to);
        FIXED(number);
#ifdef HAS_PIVOT
#pragma unroll
        for (int j = 0; j < VECTOR; j++) pivot[j] = pivot_of((A)LOAD(X, x, from + j));
#endif
        idx start = (idx)(GROUP_Y * part), end = (idx)count - start > (idx)part ? start + (idx)part : (idx)count;
        idx line = start + member;
        for (; line + (UNROLL - 1) * members < end; line += UNROLL * members) {
            Read w[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) READ(w[u], x, from + element(p, line + u * members));
#pragma unroll
            for (int u = 0; u < UNROLL; u++) TAKE(w[u], from + element(p, line + u * members), line + u * members);
        }
        for (; line < end; line += members) {
            Read w;
            READ(w, x, from + element(p, line));
            TAKE(w, from + element(p, line), line);
        }
#ifdef EDGES
        for (int j = 0; j < VECTOR; j++) {
            if (HAS_SQUARES(acc[j]) || marks[0] == 0) continue;
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
#define RESULTS results * VECTOR
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
#ifdef HAS_PIVOT
            acc[j].v += pivot[j];
#endif
            PUT(y, to + j * KEPT_Y(KEPT - 1), acc[j]);
        }
    }
}
#endif
