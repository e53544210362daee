// Gather and scatter. Trailing dimensions along which the index does not change are moved as a whole: at a row of the
// index lie `width` words. I: dtype of the index. A bad index is noted, and touches no memory.
//
// `p`: dimensions as `walk` takes them: ROWS of the index's rows, then INNER of what lies at a row. Positions in x and y are
// in words.

#ifdef I
typedef STORAGE(I) SI;
#endif

#ifdef INTS
// Where element `number` lies. From `base` on there are `rank` extents, what QUOTIENT takes of each, and `rank` strides of each
// operand.
FUNCTION idx walk(const Ints *p, int base, int rank, int operand, idx number) {
    idx at = 0;
#pragma unroll
    for (int d = rank - 1; d >= 0; d--) {
        idx above = d == 0 ? 0 : QUOTIENT(number, p->v[base + d], p->v[base + rank + d]);
        at += (number - above * (idx)p->v[base + d]) * (idx)p->v[base + rank * (2 + operand) + d];
        number = above;
    }
    return at;
}
#endif

#ifdef NUMBERS
// Indices that a thread reads at once: INDEX_WORDS words.
typedef union {
    INDEX_WORD all[INDEX_WORDS];
    SI each[NUMBERS];
} Indices;
#endif

#ifdef GATHER
// A word of y is NUMBERS units of x, each with an index of its own.
typedef union {
    WORD all;
    UNIT each[NUMBERS];
} Units;

#define EACH_UNIT(j) _Pragma("unroll") for (int j = 0; j < NUMBERS; j++)

// y[row, u] = x[row with index[row] along the indexed dimension, u]. `p`: ROWS dimensions of the words of y, with the strides
// of the index and of x, where units of a word are `step` apart; TILED, they are in another order, and have strides of y
// too. A unit is `size` elements, and `width` have one index.
KERNEL(gather)(GLOBAL const UNIT *x, GLOBAL const SI *index, GLOBAL WORD *y, ARGUMENT(Ints) p, i64 n, i64 size, i64 width,
               i64 along, i64 extent, i64 step, UNIT bad, GLOBAL i64 *status) {
    for (idx w = (idx)(GROUP * THREADS) + LANE; w < (idx)n; w += (idx)(GROUPS * THREADS)) {
        Indices v;
        Units read;
        idx at = walk(&p, 0, ROWS, 0, w), from = walk(&p, 0, ROWS, 1, w), to = w;
#ifdef TILED
        to = walk(&p, 0, ROWS, 2, w);
#endif
        _Pragma("unroll") for (int k = 0; k < INDEX_WORDS; k++) v.all[k] = ((GLOBAL const INDEX_WORD *)(index + at))[k];
        EACH_UNIT(j) {
            read.each[j] = bad;
            if ((u64)v.each[j] < (u64)extent) read.each[j] = x[from + j * (idx)step + (idx)v.each[j] * (idx)along];
        }
        y[to] = read.all;
        // Behind all reads, none of which waits for another.
        EACH_UNIT(j) if ((u64)v.each[j] >= (u64)extent)
            note(status, ((i64)to * NUMBERS + j) * size / width, v.each[j]);
    }
}
#endif

#ifdef VECTOR
// VECTOR elements of dtype T.
typedef STORAGE(T) S;
typedef union {
    WORD all;
    WORD_PARTS
    S each[VECTOR];
} Word;

#define EACH_PART(j) _Pragma("unroll") for (int j = 0; j < VECTOR; j++)
#endif

#ifdef SHARES
// The gradient of rows [E, F] that were joined by index to [N, F]: what each has of dy[index], as much as all rows of the node if
// the result is their mean, which has `counts` [N]; as much as all that have the largest value y if it is that (EVEN), for
// which `counts` is [N, F]; or all, if it is the first row that does (FIRST). A word has VECTOR elements, a row `width` words.
KERNEL(shares)(GLOBAL const S *dy, GLOBAL const SI *index, GLOBAL const i32 *counts, GLOBAL const S *x, GLOBAL const S *y,
               GLOBAL const i64 *first, GLOBAL S *dx, i64 n, i64 width, i64 by_width, i64 extent, S bad, GLOBAL i64 *status) {
    for (idx e = (idx)(GROUP * THREADS) + LANE; e < (idx)n; e += (idx)(GROUPS * THREADS)) {
        idx row = QUOTIENT(e, width, by_width);
        i64 v = index[row];
        Word g;
        if ((u64)v >= (u64)extent) {
            note(status, row, v);
            EACH_PART(j) g.each[j] = bad;
            ((GLOBAL WORD *)dx)[e] = g.all;
            continue;
        }
        idx at = (idx)v * (idx)width + (e - row * (idx)width);
        g.all = ((GLOBAL const WORD *)dy)[at];
#ifdef FIRST
        union {
            FIRST_WORD all[FIRST_WORDS];
            i64 each[VECTOR];
        } rows;
        for (int k = 0; k < FIRST_WORDS; k++) rows.all[k] = ((GLOBAL const FIRST_WORD *)first)[(i64)at * FIRST_WORDS + k];
        EACH_PART(j) if (rows.each[j] != row) g.each[j] = 0;
#elif defined(EVEN)
        union {
            COUNT_WORD all[COUNT_WORDS];
            i32 each[VECTOR];
        } ties;
        Word own, best;
        own.all = ((GLOBAL const WORD *)x)[e];
        best.all = ((GLOBAL const WORD *)y)[at];
        for (int k = 0; k < COUNT_WORDS; k++) ties.all[k] = ((GLOBAL const COUNT_WORD *)counts)[(i64)at * COUNT_WORDS + k];
        // A product: if the largest value is NaN, no row has it, and all get NaN.
        EACH_PART(j) {
            A part = (A)LOAD(T, g.each, j) / (A)ties.each[j];
            STORE(T, g.each, j, part * (A)(LOAD(T, own.each, j) == LOAD(T, best.each, j)));
        }
#else
        A count = (A)counts[v];
        EACH_PART(j) STORE(T, g.each, j, (A)LOAD(T, g.each, j) / count);
#endif
        ((GLOBAL WORD *)dx)[e] = g.all;
    }
}
#endif

#if defined(LISTS) || defined(DIGITS) || defined(LONG)
#ifdef LONG
// A word has two counts of 16 bits, the first one below: both together, and how many come before each.
#define COUNT_OF(word) (((word) & 0xffff) + ((word) >> 16))
#define BEGINNINGS(word, before) (((before) & 0xffff) | ((before) + (word)) << 16)
#else
#define COUNT_OF(word) (word)
#define BEGINNINGS(word, before) (before)
#endif
// Makes of each count the sum of those before it, and returns the sum of all. All threads come; `sums` has THREADS elements.
LOCAL_FUNCTION u32 begin(LOCAL u32 *counts, int n, LOCAL u32 *sums) {
    int per = (n + THREADS - 1) / THREADS, first = LANE * per, end = first + per < n ? first + per : n;
    u32 own = 0, before = 0, all = 0;
    BARRIER();
    for (int i = first; i < end; i++) own += COUNT_OF(counts[i]);
#if WAVE > 1 && THREADS >= WAVE
    u32 of_wave = own;
#pragma unroll
    for (int by = 1; by < WAVE; by *= 2) {
        u32 other = wave_xor(of_wave, by);
        before += LANE & by ? other : 0;
        of_wave += other;
    }
    if (LANE % WAVE == 0) sums[LANE / WAVE] = of_wave;
    BARRIER();
#pragma unroll
    for (int wave = 0; wave < THREADS / WAVE; wave++) {
        before += wave < LANE / WAVE ? sums[wave] : 0;
        all += sums[wave];
    }
#else
    sums[LANE] = own;
    for (int below = 1; below < THREADS; below *= 2) {
        BARRIER();
        u32 lower = LANE >= below ? sums[LANE - below] : 0;
        BARRIER();
        sums[LANE] += lower;
    }
    BARRIER();
    before = sums[LANE] - own;
    all = sums[THREADS - 1];
#endif
    for (int i = first; i < end; i++) {
        u32 count = counts[i];
        counts[i] = BEGINNINGS(count, before);
        before += COUNT_OF(count);
    }
    BARRIER();
    return all;
}
#endif

// A list: the `count` rows of the index that differ in the indexed dimension only. They are `apart` rows from each other.
#define FIRST_ROW(list, count, apart) ((list) / (apart) * ((count) * (apart)) + (list) % (apart))
#define LIST_OF(row, count, apart) ((row) / ((count) * (apart)) * (apart) + (row) % (apart))

#ifdef KEYS
// Where in y each row of the index points: its key, which is list * extent + index. A bad index has the key `bad`, above
// all others, and so have rows of the index `padding`, which are not noted. With FRESH there is one list, and `used` tells
// which of its keys occur.
KERNEL(keys)(GLOBAL const SI *index, GLOBAL K *keys, GLOBAL u8 *used, ARGUMENT(Ints) p, i64 rows, i64 count, i64 apart, i64 extent,
             i64 bad, i64 padding, GLOBAL i64 *status) {
    for (i64 row = GROUP * THREADS + LANE; row < rows; row += GROUPS * THREADS) {
        i64 v = index[walk(&p, 0, ROWS, 0, (idx)row)];
        int is_bad = (u64)v >= (u64)extent;
        if (is_bad) note(status, row, v);
        is_bad |= v == padding;
        keys[row] = (K)(is_bad ? bad : (i64)LIST_OF((idx)row, (idx)count, (idx)apart) * extent + v);
#ifdef FRESH
        if (!is_bad) write_alike(used + v, 1);
#endif
    }
}
#endif

#ifdef DIGITS
// Keys are put in order by one digit after the other, the lowest first. Equal ones stay in their order. A digit has `range`
// values, a power of 2, DIGITS at most.
#define DIGIT(key) ((int)((key) >> shift) & ((int)range - 1))
#define EACH_DIGIT(d) for (int d = LANE; d < (int)range; d += THREADS)

// How often each digit occurs in each part of the keys; counts: [parts, range].
KERNEL(digits)(GLOBAL const K *keys, GLOBAL u32 *counts, i64 n, i64 part, i64 range, i64 shift) {
    SHARED(u32, own, DIGITS);
    idx end = (idx)(GROUP * part + part < n ? GROUP * part + part : n);
    EACH_DIGIT(d) own[d] = 0;
    BARRIER();
    for (idx e = (idx)(GROUP * part) + LANE; e < end; e += THREADS) add_local(&own[DIGIT(keys[e])], 1);
    BARRIER();
    EACH_DIGIT(d) counts[GROUP * range + d] = own[d];
}

#define CHUNK (THREADS * ITEMS)
#define EACH_ITEM(i) _Pragma("unroll") for (int i = 0; i < ITEMS; i++)

// Moves the keys of a part to their places, and with them where they came from, which before the first digit is where they
// are. A group takes CHUNK keys at a time.
KERNEL(move)(GLOBAL const K *keys, GLOBAL const idx *order, GLOBAL K *moved, GLOBAL idx *moved_order,
             GLOBAL const u32 *counts, i64 n, i64 part, i64 range, i64 shift, i64 is_first) {
    SHARED(u32, next, DIGITS);
    SHARED(u32, starts, DIGITS);
    SHARED(u32, sums, THREADS);
    SHARED(u16, entries, CHUNK);
    EACH_DIGIT(d) {
        u32 before = 0, all = 0;
        _Pragma("unroll 16") for (int t = 0; t < (int)GROUPS; t++) {
            u32 count = counts[t * (int)range + d];
            before += t < (int)GROUP ? count : 0;
            all += count;
        }
        next[d] = all;
        starts[d] = before;
    }
    begin(next, (int)range, sums);
    EACH_DIGIT(d) next[d] += starts[d];
    idx end = (idx)(GROUP * part + part < n ? GROUP * part + part : n);
    for (idx chunk = (idx)(GROUP * part); chunk < end; chunk += CHUNK) {
        int size = end - chunk < CHUNK ? (int)(end - chunk) : CHUNK;
        K key[ITEMS];
        u32 entry[ITEMS];
        BARRIER();
        EACH_DIGIT(d) starts[d] = 0;
        BARRIER();
        EACH_ITEM(i) if (i * THREADS + LANE < size) {
            key[i] = keys[chunk + i * THREADS + LANE];
            entry[i] = add_local(&starts[DIGIT(key[i])], 1);
        }
        begin(starts, (int)range, sums);
        EACH_ITEM(i) if (i * THREADS + LANE < size) entries[starts[DIGIT(key[i])] + entry[i]] = (u16)(i * THREADS + LANE);
        BARRIER();
        // The entries of a digit lie in any order: an element's place among them is how many come before it.
        EACH_ITEM(i) if (i * THREADS + LANE < size) {
            int own = i * THREADS + LANE, d = DIGIT(key[i]);
            int last = d + 1 < (int)range ? (int)starts[d + 1] : size;
            idx to = (idx)next[d];
            for (int k = (int)starts[d]; k < last; k++) to += entries[k] < own;
            moved[to] = key[i];
            moved_order[to] = is_first ? chunk + own : order[chunk + own];
        }
        BARRIER();
        EACH_DIGIT(d)
            next[d] += (d + 1 < (int)range ? starts[d + 1] : (u32)size) - starts[d];
    }
}
#endif

#ifdef SCATTER
#ifdef ADDING
#ifdef LARGEST
// In place of a sum: the largest value, of which NaN is one, the first row that has it, and how many do. `first` of no rows
// is -1.
typedef struct {
    A v[VECTOR];
    idx first[VECTOR];
    idx ties[VECTOR];
} Sum;

FUNCTION Sum zero(void) {
    Sum sum;
    EACH_PART(j) {
        sum.v[j] = LOWEST;
        sum.first[j] = -1;
        sum.ties[j] = 0;
    }
    return sum;
}

// Rows of b come after those of a.
FUNCTION Sum joined(Sum a, Sum b) {
    EACH_PART(j) {
        int is_larger = a.first[j] < 0 || (!(b.v[j] <= a.v[j]) && !IS_NAN(a.v[j]));
        idx more = b.v[j] == a.v[j] ? b.ties[j] : 0;
        a.ties[j] = is_larger ? b.ties[j] : a.ties[j] + more;
        a.first[j] = is_larger ? b.first[j] : a.first[j];
        a.v[j] = is_larger ? b.v[j] : a.v[j];
    }
    return a;
}

FUNCTION Sum sum_of(Word w, idx row) {
    Sum sum;
    EACH_PART(j) {
        sum.v[j] = (A)LOAD(T, w.each, j);
        sum.first[j] = row;
        sum.ties[j] = !IS_NAN(sum.v[j]);
    }
    return sum;
}
#else
typedef struct {
    A v[VECTOR];
} Sum;

FUNCTION Sum zero(void) {
    Sum sum;
    EACH_PART(j) sum.v[j] = 0;
    return sum;
}

FUNCTION Sum joined(Sum a, Sum b) {
    EACH_PART(j) a.v[j] = ADD(a.v[j], b.v[j]);
    return a;
}

FUNCTION Sum sum_of(Word w, idx row) {
    Sum sum;
    EACH_PART(j) sum.v[j] = (A)LOAD(T, w.each, j);
    return sum;
}
#endif

FUNCTION Sum load(GLOBAL const S *x, idx word, idx row) {
    Word w;
    w.all = ((GLOBAL const WORD *)x)[word];
    return sum_of(w, row);
}

FUNCTION void store(GLOBAL S *y, idx word, Sum sum) {
    Word w;
    EACH_PART(j) STORE(T, w.each, j, sum.v[j]);
    ((GLOBAL WORD *)y)[word] = w.all;
}

// What sums are added to: with FRESH, y has no values yet.
#ifdef FRESH
#define BEFORE(y, at) zero()
#else
#define BEFORE(y, at) load(y, at, 0)
#endif

// What y gets of a segment of `length` rows, and the other outputs, where there are any: how many rows a node has, or, of
// each element, how many have the largest value, and the first that does.
FUNCTION void put(GLOBAL S *y, GLOBAL i32 *counts, GLOBAL i64 *first, idx at, idx node, idx w, Sum sum, idx length) {
#ifdef MEAN
    EACH_PART(j) sum.v[j] /= (A)(length > 0 ? length : 1);
#endif
#ifdef COUNTS
    if (w == 0) counts[node] = (i32)length;
#endif
#ifdef LARGEST
    union {
        COUNT_WORD all[COUNT_WORDS];
        i32 each[VECTOR];
    } ties;
    union {
        FIRST_WORD all[FIRST_WORDS];
        i64 each[VECTOR];
    } rows;
    EACH_PART(j) {
        if (sum.first[j] < 0) sum.v[j] = 0;
        ties.each[j] = (i32)sum.ties[j];
        rows.each[j] = sum.first[j];
    }
    for (int k = 0; k < COUNT_WORDS; k++) ((GLOBAL COUNT_WORD *)counts)[(i64)at * COUNT_WORDS + k] = ties.all[k];
    for (int k = 0; k < FIRST_WORDS; k++) ((GLOBAL FIRST_WORD *)first)[(i64)at * FIRST_WORDS + k] = rows.all[k];
#endif
    store(y, at, sum);
}
#define PUT(at, node, w, sum, length) put(y, counts, first, at, (idx)(node), w, sum, length)
#endif

#ifdef ANY_ORDER
#ifdef HAS_ADDS
#define ADD_ANY(T, p, v) CAT(add_any_, T)(p, v)
#else
// To an element that is a part of a word of 4 bytes.
FUNCTION void add_in_word(GLOBAL S *p, S v) {
    int shift = (int)((u64)p & 3) * 8;
    GLOBAL u32 *word = (GLOBAL u32 *)((GLOBAL u8 *)p - shift / 8);
    u32 own = sizeof(S) == 4 ? ~(u32)0 : 0xffff, old, seen = compare_and_swap(word, 0, 0);
    do {
        union {
            u32 all;
            S each[4 / sizeof(S)];
        } sum;
        old = seen;
        sum.all = old >> shift & own;
        STORE(T, sum.each, 0, LOAD(T, sum.each, 0) + LOAD(T, &v, 0));
        seen = compare_and_swap(word, old, (old & ~(own << shift)) | sum.all << shift);
    } while (seen != old);
}
#define ADD_ANY(T, p, v) add_in_word(p, v)
#endif
#if defined(HAS_ADDS) && defined(WHOLE)
#define ADD_WORD_ANY(T, p, w) CAT(add_word_any_, T)(p, (w).all)
#else
#define ADD_WORD_ANY(T, p, w) EACH_PART(j) ADD_ANY(T, (p) + j, (w).each[j])
#endif

// Adds in whatever order threads come, in the dtype of y: as many roundings as additions. A thread takes a word of the source,
// all of it for one index, or its elements each for their own. NUMBERS: how many indices these are. If these
// are alike they are taken as one. WHOLE: a word has 16 bytes. In the latter case positions are in elements.
KERNEL(any)(GLOBAL const SI *index, GLOBAL const S *source, GLOBAL S *y, ARGUMENT(Ints) p, i64 n, i64 width, i64 by_width,
            i64 along, i64 extent, GLOBAL i64 *status) {
    const int size = NUMBERS > 1 ? 1 : VECTOR;
    for (i64 e = GROUP * THREADS + LANE; e < n; e += GROUPS * THREADS) {
        idx row = QUOTIENT((idx)e, width, by_width), w = (idx)e - row * (idx)width;
        GLOBAL const SI *at = index + walk(&p, 0, ROWS, 0, row);
        idx to = walk(&p, 0, ROWS, 1, row) + walk(&p, 5 * ROWS, INNER, 0, w);
        idx from = walk(&p, 0, ROWS, 2, row) + walk(&p, 5 * ROWS, INNER, 1, w);
        Indices v;
        Word read;
        _Pragma("unroll") for (int k = 0; k < INDEX_WORDS; k++) v.all[k] = ((GLOBAL const INDEX_WORD *)at)[k];
        read.all = *(GLOBAL const WORD *)(source + from * size);
        int is_one = 1;
        _Pragma("unroll") for (int j = 0; j < NUMBERS; j++) {
            is_one &= v.each[j] == v.each[0];
            if ((u64)v.each[j] >= (u64)extent) note(status, (i64)row * NUMBERS + j, v.each[j]);
        }
        if (is_one) {
            if ((u64)v.each[0] < (u64)extent) ADD_WORD_ANY(T, y + (to + (idx)v.each[0] * (idx)along) * size, read);
            continue;
        }
        EACH_PART(j) if ((u64)v.each[j % NUMBERS] < (u64)extent)
            ADD_ANY(T, y + to + (idx)v.each[j % NUMBERS] * (idx)along + j, read.each[j]);
    }
}
#elif defined(FEW)
// For an index that is short along the indexed dimension, so that a thread can look at all rows that may point to one
// place: `count` of them, `apart` rows from each other. Strides along it are `index_step` and `source_step`. The first row
// of a place adds up all; of an assignment, the last one writes.
KERNEL(few)(GLOBAL const SI *index, GLOBAL const S *source, GLOBAL S *y, ARGUMENT(Ints) p, i64 n, i64 width, i64 by_width,
            i64 along, i64 extent, i64 count, i64 apart, i64 index_step, i64 source_step, GLOBAL i64 *status) {
    for (i64 e = GROUP * THREADS + LANE; e < n; e += GROUPS * THREADS) {
        idx row = QUOTIENT((idx)e, width, by_width), w = (idx)e - row * (idx)width;
        int own = (int)(row / (idx)apart % (idx)count), left = (int)count - own;
        GLOBAL const SI *at = index + walk(&p, 0, ROWS, 0, row);
        i64 v = *at;
        if ((u64)v >= (u64)extent) {
            note(status, row, v);
            continue;
        }
        int is_mine = 1;
#ifdef ADDING
        for (int i = 1; i <= own; i++) is_mine &= at[-i * (idx)index_step] != v;
#else
        for (int i = 1; i < left; i++) is_mine &= at[i * (idx)index_step] != v;
#endif
        if (!is_mine) continue;
        idx to = walk(&p, 0, ROWS, 1, row) + (idx)v * (idx)along + walk(&p, 5 * ROWS, INNER, 0, w);
        idx from = walk(&p, 0, ROWS, 2, row) + walk(&p, 5 * ROWS, INNER, 1, w);
#ifdef ADDING
        Sum sum = joined(load(y, to, 0), load(source, from, 0));
        for (int i = 1; i < left; i++)
            if (at[i * (idx)index_step] == v) sum = joined(sum, load(source, from + i * (idx)source_step, 0));
        store(y, to, sum);
#else
        ((GLOBAL WORD *)y)[to] = ((GLOBAL const WORD *)source)[from];
#endif
    }
}
#elif defined(BY_TEAMS)
// Rows of a list that a thread looks at at once, and that it reads.
#define LOOKED (COUNT >= 8 * TEAM ? 8 : COUNT > TEAM ? COUNT / TEAM : 1)
#define EACH_LOOKED(a) _Pragma("unroll") for (int a = 0; a < LOOKED; a++)
#define AHEAD 4
#define EACH_AHEAD(a) _Pragma("unroll") for (int a = 0; a < AHEAD; a++)
// Where word w of the row comes from, and where it goes, but for the index.
#define FROM(w) (from + walk(&p, 5 * ROWS, INNER, 1, w))
#define TO(w) (to + walk(&p, 5 * ROWS, INNER, 0, w))

// The first row from `j` on that is met, of which there is one.
FUNCTION int next_met(LOCAL const u32 *met, int j) {
    u32 bits = met[j / 32] >> (j & 31);
    while (bits == 0) {
        j = (j | 31) + 1;
        bits = met[j / 32];
    }
    return j + 63 - leading_zeros_u64((u64)(bits & (0 - bits)));
}

// For lists that are short, but of wide rows: a team of TEAM threads moves a row, and looks at all rows of the list, COUNT
// at most, a power of 2, that may point to one place, while the row's words are on their way. The first row of a place adds up
// all, in their order; of an assignment, the last one writes. A row that meets no other is added by the memory, if that adds
// words (WHOLE): the bits are the same, and nothing waits for what was there.
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
    GLOBAL const SI *at = index + walk(&p, 0, ROWS, 0, row);
    GLOBAL const SI *list = at - own * (idx)index_step;
    idx to = walk(&p, 0, ROWS, 1, row), from = walk(&p, 0, ROWS, 2, row);
    for (int i = member; i < COUNT / 32; i += TEAM) met[i] = 0;
    if (member == 0) others[team] = 0;
    TEAM_BARRIER();
    // None of these reads waits for another.
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
            // Whether there are rows before this one, and above that how many come after it.
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
        // Added in blocks, so that errors of long sums stay small.
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
#elif defined(EXACT)
// A number of f16 that is finite, in units of the smallest one.
FUNCTION i64 units_of(S h) {
    int exponent = h >> 10 & 31;
    i64 size = exponent == 0 ? h & 0x3ff : (i64)((h & 0x3ff) | 0x400) << (exponent - 1);
    return h & 0x8000 ? -size : size;
}

// The number of f16 that is nearest: a unit is 2^-24.
FUNCTION S nearest(i64 units) { return f32_to_f16(integer_to_odd(units) * 5.96046448e-08f); }

// Of infinities and NaN, which of the infinities they hold: NaN holds both.
#define IS_SPECIAL(h) (((h) & 0x7c00) == 0x7c00)
#define HELD(h) ((h) & 0x3ff ? 3u : (h) & 0x8000 ? 2u : 1u)
#define SPECIAL(held) (S)((held) == 3 ? 0x7e00 : (held) == 2 ? 0xfc00 : 0x7c00)
// Indices and values that a thread reads at once.
#define AHEAD 4
#define EACH_AHEAD(a) _Pragma("unroll") for (int a = 0; a < AHEAD; a++)
// Threads of a list.
#define MEMBERS (THREADS / TOGETHER)

// Sums of f16 as integers of 64 bits, which hold those of 2^22 numbers: the order does not matter, and they are rounded once. A
// group adds up TOGETHER lists in BINS numbers of local memory, of which each has two halves and two bits, beside each
// other those of neighbouring lists. What gets nothing, or 0, stays as it is.
KERNEL(exact)(GLOBAL const SI *index, GLOBAL const S *source, GLOBAL S *y, ARGUMENT(Ints) p, i64 along, i64 extent, i64 total,
              i64 count, i64 apart, i64 index_step, i64 source_step, GLOBAL i64 *status) {
    SHARED_GIVEN(u32, sums, BINS * 2 + BINS / 16);
    LOCAL u32 *low = sums, *high = sums + BINS, *special = sums + 2 * BINS;
    int own = LANE % TOGETHER, member = LANE / TOGETHER;
    i64 list = GROUP * TOGETHER + own;
    int n = list < total ? (int)count : 0;
    idx row = n > 0 ? FIRST_ROW((idx)list, (idx)count, (idx)apart) : 0;
    GLOBAL const SI *at = index + walk(&p, 0, ROWS, 0, row);
    GLOBAL const S *from = source + walk(&p, 0, ROWS, 2, row);
    y += walk(&p, 0, ROWS, 1, row);
    for (int i = LANE; i < BINS * 2 + BINS / 16; i += THREADS) sums[i] = 0;
    BARRIER();
    for (int i = member; i < n; i += AHEAD * MEMBERS) {
        i64 v[AHEAD];
        S read[AHEAD];
        EACH_AHEAD(a) {
            int k = i + a * MEMBERS;
            v[a] = k < n ? at[k * (idx)index_step] : -1;
            read[a] = k < n ? from[k * (idx)source_step] : 0;
        }
        EACH_AHEAD(a) {
            int k = i + a * MEMBERS;
            if (k >= n) continue;
            if ((u64)v[a] >= (u64)extent) {
                note(status, row + k * (idx)apart, v[a]);
                continue;
            }
            int bin = (int)v[a] * TOGETHER + own;
            if (IS_SPECIAL(read[a])) {
                or_local(&special[bin / 16], HELD(read[a]) << bin % 16 * 2);
            } else {
                i64 units = units_of(read[a]);
                u32 below = (u32)units, sum = add_local(&low[bin], below) + below;
                u32 above = (u32)(units >> 32) + (sum < below);
                if (above != 0) add_local(&high[bin], above);
            }
        }
    }
    BARRIER();
    for (int v = member; v < (int)extent && n > 0; v += MEMBERS) {
        int bin = v * TOGETHER + own;
        i64 units = (i64)((u64)high[bin] << 32 | low[bin]);
        u32 held = special[bin / 16] >> bin % 16 * 2 & 3;
        if (units == 0 && held == 0) continue;
        S before = y[v * (idx)along];
        if (IS_SPECIAL(before)) held |= HELD(before);
        y[v * (idx)along] = held ? SPECIAL(held) : nearest(units + units_of(before));
    }
}
#elif defined(LISTS)
// An entry of a list: where it points, and below that its number, which has NUMBER_BITS.
#define ENTRY(v, i) ((u32)(v) << NUMBER_BITS | (u32)(i))
#define NUMBER(entry) ((idx)((entry) & ((1u << NUMBER_BITS) - 1)))
#define MEET(a, b) ((((a) ^ (b)) >> NUMBER_BITS) == 0)
#define BUCKET(v) (own * buckets + (int)mul_hi_u32((u32)(v) * 2654435761u, buckets))
// Entries of a bucket that are looked through for each one that is added, and indices that are read at once otherwise.
#define FEW_ENTRIES 32
#define SCANNED 8

// Indices, or words, that a thread reads at once. ONE: a row of the index has one word.
#ifdef ONE
#define ROW(k) (k)
#define AHEAD (sizeof(S) > 4 ? 4 : 8)
#else
#define ROW(k) QUOTIENT(k, width, by_width)
#define AHEAD 4
#endif
#define EACH_AHEAD(a) _Pragma("unroll") for (int a = 0; a < AHEAD; a++)
#define EACH_SCANNED(a) _Pragma("unroll") for (int a = 0; a < SCANNED; a++)
// Rows of one word that a thread keeps in its registers, if these are enough for all.
#define EACH_KEPT(a) _Pragma("unroll") for (int a = 0; a < KEPT; a++)
#define TO(w) walk(&p, 5 * ROWS, INNER, 0, w)
#define FROM(w) walk(&p, 5 * ROWS, INNER, 1, w)
#define IS_GOOD(v) ((u64)(v) < (u64)extent && (v) != padding)
// The indices of AHEAD rows; -1 in place of one that is bad or not there. `a` counts them.
#define READ_INDICES(v, row, is_there) \
    idx v[AHEAD]; \
    EACH_AHEAD(a) { \
        i64 value = (is_there) ? at[(row) * (idx)index_step] : -1; \
        v[a] = IS_GOOD(value) ? (idx)value : -1; \
    }
// The word and the bit of an index, and whether another row has it; which bit a row has, and whether it is marked.
#define PLACE(v) (((int)(v) & ((int)bits - 1)) / 32 * spread)
#define BIT(v) (1u << ((v) & 31))
#define IS_AGAIN(v) (again[PLACE(v)] & BIT(v))
#define FLAG(i) ((int)((i) * (idx)together) + own)
#define MARK(i, v) \
    or_local(meeting + FLAG(i) / 32, BIT(FLAG(i))); \
    add_local(&ends[BUCKET(v)], 1)
#define MEETS(i) (meeting[FLAG(i) / 32] & BIT(FLAG(i)))

// For an index whose lists have a place in local memory. A group takes `together` lists, a power of 2, each with `bits` bits,
// a power of 2: one for all indices that are alike modulo `bits`. A row whose bit is no other's is moved at once. The others are put
// into BUCKETS buckets, in any order, so that those that meet are in one: the first of them adds up all, in their
// order; of an assignment, the last one writes. Unless they are ENTRIES at most, `at_once` lists follow `at_once` others. Groups of
// one GROUP share the writing, if there is more than ONE word.
KERNEL(lists)(GLOBAL const SI *index, GLOBAL const S *source, GLOBAL S *y, GLOBAL i32 *counts, GLOBAL i64 *first, ARGUMENT(Ints) p,
              i64 width, i64 by_width, i64 along, i64 extent, i64 total, i64 together, i64 at_once, i64 bits, i64 count,
              i64 apart, i64 index_step, i64 source_step, i64 padding, GLOBAL i64 *status) {
    SHARED_GIVEN(u32, entries, ENTRIES + BUCKETS + ENTRIES / 16 + THREADS);
    LOCAL u32 *ends = entries + ENTRIES, *meeting = ends + BUCKETS, *sums = meeting + ENTRIES / 16;
    int team = THREADS / (int)together, buckets = BUCKETS / (int)together, of_list = (int)bits / 32;
    // Neighbouring threads take neighbours of the index, and other banks of local memory.
    int own = apart > 1 ? LANE % (int)together : LANE / team, member = apart > 1 ? LANE / (int)together : LANE % team;
    int spread = apart > 1 ? (int)together : 1;
    // Where entries come later there are bits first: of indices that occur, and of those that occur again.
    LOCAL u32 *once = entries + (apart > 1 ? own : own * of_list), *again = once + of_list * (int)together;
    i64 list = GROUP * together + own;
    int n = list < total ? (int)count : 0;
    idx row = n > 0 ? FIRST_ROW((idx)list, (idx)count, (idx)apart) : 0, words = n * (idx)width;
    GLOBAL const SI *at = index + walk(&p, 0, ROWS, 0, row);
    idx to_list = walk(&p, 0, ROWS, 1, row), from_list = walk(&p, 0, ROWS, 2, row);
#ifdef KEPT
    // On their way while local memory is cleared.
    SI value[KEPT];
    EACH_KEPT(a) if (member + a * team < n) value[a] = at[(member + a * team) * (idx)index_step];
#endif
    for (int i = LANE; i < 2 * of_list * (int)together; i += THREADS) entries[i] = 0;
    for (int i = LANE; i < BUCKETS; i += THREADS) ends[i] = 0;
#ifdef KEPT
    BARRIER();
    idx v[KEPT];
    EACH_KEPT(a) {
        int i = member + a * team;
        v[a] = i < n && IS_GOOD(value[a]) ? (idx)value[a] : -1;
        if (i < n && (u64)value[a] >= (u64)extent) note(status, row + i * (idx)apart, value[a]);
    }
    // Before anything is written.
    Word read[KEPT];
    EACH_KEPT(a) if (v[a] >= 0)
        SET_WORD(read[a], ((GLOBAL const WORD *)source)[from_list + (member + a * team) * (idx)source_step]);
#if defined(ADDING) && !defined(FRESH)
    Word had[KEPT];
    EACH_KEPT(a) if (v[a] >= 0) SET_WORD(had[a], ((GLOBAL const WORD *)y)[to_list + v[a] * (idx)along]);
#endif
    EACH_KEPT(a) if (v[a] >= 0 && or_local(once + PLACE(v[a]), BIT(v[a])) & BIT(v[a]))
        or_local(again + PLACE(v[a]), BIT(v[a]));
    BARRIER();
    u32 meets = 0;
    EACH_KEPT(a) if (v[a] >= 0) {
        idx to = to_list + v[a] * (idx)along;
        if (IS_AGAIN(v[a])) {
            meets |= 1u << a;
            add_local(&ends[BUCKET(v[a])], 1);
            continue;
        }
#ifdef FRESH
        PUT(to, v[a], 0, sum_of(read[a], member + a * team), 1);
#elif defined(ADDING)
        store(y, to, joined(sum_of(had[a], 0), sum_of(read[a], 0)));
#else
        ((GLOBAL WORD *)y)[to] = read[a].all;
#endif
    }
    idx share = member, shares = team;
#else
    for (int i = LANE; i < ENTRIES / 16; i += THREADS) meeting[i] = 0;
    BARRIER();
    for (int i = member; i < n; i += AHEAD * team) {
        SI v[AHEAD];
        EACH_AHEAD(a) if (i + a * team < n) v[a] = at[(i + a * team) * (idx)index_step];
        EACH_AHEAD(a) if (i + a * team < n) {
            if (IS_GOOD(v[a])) {
                if (or_local(once + PLACE(v[a]), BIT(v[a])) & BIT(v[a])) or_local(again + PLACE(v[a]), BIT(v[a]));
            } else if ((u64)v[a] >= (u64)extent && GROUP_Y == 0)
                note(status, row + (i + a * team) * (idx)apart, v[a]);
        }
    }
    BARRIER();
#ifndef ONE
    for (int i = member; i < n; i += AHEAD * team) {
        READ_INDICES(v, i + a * team, i + a * team < n)
        EACH_AHEAD(a) if (v[a] >= 0 && IS_AGAIN(v[a])) {
            MARK(i + a * team, v[a]);
        }
    }
    BARRIER();
#endif
    idx share = member + (idx)GROUP_Y * team, shares = team * (idx)GROUPS_Y;
    for (idx k = share; k < words; k += AHEAD * shares) {
        READ_INDICES(v, ROW(k + a * shares), k + a * shares < words)
        idx to[AHEAD];
        Word read[AHEAD], had[AHEAD];
        EACH_AHEAD(a) {
            idx i = ROW(k + a * shares), w = k + a * shares - i * (idx)width;
            to[a] = -1;
            if (v[a] < 0) continue;
#ifdef ONE
            if (IS_AGAIN(v[a])) {
                MARK(i, v[a]);
                continue;
            }
#else
            if (MEETS(i)) continue;
#endif
            to[a] = to_list + v[a] * (idx)along + TO(w);
            SET_WORD(read[a], ((GLOBAL const WORD *)source)[from_list + i * (idx)source_step + FROM(w)]);
#if defined(ADDING) && !defined(FRESH)
            SET_WORD(had[a], ((GLOBAL const WORD *)y)[to[a]]);
#endif
        }
        EACH_AHEAD(a) if (to[a] >= 0) {
#ifdef FRESH
            idx i = ROW(k + a * shares);
            PUT(to[a], v[a], k + a * shares - i * (idx)width, sum_of(read[a], i), 1);
#elif defined(ADDING)
            store(y, to[a], joined(sum_of(had[a], 0), sum_of(read[a], 0)));
#else
            ((GLOBAL WORD *)y)[to[a]] = read[a].all;
#endif
        }
    }
#endif
    int step = begin(ends, BUCKETS, sums) <= ENTRIES ? (int)together : (int)at_once;
    for (int turn = 0; turn < (int)together; turn += step) {
        int is_turn = own >= turn && own < turn + step, base = turn > 0 ? (int)ends[turn * buckets - 1] : 0;
#ifdef KEPT
        EACH_KEPT(a) if (is_turn && (meets >> a & 1))
            entries[(int)add_local(&ends[BUCKET(v[a])], 1) - base] = ENTRY(v[a], member + a * team);
#else
        for (int i = member; i < n && is_turn; i += AHEAD * team) {
            READ_INDICES(v, i + a * team, i + a * team < n && MEETS(i + a * team))
            EACH_AHEAD(a) if (v[a] >= 0)
                entries[(int)add_local(&ends[BUCKET(v[a])], 1) - base] = ENTRY(v[a], i + a * team);
        }
#endif
        BARRIER();
#ifdef ONE
        int start = own > 0 ? (int)ends[own * buckets - 1] : 0;
        idx last = is_turn ? (int)ends[(own + 1) * buckets - 1] - start : 0;
#else
        idx last = words;
#endif
        for (idx k = share; k < last; k += shares) {
#ifdef ONE
            u32 entry = entries[start - base + k];
            idx i = NUMBER(entry), value = (idx)(entry >> NUMBER_BITS), w = 0;
#else
            idx i = ROW(k), w = k - i * (idx)width;
            if (!MEETS(i)) continue;
            idx value = (idx)at[i * (idx)index_step];
            u32 entry = ENTRY(value, i);
#endif
            int b = BUCKET(value), from_entry = (b > 0 ? (int)ends[b - 1] : 0) - base, end = (int)ends[b] - base;
            int is_mine = 1, others = -1;
            for (int e = from_entry; e < end && is_mine; e++) {
                u32 other = entries[e];
                int meets = MEET(other, entry);
                others += meets;
#ifdef ADDING
                is_mine = !meets || other >= entry;
#else
                is_mine = !meets || other <= entry;
#endif
            }
            if (!is_mine) continue;
            idx to = to_list + value * (idx)along + TO(w), from = from_list + FROM(w);
#ifdef ADDING
            int length = others + 1;
            Sum sum = joined(BEFORE(y, to), load(source, from + i * (idx)source_step, i));
            if (end - from_entry <= FEW_ENTRIES) {
                for (; others > 0; others--) {
                    u32 next = ~(u32)0;
                    for (int e = from_entry; e < end; e++) {
                        u32 other = entries[e];
                        if (MEET(other, entry) && other > entry && other < next) next = other;
                    }
                    entry = next;
                    sum = joined(sum, load(source, from + NUMBER(entry) * (idx)source_step, NUMBER(entry)));
                }
            } else {
                // Added in blocks, so that errors of long sums stay small.
                for (idx j = i + 1; others > 0;) {
                    Sum block = zero();
                    for (int stop = others > 64 ? others - 64 : 0; others > stop; j += SCANNED) {
                        i64 next[SCANNED];
                        EACH_SCANNED(a) next[a] = j + a < n ? at[(j + a) * (idx)index_step] : -1;
                        EACH_SCANNED(a) if (next[a] == value) {
                            block = joined(block, load(source, from + (j + a) * (idx)source_step, j + a));
                            others--;
                        }
                    }
                    sum = joined(sum, block);
                }
            }
            PUT(to, value, w, sum, length);
#else
            ((GLOBAL WORD *)y)[to] = ((GLOBAL const WORD *)source)[from + i * (idx)source_step];
#endif
        }
        // The entries of others take the place of these.
        if (turn + step < (int)together) BARRIER();
    }
}
#elif defined(LONG)
// Indices that a thread reads at once.
#if defined(KEPT) && !defined(ADDING)
#define AHEAD 4
#else
#define AHEAD 8
#endif
#define EACH_AHEAD(a) _Pragma("unroll") for (int a = 0; a < AHEAD; a++)
// Threads of a list.
#define MEMBERS (THREADS / TOGETHER)
#define ROW_OF(t, a) (member + ((t) + (a)) * MEMBERS)
// Two numbers of 16 bits have a word: the one of an even place below.
#define HALF(word, place) ((word) >> (place) % 2 * 16 & 0xffff)
#ifdef KEPT
// A thread keeps its indices, of 16 bits, two in a register; NOWHERE in place of one that is not good.
#define NOWHERE 0xffff
#define EACH_TURN(t) _Pragma("unroll") for (int t = 0; t < KEPT; t += AHEAD)
#define KEEP(k, v) kept[(k) / 2] = (k) % 2 == 0 ? (u32)(v) : kept[(k) / 2] | (u32)(v) << 16
// Those of a turn, which are then counted from the first index of the next pass: nothing is worked out for all passes, and kept as
// well.
#define TAKE_KEPT(pairs, t) \
    u32 pairs[AHEAD / 2]; \
    _Pragma("unroll") for (int a = 0; a < AHEAD / 2; a++) pairs[a] = kept[(t) / 2 + a];
#define READ_KEPT \
    u32 kept[KEPT / 2]; \
    EACH_TURN(t) { \
        SI v[AHEAD]; \
        EACH_AHEAD(a) if (ROW_OF(t, a) < n) v[a] = at[ROW_OF(t, a) * (idx)index_step]; \
        EACH_AHEAD(a) { \
            int i = ROW_OF(t, a); \
            KEEP(t + a, i < n && IS_GOOD(v[a]) ? v[a] : NOWHERE); \
            if (i < n && (u64)v[a] >= (u64)extent) note(status, row + i * (idx)apart, v[a]); \
        } \
        /* Or all reads would be on their way, and have no registers. */ \
        BARRIER(); \
    }
#else
#define EACH_TURN(t) for (int t = 0; t * MEMBERS < n; t += AHEAD)
#define READ_KEPT
// -1 in place of one that is not there.
#define READ_INDICES(v, t) \
    SI v[AHEAD]; \
    EACH_AHEAD(a) { \
        int i = ROW_OF(t, a); \
        v[a] = -1; \
        if (i < n) v[a] = at[i * (idx)index_step]; \
    }
#endif

#ifdef ADDING
// An entry: of where a row points, the SHIFT lowest bits, by which those of a bucket differ, and below them its number.
#define NUMBER_BITS (16 - SHIFT)
#define ENTRY(v, i) (((u32)(v) & ((1u << SHIFT) - 1)) << NUMBER_BITS | (u32)(i))
#define NUMBER(entry) ((idx)((entry) & ((1u << NUMBER_BITS) - 1)))
// In place of an entry, above all others.
#define NONE (~(u32)0)
// Entries of a bucket that are looked through for each row of y, at most.
#define MOST_ENTRIES 256
// Rows of the source that a thread reads at once.
#define NEXT 4
#define EACH_NEXT(a) _Pragma("unroll") for (int a = 0; a < NEXT; a++)
#define IS_GOOD(v) ((u64)(v) < (u64)extent && (v) != padding)
#define ADD_ONE(b) HALF(add_local(&starts[(b) / 2], 1u << (b) % 2 * 16), b)
// Where the entries of a bucket begin; after they are in their places, where they end.
#define START(b) ((int)HALF(starts[(b) / 2], b))
#define IS_LONG(b) (longs[(b) / 32] >> ((b) & 31) & 1)
// The bucket of an index, below 0 or above all others if it is not looked at now.
#define BUCKET(v) ((int)((v) >> SHIFT) - low)

// The first NEXT of a bucket's entries that are at least `least` and below `end`, in their order.
LOCAL_FUNCTION void find_next(LOCAL const u16 *entries, int n, u32 least, u32 end, u32 *next) {
    EACH_NEXT(a) next[a] = NONE;
    for (int e = 0; e < n; e++) {
        u32 entry = entries[e];
        if (entry < least || entry >= end) continue;
        EACH_NEXT(a) {
            u32 larger = entry > next[a] ? entry : next[a];
            next[a] = entry > next[a] ? next[a] : entry;
            entry = larger;
        }
    }
}

// For many long lists, of rows of one word. A group takes TOGETHER lists, and puts their rows into buckets, each for 2^SHIFT
// neighbouring indices: it counts them, and then writes an entry for each, in any order. A thread for each row of y adds up those of
// its bucket that point there, in the order of their numbers. Of lists for which there is no room, BUCKETS - 1 buckets follow
// others, or as many as have no more than ENTRIES entries. One of more than MOST_ENTRIES has none: for its rows of y the list is
// read.
KERNEL(buckets)(GLOBAL const SI *index, GLOBAL const S *source, GLOBAL S *y, GLOBAL i32 *counts, GLOBAL i64 *first, ARGUMENT(Ints) p,
                i64 along, i64 extent, i64 total, i64 count, i64 apart, i64 index_step, i64 source_step, i64 padding,
                GLOBAL i64 *status) {
    SHARED_GIVEN(u32, all_starts, TOGETHER * (BUCKETS / 2 + BUCKETS / 32 + ENTRIES / 2 + 1));
    LOCAL u32 *all_longs = all_starts + TOGETHER * (BUCKETS / 2), *ends = all_longs + TOGETHER * (BUCKETS / 32);
    // Where entries come later, threads add up counts.
    LOCAL u32 *sums = ends + TOGETHER;
    int own = LANE % TOGETHER, member = LANE / TOGETHER;
    LOCAL u32 *starts = all_starts + own * (BUCKETS / 2), *longs = all_longs + own * (BUCKETS / 32);
    LOCAL u16 *entries = (LOCAL u16 *)(ends + TOGETHER) + own * ENTRIES;
    i64 list = GROUP * TOGETHER + own;
    int n = list < total ? (int)count : 0;
    idx row = n > 0 ? FIRST_ROW((idx)list, (idx)count, (idx)apart) : 0;
    GLOBAL const SI *at = index + walk(&p, 0, ROWS, 0, row);
    idx to_list = walk(&p, 0, ROWS, 1, row), from = walk(&p, 0, ROWS, 2, row), step = (idx)source_step;
    int buckets = (((int)extent - 1) >> SHIFT) + 1, low = 0;
    READ_KEPT
    while (low < buckets) {
        for (int k = LANE; k < TOGETHER * (BUCKETS / 2 + BUCKETS / 32); k += THREADS) all_starts[k] = 0;
        int size = buckets - low < BUCKETS - 1 ? buckets - low : BUCKETS - 1;
        if (member == 0) ends[own] = (u32)size;
        BARRIER();
#ifdef KEPT
        EACH_TURN(t) EACH_AHEAD(a) {
            int b = (int)(HALF(kept[(t + a) / 2], t + a) >> SHIFT);
            if (b < size) ADD_ONE(b);
        }
#else
        EACH_TURN(t) {
            READ_INDICES(v, t)
            EACH_AHEAD(a) {
                int i = ROW_OF(t, a), b = BUCKET(v[a]);
                if (IS_GOOD(v[a]) && (u32)b < (u32)size) ADD_ONE(b);
                if (i < n && (u64)v[a] >= (u64)extent && low == 0) note(status, row + i * (idx)apart, v[a]);
            }
        }
#endif
        BARRIER();
        for (int b = member; b < size; b += MEMBERS)
            if (START(b) > MOST_ENTRIES) or_local(&longs[b / 32], 1u << (b & 31));
        BARRIER();
        for (int k = member; k < BUCKETS / 2; k += MEMBERS) {
            u32 are_long = longs[k / 16] >> k % 16 * 2;
            if (are_long & 3) starts[k] &= (are_long & 1 ? 0 : 0xffff) | (are_long & 2 ? 0 : 0xffff0000);
        }
        begin(all_starts, TOGETHER * (BUCKETS / 2), sums);
#if TOGETHER > 1
        // What comes before the first one are other lists.
        u32 base = starts[0] & 0xffff;
        BARRIER();
        for (int k = member; k < BUCKETS / 2; k += MEMBERS)
            starts[k] = ((starts[k] - base) & 0xffff) | ((starts[k] - (base << 16)) & 0xffff0000);
        BARRIER();
#endif
        // No row is in a bucket of the last number.
        for (int b = member; b < size; b += MEMBERS)
            if (START(b) <= ENTRIES && START(b + 1) > ENTRIES) ends[own] = (u32)b;
        BARRIER();
        for (int other = 0; other < TOGETHER; other++) size = (int)ends[other] < size ? (int)ends[other] : size;
#ifdef KEPT
        EACH_TURN(t) {
            TAKE_KEPT(pairs, t)
            EACH_AHEAD(a) {
                u32 v = HALF(pairs[a / 2], a);
                int b = (int)(v >> SHIFT);
                if (b < size && !IS_LONG(b)) entries[ADD_ONE(b)] = (u16)ENTRY(v, ROW_OF(t, a));
                KEEP(t + a, b < size || v == NOWHERE ? NOWHERE : v - ((u32)size << SHIFT));
            }
        }
#else
        EACH_TURN(t) {
            READ_INDICES(v, t)
            EACH_AHEAD(a) {
                int b = BUCKET(v[a]);
                if (!IS_GOOD(v[a]) || (u32)b >= (u32)size || IS_LONG(b)) continue;
                entries[ADD_ONE(b)] = (u16)ENTRY(v[a], ROW_OF(t, a));
            }
        }
#endif
        BARRIER();
        i64 stop = (i64)(low + size) << SHIFT;
        if (stop > extent || n == 0) stop = n > 0 ? extent : 0;
        for (idx v = ((idx)low << SHIFT) + member; v < (idx)stop; v += MEMBERS) {
            idx to = to_list + v * (idx)along;
            int b = BUCKET(v), begins = b > 0 ? START(b - 1) : 0, of_bucket = START(b) - begins;
            u32 least = ENTRY(v, 0), end = least + (1u << NUMBER_BITS);
            int length = 0;
            if (IS_LONG(b)) {
                // Added in blocks, so that errors of long sums stay small.
                Sum sum = BEFORE(y, to), block = zero();
                for (int j = 0; j < n; j += AHEAD) {
                    i64 value[AHEAD];
                    EACH_AHEAD(a) value[a] = j + a < n ? at[(j + a) * (idx)index_step] : -1;
                    EACH_AHEAD(a) if (value[a] == v && value[a] != padding) {
                        block = joined(block, load(source, from + (j + a) * step, j + a));
                        if (++length % 64 > 0) continue;
                        sum = joined(sum, block);
                        block = zero();
                    }
                }
                if (length > 0) PUT(to, v, 0, joined(sum, block), length);
                continue;
            }
            u32 next[NEXT];
            find_next(entries + begins, of_bucket, least, end, next);
            if (next[0] == NONE) continue;
            Sum sum = BEFORE(y, to);
            while (next[0] != NONE) {
                Word read[NEXT];
                EACH_NEXT(a) if (next[a] != NONE)
                    SET_WORD(read[a], ((GLOBAL const WORD *)source)[from + NUMBER(next[a]) * step]);
                EACH_NEXT(a) if (next[a] != NONE) {
                    sum = joined(sum, sum_of(read[a], NUMBER(next[a])));
                    length++;
                }
                if (next[NEXT - 1] == NONE) break;
                find_next(entries + begins, of_bucket, next[NEXT - 1] + 1, end, next);
            }
            PUT(to, v, 0, sum, length);
        }
        low += size;
        BARRIER();
    }
}
#else
// Where the last row is kept that points to a place, and how it is raised, from 0 if nothing is there yet.
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
#define IS_GOOD(v) ((u64)(v) < (u64)extent)

// For many long lists, of rows of one word, of which the last one that points to a place is written there. A group takes TOGETHER
// lists, and has 16 bits of local memory for each of PLACES places: the number of the last row, from 1 on. Other places follow.
KERNEL(last)(GLOBAL const SI *index, GLOBAL const S *source, GLOBAL S *y, ARGUMENT(Ints) p, i64 along, i64 extent, i64 total, i64 count,
             i64 apart, i64 index_step, i64 source_step, GLOBAL i64 *status) {
    SHARED_GIVEN(u32, rows, TOGETHER * (PLACES / 2));
    int own = LANE % TOGETHER, member = LANE / TOGETHER;
    i64 list = GROUP * TOGETHER + own;
    int n = list < total ? (int)count : 0;
    idx row = n > 0 ? FIRST_ROW((idx)list, (idx)count, (idx)apart) : 0;
    GLOBAL const SI *at = index + walk(&p, 0, ROWS, 0, row);
    idx to = walk(&p, 0, ROWS, 1, row), from = walk(&p, 0, ROWS, 2, row), step = (idx)source_step;
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
#endif
#else

// Below, rows are sorted by their keys, and `order` says which they were. Rows of one key are a segment. `p`: extents and
// strides of the source's rows; extents of INNER dimensions, their strides in y and the source; extents of LIST dimensions
// that tell lists apart, and their strides in y.
#define TO(w) walk(&p, 3 * ROWS, INNER, 0, w)
#define FROM(w) walk(&p, 3 * ROWS, INNER, 1, w)
#define FROM_ROW(k) walk(&p, 0, ROWS, 0, (idx)order[k])
#define IS_BAD(key) ((key) == (K)bad)
#if LIST > 0
#define TO_ROW(key) \
    (walk(&p, 3 * ROWS + 4 * INNER, LIST, 0, (idx)((key) / (K)extent)) + (idx)((key) % (K)extent) * (idx)along)
#else
#define TO_ROW(key) ((idx)(key) * (idx)along)
#endif

#ifdef ADDING
// Rows that are read before they are added, so that a thread does not wait for each.
#define AHEAD 8
#define EACH_AHEAD(i) _Pragma("unroll") for (int i = 0; i < AHEAD; i++)

#ifdef MEAN
// The first row whose key is not smaller.
FUNCTION idx bound(GLOBAL const K *keys, idx rows, K key) {
    idx low = 0, high = rows;
    while (low < high) {
        idx middle = low + (high - low) / 2;
        if (keys[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

#define LENGTH(keys, rows, key) (bound(keys, rows, (key) + 1) - bound(keys, rows, key))
#else
#define LENGTH(keys, rows, key) 0
#endif

// Rows of y that a thread looks at for those that get nothing.
#define ZERO_ROWS 32

// Sums of the segments in parts of `part` rows. A thread takes a word of all rows of a part. A segment that lies in one
// part is done; of one that goes on, the first part's sum is a tail, and the sums of the others are heads. With FRESH, more
// threads write zeros where no key points.
KERNEL(sums)(GLOBAL const K *keys, GLOBAL const idx *order, GLOBAL const S *source, GLOBAL S *y, GLOBAL i32 *counts,
             GLOBAL i64 *first, GLOBAL Sum *heads, GLOBAL Sum *tails, GLOBAL const u8 *used, ARGUMENT(Ints) p, i64 rows, i64 width,
             i64 by_width, i64 along, i64 extent, i64 bad, i64 part) {
    i64 n = (rows + part - 1) / part * width, all = n;
#ifdef FRESH
    all += (extent + ZERO_ROWS - 1) / ZERO_ROWS * width;
#endif
    for (i64 e = GROUP * THREADS + LANE; e < all; e += GROUPS * THREADS) {
#ifdef FRESH
        if (e >= n) {
            idx block = QUOTIENT((idx)(e - n), width, by_width), w = (idx)(e - n) - block * (idx)width;
            idx last = (block + 1) * ZERO_ROWS;
            if (last > (idx)extent) last = (idx)extent;
            for (idx row = block * ZERO_ROWS; row < last; row++)
                if (!used[row]) PUT(row * (idx)along + TO(w), row, w, zero(), 0);
            continue;
        }
#endif
        idx block = QUOTIENT((idx)e, width, by_width), w = (idx)e - block * (idx)width;
        idx k = block * (idx)part, to = TO(w), from = FROM(w);
        idx end = k + (idx)part < (idx)rows ? k + (idx)part : (idx)rows;
        K key = keys[k];
        int is_head = k > 0 && keys[k - 1] == key;
        idx start = k, at = IS_BAD(key) ? 0 : TO_ROW(key) + to;
        Sum sum = is_head || IS_BAD(key) ? zero() : BEFORE(y, at);
        for (; k < end; k += AHEAD) {
            Word read[AHEAD];
            // Of a whole batch no read waits for a branch, or another read. Numbers of 64 bits leave too few registers for that.
            if (sizeof(A) < 8 && k + AHEAD <= end) {
                EACH_AHEAD(i) SET_WORD(read[i], ((GLOBAL const WORD *)source)[FROM_ROW(k + i) + from]);
            } else {
                EACH_AHEAD(i) if (k + i < end) SET_WORD(read[i], ((GLOBAL const WORD *)source)[FROM_ROW(k + i) + from]);
            }
            EACH_AHEAD(i) if (k + i < end) {
                K next = keys[k + i];
                if (next != key) {
                    if (is_head)
                        heads[e] = sum;
                    else
                        PUT(at, key, w, sum, k + i - start);
                    is_head = 0;
                    key = next;
                    start = k + i;
                    at = IS_BAD(key) ? 0 : TO_ROW(key) + to;
                    sum = IS_BAD(key) ? zero() : BEFORE(y, at);
                }
                if (!IS_BAD(key)) sum = joined(sum, sum_of(read[i], (idx)order[k + i]));
            }
        }
        if (is_head)
            heads[e] = sum;
        else if (end < (idx)rows && keys[end] == key)
            tails[e] = sum;
        else if (!IS_BAD(key))
            PUT(at, key, w, sum, end - start);
    }
}

// Tails and the heads that follow.
KERNEL(joins)(GLOBAL const K *keys, GLOBAL S *y, GLOBAL i32 *counts, GLOBAL i64 *first, GLOBAL const Sum *heads,
              GLOBAL const Sum *tails, ARGUMENT(Ints) p, i64 rows, i64 width, i64 by_width, i64 along, i64 extent, i64 bad,
              i64 part) {
    i64 n = (rows + part - 1) / part * width;
    for (i64 e = GROUP * THREADS + LANE; e < n; e += GROUPS * THREADS) {
        idx block = QUOTIENT((idx)e, width, by_width), w = (idx)e - block * (idx)width;
        idx start = block * (idx)part, k = start + (idx)part;
        if (k >= (idx)rows) continue;
        K key = keys[k];
        // Only the part in which a segment starts is its tail.
        if (IS_BAD(key) || keys[k - 1] != key || (start > 0 && keys[start - 1] == key)) continue;
        Sum sum = tails[e];
        i64 head = e;
        while (k < (idx)rows && keys[k] == key) {
            // Added in blocks, so that errors of long sums stay small.
            Sum block = zero();
            for (int i = 0; i < 64 && k < (idx)rows && keys[k] == key; i++, k += (idx)part) {
                head += width;
                block = joined(block, heads[head]);
            }
            sum = joined(sum, block);
        }
        PUT(TO_ROW(key) + TO(w), key, w, sum, LENGTH(keys, (idx)rows, key));
    }
}
#else
// The last row of each segment is what y gets.
KERNEL(assign)(GLOBAL const K *keys, GLOBAL const idx *order, GLOBAL const S *source, GLOBAL S *y, ARGUMENT(Ints) p, i64 rows,
               i64 width, i64 by_width, i64 along, i64 extent, i64 bad) {
    for (i64 e = GROUP * THREADS + LANE; e < rows * width; e += GROUPS * THREADS) {
        idx k = QUOTIENT((idx)e, width, by_width), w = (idx)e - k * (idx)width;
        K key = keys[k];
        if (IS_BAD(key) || (k + 1 < (idx)rows && keys[k + 1] == key)) continue;
        ((GLOBAL WORD *)y)[TO_ROW(key) + TO(w)] = ((GLOBAL const WORD *)source)[FROM_ROW(k) + FROM(w)];
    }
}
#endif
#endif
#endif
