// Definitions of the preludes of CUDA C++ and HIP C++ for the emulator of tools/simt. A prelude defines u32x2 and u32x4 before.

#define f16_to_f32(h) simt_f16_to_f32(h)
#define f32_to_f16(v) simt_f32_to_f16(v)
#define exp2_near_(x) simt_exp2_near(x)
#define log2_near_ log2_
#define write_alike(p, value) simt_store_relaxed(p, value)
#define show_u16(p, v) simt_store_relaxed(p, v)
#define show_u32(p, v) simt_store_relaxed(p, v)
#define seen_u16(p) simt_load_relaxed(p)
#define seen_u32(p) simt_load_relaxed(p)
FUNCTION u32x2 seen_u32x2(const u32x2 *p) {
    u64 v = simt_load_relaxed((const u64 *)p);
    return {(u32)v, (u32)(v >> 32)};
}
FUNCTION u32x4 seen_u32x4(const u32x4 *p) {
    u32x2 a = seen_u32x2((const u32x2 *)p), b = seen_u32x2((const u32x2 *)p + 1);
    return {a.x, a.y, b.x, b.y};
}
