// The geometry of windows in volumes [planes, D, H, W]: extents, windows, and the windows that contain an element.
//
// Window q along a dimension X (D, H or W) begins at element q * S##X - P##X and has K##X elements, D##X apart. The first P##X
// elements of the first window lie before the volume, in the padding. With ADAPTIVE, window q of N along an extent L is
// floor(q L / N) .. ceil((q + 1) L / N).
//
// IN_X, OUT_X: extent of a volume along X, and windows along it
// STRIPS, LINES, SLICES: strips of a line, lines of a slice and slices of a volume in the output of the launch
// KD, KH, KW: 1.., elements of a window
// SD, SH, SW: 1.., distance between adjacent windows
// PD, PH, PW: 0.., elements of the padding before the volume
// DD, DH, DW: 1.., distance between adjacent elements of a window
// ADAPTIVE: flag, windows are fractions of the extents; the defines above are then 1 and 0
// ONE: flag, with ADAPTIVE, there is one window, all of the volume
// FAR: flag, with ADAPTIVE, a product of an extent and a number of windows needs more than 31 bits
// FLAT: flag, D is 1 and there is one window along it
// SMALL: flag, a window has so few elements that loops over them are unrolled
// WIDE: flag, positions have 64 bits

#ifdef FLAT
#define IN_D 1
#define OUT_D 1
// The divider of 1 for QUOTIENT.
#define BY_IN_D ((i64)1 << 31)
#define BY_OUT_D BY_IN_D
#endif

#define IS_INSIDE(at, extent) ((at) >= 0 && (at) < (extent))
#ifdef SMALL
#define UNROLL _Pragma("unroll")
#else
#define UNROLL
#endif

// A strip of a line: adjacent elements along W that a thread writes.
typedef struct {
    idx plane, z, y, strip;
} At;

FUNCTION At place(Ints p, idx item) {
    idx line = QUOTIENT(item, STRIPS, BY_STRIPS), slice = QUOTIENT(line, LINES, BY_LINES);
    At at;
    at.strip = item - line * STRIPS;
    at.y = line - slice * LINES;
#ifdef FLAT
    at.z = 0;
    at.plane = slice;
#else
    at.plane = QUOTIENT(slice, SLICES, BY_SLICES);
    at.z = slice - at.plane * SLICES;
#endif
    return at;
}

// Along the dimension X: the first element and the number of elements of window q, and the first and the last window that contain
// an element.
#if defined(ONE)
#define BEGIN(q, X) 0
#define END(q, X) IN_##X
#define LENGTH END
#define FIRST_OF(at, X) 0
#define LAST_OF(at, X) 0
#elif defined(ADAPTIVE)
#ifdef FAR
#define SHARE(n, d, by) ((idx)((u64)(n) / (u64)(d)))
typedef u64 Product;
#else
// QUOTIENT, also for WIDE positions.
#define SHARE(n, d, by) ((idx)(mul_hi_u32((u32)(n) << 1, by) >> (int)((by) >> 32)))
typedef u32 Product;
#endif
#define BEGIN(q, X) SHARE((Product)(q) * (Product)IN_##X, OUT_##X, BY_OUT_##X)
#define END(q, X) SHARE(((Product)(q) + 1) * (Product)IN_##X + (Product)OUT_##X - 1, OUT_##X, BY_OUT_##X)
#define LENGTH(q, X) (END(q, X) - BEGIN(q, X))
#define FIRST_OF(at, X) SHARE((Product)(at) * (Product)OUT_##X, IN_##X, BY_IN_##X)
#define LAST_OF(at, X) SHARE(((Product)(at) + 1) * (Product)OUT_##X - 1, IN_##X, BY_IN_##X)
#else
#define BEGIN(q, X) ((q) * (S##X) - (P##X))
#define LENGTH(q, X) (K##X)
FUNCTION idx first_of(idx at, int k, int s, int p, int d) {
    idx after = at + p - d * (k - 1);
    return after > 0 ? (after + s - 1) / s : 0;
}
FUNCTION idx last_of(idx at, idx n, int s, int p) {
    idx last = (at + p) / s;
    return last < n ? last : n - 1;
}
#define FIRST_OF(at, X) first_of(at, K##X, S##X, P##X, D##X)
#define LAST_OF(at, X) last_of(at, OUT_##X, S##X, P##X)
#endif

// The windows that contain an element along X. Unless windows are ADAPTIVE, the compiler knows a bound of their number.
#ifdef ADAPTIVE
#define EACH_WINDOW(q, at, X) _Pragma("unroll 1") for (idx q = FIRST_OF(at, X), last = LAST_OF(at, X); q <= last; q++)
#else
#define EACH_WINDOW(q, at, X) \
    for (idx q = FIRST_OF(at, X), last = LAST_OF(at, X), end = q + (K##X - 1) * D##X / S##X; q <= last && q <= end; q++)
#endif
