// Rows of the index in the order of their keys, for a scatter of long lists: row k is row order[k] of the index. Rows with the same
// key are a segment.
//
// K: u32 or u64, type of a key
// LIST: 0.., dimensions that distinguish lists; LIST_SPACE and Y_LIST_STRIDES, for WALK

#define TO(w) WALK(WORD_SPACE, Y_WORD_STRIDES, INNER, w)
#define FROM(w) WALK(WORD_SPACE, SOURCE_WORD_STRIDES, INNER, w)
#define FROM_ROW(k) WALK(ROW_SPACE, SOURCE_STRIDES, ROWS, (idx)order[k])
#define IS_BAD(key) ((key) == (K)bad)
#if LIST > 0
#define TO_ROW(key) \
    (WALK(LIST_SPACE, Y_LIST_STRIDES, LIST, (idx)((key) / (K)extent)) + (idx)((key) % (K)extent) * (idx)along)
#else
#define TO_ROW(key) ((idx)(key) * (idx)along)
#endif
