// The windows of a convolution. Along each dimension, element i of window q is element
// q S - P + i D of the volume, or none outside of it.
//
// FLAT: flag, volumes and windows have one slice, without padding
// STRIDED: flag, the stride of a dimension is not 1
//
// Extents, strides and padding are arguments, so that all convolutions of a dtype share a few programs.

// N_GROUPS, N_CHANNELS, N_OUTPUTS: groups, and channels and outputs of a group
// IN, OUT, WINDOW: elements of a volume, windows, and elements of a window
// IN_ALONG, OUT_ALONG, KERNEL_ALONG, STRIDE_ALONG, PADDING_ALONG, DILATION_ALONG: by dimension, the extents of these, S, P and D
// BY_WIDTH, BY_HEIGHT: dividers of the width and height of the product's volumes, for QUOTIENT
// BY_IN, BY_OUT, BY_KERNEL_HEIGHT, BY_KERNEL_WIDTH: dividers of the above

#define DEPTH 0
#define HEIGHT 1
#define WIDTH 2

typedef struct {
    idx z, y, x;
} Place;

// The position of an element in a volume or window of this height and width.
FUNCTION Place place_of(idx at, idx height, i64 by_height, idx width, i64 by_width) {
    Place place;
    idx line = QUOTIENT(at, width, by_width);
    place.x = at - line * width;
#ifdef FLAT
    place.z = 0;
    place.y = line;
#else
    place.z = QUOTIENT(line, height, by_height);
    place.y = line - place.z * height;
#endif
    return place;
}

#define PLACE_IN(at) place_of(at, IN_ALONG(HEIGHT), BY_HEIGHT, IN_ALONG(WIDTH), BY_WIDTH)
#define PLACE_OUT(at) place_of(at, OUT_ALONG(HEIGHT), BY_HEIGHT, OUT_ALONG(WIDTH), BY_WIDTH)
#define PLACE_IN_WINDOW(at) place_of(at, KERNEL_ALONG(HEIGHT), BY_KERNEL_HEIGHT, KERNEL_ALONG(WIDTH), BY_KERNEL_WIDTH)

// The position along a dimension of element i of window q.
#define ELEMENT(q, i, d) ((q) * STRIDE_ALONG(d) - PADDING_ALONG(d) + (i) * DILATION_ALONG(d))

// The position in the volume of element i of window q; -1 outside of it.
FUNCTION idx in_volume(Place q, Place i, Ints p) {
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
FUNCTION idx window_along(idx l, idx i, int d, Ints p) {
    idx after = l + PADDING_ALONG(d) - i * DILATION_ALONG(d);
    if (after < 0) return -1;
#ifdef STRIDED
    idx q = QUOTIENT(after, STRIDE_ALONG(d), BY_STRIDE_ALONG(d));
    return q * STRIDE_ALONG(d) == after && q < OUT_ALONG(d) ? q : (idx)-1;
#else
    return after < OUT_ALONG(d) ? after : (idx)-1;
#endif
}

// The window whose element i is at l; -1 if there is none.
FUNCTION idx window_at(Place l, Place i, Ints p) {
    idx y = window_along(l.y, i.y, HEIGHT, p), x = window_along(l.x, i.x, WIDTH, p);
    int is_there = y >= 0 && x >= 0;
#ifdef FLAT
    idx line = y;
#else
    idx z = window_along(l.z, i.z, DEPTH, p), line = z * OUT_ALONG(HEIGHT) + y;
    is_there = is_there && z >= 0;
#endif
    return is_there ? line * OUT_ALONG(WIDTH) + x : (idx)-1;
}
