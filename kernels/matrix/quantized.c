// Quantised weights: their numbers, and products with few rows x [ROWS, K].
//
// A row of a weight is blocks, which lie one after the other. A thread takes a unit of a block at a time: RUNS runs of RUN adjacent numbers, the first
// numbers of the runs STRIDE apart. Its bits are in 4 or 8 adjacent bytes, and neighbouring threads read neighbouring bytes. The layout and the order of
// roundings are those of crates/core/src/quantized/blocks.rs.
//
// THREADS: 1 .. 1024, threads of a group
// TEAM: power of 2, threads of a row of the weight
// T: f16, bf16, f32 or f64, dtype of x and y
// ACC: f32 or f64, dtype of the sums
// Q4_0 .. NF4: flag, the format
// ALIGNED: 1, 2 or 4, bytes of which all addresses of blocks are multiples
// VECTOR: 1, 2 or 4, elements of a word of x, and of dequantised numbers
// WORD: u16 .. u32x4, type of such a word
// ROWS: 1 .. 8, rows of x; without ROWS there is the kernel `dequantize` alone
// BIAS: flag, a bias is added
// WIDE: flag, positions have 64 bits
CONTRACT_OFF

typedef STORAGE(T) S;
typedef GLOBAL const u8 *Bytes;

typedef union {
    WORD all;
    WORD_PARTS
    S each[VECTOR];
} Word;

#define RUN 4

#if ALIGNED == 4
FUNCTION u32 four_bytes(Bytes b) { return *(GLOBAL const u32 *)b; }
#elif ALIGNED == 2
FUNCTION u32 four_bytes(Bytes b) {
    GLOBAL const u16 *halves = (GLOBAL const u16 *)b;
    return (u32)halves[0] | (u32)halves[1] << 16;
}
#else
FUNCTION u32 four_bytes(Bytes b) { return (u32)b[0] | (u32)b[1] << 8 | (u32)b[2] << 16 | (u32)b[3] << 24; }
#endif

#if ALIGNED > 1
FUNCTION f32 half_at(Bytes b) { return f16_to_f32(*(GLOBAL const u16 *)b); }
#else
FUNCTION f32 half_at(Bytes b) { return f16_to_f32((u16)(b[0] | b[1] << 8)); }
#endif

// Byte e of a word; its lower or upper half; the same as a signed number.
#define BYTE(word, e) ((word) >> (8 * (e)) & 255)
#define NIBBLE(word, e, upper) ((word) >> (8 * (e) + 4 * (upper)) & 15)
#define SIGNED(byte) ((f32)((i32)((byte) ^ 128) - 128))
#define EACH_IN_RUN(e) _Pragma("unroll") for (int e = 0; e < RUN; e++)
#define EACH_RUN(r) _Pragma("unroll") for (int r = 0; r < RUNS; r++)

// The number q of 16 signed bytes.
FUNCTION f32 of_table(u32 q, u32 a, u32 b, u32 c, u32 d) {
    u32 word = q < 8 ? (q < 4 ? a : b) : (q < 12 ? c : d);
    return SIGNED(word >> 8 * (q & 3) & 255);
}
#define UNEVEN(q) of_table(q, 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u)
// Twice the floats of 4 bits, E2M1.
#define E2M1(q) of_table(q, 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu)

// For each format: the bytes and elements of a block, its units, the first number of unit u, the distance of its runs, and its numbers.

#ifdef Q4_0
#define BYTES 18
#define ELEMENTS 32
#define UNITS 4
#define RUNS 2
#define FIRST(u) (4 * (u))
#define STRIDE 16
FUNCTION void unit_of(Bytes b, int u, f32 *v) {
    f32 d = half_at(b);
    u32 q = four_bytes(b + 2 + 4 * u);
    EACH_RUN(r) EACH_IN_RUN(e) v[RUN * r + e] = d * ((f32)NIBBLE(q, e, r) - 8);
}
#endif

#ifdef Q4_1
#define BYTES 20
#define ELEMENTS 32
#define UNITS 4
#define RUNS 2
#define FIRST(u) (4 * (u))
#define STRIDE 16
FUNCTION void unit_of(Bytes b, int u, f32 *v) {
    f32 d = half_at(b), m = half_at(b + 2);
    u32 q = four_bytes(b + 4 + 4 * u);
    EACH_RUN(r) EACH_IN_RUN(e) v[RUN * r + e] = d * (f32)NIBBLE(q, e, r) + m;
}
#endif

// The fifth bit of number i is bit i of `high`.
#define FIFTH(high, u, r, e) (((high) >> (FIRST(u) + STRIDE * (r) + (e)) & 1) << 4)

#ifdef Q5_0
#define BYTES 22
#define ELEMENTS 32
#define UNITS 4
#define RUNS 2
#define FIRST(u) (4 * (u))
#define STRIDE 16
FUNCTION void unit_of(Bytes b, int u, f32 *v) {
    f32 d = half_at(b);
    u32 high = four_bytes(b + 2), q = four_bytes(b + 6 + 4 * u);
    EACH_RUN(r) EACH_IN_RUN(e) v[RUN * r + e] = d * ((f32)(NIBBLE(q, e, r) | FIFTH(high, u, r, e)) - 16);
}
#endif

#ifdef Q5_1
#define BYTES 24
#define ELEMENTS 32
#define UNITS 4
#define RUNS 2
#define FIRST(u) (4 * (u))
#define STRIDE 16
FUNCTION void unit_of(Bytes b, int u, f32 *v) {
    f32 d = half_at(b), m = half_at(b + 2);
    u32 high = four_bytes(b + 4), q = four_bytes(b + 8 + 4 * u);
    EACH_RUN(r) EACH_IN_RUN(e) v[RUN * r + e] = d * (f32)(NIBBLE(q, e, r) | FIFTH(high, u, r, e)) + m;
}
#endif

#ifdef Q8_0
#define BYTES 34
#define ELEMENTS 32
#define UNITS 4
#define RUNS 2
#define FIRST(u) (8 * (u))
#define STRIDE 4
FUNCTION void unit_of(Bytes b, int u, f32 *v) {
    f32 d = half_at(b);
    EACH_RUN(r) {
        u32 q = four_bytes(b + 2 + 8 * u + 4 * r);
        EACH_IN_RUN(e) v[RUN * r + e] = SIGNED(BYTE(q, e)) * d;
    }
}
#endif

#ifdef Q2_K
#define BYTES 84
#define ELEMENTS 256
#define UNITS 16
#define RUNS 4
#define FIRST(u) ((u) / 8 * 128 + (u) % 8 * 4)
#define STRIDE 32
FUNCTION void unit_of(Bytes b, int u, f32 *v) {
    f32 d = half_at(b + 80), m = half_at(b + 82);
    u32 q = four_bytes(b + 16 + 4 * u);
    EACH_RUN(r) {
        u32 both = b[(FIRST(u) + STRIDE * r) / 16];
        f32 scale = d * (f32)(both & 15), offset = m * (f32)(both >> 4);
        EACH_IN_RUN(e) v[RUN * r + e] = scale * (f32)(BYTE(q, e) >> 2 * r & 3) - offset;
    }
}
#endif

#ifdef Q3_K
#define BYTES 110
#define ELEMENTS 256
#define UNITS 16
#define RUNS 4
#define FIRST(u) ((u) / 8 * 128 + (u) % 8 * 4)
#define STRIDE 32
FUNCTION void unit_of(Bytes b, int u, f32 *v) {
    f32 d = half_at(b + 108);
    u32 high = four_bytes(b + u % 8 * 4), q = four_bytes(b + 32 + 4 * u);
    EACH_RUN(r) {
        int s = (FIRST(u) + STRIDE * r) / 16;
        u32 integer = (b[96 + s % 8] >> s / 8 * 4 & 15) | (b[104 + s % 4] >> s / 4 * 2 & 3) << 4;
        f32 scale = d * ((f32)integer - 32);
        EACH_IN_RUN(e) {
            u32 third = BYTE(high, e) >> (u / 8 * 4 + r) & 1;
            v[RUN * r + e] = scale * ((f32)((BYTE(q, e) >> 2 * r & 3) | third << 2) - 4);
        }
    }
}
#endif

#if defined(Q4_K) || defined(Q5_K)
// The scale and the offset of sub-block s, integers of 6 bits.
FUNCTION void scale_and_offset(Bytes b, int s, f32 *scale, f32 *offset) {
    f32 d = half_at(b), m = half_at(b + 2);
    Bytes packed = b + 4;
    u32 first, second;
    if (s < 4) {
        first = packed[s] & 63;
        second = packed[s + 4] & 63;
    } else {
        first = (packed[s + 4] & 15) | packed[s - 4] >> 6 << 4;
        second = packed[s + 4] >> 4 | packed[s] >> 6 << 4;
    }
    *scale = d * (f32)first;
    *offset = m * (f32)second;
}
#endif

#ifdef Q4_K
#define BYTES 144
#define ELEMENTS 256
#define UNITS 32
#define RUNS 2
#define FIRST(u) ((u) / 8 * 64 + (u) % 8 * 4)
#define STRIDE 32
FUNCTION void unit_of(Bytes b, int u, f32 *v) {
    u32 q = four_bytes(b + 16 + 4 * u);
    EACH_RUN(r) {
        f32 scale, offset;
        scale_and_offset(b, u / 8 * 2 + r, &scale, &offset);
        EACH_IN_RUN(e) v[RUN * r + e] = scale * (f32)NIBBLE(q, e, r) - offset;
    }
}
#endif

#ifdef Q5_K
#define BYTES 176
#define ELEMENTS 256
#define UNITS 32
#define RUNS 2
#define FIRST(u) ((u) / 8 * 64 + (u) % 8 * 4)
#define STRIDE 32
FUNCTION void unit_of(Bytes b, int u, f32 *v) {
    u32 high = four_bytes(b + 16 + u % 8 * 4), q = four_bytes(b + 48 + 4 * u);
    EACH_RUN(r) {
        f32 scale, offset;
        int s = u / 8 * 2 + r;
        scale_and_offset(b, s, &scale, &offset);
        EACH_IN_RUN(e) v[RUN * r + e] = scale * (f32)(NIBBLE(q, e, r) | (BYTE(high, e) >> s & 1) << 4) - offset;
    }
}
#endif

#ifdef Q6_K
#define BYTES 210
#define ELEMENTS 256
#define UNITS 32
#define RUNS 2
#define FIRST(u) ((u) / 16 * 128 + (u) % 16 * 4)
#define STRIDE 64
FUNCTION void unit_of(Bytes b, int u, f32 *v) {
    f32 d = half_at(b + 208);
    u32 q = four_bytes(b + 4 * u), high = four_bytes(b + 128 + u / 16 * 32 + u % 8 * 4);
    EACH_RUN(r) {
        f32 scale = d * SIGNED((u32)b[192 + (FIRST(u) + STRIDE * r) / 16]);
        EACH_IN_RUN(e) {
            u32 upper = BYTE(high, e) >> (u % 16 / 8 * 2 + 4 * r) & 3;
            v[RUN * r + e] = scale * ((f32)(NIBBLE(q, e, r) | upper << 4) - 32);
        }
    }
}
#endif

#ifdef IQ4_NL
#define BYTES 18
#define ELEMENTS 32
#define UNITS 4
#define RUNS 2
#define FIRST(u) (4 * (u))
#define STRIDE 16
FUNCTION void unit_of(Bytes b, int u, f32 *v) {
    f32 d = half_at(b);
    u32 q = four_bytes(b + 2 + 4 * u);
    EACH_RUN(r) EACH_IN_RUN(e) v[RUN * r + e] = d * UNEVEN(NIBBLE(q, e, r));
}
#endif

#ifdef IQ4_XS
#define BYTES 136
#define ELEMENTS 256
#define UNITS 32
#define RUNS 2
#define FIRST(u) ((u) / 4 * 32 + (u) % 4 * 4)
#define STRIDE 16
FUNCTION void unit_of(Bytes b, int u, f32 *v) {
    int s = u / 4;
    u32 integer = (b[4 + s / 2] >> s % 2 * 4 & 15) | (b[2 + s / 4] >> s % 4 * 2 & 3) << 4;
    f32 scale = half_at(b) * ((f32)integer - 32);
    u32 q = four_bytes(b + 8 + 4 * u);
    EACH_RUN(r) EACH_IN_RUN(e) v[RUN * r + e] = scale * UNEVEN(NIBBLE(q, e, r));
}
#endif

#ifdef MXFP4
#define BYTES 17
#define ELEMENTS 32
#define UNITS 4
#define RUNS 2
#define FIRST(u) (4 * (u))
#define STRIDE 16
FUNCTION void unit_of(Bytes b, int u, f32 *v) {
    // Half of the power, since the table has twice the floats. Half of the two smallest powers is subnormal.
    u32 power = b[0], q = four_bytes(b + 1 + 4 * u);
    f32 d = as_f32(power < 2 ? (u32)1 << 21 << power : (power - 1) << 23);
    EACH_RUN(r) EACH_IN_RUN(e) v[RUN * r + e] = d * E2M1(NIBBLE(q, e, r));
}
#endif

#ifdef NF4
#define BYTES 36
#define ELEMENTS 64
#define UNITS 8
#define RUNS 2
#define FIRST(u) (8 * (u))
#define STRIDE 4
// The quantiles of the normal distribution.
FUNCTION f32 quantile(u32 q) {
    f32 low = q < 4 ? (q < 2 ? (q == 0 ? -1.0f : -0.6961928f) : (q == 2 ? -0.52507305f : -0.3949175f))
                    : (q < 6 ? (q == 4 ? -0.28444138f : -0.18477343f) : (q == 6 ? -0.091050036f : 0.0f));
    f32 high = q < 12 ? (q < 10 ? (q == 8 ? 0.0795803f : 0.1609302f) : (q == 10 ? 0.2461123f : 0.33791524f))
                      : (q < 14 ? (q == 12 ? 0.44070983f : 0.562617f) : (q == 14 ? 0.72295684f : 1.0f));
    return q < 8 ? low : high;
}
FUNCTION void unit_of(Bytes b, int u, f32 *v) {
    f32 d = as_f32(four_bytes(b));
    u32 q = four_bytes(b + 4 + 4 * u);
    EACH_RUN(r) EACH_IN_RUN(e) {
        int i = RUN * r + e;
        v[i] = d * quantile(NIBBLE(q, i / 2, 1 - i % 2));
    }
}
#endif

#define UNIT (RUN * RUNS)

#ifndef ROWS
// y: the numbers of `blocks` blocks. A thread writes a unit.
KERNEL(dequantize)(Bytes blocks, GLOBAL S *y, i64 units) {
    for (i64 i = GROUP * THREADS + LANE; i < units; i += GROUPS * THREADS) {
        idx block = (idx)(i / UNITS);
        int u = (int)(i % UNITS);
        f32 v[UNIT];
        unit_of(blocks + (i64)block * BYTES, u, v);
        GLOBAL S *to = y + (block * ELEMENTS + FIRST(u));
        EACH_RUN(r) {
            _Pragma("unroll") for (int w = 0; w < RUN / VECTOR; w++) {
                Word word;
                _Pragma("unroll") for (int j = 0; j < VECTOR; j++) STORE(T, word.each, j, v[RUN * r + VECTOR * w + j]);
                *(GLOBAL WORD *)(to + (STRIDE * r + VECTOR * w)) = word.all;
            }
        }
    }
}

#else
// y [ROWS, outputs] = x w^T + bias. A team takes a row of the weight.
KERNEL(quantized_linear)(GLOBAL const S *x, Bytes blocks, GLOBAL const S *bias, GLOBAL S *y, i64 outputs, i64 count) {
    JOINS(ROWS);
    for (i64 base = GROUP * TEAMS; base < outputs; base += GROUPS * TEAMS) {
        i64 own = base + LANE / TEAM, row = own < outputs ? own : outputs - 1;
        Bytes of_row = blocks + row * count * BYTES;
        A sums[ROWS];
        _Pragma("unroll") for (int m = 0; m < ROWS; m++) sums[m] = 0;
        for (idx i = MEMBER; i < (idx)count * UNITS; i += TEAM) {
            idx block = i / UNITS;
            int u = (int)(i % UNITS);
            f32 v[UNIT];
            unit_of(of_row + (i64)block * BYTES, u, v);
            _Pragma("unroll") for (int m = 0; m < ROWS; m++) {
                GLOBAL const S *from = x + (m * (idx)count + block) * ELEMENTS + FIRST(u);
                EACH_RUN(r) {
                    _Pragma("unroll") for (int w = 0; w < RUN / VECTOR; w++) {
                        Word word;
                        SET_WORD(word, *(GLOBAL const WORD *)(from + (STRIDE * r + VECTOR * w)));
                        _Pragma("unroll") for (int j = 0; j < VECTOR; j++)
                            sums[m] = fma_((A)v[RUN * r + VECTOR * w + j], (A)LOAD(T, word.each, j), sums[m]);
                    }
                }
            }
        }
        team_join(sums, ROWS, SIDE(ROWS), JOIN_TO_SUM);
        if (MEMBER == 0 && own < outputs) {
#ifdef BIAS
            A added = (A)LOAD(T, bias, row);
#else
            A added = 0;
#endif
            _Pragma("unroll") for (int m = 0; m < ROWS; m++) STORE(T, y, m * outputs + row, sums[m] + added);
        }
    }
}
#endif
