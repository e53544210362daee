"""What edges bring to nodes."""

import itertools
import math

import torch
import torch.nn.functional as F

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


def edge_softmax(src, index, *, size=None):
    """The softmax of each node's edges, one node after the other."""
    y = torch.zeros_like(src)
    for node in set(index.tolist()):
        own = index == node
        y = y.index_put((own,), torch.softmax(src[own], 0))
    return y


def diffusion_conv(x, evals, evecs, times, weight, mass=None, bias=None, *, log_times=False):
    times = times.exp() if log_times else times
    spectral = evecs.mT @ (x if mass is None else mass[:, None] * x)
    diffused = [evecs @ ((-t * evals).exp()[:, None] * spectral) for t in times]
    return F.linear(torch.cat(diffused, -1), weight, bias)


OPS |= {
    "edge_softmax": ("src", edge_softmax),
    "diffusion_conv": ("x times weight bias", diffusion_conv),
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
    softmaxes(out, index)
    diffusions(out)


def softmaxes(out, index):
    for rest in (), (3,):
        out.case(f"edge_softmax/{label((7, *rest))}", {"src": 3 * normal(7, *rest), "index": index}, size=6)
        out.case(f"edge_softmax/{label((7, *rest))}_no_size", {"src": normal(7, *rest), "index": index})
    out.case("edge_softmax/i32_index", {"src": normal(4, 3), "index": i32([1, 1, 0, 1])}, size=3)
    out.case("edge_softmax/no_edges", {"src": normal(0, 3), "index": i64([])}, size=2)
    out.case("edge_softmax/single", {"src": normal(2), "index": i64([1, 0])}, size=2)
    special = f64([[NAN, -INF], [1.0, -INF], [-INF, 2.0], [1e300, 3.0], [INF, -1e300]])
    out.case("edge_softmax/special", {"src": special, "index": i64([0, 0, 1, 1, 2])}, size=3, grads=())
    wrong = {"src": normal(2, 3), "index": i64([0, 1])}
    out.error("edge_softmax/negative", "Index", wrong | {"index": i64([0, -1])}, size=2)
    out.error("edge_softmax/too_large", "Index", wrong, size=1)
    out.error("edge_softmax/length", "Shape", wrong | {"index": i64([0])}, size=2)
    out.error("edge_softmax/rank", "Shape", wrong | {"src": normal(2, 1, 1)}, size=2)
    out.error("edge_softmax/integers", "Dtype", wrong | {"src": integers(2, 3)}, size=2)


def diffusions(out):
    for name, batch in ("5x3", ()), ("2x5x3", (2,)):
        basis = {"evals": normal(4).abs(), "evecs": torch.linalg.qr(normal(5, 4))[0]}
        map_of = {"times": f64([0.0, 0.5, 2.0]), "weight": normal(2, 9)}
        more = {"mass": normal(5).abs(), "bias": normal(2)}
        x = {"x": normal(*batch, 5, 3)}
        out.case(f"diffusion_conv/{name}", x | basis | map_of)
        out.case(f"diffusion_conv/{name}_mass", x | basis | map_of | more)
        out.case(f"diffusion_conv/{name}_log", x | basis | map_of | more, log_times=True)
    right = {"x": normal(5, 3), "evals": normal(4), "evecs": normal(5, 4), "times": f64([1.0]), "weight": normal(2, 3)}
    out.error("diffusion_conv/negative_time", "Value", right | {"times": f64([-1.0])})
    out.error("diffusion_conv/weight", "Shape", right | {"weight": normal(2, 4)})
    out.error("diffusion_conv/evecs", "Shape", right | {"evecs": normal(4, 5)})
    out.error("diffusion_conv/mass", "Shape", right | {"mass": normal(4)})
    out.error("diffusion_conv/integers", "Dtype", right | {"x": integers(5, 3)})
