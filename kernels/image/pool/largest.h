// The largest element of a window, without its position.

#define INDICES
#define WRITE_INDEX(at, position) ((void)0)

#include "image/pool/extremum.h"

typedef struct {
    A v;
} Part;

FUNCTION Part blank_part(void) {
    Part part;
    part.v = BLANK;
    return part;
}

FUNCTION Part taken(Part part, A v, idx number) {
    part.v = v > part.v || IS_NAN(v) ? v : part.v;
    return part;
}

FUNCTION Part joined(Part a, Part b) { return b.v > a.v || IS_NAN(b.v) ? b : a; }
#define NUMBER_OF(part) -1
#define NUMBER_ELEMENT(part, at, j) ((void)0)
