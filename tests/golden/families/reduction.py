"""Reductions, extrema and scans."""

import torch

from common import I32, I64, INF, NAN, OPS, f64, i64, integers, label, mask, normal


def all_dims(x, dims):
    return list(range(x.dim())) if not dims else dims


def prod(x, *, dims=None, keepdim=False):
    for dim in sorted((d % max(x.dim(), 1) for d in all_dims(x, dims)), reverse=True):
        x = x.prod(dim, keepdim=keepdim)
    return x


def maximum_over(reduce):
    def extremum(x, *, dim=None, keepdim=False):
        return reduce(x) if dim is None else reduce(x, dim, keepdim)

    return extremum


def over_dims(reduce):
    return lambda x, *, dims=None, keepdim=False: reduce(x, all_dims(x, dims), keepdim)


def total(x, *, dims=None, keepdim=False):
    if dims or keepdim:
        return x.sum(all_dims(x, dims), keepdim=keepdim)
    return x.sum()


def l2_norm(x, *, dims=None, keepdim=False):
    return torch.linalg.vector_norm(x, 2, dims or -1, keepdim)


def variance(x, *, dims=None, correction=1, keepdim=False):
    return torch.var(x, all_dims(x, dims), correction=correction, keepdim=keepdim)


OPS |= {
    "sum": ("x", total),
    "mean": ("x", over_dims(torch.mean)),
    "prod": ("x", prod),
    "amax": ("x", over_dims(torch.amax)),
    "amin": ("x", over_dims(torch.amin)),
    "max": ("x", maximum_over(torch.max)),
    "min": ("x", maximum_over(torch.min)),
    "l2_norm": ("x", l2_norm),
    "cumsum": ("x", lambda x, *, dim: torch.cumsum(x, dim)),
    "logsumexp": ("x", over_dims(torch.logsumexp)),
    "var": ("x", variance),
}


REDUCED = [
    ((), None),
    ((7,), [0]),
    ((2, 3), None),
    ((2, 3), [-1]),
    ((3, 1, 2), [1]),
    ((2, 3, 2), [0, 2]),
    ((2, 1, 3, 2), [1, -1]),
    ((2, 3), []),
]


def cases(out):
    for op in "sum", "mean", "prod", "amax", "amin", "l2_norm", "logsumexp", "var":
        shapes = [r for r in REDUCED if op != "var" or r[0] not in [(), (3, 1, 2)]]
        for shape, dims in shapes:
            dims_label = "all" if dims is None else "_".join(map(str, dims)) or "none"
            out.case(f"{op}/{label(shape)}_{dims_label}", {"x": normal(*shape)}, dims=dims)
        out.case(f"{op}/keepdim", {"x": normal(2, 3)}, dims=[1], keepdim=True)
        out.case(f"{op}/other_extent_empty", {"x": normal(0, 3)}, dims=[1])
        out.error(f"{op}/dim_out_of_range", "Attr", {"x": normal(2, 3)}, dims=[2])
        out.error(f"{op}/dim_twice", "Attr", {"x": normal(2, 3)}, dims=[0, -2])
    for op in "sum", "mean", "prod", "l2_norm":
        out.case(f"{op}/empty_extent", {"x": normal(2, 0)}, dims=[1])
        out.case(f"{op}/nan_inf", {"x": f64([[NAN, 1.0], [INF, 2.0], [INF, -INF]])}, dims=[1], grads=[])
    for op in "amax", "amin":
        out.case(f"{op}/integers", {"x": integers(2, 3)}, dims=[0])
        out.case(f"{op}/ties", {"x": f64([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0], [NAN, 1.0, NAN, 2.0]])}, dims=[1])
        out.error(f"{op}/empty_extent", "Value", {"x": normal(2, 0)}, dims=[1])
    reduction_edges(out)
    extrema(out)
    scans(out)


def reduction_edges(out):
    for op in "sum", "prod":
        for dtype in I64, I32:
            out.case(f"{op}/{'i64' if dtype == I64 else 'i32'}", {"x": integers(2, 3, dtype=dtype)}, dims=[1])
        out.case(f"{op}/bools", {"x": mask([[True, False], [True, True]])}, dims=[1])
    out.case("prod/zeros", {"x": f64([[1.0, 2.0, 3.0], [0.0, 2.0, 3.0], [0.0, 2.0, 0.0]])}, dims=[1])
    out.case("prod/zeros_all", {"x": f64([[1.5, 0.0], [2.0, 3.0]])})
    out.case("l2_norm/zero_row", {"x": f64([[0.0, 0.0], [3.0, -4.0]])})
    out.case("logsumexp/large", {"x": f64([[1000.0, 1001.0], [-1000.0, -INF]])}, dims=[1])
    out.case("logsumexp/special", {"x": f64([[-INF, -INF], [INF, 1.0], [NAN, 0.0]])}, dims=[1], grads=[])
    for correction in 0, 2:
        out.case(f"var/correction{correction}", {"x": normal(3, 4)}, dims=[1], correction=correction)
    out.case("var/far_from_zero", {"x": 1e3 + normal(2, 5)}, dims=[1])
    out.error("mean/integers", "Dtype", {"x": i64([1, 2])})


def extrema(out):
    ties = f64([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0], [NAN, 1.0, NAN, 2.0], [-INF, -INF, -INF, -INF]])
    for op in "max", "min":
        for shape, dim in [
            ((), None),
            ((), 0),
            ((7,), None),
            ((7,), 0),
            ((2, 3), None),
            ((2, 3), 0),
            ((3, 1, 2), 1),
            ((2, 1, 3, 2), -2),
            ((0, 3), 1),
        ]:
            out.case(f"{op}/{label(shape)}_{'all' if dim is None else dim}", {"x": normal(*shape)}, dim=dim)
        out.case(f"{op}/keepdim", {"x": normal(2, 3)}, dim=1, keepdim=True)
        out.case(f"{op}/ties", {"x": ties}, dim=1)
        out.case(f"{op}/ties_all_shared", {"x": f64([[1.0, 3.0], [3.0, 1.0]])})
        out.case(f"{op}/nan_all", {"x": f64([1.0, NAN, INF])}, grads=[])
        out.case(f"{op}/integers", {"x": integers(2, 5, dtype=I32)}, dim=1)
        out.error(f"{op}/empty", "Value", {"x": normal(2, 0)}, dim=1)
        out.error(f"{op}/empty_all", "Value", {"x": normal(0)})
        out.error(f"{op}/dim_out_of_range", "Attr", {"x": normal(2, 3)}, dim=-3)


def scans(out):
    for shape, dim in [((7,), 0), ((2, 3), 0), ((2, 3), -1), ((3, 1, 2), 1), ((2, 1, 3, 2), 2), ((2, 0), 1), ((), 0)]:
        out.case(f"cumsum/{label(shape)}_{dim}", {"x": normal(*shape)}, dim=dim)
    out.case("cumsum/integers", {"x": integers(2, 3)}, dim=1)
    out.case("cumsum/nan", {"x": f64([1.0, NAN, 2.0])}, dim=0, grads=[])
    out.error("cumsum/dim_out_of_range", "Attr", {"x": normal(2, 3)}, dim=2)
