// The gradient of products of rows: dx = dy (product of the other factors).
//
// A team takes a row, and keeps all of it. Factors are fractions and exponents of 2, and the exponents are added, so that no
// intermediate product leaves the range. The fractions of a thread's elements are so few that their product stays in range. There
// is no division, so zeros need no special treatment.
//
// SCALED: i32, type of the exponents
// the defines of rows in common.h, without OTHERS

#if WAVE > 1
WAVE_EXCHANGE(scaled_from_lane, Scaled)
#endif

// The number of threads that multiply their fractions before these are normalised to 0.5 and above.
#define FRACTIONS 32

FUNCTION Scaled times(Scaled a, Scaled b) {
    a.fraction *= b.fraction;
    a.exponent += b.exponent;
    return a;
}

// The product of the values of the other threads of the team. In step `by` a thread meets the thread whose lane differs by this
// bit, and `own` becomes the product of twice as many threads.
LOCAL_FUNCTION Scaled product_of_others(Scaled own, LOCAL Scaled *shared, int *side) {
    Scaled rest = scaled(1, 0), other;
#pragma unroll
    for (int by = 1; by < TEAM; by *= 2) {
        if (by == FRACTIONS) {
            rest = scaled(rest.fraction, rest.exponent);
            own = scaled(own.fraction, own.exponent);
        }
#if WAVE > 1
        if (by < WAVE) other = scaled_from_lane(own, by);
        else
#endif
        {
            LOCAL Scaled *parts = shared + (*side ^= 1) * JOIN_PARTS;
            if (LANE % WAVE == 0) parts[LANE / WAVE] = own;
            BARRIER();
            other = parts[(LANE ^ by) / WAVE];
        }
        rest = times(rest, other);
        own = times(own, other);
    }
    return scaled(rest.fraction, rest.exponent);
}

KERNEL(prod_backward)(GLOBAL const S *x, GLOBAL const S *dy, GLOBAL S *dx, i64 rows, i64 extent) {
    SHARED(Scaled, shared, 2 * JOIN_PARTS);
    int side = 0;
    EACH_ROW(row) {
        Row at = row_of(row, rows, extent);
        A v[PER][VECTOR], before[PER][VECTOR];
        int exponents[PER][VECTOR];
        keep(v, x, at, 1);
        Scaled own = scaled(1, 0), edge = scaled(edge_of(x, at, 1), 0), rest;
        A slope = LOAD(T, dy, at.row);
        EACH_KEPT(turn) EACH_ELEMENT(j) {
            Scaled factor = scaled(v[turn][j], 0);
            v[turn][j] = factor.fraction;
            exponents[turn][j] = factor.exponent;
            before[turn][j] = own.fraction;
            own.fraction *= factor.fraction;
            own.exponent += factor.exponent;
        }
        rest = product(product_of_others(product(own, edge), shared, &side), scaled(slope, 0));
        if (row < rows) {
            put_edge(dx, unscaled(times(rest, own)), at);
            rest = times(rest, edge);
            rest.exponent += own.exponent;
#pragma unroll
            for (int turn = PER - 1; turn >= 0; turn--) {
                A d[VECTOR];
#pragma unroll
                for (int j = VECTOR - 1; j >= 0; j--) {
                    Scaled others;
                    others.fraction = rest.fraction * before[turn][j];
                    others.exponent = rest.exponent - exponents[turn][j];
                    d[j] = unscaled(others);
                    rest.fraction *= v[turn][j];
                }
                put_numbers(dx, d, at, KEPT_WORD(turn));
            }
        }
    }
}
