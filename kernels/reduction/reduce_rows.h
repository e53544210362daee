// Where the elements of a result lie side by side.

#include "reduction/team.h"
#if WAVE > 1
WAVE_EXCHANGE(exchange, P)
#endif
// The first thread of a team gets the result.
TEAM_JOINED(team_joined, P, exchange, join, member == 0)

#ifdef LAST_JOINS
#include "reduction/reduce_parts.h"
#else
#define LAST_PARAMETERS
#endif

// A team of threads computes one result; a group has THREADS / team teams. A thread takes every team-th vector, with one
// accumulator per lane of a vector. team: a power of 2.
KERNEL(reduce_rows)(GLOBAL const From *x, GLOBAL To *y, GLOBAL A *second SUM_PARAMETERS, Ints p, i64 results, i64 count,
                    i64 part, i64 step, i64 shift, i64 team, Divisor divisor LAST_PARAMETERS ROW_PARAMETERS) {
    AWAIT_PREVIOUS();
    LET_NEXT_START();
    SHARED(P, shared, THREADS);
    int members = (int)team, member = LANE & (members - 1), bits = LOG2(members);
    i64 number = GROUP * (THREADS >> bits) + (LANE >> bits);
#ifdef LAST_JOINS
    // The group is a single team.
    int parts = (int)GROUPS_Y;
    u32 before = LANE == 0 ? count_to(begun + number, parts - 1) : 0;
#endif
    idx from = (idx)shift, to = (idx)(GROUP_Y * step);
    P acc[LANES];
#pragma unroll
    for (int j = 0; j < LANES; j++) acc[j] = NOTHING;
    State state[1];
    START(1);
    if (number < results) {
        place(p, (idx)number, 1, &from, &to);
        FIXED(number);
        SET_PIVOT(x, from, 0);
        idx start = (idx)(GROUP_Y * part), n = (idx)count - start;
        if (n > (idx)part) n = (idx)part;
        idx first = REDUCED == 1 ? from + start * REDUCED_X(0) : 0;
#define AT(k) (REDUCED == 1 ? first + (k) * REDUCED_X(0) : from + element(p, start + (k)))
        // Elements before the first aligned word.
        idx head = 0;
        if (REDUCED == 1 && VECTOR > 1) {
            head = (0 - first) & (VECTOR - 1);
            if (head > n) head = n;
        }
        idx vectors = (n - head) / VECTOR, v = member;
        for (; v + (UNROLL - 1) * members < vectors; v += UNROLL * members) {
            Read w[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) READ(w[u], x, AT(head + (v + u * members) * VECTOR));
            if (TAKES_TOGETHER) TAKE(w, UNROLL, from, 0);
#pragma unroll
            for (int u = 0; !TAKES_TOGETHER && u < UNROLL; u++) {
                idx k = head + (v + u * members) * VECTOR;
                TAKE(w + u, 1, AT(k), start + k);
            }
        }
        if (IS_SET(READS_REST) && v < vectors) {
            Read w[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (v + u * members < vectors) READ(w[u], x, AT(head + (v + u * members) * VECTOR));
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                idx k = head + (v + u * members) * VECTOR;
                if (v + u * members < vectors) TAKE(w + u, 1, AT(k), start + k);
            }
        }
        for (; !IS_SET(READS_REST) && v < vectors; v += members) {
            Read w;
            idx k = head + v * VECTOR;
            READ(w, x, AT(k));
            TAKE(&w, 1, AT(k), start + k);
        }
        END_VECTORS(start + head + member * VECTOR, member < vectors);
        if (VECTOR > 1 && !HAS_ROW) {
            for (idx k = member; k < head; k += members) acc[0] = ADDED(acc[0], x, AT(k), start + k, 0);
            for (idx k = head + vectors * VECTOR + member; k < n; k += members)
                acc[0] = ADDED(acc[0], x, AT(k), start + k, 0);
        }
#ifdef SQUARES
#pragma unroll
        for (int below = LANES / 2; below > 0; below /= 2) {
#pragma unroll
            for (int j = 0; j < below; j++) acc[j] += acc[j + below];
        }
#endif
#ifdef EDGES
        if (!HAS_SQUARES(acc[0]) && state->marks != 0) {
            Root r = NO_ROOT;
            for (v = member; v < vectors; v += members)
                for (int j = 0; j < VECTOR; j++) add_to_root(&r, (A)LOAD(X, x, AT(head + v * VECTOR + j)));
            for (idx k = member; k < head; k += members) add_to_root(&r, (A)LOAD(X, x, AT(k)));
            for (idx k = head + vectors * VECTOR + member; k < n; k += members) add_to_root(&r, (A)LOAD(X, x, AT(k)));
            acc[0] = negative_root(r);
        }
#endif
    }
#pragma unroll
    for (int below = IS_SET(SQUARES) ? 0 : LANES / 2; below > 0; below /= 2) {
#pragma unroll
        for (int j = 0; j < below; j++) acc[j] = join(acc[j], acc[j + below]);
    }
    P mine = team_joined(acc[0], member, members, shared);
#ifdef LAST_JOINS
    GLOBAL u64 *of_result = left + number * parts * LEFT_WORDS;
    SHARED(int, is_last, 1);
    SHARED(P, own, 1);
    if (LANE == 0) {
        is_last[0] = before == (u32)(parts - 1);
        own[0] = mine;
        if (!is_last[0]) leave(of_result + GROUP_Y * LEFT_WORDS, mine);
    }
    BARRIER();
    if (!is_last[0]) return;
    mine = team_joined(take_left(of_result, parts, (int)GROUP_Y, own[0]), LANE, THREADS, shared);
#endif
    if (member > 0 || number >= results) return;
    ADD_PIVOT(mine, 0);
    PUT(y, to, mine);
}
