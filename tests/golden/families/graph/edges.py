"""The softmax over the edges of a graph, and diffusion between points."""

import torch
import torch.nn.functional as F

from common import INF, NAN, OPS, f64, i32, i64, integers, label, normal


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
}


def cases(out):
    softmaxes(out)
    diffusions(out)


def softmaxes(out):
    index = i64([2, 0, 2, 5, 0, 2, 5])
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
