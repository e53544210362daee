"""Other shapes of the same elements."""

import torch

from common import OPS, label, normal, of_x, sweep


OPS |= {
    "t": of_x(lambda x: x.mT),
    "permute": ("x", lambda x, *, perm: x.permute(perm)),
    "reshape": ("x", lambda x, *, shape: x.reshape(shape)),
    "transpose": ("x", lambda x, *, dim0, dim1: x.transpose(dim0, dim1)),
    "narrow": ("x", lambda x, *, dim, start, length: x.narrow(dim, start, length)),
    "flatten": ("x", lambda x, *, first=0, last=-1: torch.flatten(x, first, last)),
    "slice": ("x", lambda x, *, dim, start, stop, step: x[(slice(None),) * (dim % x.dim()) + (slice(start, stop, step),)]),
    "split": ("x", lambda x, *, size, dim: torch.split(x, size, dim)),
    "squeeze": ("x", lambda x, *, dim: torch.squeeze(x, dim)),
    "unsqueeze": ("x", lambda x, *, dim: torch.unsqueeze(x, dim)),
    "broadcast_to": ("x", lambda x, *, shape: x.broadcast_to(shape)),
    "sum_to_size": ("x", lambda x, *, shape: x.sum_to_size(shape)),
}


def cases(out):
    layouts(out)
    parts(out)
    broadcasts(out)


def layouts(out):
    sweep(out, "t", shapes=[(2, 3), (1, 5), (7, 1), (0, 3)])
    sweep(out, "t", shapes=[(2, 3, 4), (1, 1, 5), (2, 0, 3)])
    for shape, perm in [
        ((3,), [0]),
        ((2, 3), [1, 0]),
        ((2, 3, 4), [2, 0, 1]),
        ((2, 1, 3, 2), [3, 1, 0, 2]),
        ((2, 0, 3), [1, 2, 0]),
    ]:
        out.case(f"permute/{label(shape)}", {"x": normal(*shape)}, perm=perm)
    for shape, to in [((2, 3), [3, 2]), ((6,), [2, -1]), ((2, 3, 2), [-1]), ((), [1, 1]), ((1, 1), []), ((2, 0), [0, 5])]:
        out.case(f"reshape/{label(shape)}_to_{label(to)}", {"x": normal(*shape)}, shape=to)
    for shape, a, b in [((2, 3), 0, 1), ((2, 3, 4), -1, 0), ((2, 1, 3, 2), 1, 2), ((3,), 0, 0), ((2, 0), 0, 1)]:
        out.case(f"transpose/{label(shape)}", {"x": normal(*shape)}, dim0=a, dim1=b)
    for shape, dim, start, length in [((7,), 0, 2, 3), ((2, 5), -1, 4, 1), ((3, 2, 2), 0, 0, 3), ((3, 2), 0, 3, 0)]:
        out.case(f"narrow/{label(shape)}_{start}_{length}", {"x": normal(*shape)}, dim=dim, start=start, length=length)
    out.error("permute/repeated", "Attr", {"x": normal(2, 3)}, perm=[0, 0])
    out.error("permute/short", "Attr", {"x": normal(2, 3)}, perm=[0])
    out.error("reshape/numel", "Shape", {"x": normal(2, 3)}, shape=[4])
    out.error("t/rank", "Shape", {"x": normal(3)})


def parts(out):
    x = {"x": normal(2, 3, 1, 4)}
    for first, last in [(0, -1), (1, 2), (-2, -1), (2, 2)]:
        out.case(f"flatten/{first}_{last}", x, first=first, last=last)
    for dim, start, stop, step in [(0, 0, 2, 1), (1, 1, 3, 1), (3, 0, 4, 3), (-1, 1, 4, 2), (1, 2, 2, 1)]:
        out.case(f"slice/{dim}_{start}_{stop}_{step}", x, dim=dim, start=start, stop=stop, step=step)
    for size, dim in [(2, 1), (1, 0), (3, -1), (9, 3)]:
        out.case(f"split/{size}_{dim}", x, size=size, dim=dim)
    for dim in [2, -2]:
        out.case(f"squeeze/{dim}", x, dim=dim)
    out.error("squeeze/0", "Shape", x, dim=0)
    for dim in [0, 2, -1, 4]:
        out.case(f"unsqueeze/{dim}", x, dim=dim)


def broadcasts(out):
    pairs = [((), (2, 3)), ((3,), (2, 3)), ((2, 1), (2, 3)), ((1, 3, 1), (2, 2, 3, 4)), ((2, 3), (2, 3)), ((1,), (0,))]
    for small, big in pairs:
        for key in "", "expand_":
            out.case(f"broadcast_to/{key}{label(small)}_to_{label(big)}", {"x": normal(*small)}, shape=list(big))
        out.case(f"sum_to_size/{label(big)}_to_{label(small)}", {"x": normal(*big)}, shape=list(small))
    out.error("broadcast_to/mismatch", "Shape", {"x": normal(3)}, shape=[2, 4])
    out.error("sum_to_size/mismatch", "Shape", {"x": normal(2, 3)}, shape=[2])
