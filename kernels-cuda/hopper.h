// Building blocks of products on Hopper's matrix units, for compute capability 9.0 (sm_90a) alone: copies of tiles, barriers
// between the copies and their readers, and the units' instruction. Positions in local memory are in bytes.

// A description of a matrix in memory for the engine that copies tiles (a tensor map). The driver creates it.
typedef struct __align__(64) {
    u64 words[16];
} TileMap;

#define SYNC_CLUSTER() \
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory")
// Lowers or raises the number of registers of the threads of four waves.
#define GIVE_REGISTERS(left) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(left))
#define TAKE_REGISTERS(all) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(all))

FUNCTION u32 rank_in_cluster(void) {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// A barrier opens when the given number of threads have arrived, and all announced bytes. It orders accesses to local memory:
// writes by the engine and reads by the units. Its scope is therefore the group. A wider scope would invalidate caches and wait for
// all writes.
FUNCTION void make_barrier(LocalPlace at, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

// Makes barriers visible to the engine and to the other groups of the cluster.
FUNCTION void show_barriers(void) { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Arrives at a barrier, and announces bytes.
FUNCTION void expect_bytes(LocalPlace at, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

// Arrives at the barrier at this position of group `rank` of the cluster.
FUNCTION void arrive_at(LocalPlace at, u32 rank) {
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" ::"r"(at),
                 "r"(rank)
                 : "memory");
}

// Waits for the end of the phase of this parity.
FUNCTION void wait_at(LocalPlace at, u32 parity) {
    asm volatile("{\n"
                 ".reg .pred is_open;\n"
                 "AGAIN:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 is_open, [%0], %1;\n"
                 "@!is_open bra AGAIN;\n"
                 "}" ::"r"(at),
                 "r"(parity)
                 : "memory");
}

// Copies the box of a tensor map at these coordinates, innermost first. Its bytes arrive at the barrier. Elements out of range are
// 0.
FUNCTION void copy_box(LocalPlace to, const TileMap *map, LocalPlace barrier, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

// copy_box for the groups of a cluster in the mask `groups`, to the same position of each.
FUNCTION void copy_box_to(u16 groups, LocalPlace to, const TileMap *map, LocalPlace barrier, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%4, %5, %6}], [%2], %3;" ::"r"(to),
                 "l"(map), "r"(barrier), "h"(groups), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

// Fences products in flight: the compiler may not touch their registers.
#define BEGIN_PRODUCTS() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define END_GROUP_OF_PRODUCTS() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
// Waits until at most `groups` groups of products are in flight.
#define WAIT_FOR_PRODUCTS(groups) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory")

// A descriptor of a tile in local memory: lines of 128 bytes, whose words of 16 bytes are permuted by the line's number modulo 8.
// Eight lines have 1024 bytes. Lines along the rows have 64 rows of the matrix; 64 such lines precede the lines of the next 64
// rows.
FUNCTION u64 tile_at(LocalPlace at) {
    return (u64)(at >> 4 & 0x3fff) | (u64)(64 * 128 >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

#define FOUR(d, i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define SIXTEEN(d, i) FOUR(d, i), FOUR(d, (i) + 4), FOUR(d, (i) + 8), FOUR(d, (i) + 12)
#define SIXTY_FOUR(d, i) SIXTEEN(d, i), SIXTEEN(d, (i) + 16), SIXTEEN(d, (i) + 32), SIXTEEN(d, (i) + 48)

// d [64, 256] += a [64, 16] b [16, 256], or = for the first product, by four waves. A wave has 16 rows. Of eight columns, a thread
// has two adjacent ones in two rows that are 8 apart. A_ALONG_K, B_ALONG_K: as in loader.h.
#define PRODUCT(dtype) \
    FUNCTION void product_##dtype(f32 *d, u64 a, u64 b, int has_before) { \
        asm volatile( \
            "{\n" \
            ".reg .pred adds;\n" \
            "setp.ne.b32 adds, %130, 0;\n" \
            "wgmma.mma_async.sync.aligned.m64n256k16.f32." #dtype "." #dtype " {" \
            "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
            "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
            "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
            "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
            "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127" \
            "}, %128, %129, adds, 1, 1, %131, %132;\n" \
            "}" \
            : SIXTY_FOUR(d, 0), SIXTY_FOUR(d, 64) \
            : "l"(a), "l"(b), "r"(has_before), "n"(!A_ALONG_K), "n"(!B_ALONG_K)); \
    }
PRODUCT(f16)
PRODUCT(bf16)
