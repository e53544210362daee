// Copies of 16 bytes from global to local memory that run while threads compute, in words of CHUNK elements. Compute capability
// 8.0 and later. Positions in local memory are in bytes.

#ifdef SIMT

// For the emulator of tools/simt.
#define copy_async(to, from, bytes) simt_cp_async((void *)(to), from, 16, (unsigned)(bytes))
#define end_group_of_copies() simt_cp_async_commit()
#define wait_for_copies(groups) simt_cp_async_wait(groups)

#else

// Starts an asynchronous copy of 16 bytes to local memory, or of zeros if `bytes` is 0 and not 16. With a size that is known to be one
// of both, the copy is one instruction.
FUNCTION void copy_async(LocalPlace to, GLOBAL const void *from, int bytes) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 ".reg .b32 n;\n"
                 "setp.ne.b32 p, %2, 0;\n"
                 "selp.b32 n, 16, 0, p;\n"
                 "cp.async." COPY_CACHE ".shared.global [%0], [%1], 16, n;\n"
                 "}"
                 :
                 : "r"(to), "l"((u64)from), "r"(bytes)
                 : "memory");
}
#define end_group_of_copies() asm volatile("cp.async.commit_group;" ::: "memory")
// Waits until at most `groups` groups of copies are in flight.
#define wait_for_copies(groups) asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory")

#endif

// Elements of a word: those of 16 bits, unless the kernel says otherwise.
#ifndef CHUNK
#define CHUNK 8
#endif
#define CHUNKS_K (TILE_K / CHUNK)
