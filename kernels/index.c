// Gather and scatter. Trailing dimensions along which the index does not change are moved as a whole: at a row of the
// index lie `width` words. I: dtype of the index. A bad index is noted, and touches no memory.
//
// `p`: extents of ROWS dimensions of the index's rows, then strides along them per operand; extents of INNER dimensions of
// what lies at a row, then strides. Positions in x and y are in words.

#ifdef INTS
typedef STORAGE(I) SI;

// Where element `number` lies, whose `rank` extents start at `base`.
FUNCTION idx walk(const Ints *p, int base, int rank, int operand, idx number) {
    idx at = 0;
#pragma unroll
    for (int d = rank - 1; d >= 0; d--) {
        idx c = d == 0 ? number : number % (idx)p->v[base + d];
        if (d > 0) number /= (idx)p->v[base + d];
        at += c * (idx)p->v[base + rank * (1 + operand) + d];
    }
    return at;
}
#endif

#ifdef GATHER
// Words that a thread reads at once, so that it does not wait for each.
#define AHEAD 4
#define EACH_AHEAD(i) _Pragma("unroll") for (int i = 0; i < AHEAD; i++)

// y[row, w] = x[row with index[row] along the indexed dimension, w]; words of type WORD.
KERNEL(gather)(GLOBAL const WORD *x, GLOBAL const SI *index, GLOBAL WORD *y, ARGUMENT(Ints) p, i64 n, i64 width, i64 along,
               i64 extent, WORD bad, GLOBAL i64 *status) {
    i64 step = GROUPS * THREADS;
    for (i64 first = GROUP * THREADS + LANE; first < n; first += AHEAD * step) {
        idx row[AHEAD];
        i64 v[AHEAD];
        WORD read[AHEAD];
        EACH_AHEAD(i) if (first + i * step < n) {
            row[i] = width == 1 ? (idx)(first + i * step) : (idx)(first + i * step) / (idx)width;
            v[i] = index[walk(&p, 0, ROWS, 0, row[i])];
        }
        EACH_AHEAD(i) if (first + i * step < n) {
            idx w = (idx)(first + i * step) - row[i] * (idx)width;
            read[i] = bad;
            if ((u64)v[i] < (u64)extent)
                read[i] = x[walk(&p, 0, ROWS, 1, row[i]) + (idx)v[i] * (idx)along + walk(&p, 3 * ROWS, INNER, 0, w)];
        }
        EACH_AHEAD(i) if (first + i * step < n) {
            y[first + i * step] = read[i];
            if ((u64)v[i] >= (u64)extent) note(status, row[i], v[i]);
        }
    }
}
#endif

#if defined(LISTS) || defined(DIGITS)
// Makes of each count the sum of those before it. All threads come; `sums` has THREADS elements.
FUNCTION void begin(LOCAL u32 *counts, int n, LOCAL u32 *sums) {
    int per = (n + THREADS - 1) / THREADS, first = LANE * per, end = first + per < n ? first + per : n;
    u32 own = 0;
    BARRIER();
    for (int i = first; i < end; i++) own += counts[i];
    sums[LANE] = own;
    for (int below = 1; below < THREADS; below *= 2) {
        BARRIER();
        u32 before = LANE >= below ? sums[LANE - below] : 0;
        BARRIER();
        sums[LANE] += before;
    }
    u32 sum = sums[LANE] - own;
    for (int i = first; i < end; i++) {
        u32 count = counts[i];
        counts[i] = sum;
        sum += count;
    }
    BARRIER();
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
// VECTOR elements of dtype T.
typedef STORAGE(T) S;
typedef union {
    WORD all;
    S each[VECTOR];
} Word;

#define EACH_PART(j) _Pragma("unroll") for (int j = 0; j < VECTOR; j++)

#ifdef ADDING
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

FUNCTION Sum sum_of(Word w) {
    Sum sum;
    EACH_PART(j) sum.v[j] = (A)LOAD(T, w.each, j);
    return sum;
}

FUNCTION Sum load(GLOBAL const S *x, idx word) {
    Word w;
    w.all = ((GLOBAL const WORD *)x)[word];
    return sum_of(w);
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
#define BEFORE(y, at) load(y, at)
#endif

// What y gets of a segment of `length` rows.
FUNCTION Sum result(Sum sum, idx length) {
#ifdef MEAN
    EACH_PART(j) sum.v[j] /= (A)length;
#endif
    return sum;
}
#endif

// Rows that are read before they are added, so that a thread does not wait for each.
#define AHEAD 8
#define EACH_AHEAD(i) _Pragma("unroll") for (int i = 0; i < AHEAD; i++)
// Entries of a bucket that are looked through for each one that is added.
#define FEW_ENTRIES 32

#ifdef FEW
// For an index that is short along the indexed dimension, so that a thread can look at all rows that may point to one
// place: `count` of them, `apart` rows from each other. Strides along it are `index_step` and `source_step`. The first row
// of a place adds up all; of an assignment, the last one writes.
KERNEL(few)(GLOBAL const SI *index, GLOBAL const S *source, GLOBAL S *y, ARGUMENT(Ints) p, i64 n, i64 width, i64 along, i64 extent,
            i64 count, i64 apart, i64 index_step, i64 source_step, GLOBAL i64 *status) {
    for (i64 e = GROUP * THREADS + LANE; e < n; e += GROUPS * THREADS) {
        idx row = (idx)e / (idx)width, w = (idx)e % (idx)width;
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
        idx to = walk(&p, 0, ROWS, 1, row) + (idx)v * (idx)along + walk(&p, 4 * ROWS, INNER, 0, w);
        idx from = walk(&p, 0, ROWS, 2, row) + walk(&p, 4 * ROWS, INNER, 1, w);
#ifdef ADDING
        Sum sum = joined(load(y, to), load(source, from));
        for (int i = 1; i < left; i++)
            if (at[i * (idx)index_step] == v) sum = joined(sum, load(source, from + i * (idx)source_step));
        store(y, to, sum);
#else
        ((GLOBAL WORD *)y)[to] = ((GLOBAL const WORD *)source)[from];
#endif
    }
}
#elif defined(LISTS)
// An entry of a list: where it points, and below that its number.
#define NUMBER_BITS 13
#define ENTRY(v, i) ((u32)(v) << NUMBER_BITS | (u32)(i))
#define NUMBER(entry) ((idx)((entry) & ((1u << NUMBER_BITS) - 1)))
#define MEET(a, b) ((((a) ^ (b)) >> NUMBER_BITS) == 0)
#define BUCKET(v) (bucket + (int)mul_hi_u32((u32)(v) * 2654435761u, buckets))
#define IS_GOOD(v) ((u64)(v) < (u64)extent && (v) != padding)
#define READ_AHEAD(v, i) \
    i64 v[AHEAD]; \
    EACH_AHEAD(a) v[a] = (i) + a * team < n ? at[((i) + a * team) * (idx)index_step] : 0

// For an index whose lists have a place in local memory: BUCKETS buckets of ENTRIES entries. A group takes `together`
// lists, a power of 2, and puts their entries into buckets, in any order; those that meet are in one. The first of these adds up
// all, in their order; of an assignment, the last one writes. Groups of one GROUP share the writing.
KERNEL(lists)(GLOBAL const SI *index, GLOBAL const S *source, GLOBAL S *y, ARGUMENT(Ints) p, i64 width, i64 along, i64 extent,
              i64 total, i64 together, i64 count, i64 apart, i64 index_step, i64 source_step, i64 padding,
              GLOBAL i64 *status) {
    SHARED(u32, entries, ENTRIES);
    SHARED(u32, ends, BUCKETS);
    SHARED(u32, sums, THREADS);
    int team = THREADS / (int)together, buckets = BUCKETS / (int)together;
    // Neighbouring threads take neighbours of the index.
    int own = apart > 1 ? LANE % (int)together : LANE / team, member = apart > 1 ? LANE / (int)together : LANE % team;
    int bucket = own * buckets;
    for (i64 slab = GROUP; slab * together < total; slab += GROUPS) {
        i64 list = slab * together + own;
        int n = list < total ? (int)count : 0;
        idx row = n > 0 ? FIRST_ROW((idx)list, (idx)count, (idx)apart) : 0;
        GLOBAL const SI *at = index + walk(&p, 0, ROWS, 0, row);
        BARRIER();
        for (int b = LANE; b < BUCKETS; b += THREADS) ends[b] = 0;
        BARRIER();
        for (int i = member; i < n; i += AHEAD * team) {
            READ_AHEAD(v, i);
            EACH_AHEAD(a) if (i + a * team < n) {
                if (IS_GOOD(v[a]))
                    add_local(&ends[BUCKET(v[a])], 1);
                else if ((u64)v[a] >= (u64)extent && GROUP_Y == 0)
                    note(status, row + (i + a * team) * (idx)apart, v[a]);
            }
        }
        begin(ends, BUCKETS, sums);
        for (int i = member; i < n; i += AHEAD * team) {
            READ_AHEAD(v, i);
            EACH_AHEAD(a) if (i + a * team < n && IS_GOOD(v[a]))
                entries[add_local(&ends[BUCKET(v[a])], 1)] = ENTRY(v[a], i + a * team);
        }
        BARRIER();
        idx to_list = walk(&p, 0, ROWS, 1, row), from_list = walk(&p, 0, ROWS, 2, row), words = n * (idx)width;
        for (idx k = member + (idx)GROUP_Y * team; k < words; k += team * (idx)GROUPS_Y) {
            idx i = width == 1 ? k : k / (idx)width, w = width == 1 ? 0 : k % (idx)width;
            i64 v = at[i * (idx)index_step];
            if (!IS_GOOD(v)) continue;
            u32 entry = ENTRY(v, i);
            int b = BUCKET(v), start = b > 0 ? (int)ends[b - 1] : 0, end = (int)ends[b], is_mine = 1, others = -1;
            for (int e = start; e < end && is_mine; e++) {
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
            idx to = to_list + (idx)v * (idx)along + walk(&p, 4 * ROWS, INNER, 0, w);
            idx from = from_list + walk(&p, 4 * ROWS, INNER, 1, w);
#ifdef ADDING
            int length = others + 1;
            Sum sum = joined(BEFORE(y, to), load(source, from + i * (idx)source_step));
            if (end - start <= FEW_ENTRIES) {
                for (; others > 0; others--) {
                    u32 next = ~(u32)0;
                    for (int e = start; e < end; e++) {
                        u32 other = entries[e];
                        if (MEET(other, entry) && other > entry && other < next) next = other;
                    }
                    entry = next;
                    sum = joined(sum, load(source, from + NUMBER(entry) * (idx)source_step));
                }
            } else {
                // Added in blocks, so that errors of long sums stay small.
                for (idx j = i + 1; others > 0;) {
                    Sum block = zero();
                    for (int stop = others > 64 ? others - 64 : 0; others > stop; j += AHEAD) {
                        i64 next[AHEAD];
                        EACH_AHEAD(a) next[a] = j + a < n ? at[(j + a) * (idx)index_step] : -1;
                        EACH_AHEAD(a) if (next[a] == v) {
                            block = joined(block, load(source, from + (j + a) * (idx)source_step));
                            others--;
                        }
                    }
                    sum = joined(sum, block);
                }
            }
            store(y, to, result(sum, length));
#else
            ((GLOBAL WORD *)y)[to] = ((GLOBAL const WORD *)source)[from + i * (idx)source_step];
#endif
        }
    }
}
#else

// Below, rows are sorted by their keys, and `order` says which they were. Rows of one key are a segment. `p`: extents and
// strides of the source's rows; extents of INNER dimensions, their strides in y and the source; extents of LIST dimensions
// that tell lists apart, and their strides in y.
#define TO(w) walk(&p, 2 * ROWS, INNER, 0, w)
#define FROM(w) walk(&p, 2 * ROWS, INNER, 1, w)
#define FROM_ROW(k) walk(&p, 0, ROWS, 0, (idx)order[k])
#define IS_BAD(key) ((key) == (K)bad)
#if LIST > 0
#define TO_ROW(key) \
    (walk(&p, 2 * ROWS + 3 * INNER, LIST, 0, (idx)((key) / (K)extent)) + (idx)((key) % (K)extent) * (idx)along)
#else
#define TO_ROW(key) ((idx)(key) * (idx)along)
#endif

#ifdef ADDING
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
KERNEL(sums)(GLOBAL const K *keys, GLOBAL const idx *order, GLOBAL const S *source, GLOBAL S *y, GLOBAL Sum *heads,
             GLOBAL Sum *tails, GLOBAL const u8 *used, ARGUMENT(Ints) p, i64 rows, i64 width, i64 along, i64 extent, i64 bad,
             i64 part) {
    i64 n = (rows + part - 1) / part * width, all = n;
#ifdef FRESH
    all += (extent + ZERO_ROWS - 1) / ZERO_ROWS * width;
#endif
    for (i64 e = GROUP * THREADS + LANE; e < all; e += GROUPS * THREADS) {
#ifdef FRESH
        if (e >= n) {
            idx block = (idx)(e - n) / (idx)width, w = (idx)(e - n) % (idx)width, last = (block + 1) * ZERO_ROWS;
            if (last > (idx)extent) last = (idx)extent;
            for (idx row = block * ZERO_ROWS; row < last; row++)
                if (!used[row]) store(y, row * (idx)along + TO(w), zero());
            continue;
        }
#endif
        idx w = (idx)e % (idx)width, k = (idx)e / (idx)width * (idx)part, to = TO(w), from = FROM(w);
        idx end = k + (idx)part < (idx)rows ? k + (idx)part : (idx)rows;
        K key = keys[k];
        int is_head = k > 0 && keys[k - 1] == key;
        idx start = k, at = IS_BAD(key) ? 0 : TO_ROW(key) + to;
        Sum sum = is_head || IS_BAD(key) ? zero() : BEFORE(y, at);
        for (; k < end; k += AHEAD) {
            Word read[AHEAD];
            EACH_AHEAD(i) if (k + i < end) read[i].all = ((GLOBAL const WORD *)source)[FROM_ROW(k + i) + from];
            EACH_AHEAD(i) if (k + i < end) {
                K next = keys[k + i];
                if (next != key) {
                    if (is_head)
                        heads[e] = sum;
                    else
                        store(y, at, result(sum, k + i - start));
                    is_head = 0;
                    key = next;
                    start = k + i;
                    at = IS_BAD(key) ? 0 : TO_ROW(key) + to;
                    sum = IS_BAD(key) ? zero() : BEFORE(y, at);
                }
                if (!IS_BAD(key)) sum = joined(sum, sum_of(read[i]));
            }
        }
        if (is_head)
            heads[e] = sum;
        else if (end < (idx)rows && keys[end] == key)
            tails[e] = sum;
        else if (!IS_BAD(key))
            store(y, at, result(sum, end - start));
    }
}

// Tails and the heads that follow.
KERNEL(joins)(GLOBAL const K *keys, GLOBAL S *y, GLOBAL const Sum *heads, GLOBAL const Sum *tails, ARGUMENT(Ints) p, i64 rows,
              i64 width, i64 along, i64 extent, i64 bad, i64 part) {
    i64 n = (rows + part - 1) / part * width;
    for (i64 e = GROUP * THREADS + LANE; e < n; e += GROUPS * THREADS) {
        idx w = (idx)(e % width), first = (idx)(e / width) * (idx)part, k = first + (idx)part;
        if (k >= (idx)rows) continue;
        K key = keys[k];
        // Only the part in which a segment starts is its tail.
        if (IS_BAD(key) || keys[k - 1] != key || (first > 0 && keys[first - 1] == key)) continue;
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
        store(y, TO_ROW(key) + TO(w), result(sum, LENGTH(keys, (idx)rows, key)));
    }
}
#else
// The last row of each segment is what y gets.
KERNEL(assign)(GLOBAL const K *keys, GLOBAL const idx *order, GLOBAL const S *source, GLOBAL S *y, ARGUMENT(Ints) p, i64 rows,
               i64 width, i64 along, i64 extent, i64 bad) {
    for (i64 e = GROUP * THREADS + LANE; e < rows * width; e += GROUPS * THREADS) {
        idx k = (idx)e / (idx)width, w = (idx)e % (idx)width;
        K key = keys[k];
        if (IS_BAD(key) || (k + 1 < (idx)rows && keys[k + 1] == key)) continue;
        ((GLOBAL WORD *)y)[TO_ROW(key) + TO(w)] = ((GLOBAL const WORD *)source)[FROM_ROW(k) + FROM(w)];
    }
}
#endif
#endif
#endif
