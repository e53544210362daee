// The loader of convolutions over meshes, in place of loader.h, which documents the names. It reads the features of each row's
// neighbours where they lie; they are never written side by side to memory. n: samples, v: rows of a sample, s: neighbours of a row.
// y [n, V, outputs], x [n, V, channels], w [outputs, S, channels] and table [V, S] are contiguous. A neighbour of -1 is absent, and a
// neighbour from V on is a row of `joined` [rows, n, channels], which has no other use.
//
//   MESH_FORWARD   y = neighbours in x @ w^T:     rows are (n, v) and outputs, K is (s, channel)
//   MESH_WEIGHT    w = y^T @ neighbours in x:     rows are outputs and (s, channel), K is (n, v)
//
// BATCHED: flag, there are several samples
// JOINED: flag, there are rows of `joined`
// N_ROWS, N_SLOTS, N_CHANNELS, N_OUTPUTS, N_SAMPLES: V, S, channels, outputs and samples
//
// Words are adjacent channels or outputs: their numbers are multiples of a word's elements.

#include "finish.h"

// Elements of x. Positions from there on are in `joined`.
#define N_OF_X (N_SAMPLES * N_ROWS * N_CHANNELS)

#define SIDE_A 0
#define SIDE_B 1
#define LOADER_ARGUMENTS , GLOBAL const i64 *table, GLOBAL const S *joined
#define LOADER_VALUES , table, joined

typedef struct {
    GLOBAL const S *x, *joined;
    GLOBAL const i64 *table;
    i64 row, k;
    Ints p;
} Factor;

FUNCTION Factor factor(GLOBAL const S *x, Ints p, int side, i64 batch, i64 row, i64 k, GLOBAL const i64 *table,
                       GLOBAL const S *joined) {
    Factor f;
    f.x = x;
    f.joined = joined;
    f.table = table;
    f.row = row;
    f.k = k;
    f.p = p;
    return f;
}

FUNCTION void advance(Factor *f, int side, i64 k) { f->k += k; }

// The sample of a row of all samples.
#ifdef BATCHED
#define SAMPLE_OF(row) QUOTIENT(row, N_ROWS, BY_N_ROWS)
#else
#define SAMPLE_OF(row) ((idx)0)
#endif

// The position of a channel of a sample's neighbour, which is entry `at` of the table; -1 if it is absent.
FUNCTION idx of_neighbor(GLOBAL const i64 *table, idx sample, idx at, idx channel, Ints p) {
    idx u = (idx)table[at], row = sample * N_ROWS + u;
#if defined(JOINED) && defined(BATCHED)
    // The rows of `joined` follow those of all samples. Without branches, the places of all words are computed side by side.
    row = u < N_ROWS ? row : u * N_SAMPLES + sample;
#endif
    return u < 0 ? (idx)-1 : row * N_CHANNELS + channel;
}

// The position of an element of the factor; -1 if there is none.
FUNCTION idx position(Factor f, int side, int row, int k) {
    Ints p = f.p;
    idx r = (idx)f.row + row, at = (idx)f.k + k;
#if defined(MESH_FORWARD)
    if (side == SIDE_B) return r * (N_SLOTS * N_CHANNELS) + at;
    idx of_row = r, element = at;
#else
    if (side == SIDE_A) return at * N_OUTPUTS + r;
    idx of_row = at, element = r;
#endif
    idx sample = SAMPLE_OF(of_row), s = QUOTIENT(element, N_CHANNELS, BY_N_CHANNELS);
    return of_neighbor(f.table, sample, (of_row - sample * N_ROWS) * N_SLOTS + s, element - s * N_CHANNELS, p);
}

FUNCTION int has_element(Factor f, int side, int row, int k) { return position(f, side, row, k) >= 0; }

FUNCTION GLOBAL const S *element(Factor f, int side, int row, int k) {
    idx at = position(f, side, row, k);
#ifdef JOINED
    Ints p = f.p;
    if (side == SIDE_A && at >= N_OF_X) return f.joined + (at - N_OF_X);
#endif
    return f.x + at;
}

#ifdef WORDS_TOGETHER
// The parts of positions that do not depend on the step along K. For the neighbours of rows (MESH_FORWARD): the sample and the row
// of each word. For one element of neighbours (MESH_WEIGHT): s and the channel.
typedef struct {
    GLOBAL const S *x, *beyond;
    GLOBAL const i64 *table;
    Ints p;
    idx row, k, k_step, of_x;
    idx first[WORDS_TOGETHER], then[WORDS_TOGETHER];
} Words;

#ifdef JOINED
#define WORD_PLACE(w, at) (((at) < (w).of_x ? (w).x : (w).beyond) + (at))
#endif

// The entry of neighbour s of row v, or the last one: words beyond the product's extents have entries behind the table.
FUNCTION idx entry_of(idx v, idx s, Ints p) {
    idx at = v * N_SLOTS + s, last = N_ROWS * N_SLOTS - 1;
    return at < last ? at : last;
}

FUNCTION Words words(Factor f, int side, int row, int k, int row_step, int k_step) {
    Ints p = f.p;
    Words w;
    w.x = f.x;
    w.beyond = f.joined - (i64)N_OF_X;
    w.of_x = side == SIDE_A ? N_OF_X : HIGHEST_IDX;
    w.table = f.table;
    w.p = p;
    w.row = (idx)f.row + row;
    w.k = (idx)f.k + k;
    w.k_step = k_step;
#pragma unroll
    for (int i = 0; i < WORDS_TOGETHER; i++) {
        idx r = w.row + i * row_step;
#if defined(MESH_FORWARD)
        w.first[i] = side == SIDE_A ? SAMPLE_OF(r) : 0;
        w.then[i] = side == SIDE_A ? r - w.first[i] * N_ROWS : r * (N_SLOTS * N_CHANNELS);
#else
        w.first[i] = side == SIDE_B ? QUOTIENT(r, N_CHANNELS, BY_N_CHANNELS) : 0;
        w.then[i] = r - w.first[i] * N_CHANNELS;
#endif
    }
    return w;
}

typedef idx Offset;

// The position of word i, `k` further along K; -1 if it is not in memory. Words beyond the product's extents have some position.
FUNCTION Offset word_at(Words w, int side, int i, int k) {
    Ints p = w.p;
    idx at = w.k + k;
#if defined(MESH_FORWARD)
    if (side == SIDE_B) return w.then[i] + at;
    idx s = QUOTIENT(at, N_CHANNELS, BY_N_CHANNELS);
    return of_neighbor(w.table, w.first[i], entry_of(w.then[i], s, p), at - s * N_CHANNELS, p);
#else
    at += i * w.k_step;
    if (side == SIDE_A) return at * N_OUTPUTS + w.row;
    idx sample = SAMPLE_OF(at);
    return of_neighbor(w.table, sample, entry_of(at - sample * N_ROWS, w.first[i], p), w.then[i], p);
#endif
}
#endif

#include "matrix/again.h"
