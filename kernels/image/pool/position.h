// The largest element of a window, and its position.

typedef STORAGE(INDEX) I;
#define INDICES GLOBAL I *index,
#define WRITE_INDEX(at, position) index[at] = (I)(position)

#include "image/pool/extremum.h"

typedef struct {
    A v;
    idx number;
} Part;

FUNCTION Part blank_part(void) {
    Part part;
    part.v = BLANK;
    part.number = -1;
    return part;
}

// The elements come in ascending order. Keeps the first of the largest, or the last NaN.
FUNCTION Part taken(Part part, A v, idx number) {
    int is_better = v > part.v || IS_NAN(v);
    part.v = is_better ? v : part.v;
    part.number = is_better ? number : part.number;
    return part;
}

FUNCTION Part joined(Part a, Part b) {
    int is_better = b.v > a.v || (b.v == a.v && b.number < a.number);
    if (IS_NAN(a.v) || IS_NAN(b.v)) is_better = IS_NAN(b.v) && (!IS_NAN(a.v) || b.number > a.number);
    if (a.number < 0 || b.number < 0) is_better = b.number >= 0;
    return is_better ? b : a;
}

#define NUMBER_OF(part) (part).number
// From lines to elements.
#define NUMBER_ELEMENT(part, at, j) \
    if ((part).number >= 0) (part).number = (part).number * IN_W + (at).strip * VECTOR + (j)
