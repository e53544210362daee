// Additions by several groups to the same numbers in memory, one group after the other, so that sums do not depend on the run.
//
// A counter in memory has the number of turns that have ended. It is 0 before the launch. The group of turn 0 writes the numbers, and
// the groups of later turns add to them. Groups start in the order of their numbers: a group that waits for earlier groups alone waits
// for groups that run or have ended.

// Waits for the end of the turns before this one. `ended` is the counter as it was read earlier.
FUNCTION void await_turn(GLOBAL const u32 *counter, u32 ended, u32 turn) {
    while (ended < turn) ended = seen_u32(counter);
}

#ifdef SIMT

FUNCTION void add_four(GLOBAL f32 *p, const f32 *v) {
    for (int i = 0; i < 4; i++) {
        GLOBAL u32 *word = (GLOBAL u32 *)p + i;
        show_u32(word, as_u32(as_f32(seen_u32(word)) + v[i]));
    }
}

FUNCTION void put_four(GLOBAL f32 *p, const f32 *v) {
    for (int i = 0; i < 4; i++) show_u32((GLOBAL u32 *)p + i, as_u32(v[i]));
}

FUNCTION void see_all(GLOBAL const u32 *counter) { __threadfence(); }

FUNCTION void show_after_all(GLOBAL u32 *p, u32 v) {
    __threadfence();
    show_u32(p, v);
}

#else

// Adds to four numbers in a word of 16 bytes.
FUNCTION void add_four(GLOBAL f32 *p, const f32 *v) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}

FUNCTION void put_four(GLOBAL f32 *p, const f32 *v) {
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}

// Makes the numbers of the turns that the counter shows visible to this thread.
FUNCTION void see_all(GLOBAL const u32 *counter) {
    u32 ended;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(ended) : "l"(counter) : "memory");
}

// Writes a word that is seen after the writes and additions of the group before its last barrier.
FUNCTION void show_after_all(GLOBAL u32 *p, u32 v) { asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }

#endif

// Ends a turn whose additions come before the group's last barrier. One thread waits until they are in memory: eight would take longer.
FUNCTION void end_turn(GLOBAL u32 *counter, u32 turn) {
    if (LANE == 0) show_after_all(counter, turn + 1);
}
