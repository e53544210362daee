// Matrix units: products of blocks with 16 x 16 results by a wave, sums in f32.
//
// A product takes DEPTH columns of a and rows of b. A lane passes PART adjacent elements along K, from K_OF(lane) on: of row
// ROW_OF(lane) of a, and of column COLUMN_OF(lane) of b. Its results are RESULTS adjacent columns of its row, from RESULT_OF(lane)
// on. The instructions compute the transposed product, which makes a lane's results adjacent.
//
// Layouts: AMD's documents "MI200 Instruction Set Architecture" and "MI300 ISA", matrix arithmetic instructions, "RDNA3 ISA" and
// "RDNA4 ISA", wave matrix multiply accumulate; and AMD's matrix instruction calculator. For lane l of an instruction with operands
// [16, 16] and results D:
//   CDNA   row l % 16, K from 4 (l / 16) on, 4 of them;           D[4 (l / 16) + i][l % 16]
//   RDNA3  row l % 16, all of K, the same in lanes l and l + 16;  D[2 i + l / 16][l % 16]
//   RDNA4  row l % 16, K from 8 (l / 16) on, 8 of them;           D[8 (l / 16) + i][l % 16]

#define RESULTS (256 / WAVE)
#define ROW_OF(lane) ((lane) % 16)
#define RESULT_OF(lane) ((lane) / 16 * RESULTS)
typedef f32 Sums __attribute__((ext_vector_type(RESULTS)));
// 8 elements of 16 bits.
typedef u32 FourWords __attribute__((ext_vector_type(4)));

// Bits converted to the operand type of an instruction, which depends on the compiler's version.
template <class From> struct Bits {
    From bits;
    template <class To> __device__ __forceinline__ operator To() const { return __builtin_bit_cast(To, bits); }
};
template <class From> FUNCTION Bits<From> bits(From v) { return {v}; }

#if defined(__GFX9__)

// Two instructions, each with half of a lane's elements. The order along K is arbitrary, if it is the same for both operands.
#define DEPTH 32
#define PART 8
#define K_OF(lane) ((lane) / 16 * PART)
#define COLUMN_OF(lane) ((lane) % 16)
typedef FourWords Operand;

#define MULTIPLY_BY(dtype, instruction) \
    FUNCTION Sums multiply_##dtype(Operand row, Operand column, Sums d) { \
        d = instruction(bits(column.lo), bits(row.lo), d, 0, 0, 0); \
        return instruction(bits(column.hi), bits(row.hi), d, 0, 0, 0); \
    }
MULTIPLY_BY(f16, __builtin_amdgcn_mfma_f32_16x16x16f16)
MULTIPLY_BY(bf16, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k)
// Keeps products before the next barrier. The sums may be in registers that only these instructions use.
#define MULTIPLIED(sums)

#else

#define MULTIPLIED(sums) COMPUTED(sums)
#define DEPTH 16
#define MULTIPLY_BY(dtype, instruction) \
    FUNCTION Sums multiply_##dtype(Operand row, Operand column, Sums d) { return instruction(bits(column), bits(row), d); }

#if defined(__GFX11__)
#define PART 16
#define K_OF(lane) 0
// A lane has every other row of D.
#define COLUMN_OF(lane) ((lane) % 2 * 8 + (lane) % 16 / 2)
typedef u32 Operand __attribute__((ext_vector_type(8)));
MULTIPLY_BY(f16, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32)
MULTIPLY_BY(bf16, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32)
#else
#define PART 8
#define K_OF(lane) ((lane) / 16 * PART)
#define COLUMN_OF(lane) ((lane) % 16)
typedef FourWords Operand;
MULTIPLY_BY(f16, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12)
MULTIPLY_BY(bf16, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12)
#endif

#endif

// A tile [rows, length] in local memory, whose length is along K, 32 or a multiple of 64, in words of CHUNK elements. The words of a row
// are permuted by the row, so that the words that lanes read together are in different banks.
//
// T: f16 or bf16

#define CHUNK 8
typedef STORAGE(T) Element;

// By what the number of a word is changed: bits of the row, each of which changes its own bits.
FUNCTION int change(int length, int row) {
    return length == 32 ? (row >> 1 ^ row >> 3) & 3 : (row ^ row >> 1 ^ row >> 3) & 7;
}

// The position of an element of a tile.
FUNCTION int place(int length, int row, int k) { return row * length + (k / CHUNK ^ change(length, row)) * CHUNK + k % CHUNK; }

// The position of the element `row` rows and `k` elements behind the one at a place. Neither row nor k has a bit of that place's. If they are
// constants, a place and eight words behind it are enough for all operands of a lane.
FUNCTION int behind(int at, int length, int row, int k) {
    int word = k / CHUNK ^ change(length, row);
    return row * length + word / 8 * 8 * CHUNK + (at ^ word % 8 * CHUNK);
}

// PART adjacent elements of a row, from a place behind a lane's own.
FUNCTION Operand load_operand(LOCAL const Element *tile, int length, int own_row, int row, int k) {
    union {
        Operand all;
        FourWords words[PART / CHUNK];
    } v;
    int at = place(length, own_row, K_OF(LANE % WAVE));
#pragma unroll
    for (int i = 0; i < PART / CHUNK; i++) v.words[i] = *(LOCAL const FourWords *)(tile + behind(at, length, row, k + i * CHUNK));
    return v.all;
}

// A lane's operands, from 16 rows of a or 16 columns of b and DEPTH elements of K.
#define load_a(tile, length, row, k) load_operand(tile, length, ROW_OF(LANE % WAVE), row, k)
#define load_b(tile, length, row, k) load_operand(tile, length, COLUMN_OF(LANE % WAVE), row, k)

// sums [16, 16] += a [16, DEPTH] b [DEPTH, 16], by a wave.
#define multiply(sums, a, b) sums = CAT(multiply_, T)(a, b, sums)

// The sums of a lane: RESULTS adjacent columns of row RESULT_ROW, from RESULT_COLUMN on.
#define RESULT_ROW ROW_OF(LANE % WAVE)
#define RESULT_COLUMN RESULT_OF(LANE % WAVE)
