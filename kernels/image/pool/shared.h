// READERS threads share the elements of a large window.

#include "image/pool/join.h"

// Elements that a thread takes at once.
#define BATCH 8

// All threads take the same number of turns; in the last one, items may be beyond `count`.
#define EACH_ITEM(item) \
    for (idx start = (idx)(GROUP * (THREADS / READERS)), item; item = start + LANE / READERS, start < (idx)count; \
         start += (idx)(GROUPS * (THREADS / READERS)))

// A window, the thread's element of it, and the distance to the thread's next element.
typedef struct {
    idx front, top, left, depth, height, width;
    idx kd, kh, kw, step_d, step_h, step_w;
} Reader;

FUNCTION Reader reader(Ints p, At at, int is_item) {
    Reader r;
    r.front = BEGIN(at.z, D), r.top = BEGIN(at.y, H), r.left = BEGIN(at.strip, W);
    r.depth = LENGTH(at.z, D), r.height = LENGTH(at.y, H), r.width = LENGTH(at.strip, W);
    int member = LANE % READERS;
    r.kw = member % r.width, r.kh = member / r.width % r.height, r.kd = member / r.width / r.height;
    r.step_w = READERS % r.width, r.step_h = READERS / r.width % r.height, r.step_d = READERS / r.width / r.height;
    if (!is_item) r.kd = r.depth;
    return r;
}

FUNCTION void advance(Reader *r) {
    r->kw += r->step_w, r->kh += r->step_h, r->kd += r->step_d;
    if (r->kw >= r->width) r->kw -= r->width, r->kh++;
    if (r->kh >= r->height) r->kh -= r->height, r->kd++;
}

// The thread's element, BLANK outside of the volume, and its position in the volume. No read is behind a branch.
FUNCTION A read_element(Ints p, GLOBAL const S *volume, const Reader *r, idx *at) {
    idx z = r->front + r->kd * DD, row = r->top + r->kh * DH, column = r->left + r->kw * DW;
    int is_inside = r->kd < r->depth && IS_INSIDE(z, IN_D) && IS_INSIDE(row, IN_H) && IS_INSIDE(column, IN_W);
    *at = (z * IN_H + row) * IN_W + column;
    A read = (A)LOAD(T, volume, is_inside ? *at : 0);
    return is_inside ? read : BLANK;
}

POOL_SHARED {
    SHARED(Part, parts, THREADS);
    EACH_ITEM(item) {
        At at = place(p, item);
        Reader r = reader(p, at, item < (idx)count);
        GLOBAL const S *volume = x + at.plane * (IN_D * IN_H * IN_W);
        Part own = blank_part();
        while (r.kd < r.depth) {
            A v[BATCH];
            idx number[BATCH], at_x;
#pragma unroll
            for (int u = 0; u < BATCH; u++) {
                v[u] = read_element(p, volume, &r, &at_x);
                number[u] = NUMBER(at_x, r.kd, r.kh, r.kw);
                advance(&r);
            }
            TAKE_BATCH(own, v, number);
        }
        own = join(own, READERS, parts);
        if (LANE % READERS > 0 || item >= (idx)count) continue;
        DIVIDE(&own.v, at, at.strip);
        idx first = first_result(p, at);
        STORE(T, y, first, own.v);
        WRITE_INDEX(first, position(p, NUMBER_OF(own), r.front, r.top, r.left));
    }
}
