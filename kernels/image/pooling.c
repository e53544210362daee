// Pooling of volumes [planes, D, H, W] by windows, and its gradient: the maximum or the average of each window. window.h documents
// windows.
//
//   max_pool, avg_pool                    a thread computes a strip: STRIP adjacent elements of a line of y
//   max_pool_shared, avg_pool_shared      READERS threads share the elements of a large window
//   max_pool_columns, avg_pool_columns    a group reduces columns first, then joins them to adaptive windows
//   max_pool_backward, avg_pool_backward  a thread computes a strip of dx
//
// THREADS: 1 .. 1024, threads of a group
// T: dtype of x and y
// ACC: f32 or f64, dtype of the arithmetic
// MAX: flag, the maximum, otherwise the average
// INDEX: u8, i32 or i64, with MAX, dtype of the positions of the largest elements; not defined if they are not wanted
// LOCAL_INDEX: flag, positions are numbers within windows, otherwise within the volume
// CONSTANT: flag, sums are divided by `divisor`, otherwise by the number of their elements
// INCLUDE_PAD: flag, without CONSTANT, elements of the padding are counted
// BACKWARD: flag, the gradient
// READERS: power of 2, the threads of a window of max_pool_shared and avg_pool_shared; otherwise not defined
// COLUMNS: flag, max_pool_columns and avg_pool_columns
// STRIP: 1 .. 16, elements of a strip; 1 with READERS and COLUMNS
// VECTOR, WORD: elements and type of a word of x; not defined where x is read by elements, except that with BACKWARD, WORD is the
//   type of a strip of dx
// HEAD, SPAN, WORDS, CUT: see read_word
// Y_WORD, INDEX_WORD: u8 .. u32x4, type of a strip's values and positions; not defined unless these are aligned
// FIRST, MOST, IS_WHOLE, PIECE, G_WORD: see the gradients
// the defines of window.h

#include "flags.h"

#include "image/window.h"

typedef STORAGE(T) S;

#define EACH_OF_STRIP(j) _Pragma("unroll") for (int j = 0; j < STRIP; j++)

// The first result of a strip.
FUNCTION idx first_result(Ints p, At at) {
    return ((at.plane * OUT_D + at.z) * OUT_H + at.y) * OUT_W + at.strip * STRIP;
}

// What a window becomes. Each of these files has
//
//   POOL_COLUMNS, POOL_SHARED   the heads of the kernels
//   BLANK                       what the padding counts as
//   Part, blank_part, joined    the result of a part of a window, of no element, of two parts
//   TAKE_BATCH, TAKE_LINES      add BATCH elements to `own`, or to the columns of a word the elements of BATCH_LINES lines
//   NUMBER, NUMBER_ELEMENT      the number of an element, and of an element whose line's number a column has
//   DIVIDE, DIVIDE_BY           divide sums by the numbers of their elements
//   WRITE_INDEX                 writes a position
#if defined(MAX) && defined(INDEX)
#include "image/pool/position.h"
#elif defined(MAX)
#include "image/pool/largest.h"
#else
#include "image/pool/average.h"
#endif

// How threads share the work.
#if defined(BACKWARD)
#include "image/pool/backward.h"
#elif defined(COLUMNS)
#include "image/pool/columns.h"
#elif defined(READERS)
#include "image/pool/shared.h"
#else
#include "image/pool/strips.h"
#endif
