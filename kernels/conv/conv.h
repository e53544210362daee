// The windows of a convolution. Along each dimension, element i of window q is element
// q S - P + i D of the volume, or none outside of it.
//
// FLAT: flag, volumes and windows have one slice, without padding
// STRIDED: flag, the stride of a dimension is not 1
//
// Extents, strides and padding are arguments, so that all convolutions of a dtype share a few programs.

// groups, channels, outputs; then by dimension (depth, height, width) IN, OUT, KERNEL, S, P and D; then dividers for QUOTIENT: the
// width and height of the product's volumes, the elements of OUT, the elements of a window, its height and width, S, the elements of
// IN, channels and outputs; then the elements of IN, of OUT and of a window.
typedef struct {
    i64 v[36];
} Extents;

#define DEPTH 0
#define HEIGHT 1
#define WIDTH 2
#define N_GROUPS e.v[0]
#define N_CHANNELS ((idx)e.v[1])
#define N_OUTPUTS ((idx)e.v[2])
#define IN_ALONG(d) ((idx)e.v[3 + (d)])
#define OUT_ALONG(d) ((idx)e.v[6 + (d)])
#define KERNEL_ALONG(d) ((idx)e.v[9 + (d)])
#define STRIDE_ALONG(d) ((idx)e.v[12 + (d)])
#define PADDING_ALONG(d) ((idx)e.v[15 + (d)])
#define DILATION_ALONG(d) ((idx)e.v[18 + (d)])
#define BY_WIDTH e.v[21]
#define BY_HEIGHT e.v[22]
#define BY_OUT e.v[23]
#define BY_WINDOW e.v[24]
#define BY_KERNEL_HEIGHT e.v[25]
#define BY_KERNEL_WIDTH e.v[26]
#define BY_STRIDE(d) e.v[27 + (d)]
#define BY_IN e.v[30]
#define BY_CHANNELS e.v[31]
#define BY_OUTPUTS e.v[32]
#define IN e.v[33]
#define OUT e.v[34]
#define WINDOW ((idx)e.v[35])

typedef struct {
    idx z, y, x;
} Place;

// The position of an element in a volume or window of this height and width.
FUNCTION Place place_of(idx at, idx height, i64 by_height, idx width, i64 by_width) {
    Place p;
    idx line = QUOTIENT(at, width, by_width);
    p.x = at - line * width;
#ifdef FLAT
    p.z = 0;
    p.y = line;
#else
    p.z = QUOTIENT(line, height, by_height);
    p.y = line - p.z * height;
#endif
    return p;
}

#define PLACE_IN(at) place_of(at, IN_ALONG(HEIGHT), BY_HEIGHT, IN_ALONG(WIDTH), BY_WIDTH)
#define PLACE_OUT(at) place_of(at, OUT_ALONG(HEIGHT), BY_HEIGHT, OUT_ALONG(WIDTH), BY_WIDTH)
#define PLACE_IN_WINDOW(at) place_of(at, KERNEL_ALONG(HEIGHT), BY_KERNEL_HEIGHT, KERNEL_ALONG(WIDTH), BY_KERNEL_WIDTH)

// The position along a dimension of element i of window q.
#define ELEMENT(q, i, d) ((q) * STRIDE_ALONG(d) - PADDING_ALONG(d) + (i) * DILATION_ALONG(d))

// The position in the volume of element i of window q; -1 outside of it.
FUNCTION idx in_volume(Place q, Place i, Extents e) {
    idx y = ELEMENT(q.y, i.y, HEIGHT), x = ELEMENT(q.x, i.x, WIDTH);
    int is_inside = y >= 0 && y < IN_ALONG(HEIGHT) && x >= 0 && x < IN_ALONG(WIDTH);
#ifdef FLAT
    idx line = y;
#else
    idx z = ELEMENT(q.z, i.z, DEPTH), line = z * IN_ALONG(HEIGHT) + y;
    is_inside = is_inside && z >= 0 && z < IN_ALONG(DEPTH);
#endif
    return is_inside ? line * IN_ALONG(WIDTH) + x : (idx)-1;
}

// The window along a dimension whose element i is at l; -1 if there is none.
FUNCTION idx window_along(idx l, idx i, int d, Extents e) {
    idx after = l + PADDING_ALONG(d) - i * DILATION_ALONG(d);
    if (after < 0) return -1;
#ifdef STRIDED
    idx q = QUOTIENT(after, STRIDE_ALONG(d), BY_STRIDE(d));
    return q * STRIDE_ALONG(d) == after && q < OUT_ALONG(d) ? q : (idx)-1;
#else
    return after < OUT_ALONG(d) ? after : (idx)-1;
#endif
}

// The window whose element i is at l; -1 if there is none.
FUNCTION idx window_at(Place l, Place i, Extents e) {
    idx y = window_along(l.y, i.y, HEIGHT, e), x = window_along(l.x, i.x, WIDTH, e);
    int is_there = y >= 0 && x >= 0;
#ifdef FLAT
    idx line = y;
#else
    idx z = window_along(l.z, i.z, DEPTH, e), line = z * OUT_ALONG(HEIGHT) + y;
    is_there = is_there && z >= 0;
#endif
    return is_there ? line * OUT_ALONG(WIDTH) + x : (idx)-1;
}
