// Exclusive sums of counts in local memory.
//
// HALF_COUNTS: flag, a word has two counts of 16 bits, the first one in its lower half
// THREADS: 1 .. 1024, threads of a group

#ifdef HALF_COUNTS
// The sum of both counts, and the sums before each.
#define COUNT_OF(word) (((word) & 0xffff) + ((word) >> 16))
#define BEGINNINGS(word, before) (((before) & 0xffff) | ((before) + (word)) << 16)
#else
#define COUNT_OF(word) (word)
#define BEGINNINGS(word, before) (before)
#endif
// Replaces each count by the sum of the counts before it, and returns the total. All threads call this; `sums` has THREADS
// elements.
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
