// Shared by the kernels for many long lists: the reading of lists' indices by a group. These kernels define AHEAD, the indices that
// a thread reads at once, and IS_GOOD.
//
// THREADS: 1 .. 1024, threads of a group
// TOGETHER: power of 2, lists of a group
// KEPT: multiple of 8, indices that a thread keeps in registers instead of reading them in each pass; otherwise not defined
// AT_ONCE: with KEPT, groups that a multiprocessor should run together

#define EACH_AHEAD(a) _Pragma("unroll") for (int a = 0; a < AHEAD; a++)
// Threads of a list.
#define MEMBERS (THREADS / TOGETHER)
#define ROW_OF(t, a) (member + ((t) + (a)) * MEMBERS)
// A word has two 16-bit numbers. The number of an even position is the lower half.
#define HALF(word, place) ((word) >> (place) % 2 * 16 & 0xffff)
#ifdef KEPT
// A thread keeps its indices in 16 bits, two per register. NOWHERE is an index that is not good.
#define NOWHERE 0xffff
#define EACH_TURN(t) _Pragma("unroll") for (int t = 0; t < KEPT; t += AHEAD)
#define KEEP(k, v) kept[(k) / 2] = (k) % 2 == 0 ? (u32)(v) : kept[(k) / 2] | (u32)(v) << 16
// The indices of a turn. After a turn they are relative to the first index of the next pass. Otherwise the compiler would compute
// the positions of all passes, and keep them.
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
        /* Otherwise all reads would be on their way at once, for which there are not enough registers. */ \
        BARRIER(); \
    }
#else
#define EACH_TURN(t) for (int t = 0; t * MEMBERS < n; t += AHEAD)
#define READ_KEPT
// The indices of a turn; -1 beyond the last row.
#define READ_INDICES(v, t) \
    SI v[AHEAD]; \
    EACH_AHEAD(a) { \
        int i = ROW_OF(t, a); \
        v[a] = -1; \
        if (i < n) v[a] = at[i * (idx)index_step]; \
    }
#endif
