"""Reductions, extrema and scans."""

import torch

from common import I32, I64, INF, NAN, OPS, f64, i64, integers, label, mask, normal, u8


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


def scan(f, first, x, dim, exclusive, reverse):
    """A scan from either end, with or without the element itself."""
    x = x.flip(dim) if reverse else x
    if exclusive:
        start = torch.full_like(x.narrow(dim, 0, 1), first)
        x = torch.cat([start, x.narrow(dim, 0, x.shape[dim] - 1)], dim)
    y = f(x, dim)
    return y.flip(dim) if reverse else y


def norm(x, *, p, dims=None):
    return torch.linalg.vector_norm(x, float(p), all_dims(x, dims))


def over(reduce):
    return lambda x, *, dims=None, keepdim=False: reduce(x, dim=all_dims(x, dims), keepdim=keepdim)


def deviation(reduce):
    return lambda x, *, dims=None, correction=1: reduce(x, all_dims(x, dims), correction=correction)


def position(of, x, dim, keepdim, last):
    """The last of equal elements is the first from the end."""
    if x.dtype == torch.bool:
        x = x.to(torch.uint8)
    if not last:
        return of(x, dim, keepdim)
    if dim is None:
        return x.numel() - 1 - of(x.flip(tuple(range(x.dim()))), None, keepdim)
    return (x.shape[dim] if x.dim() else 1) - 1 - of(x.flip(dim) if x.dim() else x, dim, keepdim)


def argmax(x, *, dim=None, keepdim=False, last=None):
    return position(torch.argmax, x, dim, keepdim, last)


def argmin(x, *, dim=None, keepdim=False, last=None):
    return position(torch.argmin, x, dim, keepdim, last)


OPS |= {
    "argmax": ("", argmax),
    "argmin": ("", argmin),
    "std": ("x", lambda x, *, dims=None, correction=1, keepdim=False: torch.std(x, all_dims(x, dims), correction=correction, keepdim=keepdim)),
    "var_mean": ("x", deviation(torch.var_mean)),
    "std_mean": ("x", deviation(torch.std_mean)),
    "norm": ("x", norm),
    "l1_norm": ("x", over(lambda x, dim, keepdim: x.abs().sum(dim, keepdim))),
    "log_sum": ("x", over(lambda x, dim, keepdim: x.sum(dim, keepdim).log())),
    "sum_square": ("x", over(lambda x, dim, keepdim: x.square().sum(dim, keepdim))),
    "nansum": ("x", over(torch.nansum)),
    "nanmean": ("x", over(torch.nanmean)),
    "all": ("", over(torch.all)),
    "any": ("", over(torch.any)),
    "count_nonzero": ("", lambda x, *, dims=None: torch.count_nonzero(x, all_dims(x, dims))),
    "kthvalue": ("x", lambda x, *, k, dim: torch.kthvalue(x, k, dim)),
    "median": ("x", lambda x, *, dim: torch.median(x, dim)),
    "mode": ("x", lambda x, *, dim: torch.mode(x, dim)),
    "quantile": ("x", lambda x, *, q, dim, between="linear": torch.quantile(x, q, dim, interpolation=between)),
    "cumprod": ("x", lambda x, *, dim, exclusive=None, reverse=None: scan(torch.cumprod, 1, x, dim, exclusive, reverse)),
    "cummax": ("x", lambda x, *, dim: torch.cummax(x, dim)),
    "cummin": ("x", lambda x, *, dim: torch.cummin(x, dim)),
    "logcumsumexp": ("x", lambda x, *, dim: torch.logcumsumexp(x, dim)),
}


OPS |= {
    "sum": ("x", total),
    "mean": ("x", over_dims(torch.mean)),
    "prod": ("x", prod),
    "amax": ("x", over_dims(torch.amax)),
    "amin": ("x", over_dims(torch.amin)),
    "max": ("x", maximum_over(torch.max)),
    "min": ("x", maximum_over(torch.min)),
    "l2_norm": ("x", l2_norm),
    "cumsum": ("x", lambda x, *, dim, exclusive=None, reverse=None: scan(torch.cumsum, 0, x, dim, exclusive, reverse)),
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
    statistics(out)
    orders(out)
    more_scans(out)
    bytes_and_bools(out)
    extremum_positions(out)
    last_positions(out)
    literals(out)


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


def statistics(out):
    x = {"x": normal(2, 3, 2)}
    for op in "std", "var_mean", "std_mean", "l1_norm", "sum_square", "nansum", "nanmean":
        for dims in [None, [1], [0, -1]]:
            out.case(f"{op}/{'all' if dims is None else label(dims)}", x, dims=dims)
        out.error(f"{op}/dim", "Attr", x, dims=[3])
        out.error(f"{op}/integers", "Dtype", {"x": i64([1, 2])})
    for op in "all", "any", "count_nonzero":
        for dims in [None, [1]]:
            out.case(f"{op}/{dims}", {"x": f64([[0.0, 1.0], [NAN, -2.0], [0.0, 0.0]])}, dims=dims)
        out.case(f"{op}/bools", {"x": mask([[True, False], [True, True]])}, dims=[1])
        out.case(f"{op}/empty", {"x": normal(2, 0)}, dims=[1])
    out.case("std/constant", {"x": torch.ones(2, 3, dtype=torch.float64)}, dims=[1], grads=[])
    out.case("log_sum/rows", {"x": f64([[1.0, 2.5], [0.5, 0.25]])}, dims=[1])
    holes = {"x": f64([[1.0, NAN, 3.0], [NAN, NAN, NAN]])}
    out.case("nansum/holes", holes, dims=[1])
    out.case("nanmean/holes", holes, dims=[1], grads=[])
    for p in "1", "2", "3", "0.5", "-1", "-2.5", "inf", "-inf":
        out.case(f"norm/{p}", x, p=p, dims=[1])
    out.case("norm/0", {"x": f64([0.0, 2.0, -1.0])}, p=0, grads=[])
    zeros = {"x": f64([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]])}
    for p in "1", "3", "0.5", "inf":
        out.case(f"norm/zeros_{p}", zeros, p=p, dims=[1])
    out.case("norm/zeros_-1", zeros, p=-1, dims=[1], grads=[])
    out.error("norm/nan", "Attr", x, p="nan")


def orders(out):
    x = {"x": normal(3, 5)}
    for dim in 0, -1:
        out.case(f"median/{dim}", x, dim=dim)
        out.case(f"mode/{dim}", {"x": f64([[1.0, 2.0, 2.0, 0.0], [3.0, 3.0, 1.0, 1.0], [1.0, 2.0, 1.0, 1.0]])}, dim=dim)
        out.case(f"kthvalue/{dim}", x, k=2, dim=dim)
        for q, between in [(0.0, "linear"), (0.3, "linear"), (0.6, "lower"), (0.6, "higher"), (0.6, "midpoint"), (0.125, "nearest")]:
            out.case(f"quantile/{dim}_{q}_{between}", x, q=q, dim=dim, between=between)
    for op, attributes in {"median": {}, "mode": {}, "kthvalue": {"k": 1}}.items():
        out.case(f"{op}/integers", {"x": i64([[3, 1, 2], [5, 5, 4]])}, dim=0, **attributes)
        out.case(f"{op}/scalar", {"x": normal()}, dim=0, **attributes)
        out.error(f"{op}/dim", "Attr", x, dim=2, **attributes)
    out.case("median/nan", {"x": f64([[1.0, NAN, 0.0], [2.0, 3.0, 1.0]])}, dim=1, grads=[])
    out.case("quantile/nan", {"x": f64([[1.0, NAN, 0.0], [2.0, 3.0, 1.0]])}, q=0.4, dim=1, grads=[])
    out.error("median/empty", "Value", {"x": normal(2, 0)}, dim=1)
    out.error("kthvalue/k", "Attr", x, k=6, dim=1)
    out.error("kthvalue/zero", "Attr", x, k=0, dim=1)
    out.error("quantile/q", "Attr", x, q=1.5, dim=1)
    out.error("quantile/integers", "Dtype", {"x": i64([1, 2])}, q=0.5, dim=0)


def more_scans(out):
    x = {"x": normal(2, 5, 2)}
    for op in "cumprod", "cummax", "cummin", "logcumsumexp":
        for dim in 0, 1, -1:
            out.case(f"{op}/{dim}", x, dim=dim)
        out.case(f"{op}/scalar", {"x": normal()}, dim=0)
        out.case(f"{op}/empty", {"x": normal(0, 2)}, dim=0)
        out.error(f"{op}/dim", "Attr", x, dim=3)
    for op in "cumsum", "cumprod":
        for exclusive, reverse in [(True, False), (False, True), (True, True)]:
            name = "_".join([*["exclusive"] * exclusive, *["reverse"] * reverse])
            out.case(f"{op}/{name}", x, dim=1, exclusive=exclusive, reverse=reverse)
    zeros = f64([[1.0, 0.0, 3.0, 2.0, 0.5], [0.0, 2.0, 0.0, 1.5, 1.0]])
    for exclusive in False, True:
        out.case(f"cumprod/zeros_{exclusive}", {"x": zeros}, dim=1, exclusive=exclusive)
    ties = f64([[1.0, 3.0, 3.0, 2.0, 3.0], [2.0, NAN, 5.0, NAN, 1.0], [-INF, -INF, INF, 0.0, INF]])
    for op in "cummax", "cummin":
        out.case(f"{op}/ties", {"x": ties}, dim=1, grads=[])
        out.case(f"{op}/integers", {"x": i64([3, 1, 3, 5, 5, 2])}, dim=0)
    out.case("logcumsumexp/large", {"x": f64([1000.0, -1000.0, 1001.0, 999.0])}, dim=0)
    out.case("logcumsumexp/infinite", {"x": f64([-INF, -INF, 1.0, INF])}, dim=0, grads=[])


def bytes_and_bools(out):
    bools = {"x": mask([[True, False, True], [False, False, False], [True, True, True]])}
    numbers = {"x": u8([[0, 255, 255], [7, 7, 1], [128, 0, 127]])}
    for op in "amax", "amin":
        for dims in None, [1], [0]:
            suffix = "all" if dims is None else label(dims)
            out.case(f"{op}/bools_{suffix}", bools, dims=dims)
            out.case(f"{op}/u8_{suffix}", numbers, dims=dims)
    for op in "max", "min":
        out.case(f"{op}/u8", numbers, dim=1)


def extremum_positions(out):
    for op in "argmax", "argmin":
        for shape, dim in [
            ((), None),
            ((), 0),
            ((7,), 0),
            ((2, 3), None),
            ((2, 3), 0),
            ((3, 1, 2), 1),
            ((2, 1, 3, 2), -2),
            ((0, 3), 1),
        ]:
            out.case(f"{op}/{label(shape)}_dim{'' if dim is None else dim}", {"x": normal(*shape)}, dim=dim)
        out.case(f"{op}/keepdim", {"x": normal(2, 3)}, dim=1, keepdim=True)
        ties = [[2.0, 3.0, 3.0, 1.0, 1.0], [4.0, 4.0, 4.0, 4.0, 4.0], [-INF, -INF, -INF, -INF, -INF], [1.0, NAN, 5.0, NAN, -INF]]
        out.case(f"{op}/ties", {"x": f64(ties)}, dim=1)
        out.case(f"{op}/ties_columns", {"x": f64(ties).t()}, dim=0)
        out.case(f"{op}/integers", {"x": i64([[3, 1, 3], [1, 1, 2]])}, dim=1)
        out.case(f"{op}/bools", {"x": mask([[True, False, True], [False, False, True]])}, dim=1)
        out.error(f"{op}/empty", "Value", {"x": normal(2, 0)}, dim=1)
        out.error(f"{op}/dim_out_of_range", "Attr", {"x": normal(2, 3)}, dim=2)


def last_positions(out):
    ties = f64([[2.0, 3.0, 3.0, 1.0, 1.0], [4.0, 4.0, 4.0, 4.0, 4.0], [-INF, -INF, -INF, -INF, -INF], [1.0, NAN, 5.0, NAN, -INF]])
    for op in "argmax", "argmin":
        for dim in None, 0, 1, -2:
            out.case(f"{op}/last_{'all' if dim is None else dim}", {"x": ties}, dim=dim, last=True)
        out.case(f"{op}/last_integers", {"x": i64([[3, 1, 3], [1, 1, 2]])}, dim=1, keepdim=True, last=True)
        out.case(f"{op}/last_bools", {"x": mask([[True, False, True], [False, False, False]])}, dim=1, last=True)
        out.case(f"{op}/last_scalar", {"x": f64(2.0)}, last=True)
        out.error(f"{op}/last_empty", "Value", {"x": normal(2, 0)}, dim=1, last=True)
        out.case(f"{op}/u8", {"x": u8([[0, 255, 255], [7, 7, 1]])}, dim=1)


def literals(out):
    """Numbers that were written down beforehand, at eight digits, which PyTorch confirms."""
    x = {"x": f64([1.0, 3.0, 3.0])}
    out.literal("amax", x, [f64(3)], {"x": f64([0, 0.5, 0.5])})
    out.literal("max", x, [f64(3), i64(1)], {"x": f64([0, 1, 0])}, dim=0)
