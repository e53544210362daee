"""Padding."""

import torch.nn.functional as F

from common import INF, NAN, OPS, f64, integers, normal


def pad(x, *, padding, mode="constant", value=None):
    # PyTorch pads the last dimension first. Its other modes than a constant need a batch and channels.
    flat = [p for ends in reversed(padding) for p in ends]
    if mode == "constant":
        return F.pad(x, flat, mode, float(value) if isinstance(value, str) else value)
    missing = len(padding) + 2 - x.dim()
    for _ in range(missing):
        x = x.unsqueeze(0)
    y = F.pad(x, flat, mode)
    for _ in range(missing):
        y = y.squeeze(0)
    return y


OPS |= {"pad": ("x", pad)}


def cases(out):
    for n, shape in [(1, (2, 3, 5)), (2, (1, 2, 4, 3)), (3, (1, 1, 3, 2, 4))]:
        x = {"x": normal(*shape)}
        for mode in ["constant", "reflect", "replicate", "circular"]:
            longest = [min(3, l - (mode == "reflect")) for l in shape[-n:]]
            out.case(f"pad/{mode}_{n}d", x, padding=[[1, 2 if l > 1 else 1] for l in longest], mode=mode)
            out.case(f"pad/{mode}_{n}d_longest", x, padding=[[l, l] for l in longest], mode=mode)
            out.case(f"pad/{mode}_{n}d_one_end", x, padding=[[0, 0]] * (n - 1) + [[0, 1]], mode=mode)
    x = {"x": normal(2, 3, 4)}
    out.case("pad/constant_all", x, padding=[[1, 0], [0, 2], [1, 1]], value=1.5)
    out.case("pad/constant_cut", x, padding=[[-1, 2], [1, -2]], value=-0.5)
    out.case("pad/constant_cut_only", x, padding=[[-1, -1], [0, -2]])
    out.case("pad/constant_nothing", x, padding=[[0, 0]])
    out.case("pad/constant_of_nothing", {"x": normal(2, 0, 3)}, padding=[[1, 2], [0, 1]], value=2.0)
    out.case("pad/constant_integers", {"x": integers(2, 3)}, padding=[[1, 1], [0, 2]], value=-7)
    out.case("pad/constant_infinite", x, padding=[[1, 0]], value="inf")
    out.case("pad/replicate_long", x, padding=[[9, 0]], mode="replicate")
    out.case("pad/replicate_single", {"x": normal(2, 3, 1)}, padding=[[2, 3]], mode="replicate")
    out.case("pad/circular_cut", x, padding=[[-1, 2]], mode="circular")
    out.case("pad/replicate_cut", x, padding=[[2, -1], [-1, 3]], mode="replicate")
    out.case("pad/reflect_cut", x, padding=[[-1, 1], [2, -1]], mode="reflect")
    out.case("pad/reflect_sample", {"x": normal(3, 4)}, padding=[[3, 1]], mode="reflect")
    special = {"x": f64([[[NAN, -0.0, INF], [-INF, 0.0, 1.0]]])}
    for mode in ["constant", "reflect", "replicate", "circular"]:
        out.case(f"pad/{mode}_special", special, padding=[[2, 2]], mode=mode)
        out.case(f"pad/{mode}_no_batch", {"x": normal(0, 2, 3)}, padding=[[1, 2]], mode=mode, grads=[])
    out.error("pad/reflect_as_long", "Shape", x, padding=[[4, 0]], mode="reflect")
    out.error("pad/circular_longer", "Shape", x, padding=[[0, 5]], mode="circular")
    out.error("pad/replicate_of_nothing", "Shape", {"x": normal(2, 3, 0)}, padding=[[1, 0]], mode="replicate")
    out.error("pad/replicate_nothing_left", "Shape", x, padding=[[-2, -2]], mode="replicate")
    out.error("pad/constant_below_nothing", "Shape", x, padding=[[-3, -2]])
    out.error("pad/more_than_dimensions", "Shape", {"x": normal(3)}, padding=[[0, 0], [1, 0]])
    out.error("pad/reflect_four", "Attr", {"x": normal(2, 2, 2, 2)}, padding=[[1, 1]] * 4, mode="reflect")
    out.error("pad/fraction_of_integers", "Dtype", {"x": integers(3)}, padding=[[1, 0]], value=0.5)
