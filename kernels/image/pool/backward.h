// Gradients are gathered: a thread computes a strip of dx from all windows that contain elements of it.
//
// FIRST: .., number of the first window along a line that contains elements of a strip, counted from the first window that begins
//   in the strip; if not defined, it is computed
// MOST: 1.., maximal number of such windows along a line; not defined if it is not known
// IS_WHOLE: flag, with FIRST, all windows that begin in a strip exist
// PIECE: 2 .. 16, windows that begin in a strip, if they are aligned words of dy; otherwise not defined
// G_WORD, INDEX_WORD: with PIECE, the types of these words of dy and of positions

#define EACH_STRIP(item) \
    for (idx item = (idx)(GROUP * THREADS) + LANE; item < (idx)count; item += (idx)(GROUPS * THREADS))

// Windows along a line that may contain elements of a strip: window number m is from + m.
typedef struct {
    idx from, last;
} Near;

#ifdef FIRST
// The first window that begins in a strip.
#define FIRST_IN(at) ((at).strip * (STRIP / SW))
FUNCTION Near near(Ints p, At at) {
    Near n;
    n.from = FIRST_IN(at) + FIRST;
    n.last = 0;
    return n;
}
#define IS_THERE(n, m, q) ((FIRST + (m) >= 0 || (q) >= 0) && ((FIRST + (m) < STRIP / SW && IS_WHOLE) || (q) < OUT_W))
// The window's first element, relative to the strip's.
#define BEGIN_IN_STRIP(at, m, q) ((FIRST + (m)) * SW - PW)
#define MAY_HAVE(begin, j) ((begin) <= (j) && (j) <= (begin) + (KW - 1) * DW)
#else
FUNCTION Near near(Ints p, At at) {
    Near n;
    n.from = FIRST_OF(at.strip * STRIP, W);
    n.last = LAST_OF(at.strip * STRIP + STRIP - 1, W);
    return n;
}
#define IS_THERE(n, m, q) (!IS_BOUNDED || (IS_SET(ADAPTIVE) && (m) == 0) || (q) <= (n).last)
#define BEGIN_IN_STRIP(at, m, q) (BEGIN(q, W) - (at).strip * STRIP)
#define MAY_HAVE(begin, j) 1
#endif

#ifdef MOST
#define IS_BOUNDED 1
#define EACH_NEAR(n, m) _Pragma("unroll") for (int m = 0; m < MOST; m++)
#else
#define IS_BOUNDED 0
#define EACH_NEAR(n, m) for (idx m = 0; (n).from + m <= (n).last; m++)
#endif

// Element q of a line of dy or positions, which begins at `line`. The elements of windows that begin in the strip are read as a
// word.
#ifdef PIECE
#define READ_PIECE(type, word, name, array, at) \
    union { \
        word all; \
        type each[PIECE]; \
    } name; \
    name.all = *(GLOBAL const word *)((array) + (at));
#define AT_WINDOW(array, line, name, m, q) \
    (FIRST + (m) >= 0 && FIRST + (m) < PIECE ? name.each[(FIRST + (m)) & (PIECE - 1)] : (array)[(line) + (q)])
#else
#define READ_PIECE(type, word, name, array, at)
#define AT_WINDOW(array, line, name, m, q) ((array)[(line) + (q)])
#endif

FUNCTION void write_strip(Ints p, GLOBAL S *dx, At at, const A *v) {
    union {
        WORD all;
        S each[STRIP];
    } result;
    EACH_OF_STRIP(j) STORE(T, result.each, j, v[j]);
    *(GLOBAL WORD *)(dx + (((at.plane * IN_D + at.z) * IN_H + at.y) * IN_W + at.strip * STRIP)) = result.all;
}

#ifdef MAX

KERNEL(max_pool_backward)(GLOBAL const S *g, GLOBAL const I *index, GLOBAL S *dx, Ints p, i64 count) {
    EACH_STRIP(item) {
        At at = place(p, item);
        Near windows = near(p, at);
        A sum[STRIP];
        EACH_OF_STRIP(j) sum[j] = 0;
        EACH_WINDOW(qd, at.z, D) {
            idx far_d = at.z - BEGIN(qd, D);
            if (DD > 1 && far_d % DD != 0) continue;
            EACH_WINDOW(qh, at.y, H) {
                idx far_h = at.y - BEGIN(qh, H);
                if (DH > 1 && far_h % DH != 0) continue;
                idx line = ((at.plane * OUT_D + qd) * OUT_H + qh) * OUT_W;
                READ_PIECE(S, G_WORD, gs, g, line + FIRST_IN(at))
                READ_PIECE(I, INDEX_WORD, indices, index, line + FIRST_IN(at))
                EACH_NEAR(windows, m) {
                    idx q = windows.from + m;
                    int is_there = IS_THERE(windows, m, q);
                    // A window out of range is replaced by another one: no read waits for a branch, or for another read.
                    idx read = is_there ? q : 0;
                    S bits = AT_WINDOW(g, line, gs, m, read);
                    A v = (A)LOAD(T, &bits, 0);
                    idx j_found = (idx)AT_WINDOW(index, line, indices, m, read);
                    const idx begin = BEGIN_IN_STRIP(at, m, q);
                    if (IS_SET(LOCAL_INDEX)) {
                        j_found -= (far_d / DD * KH + far_h / DH) * KW;
                        j_found = is_there && IS_INSIDE(j_found, KW) ? begin + j_found * DW : -1;
                    } else {
                        j_found = is_there ? j_found - ((at.z * IN_H + at.y) * IN_W + at.strip * STRIP) : -1;
                    }
                    EACH_OF_STRIP(j) if (MAY_HAVE(begin, j)) sum[j] += j == j_found ? v : 0;
                }
            }
        }
        write_strip(p, dx, at, sum);
    }
}

#else

KERNEL(avg_pool_backward)(GLOBAL const S *g, GLOBAL S *dx, Ints p, i64 count, A divisor) {
    EACH_STRIP(item) {
        At at = place(p, item);
        Near windows = near(p, at);
        A sum[STRIP];
        EACH_OF_STRIP(j) sum[j] = 0;
        EACH_WINDOW(qd, at.z, D) {
            EACH_WINDOW(qh, at.y, H) {
                idx line = ((at.plane * OUT_D + qd) * OUT_H + qh) * OUT_W;
                READ_PIECE(S, G_WORD, gs, g, line + FIRST_IN(at))
                EACH_NEAR(windows, m) {
                    idx q = windows.from + m;
                    if (!IS_THERE(windows, m, q)) continue;
                    S bits = AT_WINDOW(g, line, gs, m, q);
                    A v = (A)LOAD(T, &bits, 0);
                    if (!IS_SET(CONSTANT)) v /= (A)(TERMS(qd, D) * TERMS(qh, H) * TERMS(q, W));
                    idx begin = BEGIN_IN_STRIP(at, m, q), end = begin + LENGTH(q, W);
                    EACH_OF_STRIP(j) if (begin <= j && j < end) sum[j] += v;
                }
            }
        }
        if (IS_SET(CONSTANT)) divide(sum, divisor);
        write_strip(p, dx, at, sum);
    }
}

#endif
