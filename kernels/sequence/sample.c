// Draws positions from rows of logits, x [rows, extent] to y [rows, samples]. A group takes a row.
//
// Rows are read as f32, in words. The first and the last word of a row may extend beyond it. Elements have keys: larger keys for
// larger logits, equal keys for equal ones. The elements that are kept are all above some key, and the first of the elements with
// this key. Sums are of integers, and do not depend on the order.
//
// T: dtype of x
// ACC: f32
// THREADS: 1 .. 1024, threads of a group
// VECTOR: 1 .. 16, elements of a word
// WORD: type of a word
// AT_ONCE: flag, one group per multiprocessor is enough
// BASE: flag, numbers in memory are added to the generator's state
// NEEDS_F64: flag, x is f64

CONTRACT_OFF

// The optimiser of PoCL 3.1 and 6.0 takes a minute for this kernel, and miscompiles it: draws are lost.
#define PLAIN_ON_POCL

#include "random/philox.h"

typedef STORAGE(T) S;
typedef union {
    WORD all;
    S each[VECTOR];
} Word;

// A draw of 24 bits.
FUNCTION u32 draw_of(GLOBAL const i64 *base, i64 at, i64 seed, i64 offset, i64 stream) {
    Draws draws = draws_of(base, (u64)offset + (u64)(at / 4), seed, stream);
    int lane = (int)(at % 4);
    return (lane < 2 ? (lane == 0 ? draws.v[0] : draws.v[1]) : lane == 2 ? draws.v[2] : draws.v[3]) >> 8;
}

// A row: its elements, the number of elements of the first word that precede the row, and the number of words.
typedef struct {
    GLOBAL const S *x;
    int extent, head, words;
} Row;

// Words that a thread reads at once.
#define BATCH (VECTOR == 4 ? 4 : 2)
// The position in the row of element `j` of word `w`.
#define POSITION(at, w, j) ((w) * VECTOR + (j) - (at).head)
// Loops over the words before `end`. A thread begins with `first` and takes every `step`th.
#define EACH_BATCH(w, first, end, step) for (int w = first; w < (end); w += BATCH * (step))
#define EACH_LOGIT(u, j) \
    _Pragma("unroll") for (int u = 0; u < BATCH; u++) _Pragma("unroll") for (int j = 0; j < VECTOR; j++)

// The first and the last word, with -infinity outside of the row, and a word of -infinity alone.
LOCAL_FUNCTION void pad(LOCAL Word *edges, Row at) {
    BARRIER();
    if (LANE < VECTOR) {
        int first = POSITION(at, 0, LANE), last = POSITION(at, at.words - 1, LANE);
        STORE(T, edges[2].each, LANE, LOWEST);
        edges[0].each[LANE] = first >= 0 && first < at.extent ? at.x[first] : edges[2].each[LANE];
        edges[1].each[LANE] = last >= 0 && last < at.extent ? at.x[last] : edges[2].each[LANE];
    }
    BARRIER();
}

// A batch of words before `end`; -infinity beyond it.
LOCAL_FUNCTION void read_batch(f32 v[BATCH][VECTOR], Row at, LOCAL const Word *edges, int w, int end, int step) {
    Word r[BATCH];
#pragma unroll
    for (int u = 0; u < BATCH; u++) {
        int word = w + u * step, first = POSITION(at, word, 0);
        if (word < end && first >= 0 && first + VECTOR <= at.extent) r[u].all = *(GLOBAL const WORD *)(at.x + first);
        else r[u].all = edges[word >= end ? 2 : word > 0].all;
    }
    EACH_LOGIT(u, j) v[u][j] = (f32)LOAD(T, r[u].each, j);
}

// Smaller powers have weight 0.
#define FRACTION 40

// 2^(slope (v - max)) in units of 2^-FRACTION, with the same steps as the composite.
FUNCTION u64 weight_of(f32 v, f32 max, f32 slope) {
    f32 s = (v - max) * slope;
    if (!(s >= -FRACTION)) return 0;
    f32 whole = floor_(s), f = s - whole;
    f32 p = 2.1715024e-4f;
    p = p * f + 1.2440877e-3f;
    p = p * f + 9.678064e-3f;
    p = p * f + 5.5484153e-2f;
    p = p * f + 2.4022952e-1f;
    p = p * f + 6.93147e-1f;
    p = p * f + 1.0f;
    return (u64)(p * as_f32((u32)((int)whole + FRACTION + 127) << 23));
}

FUNCTION u32 key_of(f32 v) {
    u32 bits = as_u32(v), magnitude = bits & 0x7fffffffu;
    return bits >> 31 ? 0x80000000u - magnitude : 0x80000000u + magnitude;
}

FUNCTION f32 value_of(u32 key) { return as_f32(key >> 31 ? key - 0x80000000u : 0x80000000u | (0x80000000u - key)); }

// The key of -infinity.
#define LOWEST_KEY 0x00800000u

// floor(a f / 2^24) for a sum a below 2^62 and f up to 2^24.
FUNCTION u64 share(u64 a, u64 f) { return (a >> 24) * f + (((a & 0xffffff) * f) >> 24); }

#if WAVE > 1
#define PARTS ((THREADS + WAVE - 1) / WAVE)
WAVE_EXCHANGE(from_wave, u64)
#else
#define PARTS THREADS
#endif

// The sum of the values of the threads before this one; `all` gets the sum over all threads. Every thread of the group must call
// this.
LOCAL_FUNCTION u64 sum_before(u64 v, u64 *all, LOCAL u64 *parts) {
    BARRIER();
#if WAVE > 1
    u64 before = 0, sum = v;
#pragma unroll
    for (int by = 1; by < WAVE; by *= 2) {
        u64 other = from_wave(sum, by);
        if (LANE & by) before += other;
        sum += other;
    }
    if (LANE % WAVE == 0) parts[LANE / WAVE] = sum;
    BARRIER();
    *all = 0;
    for (int i = 0; i < PARTS; i++) {
        u64 part = parts[i];
        if (i < LANE / WAVE) before += part;
        *all += part;
    }
    return before;
#else
    parts[LANE] = v;
    BARRIER();
    for (int by = 1; by < THREADS; by *= 2) {
        u64 other = LANE >= by ? parts[LANE - by] : 0;
        BARRIER();
        parts[LANE] += other;
        BARRIER();
    }
    *all = parts[THREADS - 1];
    return parts[LANE] - v;
#endif
}

// The search for the largest key at which the running sum from above reaches a limit. It has three levels of 11, 11 and 10 bits of
// the key.
#define LEVELS 3
#define BINS 2048
#define BELOW(level) ((level) == 0 ? 21 : (level) == 1 ? 10 : 0)
#define WIDTH(level) ((level) == 2 ? 10 : 11)
#define OWN (BINS / THREADS)

// The bits found so far, and the part of the limit that keys with larger leading bits do not cover.
typedef struct {
    u32 key;
    u64 rest;
} Search;

// 64-bit sums in two halves. The upper halves follow the lower ones.
LOCAL_FUNCTION u64 bin_of(LOCAL const u32 *bins, int bin) { return (u64)bins[BINS + bin] << 32 | bins[bin]; }

LOCAL_FUNCTION void clear_bins(LOCAL u32 *bins) {
    for (int i = LANE; i < 2 * BINS; i += THREADS) bins[i] = 0;
    BARRIER();
}

LOCAL_FUNCTION void add_to_bin(LOCAL u32 *bins, u32 key, u64 v, u32 known, int level) {
    if (v == 0 || (level > 0 && key >> (BELOW(level) + WIDTH(level)) != known)) return;
    u32 bin = (key >> BELOW(level)) & ((1u << WIDTH(level)) - 1), low = (u32)v, high = (u32)(v >> 32);
    u32 before = add_local(bins + bin, low);
    if (before + low < before) high++;
    if (high > 0) add_local(bins + BINS + bin, high);
}

// Finds the bits of a level. A limit of 0 means the whole sum minus the share `left_out`.
LOCAL_FUNCTION Search look(Search s, LOCAL const u32 *bins, int level, u64 left_out, LOCAL u64 *parts, LOCAL u64 *found) {
    u64 own = 0, all;
    BARRIER();
    // From the highest bin down.
    for (int i = 0; i < OWN; i++) own += bin_of(bins, BINS - 1 - (LANE * OWN + i));
    u64 before = sum_before(own, &all, parts);
    if (s.rest == 0) s.rest = all - share(all, left_out);
    for (int i = 0; i < OWN; i++) {
        int bin = BINS - 1 - (LANE * OWN + i);
        u64 v = bin_of(bins, bin);
        if (before < s.rest && s.rest - before <= v) found[0] = (u64)bin, found[1] = before;
        before += v;
    }
    BARRIER();
    s.key = s.key << WIDTH(level) | (u32)found[0];
    s.rest -= found[1];
    return s;
}

// The list of candidates: keys, positions and weights.
#define LISTED_KEY(i) bins[i]
#define LISTED_AT(i) bins[THREADS + (i)]
#define LISTED(i) ((u64)bins[3 * THREADS + (i)] << 32 | bins[2 * THREADS + (i)])
#define SET_LISTED(i, v) (bins[2 * THREADS + (i)] = (u32)(v), bins[3 * THREADS + (i)] = (u32)((v) >> 32))

// Segments of a row. Their sums are computed first, then only one segment is read again.
#define SEGMENTS (THREADS < 32 ? THREADS : 32)
#define MEMBERS (THREADS / SEGMENTS)

KERNEL(sample_logits)(GLOBAL const S *x, GLOBAL i64 *y, GLOBAL const i64 *base, i64 rows, i64 extent, i64 samples, i64 seed,
                      i64 offset, i64 stream, i64 top_k, i64 left_out, f32 slope, GLOBAL i64 *status) {
    JOINS(1);
    SHARED(u32, bins, 2 * BINS);
    SHARED(u64, parts, PARTS);
    SHARED(u64, found, 3);
    SHARED(u32, listed, 1);
    SHARED(Word, edges, 3);
#define DRAW(sample) draw_of(base, row * samples + (sample), seed, offset, stream)
    for (i64 row = GROUP; row < rows; row += GROUPS) {
        Row at;
        f32 v[BATCH][VECTOR], own = LOWEST;
        at.x = x + row * extent;
        at.extent = (int)extent;
        at.head = (int)(row * extent % VECTOR);
        at.words = (at.head + at.extent + VECTOR - 1) / VECTOR;
        pad(edges, at);
        EACH_BATCH(w, LANE, at.words, THREADS) {
            read_batch(v, at, edges, w, at.words, THREADS);
            EACH_LOGIT(u, j) own = LARGER(own, v[u][j]);
        }
        f32 max = TEAM_MAX(own);
        if (!(max > LOWEST && max < HIGHEST)) {
            if (LANE == 0) note(status, row, 0);
            for (i64 i = LANE; i < samples; i += THREADS) y[row * samples + i] = 0;
            continue;
        }
        u64 k = top_k < extent ? (u64)top_k : 0, all;
        Search s;
        if (k > 0 && k <= THREADS / 2) {
            // If k threads have an element above a bound, at least k elements are above it, and usually few more.
            s.key = 0, s.rest = k;
            if (LANE == 0) listed[0] = 0;
#pragma unroll 1
            for (int level = 0; level < LEVELS; level++) {
                clear_bins(bins);
                add_to_bin(bins, key_of(own), 1, s.key, level);
                s = look(s, bins, level, 0, parts, found);
            }
            u32 bound = s.key > LOWEST_KEY ? s.key : LOWEST_KEY + 1;
            EACH_BATCH(w, LANE, at.words, THREADS) {
                read_batch(v, at, edges, w, at.words, THREADS);
                EACH_LOGIT(u, j) {
                    u32 key = key_of(v[u][j]);
                    u32 place = key < bound ? THREADS : add_local(listed, 1);
                    if (place < THREADS) LISTED_KEY(place) = key, LISTED_AT(place) = (u32)POSITION(at, w + u * THREADS, j);
                }
            }
            BARRIER();
            int n = (int)listed[0];
            if (n <= THREADS) {
                u32 key = LANE < n ? LISTED_KEY(LANE) : 0, place = LANE < n ? LISTED_AT(LANE) : 0, rank = 0;
                u64 weight = LANE < n ? weight_of(value_of(key), max, slope) : 0, before = 0;
                SET_LISTED(LANE, weight);
                BARRIER();
                for (int i = 0; i < n && LANE < n; i++) {
                    u32 other = LISTED_KEY(i);
                    if (other > key || (other == key && LISTED_AT(i) < place)) rank++, before += LISTED(i);
                }
                if (rank >= k) weight = 0;
                sum_before(weight, &all, parts);
                if (before >= all - share(all, (u64)left_out)) weight = 0;
                SET_LISTED(LANE, weight);
                sum_before(weight, &all, parts);
                before = 0;
                for (int i = 0; i < n && weight > 0; i++)
                    if (LISTED_AT(i) < place) before += LISTED(i);
                for (i64 i = 0; i < samples && weight > 0; i++) {
                    u64 drawn = share(all, DRAW(i));
                    if (before <= drawn && drawn - before < weight) y[row * samples + i] = (i64)place;
                }
                continue;
            }
            BARRIER();
        }
        // All elements above the key `least` are kept, and `ties` of the elements equal to it, each with weight `tied`.
        u32 least = 0;
        u64 ties = 0, tied = 0, limit = 0;
#pragma unroll 1
        for (int by_weight = k == 0; by_weight < (k > 0 || left_out > 0 ? 2 : 1); by_weight++) {
            u64 sum = 0;
            s.key = 0, s.rest = by_weight ? limit : k;
            // For a search by count, one more turn sums the weights above the key.
#pragma unroll 1
            for (int level = 0; level < LEVELS + 1 - by_weight; level++) {
                clear_bins(bins);
                EACH_BATCH(w, LANE, at.words, THREADS) {
                    read_batch(v, at, edges, w, at.words, THREADS);
                    EACH_LOGIT(u, j) {
                        u32 key = key_of(v[u][j]);
                        u64 weight = by_weight || level == LEVELS ? weight_of(v[u][j], max, slope) : 1;
                        if (level < LEVELS) add_to_bin(bins, key, weight, s.key, level);
                        else if (key > s.key) sum += weight;
                    }
                }
                if (level < LEVELS) s = look(s, bins, level, (u64)left_out, parts, found);
            }
            least = s.key;
            tied = weight_of(value_of(least), max, slope);
            if (by_weight) {
                ties = (s.rest + tied - 1) / tied;
            } else {
                sum_before(sum, &all, parts);
                all += s.rest * tied;
                limit = all - share(all, (u64)left_out);
            }
        }
#define TAKE(sum, count, f) \
    do { \
        f32 taken = f; \
        u32 key = key_of(taken); \
        if (key > least) sum += weight_of(taken, max, slope); \
        if (key == least) count++; \
    } while (0)
        int length = (at.words + SEGMENTS - 1) / SEGMENTS, start = LANE / MEMBERS * length;
        int end = start + length < at.words ? start + length : at.words;
        u64 sum = 0, count = 0;
        EACH_BATCH(w, start + LANE % MEMBERS, end, MEMBERS) {
            read_batch(v, at, edges, w, end, MEMBERS);
            EACH_LOGIT(u, j) TAKE(sum, count, v[u][j]);
        }
        bins[LANE] = (u32)count;
        SET_LISTED(LANE, sum);
        BARRIER();
        sum = 0, count = 0;
        for (int i = 0; i < MEMBERS && LANE < SEGMENTS; i++) {
            int from = LANE * MEMBERS + (i + LANE) % MEMBERS;
            count += bins[from];
            sum += LISTED(from);
        }
        u64 rank = sum_before(count, &all, parts), left = rank < ties ? ties - rank : 0;
        sum += (left < count ? left : count) * tied;
        u64 before = sum_before(sum, &all, parts);
        for (i64 i = 0; i < samples; i++) {
            u64 drawn = share(all, DRAW(i)), ignored;
            if (before <= drawn && drawn - before < sum) found[0] = (u64)LANE, found[1] = before, found[2] = left;
            BARRIER();
            // A thread has adjacent elements of the segment.
            int first = POSITION(at, (int)found[0] * length, 0), last = first + length * VECTOR;
            int each = (length * VECTOR + THREADS - 1) / THREADS, from = first + LANE * each, to = from + each;
            if (from < 0) from = 0;
            if (to > last) to = last;
            if (to > at.extent) to = at.extent;
            u64 rest = drawn - found[1], of_threads = found[2], own_sum = 0, own_count = 0;
            for (int e = from; e < to; e++) TAKE(own_sum, own_count, (f32)LOAD(T, at.x, e));
            u64 own_rank = sum_before(own_count, &ignored, parts), own_left = own_rank < of_threads ? of_threads - own_rank : 0;
            own_sum += (own_left < own_count ? own_left : own_count) * tied;
            u64 own_before = sum_before(own_sum, &ignored, parts);
            if (rest < own_before || rest - own_before >= own_sum) continue;
            rest -= own_before;
            for (int e = from; e < to; e++) {
                f32 f = (f32)LOAD(T, at.x, e);
                u32 key = key_of(f);
                u64 weight = key > least ? weight_of(f, max, slope) : key == least && own_left > 0 ? tied : 0;
                if (key == least && own_left > 0) own_left--;
                if (rest < weight) {
                    y[row * samples + i] = e;
                    break;
                }
                rest -= weight;
            }
        }
    }
}
