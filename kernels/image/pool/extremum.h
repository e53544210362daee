// The largest element of a window.

#define BLANK LOWEST
#define POOL_COLUMNS \
    KERNEL(max_pool_columns)(GLOBAL const S *x, GLOBAL S *y, INDICES Ints p, i64 count)
#define POOL_SHARED \
    KERNEL(max_pool_shared)(GLOBAL const S *x, GLOBAL S *y, INDICES Ints p, i64 count)
#define DIVIDE_BY(sum, n) ((void)0)
#define DIVIDE(sums, at, column) ((void)0)

// The representation of an element's position: NUMBER during the search of a window, position() in memory. -1 is no element.
#define NUMBER(at, kd, kh, kw) (IS_SET(ADAPTIVE) ? (at) : ((kd)*KH + (kh)) * KW + (kw))

// The first element of a window outside of the padding.
#define FIRST_INSIDE(begin, d) ((begin) < 0 ? (-(begin) + (d)-1) / (d) : 0)

// The position of element `number` of the window that begins at (front, top, left). If no element exceeds -infinity, it is the
// position of the window's first.
FUNCTION idx position(Ints p, idx number, idx front, idx top, idx left) {
    if (IS_SET(ADAPTIVE)) return number < 0 ? (front * IN_H + top) * IN_W + left : number;
    if (number < 0) number = (FIRST_INSIDE(front, DD) * KH + FIRST_INSIDE(top, DH)) * KW + FIRST_INSIDE(left, DW);
    if (IS_SET(LOCAL_INDEX)) return number;
    idx kw = number % KW, kh = number / KW % KH, kd = number / KW / KH;
    return ((front + kd * DD) * IN_H + top + kh * DH) * IN_W + left + kw * DW;
}

#define TAKE_BATCH(own, v, number) \
    _Pragma("unroll") for (int u = 0; u < BATCH; u++) own = taken(own, v[u], number[u])
// Numbers count lines.
#define TAKE_LINES(own, r, line, step, lines) \
    _Pragma("unroll") for (int u = 0; u < BATCH_LINES; u++) { \
        if (u * step >= lines) continue; \
        EACH_OF_WORD(j) own[j] = taken(own[j], (A)LOAD(T, r[u].each, j), line + u * step); \
    }
