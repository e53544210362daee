"""Elements by mask or place, searches, counts, distinct elements, reductions by index."""

import torch
import torch.nn.functional as F

from common import INF, NAN, OPS, covered_by, f64, i32, i64, mask, normal


def side(right):
    return "right" if right else "left"


def histc(x, *, bins, min=None, max=None):
    return torch.histc(x, bins, *((0, 0) if min is None else (min, max))).long()


def unique(x):
    return torch.unique(x, sorted=True, return_inverse=True, return_counts=True)


def unique_consecutive(x):
    return torch.unique_consecutive(x, return_inverse=True, return_counts=True)


def scatter_reduce(self, index, src, *, dim, reduce, include_self=True):
    return self.scatter_reduce(dim, index.long(), src[covered_by(index)], reduce, include_self=include_self)


def index_reduce(self, index, src, *, dim, reduce, include_self=True):
    shape = [1] * self.dim()
    shape[dim] = -1
    expanded = index.long().reshape(shape).expand(src.shape)
    return self.scatter_reduce(dim, expanded, src, reduce, include_self=include_self)


def embedding_bag(w, index, offsets=None, per_sample_weights=None, *, mode="mean", padding_idx=None):
    return F.embedding_bag(
        index.long(),
        w,
        None if offsets is None else offsets.long(),
        mode=mode,
        per_sample_weights=per_sample_weights,
        padding_idx=padding_idx,
    )


OPS |= {
    "masked_select": ("x", lambda x, mask: torch.masked_select(x, mask)),
    "masked_scatter": ("self source", lambda self, mask, source: self.masked_scatter(mask, source)),
    "take": ("x", lambda x, index: torch.take(x, index.long())),
    "take_along_dim": ("x", lambda x, index, *, dim: torch.take_along_dim(x, index.long(), dim)),
    "index_fill": ("x", lambda x, index, *, dim, value: x.index_fill(dim, index.long(), value)),
    "index_copy": ("self src", lambda self, index, src, *, dim: self.index_copy(dim, index.long(), src)),
    "searchsorted": ("", lambda sorted, values, *, right=False: torch.searchsorted(sorted, values, side=side(right))),
    "bucketize": ("", lambda x, boundaries, *, right=False: torch.bucketize(x, boundaries, right=right)),
    "bincount": ("", lambda x, weights=None, *, minlength=0: torch.bincount(x, weights, minlength)),
    "histc": ("", histc),
    "unique": ("", unique),
    "unique_consecutive": ("", unique_consecutive),
    "scatter_reduce": ("self src", scatter_reduce),
    "index_reduce": ("self src", index_reduce),
    "embedding_bag": ("w per_sample_weights", embedding_bag),
}


def cases(out):
    selected(out)
    places(out)
    searches(out)
    counts(out)
    reductions(out)
    bags(out)


def selected(out):
    x, chosen = normal(2, 3), mask([[True, False, True], [False, False, True]])
    out.case("masked_select/same", {"x": x, "mask": chosen})
    out.case("masked_select/row", {"x": x, "mask": chosen[0]})
    out.case("masked_select/column_by_row", {"x": normal(2, 1), "mask": chosen[0]})
    out.case("masked_select/none", {"x": x, "mask": chosen & False})
    out.case("masked_select/scalar", {"x": normal(), "mask": mask([True, False])})
    out.error("masked_select/shape", "Shape", {"x": x, "mask": mask([True, False])})
    out.error("masked_select/dtype", "Dtype", {"x": x, "mask": i64([1, 0, 1])})
    out.case("masked_scatter/more", {"self": x, "mask": chosen, "source": normal(5)})
    out.case("masked_scatter/row", {"self": x, "mask": chosen[0], "source": normal(2, 2)})
    out.case("masked_scatter/none", {"self": x, "mask": chosen & False, "source": normal(0)})
    out.error("masked_scatter/few", "Shape", {"self": x, "mask": chosen, "source": normal(2)})


def places(out):
    x = normal(3, 4)
    out.case("take/matrix", {"x": x, "index": i64([[0, 5], [11, 5]])})
    out.case("take/negative", {"x": x, "index": i32([-1, -12])})
    out.error("take/range", "Index", {"x": x, "index": i64([12])})
    out.case("take_along_dim/row", {"x": x, "index": i64([[3, 0, 3]])}, dim=1)
    out.case("take_along_dim/column", {"x": x, "index": i64([[2], [0]])}, dim=0)
    out.case("take_along_dim/of_row", {"x": normal(1, 4), "index": i64([[1, 2], [3, 3]])}, dim=-1)
    out.error("take_along_dim/rank", "Shape", {"x": x, "index": i64([0])}, dim=0)
    out.error("take_along_dim/range", "Index", {"x": x, "index": i64([[4]])}, dim=1)
    out.case("index_fill/columns", {"x": x, "index": i64([1, 3, 1])}, dim=1, value=2.5)
    out.case("index_fill/none", {"x": x, "index": torch.zeros(0, dtype=torch.int64)}, dim=0, value=1.0)
    out.case("index_fill/integers", {"x": i32([1, 2, 3]), "index": i64([2])}, dim=0, value=7)
    out.error("index_fill/range", "Index", {"x": x, "index": i64([3])}, dim=0, value=0.0)
    out.case("index_copy/rows", {"self": x, "index": i64([2, 0]), "src": normal(2, 4)}, dim=0)
    out.case("index_copy/columns", {"self": x, "index": i32([3]), "src": normal(3, 1)}, dim=-1)
    out.error("index_copy/shape", "Shape", {"self": x, "index": i64([2]), "src": normal(2, 4)}, dim=0)


def searches(out):
    line, rows = f64([-1.0, 0.0, 0.0, 0.5, 2.0]), f64([[0.0, 1.0, 1.0], [-3.0, -2.0, 5.0]])
    wanted = f64([[0.0, -2.0], [2.0, 7.0]])
    for right in False, True:
        key = side(right)
        out.case(f"searchsorted/line_{key}", {"sorted": line, "values": wanted}, right=right)
        out.case(f"searchsorted/rows_{key}", {"sorted": rows, "values": f64([[1.0, 0.0], [5.0, -2.5]])}, right=right)
        out.case(f"searchsorted/integers_{key}", {"sorted": i64([1, 3, 3, 9]), "values": i64([3, 0, 10])}, right=right)
        out.case(f"searchsorted/special_{key}", {"sorted": f64([-INF, 0.0, INF, NAN]), "values": f64([NAN, 0.0, -INF])}, right=right)
        out.case(f"bucketize/line_{key}", {"x": wanted, "boundaries": line}, right=right)
    out.case("searchsorted/empty", {"sorted": normal(0), "values": wanted})
    out.case("searchsorted/scalar", {"sorted": line, "values": f64(0.25)})
    out.case("searchsorted/one", {"sorted": f64([1.0]), "values": f64([0.0, 1.0, 2.0])})
    out.error("searchsorted/rows_shape", "Shape", {"sorted": rows, "values": f64([0.0])})
    out.error("searchsorted/dtypes", "Dtype", {"sorted": line, "values": i64([0])})
    out.error("bucketize/matrix", "Shape", {"x": wanted, "boundaries": rows})


def counts(out):
    x = i64([0, 3, 3, 1, 0, 3])
    out.case("bincount/plain", {"x": x})
    out.case("bincount/long", {"x": x}, minlength=7)
    out.case("bincount/weights", {"x": x, "weights": normal(6)})
    out.case("bincount/empty", {"x": x[:0]}, minlength=2)
    out.error("bincount/negative", "Value", {"x": i64([0, -1])})
    out.error("bincount/floats", "Dtype", {"x": normal(3)})
    out.error("bincount/shape", "Shape", {"x": x, "weights": normal(5)})
    values = f64([[-1.0, -0.5, 0.0, 0.25], [1.0, 1.5, 0.75, NAN]])
    out.case("histc/range", {"x": values}, bins=4, min=-1.0, max=1.0)
    out.case("histc/own_range", {"x": values[0]}, bins=3)
    out.case("histc/equal", {"x": f64([2.0, 2.0])}, bins=4)
    out.case("histc/empty", {"x": f64([])}, bins=2)
    out.error("histc/no_bins", "Attr", {"x": values}, bins=0)
    out.error("histc/range_empty", "Attr", {"x": values}, bins=2, min=1.0, max=1.0)
    out.error("histc/not_finite", "Value", {"x": values}, bins=2)
    out.error("histc/integers", "Dtype", {"x": x}, bins=2)
    for name, y in [("integers", i64([[3, 1, 3], [2, 1, 1]])), ("floats", f64([0.5, -0.5, 0.5])), ("empty", normal(0)), ("one", f64([2.0]))]:
        out.case(f"unique/{name}", {"x": y})
        out.case(f"unique_consecutive/{name}", {"x": y})
    out.case("unique/nan", {"x": f64([NAN, 1.0, NAN])})
    out.error("unique/bool", "Dtype", {"x": mask([True])})


REDUCTIONS = "sum", "prod", "mean", "amax", "amin"


def reductions(out):
    onto, index = normal(3, 4), i64([[0, 2, 0, 1], [0, 2, 2, 1], [0, 0, 2, 1], [2, 0, 0, 1]])
    src = normal(4, 4)
    zeros = src.clone()
    zeros[0, 0] = zeros[1, 0] = 0.0
    equal = f64([[1.0, 2.0], [1.0, 2.0], [1.0, 0.0]])
    for reduce in REDUCTIONS:
        for include in True, False:
            key = f"{reduce}_{'with' if include else 'without'}_self"
            options = {"dim": 0, "reduce": reduce, "include_self": include}
            out.case(f"scatter_reduce/{key}", {"self": onto, "index": index, "src": src}, **options)
            # PyTorch's second derivatives are not compared: zeros have first ones.
            out.case(f"scatter_reduce/{key}_zeros", {"self": onto, "index": index, "src": zeros}, **options)
            out.case(f"index_reduce/{key}", {"self": onto, "index": i64([1, 1, 0]), "src": normal(3, 4)}, **options)
        out.case(f"scatter_reduce/{reduce}_ties", {"self": f64([[1.0, 1.0]]), "index": i64([[0, 0]] * 3), "src": equal}, dim=0, reduce=reduce)
        out.case(f"scatter_reduce/{reduce}_columns", {"self": onto, "index": i32([[3, 3], [0, 1]]), "src": normal(2, 3)}, dim=-1, reduce=reduce)
        out.case(f"scatter_reduce/{reduce}_none", {"self": onto, "index": index[:0], "src": src}, dim=0, reduce=reduce)
        out.case(f"scatter_reduce/{reduce}_integers", {"self": i64([1, 2, 3]), "index": i64([0, 0, 2]), "src": i64([5, -4, 2])}, dim=0, reduce=reduce)
        nan = {"self": f64([0.0, 1.0, 2.0]), "index": i64([0, 0, 1]), "src": f64([NAN, 3.0, INF])}
        out.case(f"scatter_reduce/{reduce}_special", nan, dim=0, reduce=reduce, grads=[])
    out.error("scatter_reduce/shape", "Shape", {"self": onto, "index": index, "src": src[:2]}, dim=0, reduce="sum")
    out.error("scatter_reduce/range", "Index", {"self": onto, "index": index + 1, "src": src}, dim=0, reduce="sum")
    out.error("index_reduce/shape", "Shape", {"self": onto, "index": i64([1]), "src": src}, dim=0, reduce="amax")


def bags(out):
    w, index, offsets = normal(5, 3), i64([1, 4, 0, 4, 2]), i64([0, 2, 2])
    for mode in "mean", "sum", "max":
        out.case(f"embedding_bag/{mode}", {"w": w, "index": index, "offsets": offsets}, mode=mode)
        out.case(f"embedding_bag/{mode}_matrix", {"w": w, "index": i32([[0, 1], [3, 3]])}, mode=mode)
        out.case(f"embedding_bag/{mode}_padding", {"w": w, "index": index, "offsets": offsets}, mode=mode, padding_idx=4)
    out.case("embedding_bag/weights", {"w": w, "index": index, "offsets": offsets, "per_sample_weights": normal(5)}, mode="sum")
    out.error("embedding_bag/weights_of_mean", "Attr", {"w": w, "index": index, "offsets": offsets, "per_sample_weights": normal(5)})
    out.error("embedding_bag/no_offsets", "Shape", {"w": w, "index": index})
    out.error("embedding_bag/range", "Index", {"w": w, "index": index + 1, "offsets": offsets}, mode="sum")
