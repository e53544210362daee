// Reductions. The dimensions of x are kept ones, along which results lie, and reduced ones. Their numbers, KEPT and
// REDUCED, are 1 or more.
//
// `p`: extents of the kept dimensions, their strides in x, and in y; then extents and strides of the reduced ones.
// A result is made of `count` elements. A launch takes `part` of them in each line of groups (GROUP_Y), whose results
// lie `step` elements apart; a further launch joins these. LAST_JOINS: the last group of a result to begin joins them, which
// others leave for it in `left`. Groups are counted in `begun` when they begin: none waits for one that has no place yet, and
// the count arrives while they read. Both are 0 before the launch and after it.
//
// X, Y and ACC: dtypes of x, of y, and of the arithmetic. JOIN_..: what is done. TWOFOLD: `second` gets 1 over how many
// elements have the value that is found; of a variance, the mean; of powers, the largest elements and then the logarithms of the
// sums in units of these. SQUARES: squares are joined; EDGES: their sums may leave the range. SHARES: elements are multiplied by a
// power of 2 below 1 / count, so that sums do not. PARTIAL_X and PARTIAL_Y: x are, or y become, what is
// joined. VECTOR: elements that a thread reads at once, as one WORD; UNROLL: reads in flight. ROWS: which of the two
// kernels is meant. READS_REST: what is left of a part is in flight together, too. LAST_NAN: a position is that of the last NaN,
// not of the first. ROW: what is summed is a result of this row of the pointwise table; the text before this has how its other
// operands are read and written.

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
// The largest of some elements, and the sum of the powers of e that they are, in units of its own.
typedef struct {
    A v;
    A s;
} P;
#elif defined(JOIN_SPREAD)
// The mean of some elements less the pivot, the mean of their squared deviations, and how many they are. The pivot is the first
// element of a slice, from which others may hardly differ; in a further launch it is 0.
typedef struct {
    A v;
    A s;
    idx i;
} P;
#elif defined(ARG) || defined(TWOFOLD)
#define PAIRS
// A value, and its position among the reduced elements, or how many of these have it.
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
// Every element comes before this: its position is beyond all others.
#define NOTHING pair(IDENTITY, HIGHEST_IDX)

// NaN is better than any number; the first of equals wins, but with LAST_NAN the last NaN.
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

// Of two that are alike, which may both be infinite, the powers add up as they are.
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

// Chan et al. 1982. Nothing here is larger than the result, unless means are so far apart that it is infinite.
FUNCTION P join(P a, P b) {
    idx n = a.i + b.i;
    A unit = (A)1 / (A)(n > 0 ? n : 1), rest = (A)a.i * unit, share = (A)b.i * unit, d = b.v - a.v;
    A mean = d - d == 0 ? a.v + d * share : a.v * rest + b.v * share;
    return spread(mean, a.s * rest + b.s * share + d * rest * (d * share), n);
}

FUNCTION A pivot_of(A v) { return fabs_(v) < (A)1e30f ? v : (A)0; }
#elif defined(TWOFOLD)
#define NOTHING pair(IDENTITY, 0)

// NaN is better than any number, and nothing has it.
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
// 0, or NaN of an infinite mean: nothing has a distance from that.
#define NAN_IF_INFINITE(result) ((result).v - (result).v)
#define PUT_SECOND(at, result) second[at] = (result).v + NAN_IF_INFINITE(result)
#elif defined(JOIN_POWERS)
// 0 and 0 of nothing but -infinity, whose powers are relative to that; not of NaN, which is in the sum.
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

// What element `i` contributes.
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

// `a` with element `at` of x, which is element `i` of a result. MORE: what that needs beside these, for lane `j`.
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
// 2^-n, of which `count` is less than 2^n.
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

// Adds to `from` and `to` where result `number` comes from and goes. `unit` results have one number.
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

// Where element `number` of a result lies in x.
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

// What a thread has of its results, `n` side by side.
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
// A vector counts as one element, whose value is its best and whose position is its first, until a thread has seen all of
// its own. They come in ascending order: what is no better does not take the place of the one that is kept.
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

// The position of the best element, which is in the vector that begins at `best.i`.
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
// A vector counts as one element, whose value is its best. How many have that is counted where it matters, which is seldom.
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
// Powers in units of the largest so far. What is as large is 1, also if it is infinite.
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
// The mean of `n` vectors and their deviations, and then one division. Sums that are out of range are made again, of shares.
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
        // Relative to one of them, the mean of elements that are alike is not rounded, which would be a deviation with an infinite
        // square.
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

// Joins the values of a team's threads; its first member gets the result. Every thread of the group must come.
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
// What a part makes is left as words of 32 bits, each with a mark in 64 bits: it is there or it is not, whatever else can be
// seen already, so that no fence is needed.
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

// A thread's share of `n` parts, in a fixed order, of which the group itself has made that at `own_at`. All others are on their way;
// in their places it leaves 0.
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

// A team of threads makes one result; a group has THREADS / team of them, each with a result of its own. A thread
// takes every team-th vector, with one accumulator for each of a vector's lanes. Team: a power of 2.
KERNEL(reduce_rows)(GLOBAL const From *x, GLOBAL To *y, GLOBAL A *second, Ints p, i64 results, i64 count, i64 part, i64 step,
                    i64 shift, i64 team, Divisor divisor LAST_PARAMETERS ROW_PARAMETERS) {
    AWAIT_PREVIOUS();
    LET_NEXT_START();
    SHARED(P, shared, THREADS);
    int members = (int)team, member = LANE & (members - 1), bits = LOG2(members);
    i64 number = GROUP * (THREADS >> bits) + (LANE >> bits);
#ifdef LAST_JOINS
    // The group is one team.
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
        // Elements before the first word that is aligned.
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
            // None was better than what every element comes before: all are alike.
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

// Neighbouring threads make neighbouring results, VECTOR each: a group covers `width` of these, a power of 2, and its
// other threads take other lines. `results` and the last kept extent count vectors.
KERNEL(reduce_columns)(GLOBAL const From *x, GLOBAL To *y, GLOBAL A *second, Ints p, i64 results, i64 count, i64 part, i64 step,
                       i64 shift, i64 width, Divisor divisor ROW_PARAMETERS) {
    AWAIT_PREVIOUS();
    LET_NEXT_START();
    // The upper half of the threads hands its values to the lower one.
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
