// Philox 4x32-10: four draws of 32 bits each at a place in a sequence.

typedef struct {
    u32 v[4];
} Draws;

// Block `at` after a state of seed, offset and stream. With BASE, the state in memory is added.
FUNCTION Draws draws_of(GLOBAL const i64 *base, u64 at, i64 seed, i64 stream) {
#ifdef BASE
    seed = (i64)((u64)seed + (u64)base[0]);
    at += (u64)base[1];
    stream = (i64)((u64)stream + (u64)base[2]);
#endif
    u32 x0 = (u32)at, x1 = (u32)(at >> 32), x2 = (u32)stream, x3 = (u32)((u64)stream >> 32);
    u32 k0 = (u32)seed, k1 = (u32)((u64)seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u32 h0 = mul_hi_u32(0xd2511f53u, x0), l0 = 0xd2511f53u * x0;
        u32 h1 = mul_hi_u32(0xcd9e8d57u, x2), l1 = 0xcd9e8d57u * x2;
        x0 = h1 ^ x1 ^ k0;
        x1 = l1;
        x2 = h0 ^ x3 ^ k1;
        x3 = l0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    Draws draws;
    draws.v[0] = x0, draws.v[1] = x1, draws.v[2] = x2, draws.v[3] = x3;
    return draws;
}
