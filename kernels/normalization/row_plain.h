// The first reading of a row, which is in memory. A program that makes its rows as it reads them gets another file with the same
// names, such as row_residual.h:
//
//   ROW_ARGUMENTS                  further arguments of the kernel, each followed by a comma
//   Source                         what a row is read from
//   SOURCE_OF_ROW(x, at, is_there) the same; a team without a row, which is not there, writes nothing
//   first_kept(v, from, at)        the numbers of the kept words
//   first_batch(r, from, at, b)    a batch of the other words; comes before the kept ones
//   first_edge(from, at)           the thread's element outside of words; comes last
//   row_again(from)                where further readings are from

#define ROW_ARGUMENTS INDEX_ARGUMENTS
typedef GLOBAL const S *Source;
#define SOURCE_OF_ROW(x, at, is_there) SOURCE(x, at)

FUNCTION void first_kept(A v[][VECTOR], Source from, Row at) { keep(v, from, at, 0); }

FUNCTION void first_batch(Read *r, Source from, Row at, idx b) { read_batch(r, from, at, b); }

FUNCTION A first_edge(Source from, Row at) { return edge_of(from, at, 0); }

#define row_again(from) (from)
