"""Sparse matrices."""

import torch

from common import NAN, OPS, INF, f64, i32, i64, integers, normal


def sparse_mm(row_ptr, col, x, val=None, *, columns):
    """torch.sparse.mm, one head after the other. A stored zero is an entry; absent entries are not multiplied."""
    val = x.new_ones(len(col), *x.shape[1:-1]) if val is None else val
    if x.dim() == 3:
        heads = [sparse_mm(row_ptr, col, x[:, h], val[:, h], columns=columns) for h in range(x.shape[1])]
        return torch.stack(heads, 1)
    shape = (len(row_ptr) - 1, columns)
    if not len(col):
        return x.new_zeros(shape[0], x.shape[1]) + 0 * (x.sum() + val.sum())
    row = torch.repeat_interleave(torch.arange(shape[0]), row_ptr.long().diff())
    return torch.sparse.mm(torch.sparse_coo_tensor(torch.stack([row, col.long()]), val, shape), x)


OPS |= {
    "sparse_mm": ("x val", sparse_mm),
}

# An empty first row, and later one; double entries; columns that are not sorted, and two without entries.
ROWS, COLUMNS = [0, 0, 3, 4, 4, 8], [4, 0, 4, 2, 1, 1, 0, 2]


def cases(out):
    products(out)
    wrong_patterns(out)


def products(out):
    pattern = {"row_ptr": i64(ROWS), "col": i64(COLUMNS)}
    for name, features in ("5x3", (3,)), ("5x1", (1,)), ("5x2x3", (2, 3)):
        x, val = {"x": normal(6, *features)}, {"val": normal(8, *features[:-1])}
        out.case(f"sparse_mm/{name}", pattern | x | val, columns=6)
        out.case(f"sparse_mm/{name}_ones", pattern | x, columns=6)
    narrow = {"row_ptr": i32(ROWS), "col": i32(COLUMNS)}
    out.case("sparse_mm/i32_index", narrow | {"x": normal(6, 3), "val": normal(8)}, columns=6)
    none = {"col": i64([]), "val": normal(0)}
    out.case("sparse_mm/no_entries", none | {"row_ptr": i64([0, 0, 0]), "x": normal(4, 3)}, columns=4)
    out.case("sparse_mm/no_rows", none | {"row_ptr": i64([0]), "x": normal(4, 3)}, columns=4)
    out.case("sparse_mm/no_columns", none | {"row_ptr": i64([0, 0]), "x": normal(0, 3)}, columns=0)
    out.case("sparse_mm/no_features", pattern | {"x": normal(6, 0), "val": normal(8)}, columns=6)
    # Columns 3 and 5 have no entries. An entry whose value is 0 is multiplied.
    x = f64([[1.0, 2.0], [-1.0, 0.5], [2.0, 1.0], [NAN, INF], [INF, 1.0], [-INF, NAN]])
    val = f64([1.0, 2.0, 0.5, 0.0, 1.0, -1.0, 3.0, 0.0])
    out.case("sparse_mm/nan_beside_absent_entries", pattern | {"x": x, "val": val}, columns=6, grads=())


def wrong_patterns(out):
    right = {"row_ptr": i64(ROWS), "col": i64(COLUMNS), "x": normal(6, 3), "val": normal(8)}
    out.error("sparse_mm/first", "Value", right | {"row_ptr": i64([1, 1, 3, 4, 4, 8])}, columns=6)
    out.error("sparse_mm/decreasing", "Value", right | {"row_ptr": i64([0, 4, 3, 4, 4, 8])}, columns=6)
    out.error("sparse_mm/last", "Value", right | {"row_ptr": i64([0, 0, 3, 4, 4, 7])}, columns=6)
    out.error("sparse_mm/column", "Value", right | {"x": normal(4, 3)}, columns=4)
    out.error("sparse_mm/negative", "Value", right | {"col": i64([-1, *COLUMNS[1:]])}, columns=6)
    out.error("sparse_mm/empty_rows", "Shape", right | {"row_ptr": i64([])}, columns=6)
    out.error("sparse_mm/rank", "Shape", right | {"col": i64([COLUMNS])}, columns=6)
    out.error("sparse_mm/columns", "Shape", right, columns=7)
    out.error("sparse_mm/val", "Shape", right | {"val": normal(7)}, columns=6)
    out.error("sparse_mm/heads", "Shape", right | {"val": normal(8, 2)}, columns=6)
    out.error("sparse_mm/float_index", "Dtype", right | {"col": f64(COLUMNS)}, columns=6)
    out.error("sparse_mm/integers", "Dtype", right | {"x": integers(6, 3)}, columns=6)
    out.error("sparse_mm/mixed", "Dtype", right | {"val": normal(8).float()}, columns=6)
