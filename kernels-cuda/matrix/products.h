// Products of tiles in local memory by Hopper's matrix units, for compute capability 9.0 (sm_90a) alone. f16 or bf16, sums in f32.
// Positions in local memory are in bytes.
//
// A tile has lines of 128 bytes, whose words of 16 bytes are permuted by the line's number modulo 8. Lines along K have 64 elements of
// a row. Lines along the rows have 64 rows of the matrix; 64 such lines precede the lines of the next 64 rows. Tiles begin at multiples
// of 1024 bytes.
//
// PRODUCT_64, PRODUCT_128 and PRODUCT_256 (name, dtype, a_along_k, b_along_k) define a function name(d, a, b, has_before) of four waves:
// d [64, N] += a [64, 16] b [16, N], or = for the first product. a and b are tiles; a factor is contiguous along K, or else along its
// rows or columns. A wave has 16 rows. PRODUCT_OF_REGISTERS_64 and _128 (name, dtype, b_along_k) define it for an a in registers: its
// words are the sums of a result [64, 16], in pairs that are rounded.

#define LINE 128
// Lines of 64 rows or columns.
#define BOX (64 * LINE)
// Sums of a thread for so many columns. Of eight columns, it has two adjacent ones in two rows that are 8 apart:
// sums[block * 4 + half * 2 + column].
#define SUMS_OF(columns) ((columns) / 2)
// The position of 16 further elements of K.
#define AFTER_16(along_k) ((along_k) ? 32 : 16 * LINE)

#ifdef SIMT

// For the emulator of tools/simt: each thread computes its own sums when the product starts. A tile is its position.
#define BEGIN_PRODUCTS() ((void)0)
#define END_GROUP_OF_PRODUCTS() ((void)0)
#define WAIT_FOR_PRODUCTS(groups) ((void)0)
#define SHOW_TO_UNITS() ((void)0)
#define tile_at(at) (at)
#define tile_anew(at) (at)
#define further(tile, bytes) ((tile) + (bytes))

FUNCTION u16 of_tile(u64 tile, int row, int k, int along_k) {
    u64 at = tile + (u64)(along_k ? row * LINE + k * 2 : row / 64 * BOX + k * LINE + row % 64 * 2);
    return *(const u16 *)(at ^ (at >> 7 & 7) << 4);
}

// The row of sum i of a thread, and its column.
#define ROW_OF_SUM(i) (LANE / 32 % 4 * 16 + LANE % 32 / 4 + (i) / 2 % 2 * 8)
#define COLUMN_OF_SUM(i) ((i) / 4 * 8 + LANE % 4 * 2 + (i) % 2)

#define PRODUCT(name, dtype, columns, a_along_k, b_along_k) \
    FUNCTION void name(f32 *d, u64 a, u64 b, int has_before) { \
        for (int i = 0; i < SUMS_OF(columns); i++) { \
            f32 sum = has_before ? d[i] : 0; \
            for (int k = 0; k < 16; k++) { \
                u16 left = of_tile(a, ROW_OF_SUM(i), k, a_along_k), right = of_tile(b, COLUMN_OF_SUM(i), k, b_along_k); \
                sum += LOAD(dtype, &left, 0) * LOAD(dtype, &right, 0); \
            } \
            d[i] = sum; \
        } \
    }
#define PRODUCT_64(name, dtype, a_along_k, b_along_k) PRODUCT(name, dtype, 64, a_along_k, b_along_k)
#define PRODUCT_128(name, dtype, a_along_k, b_along_k) PRODUCT(name, dtype, 128, a_along_k, b_along_k)
#define PRODUCT_256(name, dtype, a_along_k, b_along_k) PRODUCT(name, dtype, 256, a_along_k, b_along_k)

// The elements of a row are with four threads.
#define PRODUCT_OF_REGISTERS(name, dtype, columns, b_along_k) \
    FUNCTION void name(f32 *d, const u32 *a, u64 b, int has_before) { \
        u32 words[4][4]; \
        for (int by = 0; by < 4; by++) \
            for (int r = 0; r < 4; r++) words[LANE % 4 ^ by][r] = by ? wave_xor(a[r], by) : a[r]; \
        for (int i = 0; i < SUMS_OF(columns); i++) { \
            f32 sum = has_before ? d[i] : 0; \
            for (int k = 0; k < 16; k++) { \
                u16 left = (u16)(words[k % 8 / 2][k / 8 * 2 + i / 2 % 2] >> k % 2 * 16); \
                u16 right = of_tile(b, COLUMN_OF_SUM(i), k, b_along_k); \
                sum += LOAD(dtype, &left, 0) * LOAD(dtype, &right, 0); \
            } \
            d[i] = sum; \
        } \
    }
#define PRODUCT_OF_REGISTERS_64(name, dtype, b_along_k) PRODUCT_OF_REGISTERS(name, dtype, 64, b_along_k)
#define PRODUCT_OF_REGISTERS_128(name, dtype, b_along_k) PRODUCT_OF_REGISTERS(name, dtype, 128, b_along_k)

FUNCTION u32 pack_f16(f32 low, f32 high) { return f32_to_f16(low) | (u32)f32_to_f16(high) << 16; }
FUNCTION u32 pack_bf16(f32 low, f32 high) { return f32_to_bf16(low) | (u32)f32_to_bf16(high) << 16; }

#else

// Shows a thread's writes to local memory, its copies among them, to the units.
#define SHOW_TO_UNITS() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
// Fences products in flight: the compiler may not touch their registers.
#define BEGIN_PRODUCTS() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define END_GROUP_OF_PRODUCTS() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
// Waits until at most `groups` groups of products are in flight.
#define WAIT_FOR_PRODUCTS(groups) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory")

// A descriptor of a tile, and of what lies a number of bytes further.
FUNCTION u64 tile_at(LocalPlace at) {
    return (u64)(at >> 4 & 0x3fff) | (u64)(BOX >> 4) << 16 | (u64)(8 * LINE >> 4) << 32 | (u64)1 << 62;
}
#define further(tile, bytes) ((tile) + ((bytes) >> 4))
// The descriptor of a tile of which a loop does not keep the parts' descriptors in registers: it is computed anew each time.
FUNCTION u64 tile_anew(LocalPlace at) {
    asm volatile("" : "+r"(at));
    return tile_at(at);
}

#define FOUR(d, i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define SIXTEEN(d, i) FOUR(d, i), FOUR(d, (i) + 4), FOUR(d, (i) + 8), FOUR(d, (i) + 12)
#define THIRTY_TWO(d, i) SIXTEEN(d, i), SIXTEEN(d, (i) + 16)
#define SIXTY_FOUR(d, i) THIRTY_TWO(d, i), THIRTY_TWO(d, (i) + 32)

#define INSTRUCTION(dtype, columns, registers, a_at, b_at, adds_at, turns) \
    "{\n" \
    ".reg .pred adds;\n" \
    "setp.ne.b32 adds, " adds_at ", 0;\n" \
    "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." #dtype "." #dtype " {" registers "}, " a_at ", " b_at ", adds, 1, 1, " turns ";\n" \
    "}"
#define REGISTERS_64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_128 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_256 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define PRODUCT(name, instruction, a_along_k, b_along_k, ...) \
    FUNCTION void name(f32 *d, u64 a, u64 b, int has_before) { \
        asm volatile(instruction : __VA_ARGS__ : "l"(a), "l"(b), "r"(has_before), "n"(!(a_along_k)), "n"(!(b_along_k))); \
    }
#define PRODUCT_64(name, dtype, a_along_k, b_along_k) \
    PRODUCT(name, INSTRUCTION(dtype, "64", REGISTERS_64, "%32", "%33", "%34", "%35, %36"), a_along_k, b_along_k, THIRTY_TWO(d, 0))
#define PRODUCT_128(name, dtype, a_along_k, b_along_k) \
    PRODUCT(name, INSTRUCTION(dtype, "128", REGISTERS_128, "%64", "%65", "%66", "%67, %68"), a_along_k, b_along_k, SIXTY_FOUR(d, 0))
#define PRODUCT_256(name, dtype, a_along_k, b_along_k) \
    PRODUCT(name, INSTRUCTION(dtype, "256", REGISTERS_256, "%128", "%129", "%130", "%131, %132"), a_along_k, b_along_k, SIXTY_FOUR(d, 0), SIXTY_FOUR(d, 64))
#define PRODUCT_OF_REGISTERS(name, instruction, b_along_k, ...) \
    FUNCTION void name(f32 *d, const u32 *a, u64 b, int has_before) { \
        asm volatile(instruction \
                     : __VA_ARGS__ \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(has_before), "n"(!(b_along_k))); \
    }
#define PRODUCT_OF_REGISTERS_64(name, dtype, b_along_k) \
    PRODUCT_OF_REGISTERS(name, INSTRUCTION(dtype, "64", REGISTERS_64, "{%32, %33, %34, %35}", "%36", "%37", "%38"), b_along_k, THIRTY_TWO(d, 0))
#define PRODUCT_OF_REGISTERS_128(name, dtype, b_along_k) \
    PRODUCT_OF_REGISTERS(name, INSTRUCTION(dtype, "128", REGISTERS_128, "{%64, %65, %66, %67}", "%68", "%69", "%70"), b_along_k, SIXTY_FOUR(d, 0))

// Two numbers, rounded, in a word.
#define PACK(dtype) \
    FUNCTION u32 pack_##dtype(f32 low, f32 high) { \
        u32 word; \
        asm("cvt.rn." #dtype "x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low)); \
        return word; \
    }
PACK(f16)
PACK(bf16)

#endif

FUNCTION void unpack_f16(f32 *v, u32 word) {
    v[0] = f16_to_f32((u16)word);
    v[1] = f16_to_f32((u16)(word >> 16));
}

FUNCTION void unpack_bf16(f32 *v, u32 word) {
    v[0] = as_f32(word << 16);
    v[1] = as_f32(word & 0xffff0000);
}

// Transposes four words between four threads: each gets all four words of one block of eight columns.
FUNCTION void exchange(u32 *w) {
    int is_odd = LANE & 1, is_high = LANE & 2;
    u32 low = wave_xor(is_odd ? w[0] : w[1], 1), high = wave_xor(is_odd ? w[2] : w[3], 1);
    u32 a0 = is_odd ? low : w[0], a1 = is_odd ? w[1] : low, b0 = is_odd ? high : w[2], b1 = is_odd ? w[3] : high;
    u32 c0 = wave_xor(is_high ? a0 : b0, 2), c1 = wave_xor(is_high ? a1 : b1, 2);
    w[0] = is_high ? c0 : a0;
    w[1] = is_high ? c1 : a1;
    w[2] = is_high ? b0 : c0;
    w[3] = is_high ? b1 : c1;
}
