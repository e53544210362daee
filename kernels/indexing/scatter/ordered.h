// Rows of the index in the order of their keys, for a scatter of long lists: row k is row order[k] of the index. Rows with the same
// key are a segment.
//
// K: u32 or u64, type of a key
// LIST: 0.., dimensions that distinguish lists

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
