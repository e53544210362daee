"""Rows, subscripts, assignments, orders, scatters."""

import torch

from common import F64, INF, NAN, OPS, covered_by, f64, i32, i64, integers, long, mask, normal, u8


def scatter(self, index, src, *, dim):
    return self.scatter(dim, index.long(), src[covered_by(index)])


def subscript(indices, tensors):
    """`"tensor:i0"` is the input i0, `{"slice": [start, stop, step]}` a slice."""
    return tuple(slice(*i["slice"]) if isinstance(i, dict) else long(tensors[i.removeprefix("tensor:")]) for i in indices)


def index(x, *, indices, **tensors):
    return x[subscript(indices, tensors)]


def index_put(self, values, *, indices, accumulate=False, **tensors):
    at = subscript(indices, tensors)
    position = torch.arange(self.numel()).reshape(self.shape)[at]
    flat, source = self.flatten(), values.expand(position.shape).flatten()
    if accumulate:
        return flat.index_add(0, position.flatten(), source).reshape(self.shape)
    last = {p: k for k, p in enumerate(position.flatten().tolist())}  # the last in row-major order wins
    where, winner = torch.tensor(list(last), dtype=torch.int64), torch.tensor(list(last.values()), dtype=torch.int64)
    return flat.index_copy(0, where, source[winner]).reshape(self.shape)


def topk(x, *, k, dim=-1, largest=True):
    """Ties by ascending index, NaN the greatest: a stable sort, where torch.topk leaves ties open."""
    values, indices = torch.sort(x, dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)


def sort(x, *, dim=-1, descending=False):
    return torch.sort(x, dim=dim, descending=descending, stable=True)


OPS |= {
    "nonzero": ("", lambda x: torch.nonzero(x, as_tuple=True)),
    "index_select": ("x", lambda x, index, *, dim: torch.index_select(x, dim, index.long())),
    "index_add": ("self src", lambda self, index, src, *, dim, alpha=1: self.index_add(dim, index.long(), src, alpha=alpha)),
    "select": ("x", lambda x, *, dim, index: x.select(dim, index)),
    "index": ("x", index),
    "index_put": ("self values", index_put),
    "topk": ("x", topk),
    "sort": ("x", sort),
    "scatter": ("self src", scatter),
}


def cases(out):
    rows(out)
    subscripts(out)
    assignments(out)
    orderings(out)
    scatters(out)
    bytes_and_bools(out)
    places(out)
    literals(out)


def rows(out):
    x = normal(3, 4, 2)
    for name, dim, at in [
        ("dim0", 0, i64([2, 0, 2])),
        ("dim1_i32", 1, i32([3, 3, 1, 0])),
        ("last", -1, i64([1])),
        ("scalar", 1, i64(2)),
        ("empty", 0, i64([])),
    ]:
        out.case(f"index_select/{name}", {"x": x, "index": at}, dim=dim)
        src = normal(*x.index_select(dim, at.long()).shape)
        if at.dim() == 1:
            out.case(f"index_add/{name}", {"self": x, "index": at, "src": src}, dim=dim)
    out.case("index_select/integers", {"x": integers(4), "index": i64([3, 3])}, dim=0)
    out.case("index_select/bools", {"x": mask([True, False]), "index": i64([1, 0, 0])}, dim=0)
    out.case("index_add/alpha", {"self": normal(3), "index": i64([1, 1, 0, 1]), "src": normal(4)}, dim=0, alpha=-2.5)
    out.case("index_add/integers", {"self": integers(3), "index": i64([1, 1]), "src": integers(2)}, dim=0, alpha=2)
    for dim, at in [(0, 1), (1, -1), (-1, 0)]:
        out.case(f"select/dim{dim}_{at}", {"x": x}, dim=dim, index=at)
    out.case("select/vector", {"x": normal(5)}, dim=0, index=3)
    for kind, at in ("negative", i64([-1])), ("too_large", i64([3])):
        out.error(f"index_select/{kind}", "Index", {"x": x, "index": at}, dim=0)
        out.error(f"index_add/{kind}", "Index", {"self": x, "index": at, "src": normal(1, 4, 2)}, dim=0)
    out.error("index_select/rank", "Shape", {"x": x, "index": i64([[0]])}, dim=0)
    out.error("index_select/float_index", "Dtype", {"x": x, "index": f64([0.0])}, dim=0)
    out.error("select/out_of_range", "Index", {"x": x}, dim=0, index=3)
    out.error("select/below", "Index", {"x": x}, dim=0, index=-4)


def every(size):
    return {"slice": [0, size, 1]}


def subscript_cases():
    """name, shape of x, tensors, subscript: positions as `"tensor:i0"` or `{"slice": [start, stop, step]}`."""
    i, j = i64([0, 1]), i64([1, -1])
    grid = i64([[0, 2], [1, 1]])
    rows_, picked = mask([True, False, True]), mask([[True, False, True, False], [False] * 4, [True, True, False, False]])
    return [
        ("vector", (5,), [i64([4, 0, -2, 4])], ["tensor:i0"]),
        ("scalar_index", (3, 4), [i64(-1)], ["tensor:i0"]),
        ("i32", (3, 4), [i32([2, 0])], ["tensor:i0"]),
        ("rows", (3, 4), [grid], ["tensor:i0"]),
        ("columns", (3, 4), [grid], [every(3), "tensor:i0"]),
        ("pairs", (3, 4), [i, j], ["tensor:i0", "tensor:i1"]),
        ("outer", (3, 4), [i.reshape(2, 1), j], ["tensor:i0", "tensor:i1"]),
        ("adjacent", (2, 3, 4, 2), [i, j], [every(2), "tensor:i0", "tensor:i1"]),
        ("apart", (2, 3, 4, 2), [i, j], ["tensor:i0", every(3), "tensor:i1"]),
        ("apart_grid", (2, 3, 3), [i, grid], ["tensor:i0", every(3), "tensor:i1"]),
        ("slices", (5, 4), [], [{"slice": [1, 4, 1]}, {"slice": [0, 4, 2]}]),
        ("slice_and_tensor", (5, 4), [j], [{"slice": [0, 5, 3]}, "tensor:i0"]),
        ("empty_index", (3, 4), [i64([])], ["tensor:i0"]),
        ("mask_rows", (3, 4), [rows_], ["tensor:i0"]),
        ("mask_all", (3, 4), [picked], ["tensor:i0"]),
        ("mask_leading", (3, 4, 2), [picked], ["tensor:i0"]),
        ("mask_inner", (2, 3, 2), [rows_], [every(2), "tensor:i0"]),
        ("mask_and_index", (3, 4), [rows_, j], ["tensor:i0", "tensor:i1"]),
        ("mask_none", (3,), [mask([False] * 3)], ["tensor:i0"]),
    ]


def subscripts(out):
    for name, shape, tensors, indices in subscript_cases():
        out.case(f"index/{name}", {"x": normal(*shape), **numbered(tensors)}, indices=indices)
    out.case("index/integers", {"x": integers(4), "i0": i64([-1, 0])}, indices=["tensor:i0"])
    for name, kind, tensors in bad_subscripts():
        out.error(
            f"index/{name}", kind, {"x": normal(3, 4), **numbered(tensors)}, indices=[f"tensor:i{k}" for k in range(len(tensors))]
        )


def bad_subscripts():
    return [
        ("too_large", "Index", [i64([0, 3])]),
        ("too_small", "Index", [i64([-4])]),
        ("mask_shape", "Shape", [mask([True, False])]),
        ("float_index", "Dtype", [f64([1.0])]),
        ("no_broadcast", "Shape", [i64([0, 1]), i64([0, 1, 2])]),
    ]


def numbered(tensors):
    return {f"i{k}": x for k, x in enumerate(tensors)}


def assignments(out):
    for name, shape, tensors, indices in subscript_cases():
        x = normal(*shape)
        y = OPS["index"][1](x, indices=indices, **numbered(tensors))
        inputs = {"self": x, **numbered(tensors), "values": normal(*y.shape)}
        # With a repeated place, "vector" and "rows", the last one wins; the gradient of the others is left open.
        grads = ["self"] if name in ("vector", "rows", "columns") else None
        out.case(f"index_put/{name}", inputs, grads=grads, indices=indices)
        out.case(f"index_put/{name}_accumulate", inputs, indices=indices, accumulate=True)
    broadcast = {"self": normal(3, 4), "i0": i64([2, 0]), "values": normal(4)}
    out.case("index_put/broadcast_row", broadcast, indices=["tensor:i0"])
    out.case("index_put/broadcast_scalar", broadcast | {"values": normal()}, indices=["tensor:i0"])
    for name, kind, tensors in bad_subscripts():
        inputs = {"self": normal(3, 4), **numbered(tensors), "values": normal()}
        out.error(f"index_put/{name}", kind, inputs, indices=[f"tensor:i{k}" for k in range(len(tensors))])
    out.error("index_put/values_shape", "Shape", broadcast | {"values": normal(3)}, indices=["tensor:i0"])


def orderings(out):
    ties = f64([[2.0, 5.0, 5.0, NAN, 1.0, 2.0, -INF], [0.0, -0.0, 0.0, 1.0, 1.0, INF, NAN]])
    for flag in False, True:
        order = "largest" if flag else "smallest"
        out.case(f"topk/{order}", {"x": normal(3, 7)}, k=3, largest=flag)
        out.case(f"topk/{order}_dim0", {"x": normal(5, 2)}, k=5, dim=0, largest=flag)
        out.case(f"topk/{order}_ties", {"x": ties}, k=5, largest=flag)
        order = "descending" if flag else "ascending"
        out.case(f"sort/{order}", {"x": normal(2, 7)}, descending=flag)
        out.case(f"sort/{order}_dim0", {"x": normal(3, 1, 2)}, dim=0, descending=flag)
        out.case(f"sort/{order}_ties", {"x": ties}, descending=flag)
        out.case(f"sort/{order}_integers", {"x": integers(9, low=0, high=4)}, descending=flag)
        out.case(f"sort/{order}_empty", {"x": normal(2, 0)}, descending=flag)
    out.case("topk/k0", {"x": normal(2, 3)}, k=0)
    out.case("topk/integers", {"x": i64([3, 1, 3, 2])}, k=2)
    out.error("topk/k_too_large", "Attr", {"x": normal(2, 3)}, k=4)


def scatters(out):
    x = normal(3, 4)
    out.case("scatter/rows", {"self": x, "index": i64([[2, 0, 0, 1], [1, 2, 1, 0]]), "src": normal(2, 4)}, dim=0)
    out.case("scatter/columns_i32", {"self": x, "index": i32([[3, 1, 0], [0, 1, 2]]), "src": normal(2, 3)}, dim=1)
    out.case("scatter/larger_src", {"self": x, "index": i64([[2, 0], [1, 1]]), "src": normal(3, 4)}, dim=0)
    out.case("scatter/empty", {"self": x, "index": integers(0, 4), "src": normal(0, 4)}, dim=0)
    out.error("scatter/negative", "Index", {"self": x, "index": i64([[-1]]), "src": normal(1, 1)}, dim=0)
    out.error("scatter/too_large", "Index", {"self": x, "index": i64([[4]]), "src": normal(1, 1)}, dim=1)


def bytes_and_bools(out):
    for descends in False, True:
        order = "descending" if descends else "ascending"
        out.case(f"sort/{order}_bools", {"x": mask([[True, False, True, False], [False, False, True, True]])}, descending=descends)
        out.case(f"sort/{order}_u8", {"x": u8([255, 0, 128, 127, 0])}, descending=descends)
    out.case("topk/bools", {"x": mask([False, True, False, True])}, k=3)


def places(out):
    out.case("nonzero/mask", {"x": mask([[True, False, True], [False, False, True]])})
    out.case("nonzero/none", {"x": mask([False, False])})


def literals(out):
    """Numbers that were written down beforehand, at eight digits, which PyTorch confirms."""
    x, pair = torch.arange(120, dtype=F64).reshape(2, 3, 4, 5), i64([0, 1])
    apart, adjacent = ["tensor:i0", every(3), "tensor:i1"], [every(2), "tensor:i0", "tensor:i1"]
    for name, indices, shape in [("apart", apart, (2, 3, 5)), ("adjacent", adjacent, (2, 2, 5))]:
        y = OPS["index"][1](x, indices=indices, i0=pair, i1=pair)
        assert y.shape == shape
        out.literal(f"index/{name}_shape", {"x": x, "i0": pair, "i1": pair}, [y], {}, indices=indices)
