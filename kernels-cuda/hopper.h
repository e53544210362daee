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
