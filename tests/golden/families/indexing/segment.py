"""Sums, means and maxima of rows by index."""

import itertools
import math

import torch

from common import INF, NAN, OPS, f64, i32, i64, integers, label, mask, normal


def scatter_sum(src, index, *, size=None):
    size = int(index.max()) + 1 if size is None else size
    return src.new_zeros(size, *src.shape[1:]).index_add(0, index.long(), src)


def scatter_mean(src, index, *, size=None):
    size = int(index.max()) + 1 if size is None else size
    counts = torch.bincount(index.long(), minlength=size).clamp(min=1).reshape(-1, *[1] * (src.dim() - 1))
    sums = scatter_sum(src, index, size=size)
    return sums / counts if src.is_floating_point() else sums.div(counts, rounding_mode="floor")


def scatter_max(src, index, *, size=None, ties="even"):
    """The first maximum, or the first NaN, of each node; nothing is 0, and -1."""
    size = int(index.max()) + 1 if size is None else size
    first = torch.full((size, *src.shape[1:]), -1)
    for place in itertools.product(*map(range, src.shape)):
        node, best = (int(index[place[0]]), *place[1:]), None
        if first[node] >= 0:
            best = src[(int(first[node]), *place[1:])].item()
        value = src[place].item()
        if best is None or value > best or (math.isnan(value) and not math.isnan(best)):
            first[node] = place[0]
    if ties == "first" or not src.is_floating_point():
        picked = src.gather(0, first.clamp(min=0)) if len(src) else src.new_zeros(first.shape)
    else:
        at = index.long().reshape(-1, *[1] * (src.dim() - 1)).expand(src.shape)
        picked = src.new_full(first.shape, math.nan).scatter_reduce(0, at, src, "amax", include_self=False)
    return torch.where(first >= 0, picked, 0), first


OPS |= {
    "scatter_sum": ("src", scatter_sum),
    "scatter_mean": ("src", scatter_mean),
    "scatter_max": ("src", scatter_max),
}


def cases(out):
    index = i64([2, 0, 2, 5, 0, 2, 5])
    for op in "scatter_sum", "scatter_mean", "scatter_max":
        for rest in (), (3,), (2, 4):
            out.case(f"{op}/{label((7, *rest))}", {"src": normal(7, *rest), "index": index}, size=6)
        out.case(f"{op}/i32_index", {"src": normal(4, 3), "index": i32([1, 1, 0, 1])}, size=3)
        out.case(f"{op}/no_size", {"src": normal(7, 3), "index": index})
        out.case(f"{op}/no_edges", {"src": normal(0, 3), "index": i64([])}, size=2)
        out.case(f"{op}/no_features", {"src": normal(7, 0), "index": index}, size=6)
        out.case(f"{op}/integers", {"src": integers(7, 3), "index": index}, size=6)
        special = f64([[NAN, INF, -INF], [1.0, -INF, -INF], [INF, 2.0, 1.0], [NAN, -INF, NAN], [-INF, NAN, NAN]])
        out.case(f"{op}/special", {"src": special, "index": i64([0, 0, 1, 1, 2])}, size=3, grads=())
        wrong = {"src": normal(2, 3), "index": i64([0, 1])}
        out.error(f"{op}/negative", "Index", wrong | {"index": i64([0, -1])}, size=2)
        out.error(f"{op}/too_large", "Index", wrong, size=1)
        out.error(f"{op}/no_nodes", "Index", wrong, size=0)
        out.error(f"{op}/length", "Shape", wrong | {"index": i64([0])}, size=2)
        out.error(f"{op}/index_rank", "Shape", wrong | {"index": i64([[0], [1]])}, size=2)
        out.error(f"{op}/scalar", "Shape", {"src": normal(), "index": i64([0])}, size=2)
        out.error(f"{op}/float_index", "Dtype", wrong | {"index": f64([0.0, 1.0])}, size=2)
        out.error(f"{op}/bools", "Dtype", wrong | {"src": mask([True, False])}, size=2)
    tied = {"src": f64([[1.0, 2.0], [3.0, 2.0], [3.0, 2.0], [3.0, 0.0], [0.0, -0.0]]), "index": i64([0, 0, 0, 0, 2])}
    broken = {"src": f64([[1.0, NAN], [NAN, 2.0], [NAN, 3.0], [4.0, 5.0]]), "index": i64([0, 0, 0, 1])}
    for ties in "even", "first":
        out.case(f"scatter_max/ties_{ties}", tied, size=3, ties=ties)
        out.case(f"scatter_max/nan_{ties}", broken, size=2, ties=ties)
