// Recurrent ops over sequences: one launch computes all steps, forward or backward through time.
//
// A step is a product of rows [B, K] with weights, and a row of the pointwise table: forward the rows are hidden states and K = H, backward
// they are gradients of products and K = GATES H. A slice is UNITS hidden units with all of their gates. A group keeps a slice's weights
// in local memory, and takes ROWS rows of a batch at once. The threads of a team share a part of K; the sums of the teams are added in
// a fixed order. Results do not depend on the number of groups.
//
// A step reads what all groups wrote in the step before. Such memory, which is `shared` below, holds MARK in all elements when the kernel
// starts. A thread reads an element again until it is no mark. Only groups that run at the same time can wait for each other: the
// groups that have registered when the first one stops waiting for others take part; groups that start later return at once. A
// group that is alone is right, too. It has several slices then, and loads weights again whenever the slice changes.
//
// T: f32, f16 or bf16, dtype of operands
// BITS: u16 or u32, an element as bits
// QUAD: u32x2 or u32x4, four elements
// CELL: name of the row of a step, or of its gradient
// GATES: 1, 3 or 4; LSTM or GRU: flag, the kind of the cell; neither is a plain RNN
// SIZE: 1 .., H
// UNITS: 4, 8 or 16, hidden units of a slice
// TEAM_THREADS: 16 or 32, threads of a team
// SHARE: multiple of 4, elements of K of a team
// CHUNK: 16 or 32, elements of K of which a team holds rows in local memory
// OWN_COLUMNS: 1 .. 4, columns of a thread
// GIVEN: words of local memory
// QUADS: flag, SIZE is a multiple of 4
// TF32: flag, factors of f32 are rounded to TF32
// REVERSED: flag, from the last step to the first
// BACKWARD: flag, the kernel is recurrent_backward
// HAS_STATE, HAS_CELL, HAS_BIAS: flags, h0, c0 or the bias of the hidden state's product are there; they are 0 otherwise
// HAS_DY, HAS_DH, HAS_DC: flags, the gradient of all states, of the last state or of the last cell state is there
// STATE_WANTED: flag, the gradient of h0 is computed
// AT_ONCE: 1, a group has all registers

#define ROWS 16
#define SPLITS (THREADS / TEAM_THREADS)
#ifdef BACKWARD
#define K (GATES * SIZE)
#define COLUMNS UNITS
#else
#define K SIZE
#define COLUMNS (GATES * UNITS)
#endif
typedef STORAGE(T) S;

// The bits of an absent element. No element has them: a NaN gets other bits when it is written.
#define MARK ((BITS)0xffffffff)
// Nonzero if one of the elements of 32 bits is absent.
#define MARK_IN_f32(bits) ((bits) == 0xffffffff)
#define MARK_IN_16(bits) ((0xfffefffe - (bits)) & (bits) & 0x80008000)
#define MARK_IN_f16 MARK_IN_16
#define MARK_IN_bf16 MARK_IN_16
#define MARK_IN(bits) CAT(MARK_IN_, T)(bits)

#define BITS_OF_f32(v) as_u32(v)
#define BITS_OF_f16(v) f32_to_f16(v)
#define BITS_OF_bf16(v) f32_to_bf16(v)
#define NUMBER_OF_f32(bits) as_f32(bits)
#define NUMBER_OF_f16(bits) f16_to_f32(bits)
#define NUMBER_OF_bf16(bits) bf16_to_f32(bits)

// Writes an element of shared memory.
FUNCTION void put_shared(GLOBAL S *p, i64 i, f32 v) {
    BITS bits = CAT(BITS_OF_, T)(v);
    CAT(show_, BITS)((GLOBAL BITS *)p + i, bits == MARK ? (BITS)(MARK >> 1) : bits);
}

FUNCTION f32 shared_number(GLOBAL const S *p, i64 i) {
    return CAT(NUMBER_OF_, T)(CAT(seen_, BITS)((GLOBAL const BITS *)p + i));
}

FUNCTION f32 rounded(f32 v) { return CAT(NUMBER_OF_, T)(CAT(BITS_OF_, T)(v)); }

#include "matrix/loader.h"

// The sum of the teams' sums of a row and a column.
LOCAL_FUNCTION f32 sum_of(LOCAL const f32 *regions, int row, int column) {
    f32 sum = 0;
#pragma unroll
    for (int team = 0; team < SPLITS; team++) sum += regions[team * REGION + row * COLUMNS + column];
    return sum;
}

// The weights of a slice, from [GATES SIZE, SIZE]. Columns and elements of K beyond the end are 0.
LOCAL_FUNCTION void load_weights(LOCAL S *weights, GLOBAL const S *w, int slice) {
    BARRIER();
    for (int i = LANE; i < SPLITS * SHARE * COLUMNS; i += THREADS) {
#ifdef BACKWARD
        int k = i / COLUMNS, column = i % COLUMNS, unit = slice * UNITS + column;
        i64 at = k * (i64)SIZE + unit;
#else
        int k = i % (SPLITS * SHARE), column = i / (SPLITS * SHARE), unit = slice * UNITS + column % UNITS;
        i64 at = (column / UNITS * SIZE + unit) * (i64)SIZE + k;
#endif
        weights[PLACE(k, column)] = k < K && unit < SIZE ? WEIGHT(w[at]) : (S)0;
    }
    BARRIER();
}

// Words of global memory for groups that take part, 0 before and after a launch: the number of groups that have registered, with CLOSED
// when no more may; the number of those that take part; the number of groups that have ended.
#define CLOSED 0x80000000
// Turns in which a group waits for all others to register.
#define PATIENCE 4096

// Writes the group's number, or -1 if it takes no part, and the number of groups that take part.
LOCAL_FUNCTION void take_part(GLOBAL u32 *words, LOCAL int *place) {
    if (LANE == 0) {
        u32 number = add_to(words, 1), members = 0;
        if (!(number & CLOSED)) {
            for (int turn = 0; turn < PATIENCE; turn++)
                if (seen_u32(words) >= (u32)GROUPS) break;
            u32 before = or_to(words, CLOSED);
            if (!(before & CLOSED)) show_u32(words + 1, before);
            while (members == 0) members = seen_u32(words + 1);
        }
        place[0] = number & CLOSED ? -1 : (int)number;
        place[1] = (int)members;
    }
    BARRIER();
}

// The last group that ends leaves the words as they were.
FUNCTION void leave(GLOBAL u32 *words) {
    if (LANE == 0 && add_to(words + 2, 1) == (u32)GROUPS - 1)
        for (int i = 0; i < 3; i++) show_u32(words + i, 0);
}

// A thread's row of the batch and hidden unit in a block of ROWS rows.
#define ROW (LANE / UNITS)
#define UNIT (LANE % UNITS)

#ifdef REVERSED
#define TIME(s) (steps - 1 - (s))
#define BEFORE(t) ((t) + 1)
#define AFTER(t) (t)
#else
#define TIME(s) (s)
#define BEFORE(t) (t)
#define AFTER(t) ((t) + 1)
#endif

// Local memory: the weights of a slice, and the regions of the teams.
#define LOCAL_MEMORY \
    SHARED_GIVEN(u32x4, given, GIVEN); \
    SHARED(int, place, 2); \
    LOCAL S *weights = (LOCAL S *)given; \
    LOCAL f32 *regions = (LOCAL f32 *)(given + SPLITS * SHARE * COLUMNS * (int)sizeof(S) / 16)

// All slices of all rows, which the groups that take part have divided among them. `lines` groups share the rows of a slice.
#define EACH_BLOCK(tile, block) \
    for (int tile = number; tile < (int)(slices * lines); tile += members) \
        for (i64 block = tile / slices; block * ROWS < batch; block += lines)

#ifndef BACKWARD

// a [T, B, GATES, H]: products of the inputs; w [GATES H, H]; bias [GATES H]; h0, c0 [B, H]. Results: states [T + 1, B, H], shared, in the
// order of time; cells [T + 1, B, H] in the order of steps; products [T, B, GATES, H]: of the hidden state for GRU, else sums with a.
KERNEL(recurrent_forward)
(GLOBAL const S *a, GLOBAL const S *w, GLOBAL const S *bias, GLOBAL const S *h0, GLOBAL const S *c0, GLOBAL S *states, GLOBAL f32 *cells,
 GLOBAL S *products, GLOBAL u32 *words, i64 steps, i64 batch, i64 slices, i64 lines) {
    LOCAL_MEMORY;
    take_part(words, place);
    int number = place[0], members = place[1], loaded = -1;
    // The first turn writes the initial states.
    for (i64 s = -1; number >= 0 && s < steps; s++) {
        EACH_BLOCK(tile, block) {
            int slice = tile % (int)slices, unit = slice * UNITS + UNIT;
            i64 row = block * ROWS + ROW, of_cell = row * SIZE + unit, t = TIME(s);
            int is_inside = LANE < ROWS * UNITS && row < batch && unit < SIZE;
            if (s < 0) {
                f32 h = 0, c = 0;
#ifdef HAS_STATE
                if (is_inside) h = LOAD(T, h0, of_cell);
#endif
#ifdef HAS_CELL
                if (is_inside) c = LOAD(T, c0, of_cell);
#endif
                if (is_inside) put_shared(states, BEFORE(TIME(0)) * batch * SIZE + of_cell, h);
#ifdef LSTM
                if (is_inside) cells[of_cell] = c;
#endif
                BARRIER();
                continue;
            }
            if (slice != loaded) load_weights(weights, w, slice);
            loaded = slice;
            i64 of_gate = (t * batch + row) * GATES * SIZE + unit;
            f32 x[GATES], u[GATES], before = 0;
#pragma unroll
            for (int g = 0; g < GATES; g++) x[g] = is_inside ? LOAD(T, a, of_gate + g * SIZE) : 0;
#ifdef LSTM
            before = is_inside ? cells[s * batch * SIZE + of_cell] : 0;
#elif defined(GRU)
            if (is_inside) before = shared_number(states, BEFORE(t) * batch * SIZE + of_cell);
#endif
            multiply_rows(states + (BEFORE(t) * batch + block * ROWS) * SIZE, batch - block * ROWS, weights, regions);
            BARRIER();
            if (is_inside) {
                f32 h;
#pragma unroll
                for (int g = 0; g < GATES; g++) {
                    u[g] = sum_of(regions, ROW, g * UNITS + UNIT);
#ifdef GRU
#ifdef HAS_BIAS
                    u[g] += LOAD(T, bias, g * SIZE + unit);
#endif
#else
                    u[g] += x[g];
#endif
                    u[g] = rounded(u[g]);
                    STORE(T, products, of_gate + g * SIZE, u[g]);
                }
#ifdef LSTM
                f32 next;
                CELL(u[0], u[1], u[2], u[3], before, &h, &next);
                cells[(s + 1) * batch * SIZE + of_cell] = next;
#elif defined(GRU)
                f32 same;
                CELL(x[0], x[1], x[2], u[0], u[1], u[2], before, &h, &same);
#else
                CELL(u[0], &h);
#endif
                put_shared(states, AFTER(t) * batch * SIZE + of_cell, h);
            }
            // The regions are free for the next product.
            BARRIER();
        }
    }
    leave(words);
}

#else

// a, u [T, B, GATES, H]: arguments of gates or, for GRU, products of the input and of the hidden state; states, cells [T + 1, B, H]; w
// [GATES H, H]; dy [T, B, H], dh, dc [B, H]: gradients of all states, of the last state and cell state. Results: da and, for GRU, du: the
// gradients of a and u, of which the one that is multiplied is shared; dh0 [B, H]; carried [B, H]: the gradient of c0, or for GRU
// other memory.
KERNEL(recurrent_backward)
(GLOBAL const S *a, GLOBAL const S *u, GLOBAL const S *states, GLOBAL f32 *cells, GLOBAL const S *w, GLOBAL const S *dy, GLOBAL const S *dh,
 GLOBAL const S *dc, GLOBAL S *da, GLOBAL S *du, GLOBAL S *dh0, GLOBAL f32 *carried, GLOBAL u32 *words, i64 steps, i64 batch, i64 slices,
 i64 lines) {
    LOCAL_MEMORY;
    take_part(words, place);
    int number = place[0], members = place[1], loaded = -1;
#ifdef GRU
    GLOBAL S *multiplied = du;
#else
    GLOBAL S *multiplied = da;
#endif
#ifdef STATE_WANTED
    i64 last = -1;
#else
    i64 last = 0;
#endif
    for (i64 s = steps - 1; number >= 0 && s >= last; s--) {
        EACH_BLOCK(tile, block) {
            int slice = tile % (int)slices, unit = slice * UNITS + UNIT;
            i64 row = block * ROWS + ROW, of_cell = row * SIZE + unit, t = TIME(s);
            i64 of_gate = (t * batch + row) * GATES * SIZE + unit;
            int is_inside = LANE < ROWS * UNITS && row < batch && unit < SIZE, is_step = is_inside && s >= 0;
            if (slice != loaded) load_weights(weights, w, slice);
            loaded = slice;
            // The operands of the row, and the gradients that arrive at the state after the step.
            f32 x[GATES], arriving = 0, carry = 0, before = 0, after = 0;
#pragma unroll
            for (int g = 0; g < GATES; g++) x[g] = is_step ? LOAD(T, a, of_gate + g * SIZE) : 0;
#ifdef LSTM
            if (is_step) before = cells[s * batch * SIZE + of_cell], after = cells[(s + 1) * batch * SIZE + of_cell];
#elif defined(GRU)
            f32 v[GATES];
#pragma unroll
            for (int g = 0; g < GATES; g++) v[g] = is_step ? LOAD(T, u, of_gate + g * SIZE) : 0;
            if (is_step) before = LOAD(T, states, BEFORE(t) * batch * SIZE + of_cell);
#else
            if (is_step) after = LOAD(T, states, AFTER(t) * batch * SIZE + of_cell);
#endif
#ifdef HAS_DY
            if (is_step) arriving = LOAD(T, dy, t * batch * SIZE + of_cell);
#endif
            if (s == steps - 1) {
#ifdef HAS_DH
                if (is_inside) arriving += LOAD(T, dh, of_cell);
#endif
#if defined(LSTM) && defined(HAS_DC)
                if (is_inside) carry = LOAD(T, dc, of_cell);
#endif
            } else {
#if defined(LSTM) || defined(GRU)
                if (is_inside) carry = carried[of_cell];
#endif
                i64 later = TIME(s + 1) * batch + block * ROWS;
                multiply_rows(multiplied + later * GATES * SIZE, batch - block * ROWS, weights, regions);
                BARRIER();
                if (is_inside) arriving += sum_of(regions, ROW, UNIT);
#ifdef GRU
                arriving += carry;
#endif
            }
            if (s < 0) {
#ifdef STATE_WANTED
                if (is_inside) STORE(T, dh0, of_cell, arriving);
#endif
            } else if (is_inside) {
#ifdef LSTM
                f32 d[4], next;
                CELL(arriving, carry, x[0], x[1], x[2], x[3], before, after, &d[0], &d[1], &d[2], &d[3], &next);
                carried[of_cell] = next;
#elif defined(GRU)
                f32 d[3], e[3], next;
                CELL(arriving, x[0], x[1], x[2], v[0], v[1], v[2], before, 0, &e[0], &e[1], &e[2], &d[0], &d[1], &d[2], &next);
                carried[of_cell] = next;
#pragma unroll
                for (int g = 0; g < GATES; g++) STORE(T, da, of_gate + g * SIZE, e[g]);
#else
                f32 d[1];
                CELL(arriving, after, &d[0]);
#endif
#pragma unroll
                for (int g = 0; g < GATES; g++) put_shared(multiplied, of_gate + g * SIZE, d[g]);
            }
            // The regions are free for the next product.
            BARRIER();
        }
    }
    leave(words);
}

#endif
