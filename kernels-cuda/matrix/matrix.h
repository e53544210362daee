// Tiles of tensor cores: products of blocks of 16 x 16 x 16, or 16 x 16 x 8 of TF32, by a wave of 32 threads. Sums are in f32. Compute
// capability 8.0 and later. Positions in local memory are in bytes.
//
// A tile is [rows, TILE_K], or [TILE_K, rows] (!along_k). Local memory has the layout of global memory, in words of CHUNK elements.
// The words of a line are permuted by the line's number, so that the words of eight lines are in different banks.
//
// TILE_K: 32, elements of a tile along K; it has 64 rows or more
// T: f16 or bf16, or f32 with TF32
// TF32: flag, factors are TF32

#include "copies.h"

#ifdef SIMT

// For the emulator of tools/simt.
#define mma_f16(d, a, b) simt_mma_f16(d, a, b)
#define mma_bf16(d, a, b) simt_mma_bf16(d, a, b)
#define mma_tf32(d, a, b) simt_mma_tf32(d, a, b)
#define f32_to_tf32(v) simt_f32_to_tf32(v)
#define load_blocks(at, transposed, out) \
    ((transposed) ? simt_ldmatrix<4, true>(out, (void *)(at)) : simt_ldmatrix<4, false>(out, (void *)(at)))
#define load_four(at, out) memcpy(out, (const void *)(at), 16)
#define store_four(at, words) memcpy((void *)(at), words, 16)

#else

// d [16, 8] += a [16, 16] b [16, 8], by a wave.
#define MMA(dtype) \
    FUNCTION void mma_##dtype(f32 *d, const u32 *a, const u32 *b) { \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." #dtype "." #dtype \
                     ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
    }
MMA(f16)
MMA(bf16)

// d [16, 8] += a [16, 8] b [8, 8], of TF32, by a wave.
FUNCTION void mma_tf32(f32 *d, const u32 *a, const u32 *b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

FUNCTION u32 f32_to_tf32(f32 v) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
    return bits;
}

// Loads four blocks of 8 x 8 numbers of 16 bits. Each thread passes the position of one row of one block.
FUNCTION void load_blocks(LocalPlace at, int transposed, u32 *out) {
    if (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(at)
                     : "memory");
}

// Four words of 32 bits at a multiple of 16 bytes.
FUNCTION void load_four(LocalPlace at, u32 *out) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at)
                 : "memory");
}
FUNCTION void store_four(LocalPlace at, const u32 *words) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(at), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
}

#endif

// Sums of a thread in a block of 16 rows and 8 columns.
#define SUMS 4

// The position of a word of a tile, and the bytes of a line.
#define LINE_BYTES(tile, along_k) (((along_k) ? TILE_K : (tile)) * 2)
FUNCTION u32 place(int row, int k, int tile, int along_k) {
    return along_k ? (u32)(row * CHUNKS_K + (k / CHUNK ^ (row >> 1 & 3))) * 16
                   : (u32)(k * (tile / CHUNK) + (row / CHUNK ^ (k & 7))) * 16;
}

// Loads four blocks of 8 x 8 of a tile: rows from `row`, elements of K from `k`. Each thread passes the position of line `line` of
// one block.
FUNCTION void load_fragment(LocalPlace tile_at, int row, int k, int line, int tile, int along_k, u32 *out) {
    load_blocks(tile_at + (along_k ? place(row + line, k, tile, 1) : place(row, k + line, tile, 0)), !along_k, out);
}

// The operand of 16 rows of a and 16 elements of K. The order of blocks is the instruction's: rows first.
FUNCTION void load_a(LocalPlace tile_at, int row, int k, int tile, int along_k, u32 *out) {
    int block = LANE % 32 / 8;
    load_fragment(tile_at, row + block % 2 * 8, k + block / 2 * 8, LANE % 8, tile, along_k, out);
}

// The operands of two times 8 columns of b and 16 elements of K, two words each. The order of blocks is K first.
FUNCTION void load_b(LocalPlace tile_at, int row, int k, int tile, int along_k, u32 *out) {
    int block = LANE % 32 / 8;
    load_fragment(tile_at, row + block / 2 * 8, k + block % 2 * 8, LANE % 8, tile, along_k, out);
}

// sums [16, 8] += a [16, 16] b [16, 8], or a [16, 8] b [8, 8] of TF32, by a wave.
#ifdef TF32
#define multiply(sums, a, b) mma_tf32(sums, a, b)
#else
#define multiply(sums, a, b) CAT(mma_, T)(sums, a, b)
#endif

// The sums of a thread are pairs of adjacent columns from RESULT_COLUMN on, in the rows RESULT_ROW(0) and RESULT_ROW(1): sums[pair
// * 2 + 0] and sums[pair * 2 + 1].
#define RESULT_ROW(pair) ((pair) * 8 + LANE % 32 / 4)
#define RESULT_COLUMN (LANE % 4 * 2)
