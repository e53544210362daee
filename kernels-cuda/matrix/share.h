// A thread's share of the copies of tiles to local memory: equidistant words of a factor, whose positions in local memory are also
// equidistant.
//
// The file that includes this defines place(row, k, tile, along_k), the position of a word of a tile, and LINE_BYTES(tile, along_k),
// the bytes of a line of it.

// Distance, in rows or elements of K, between the words of a share, and their number.
#define LINES(tile, along_k) (THREADS / ((along_k) ? CHUNKS_K : (tile) / CHUNK))
#define WORDS_OF(tile) ((tile) * CHUNKS_K / THREADS)

typedef struct {
    Words from;
    u32 to;
    int row, k;
    u32 rows_inside;
} Share;

FUNCTION Share share(Factor f, int side, int rows, int tile, int along_k) {
    Share s;
    s.row = along_k ? LANE / CHUNKS_K : LANE % (tile / CHUNK) * CHUNK;
    s.k = along_k ? LANE % CHUNKS_K * CHUNK : LANE / (tile / CHUNK);
    s.from = words(f, side, s.row, s.k, along_k ? LINES(tile, 1) : 0, along_k ? 0 : LINES(tile, 0));
    s.to = place(s.row, s.k, tile, along_k);
    s.rows_inside = 0;
#pragma unroll
    for (int i = 0; i < WORDS_OF(tile); i++)
        s.rows_inside |= (u32)(s.row + (along_k ? i * LINES(tile, along_k) : 0) < rows) << i;
    return s;
}

// The positions of the share's words of the tile that is `k` behind the first, of `columns` columns; -1 where there is none. A loader
// may read them from memory: they are found before the first of them is used.
FUNCTION void find(Share s, int side, int k, int columns, int tile, int along_k, Offset *at) {
#pragma unroll
    for (int i = 0; i < WORDS_OF(tile); i++) {
        // Without branches, the places of all words are computed side by side.
        int is_inside = (int)(s.rows_inside >> i & 1) & (s.k + (along_k ? 0 : i * LINES(tile, along_k)) < columns);
        Offset found = word_at(s.from, side, i, k);
        at[i] = is_inside ? found : (Offset)-1;
    }
}

// Starts the copies of these words. Words that are not there are 0; for them any valid address `x` is passed.
#ifndef WORD_PLACE
#define WORD_PLACE(w, at) ((w).x + (at))
#endif
FUNCTION void copy_words(Share s, GLOBAL const S *x, const Offset *at, int tile, int along_k, LocalPlace to) {
#pragma unroll
    for (int i = 0; i < WORDS_OF(tile); i++)
        copy_async(to + s.to + i * LINES(tile, along_k) * LINE_BYTES(tile, along_k), at[i] < 0 ? x : WORD_PLACE(s.from, at[i]), at[i] < 0 ? 0 : 16);
}
