"""Ops that change a copy of their first input, and loss scaling."""

import functools

import torch

from common import INF, NAN, OPS, f64, i32, i64, normal
from families.indexing.index import index_put


def in_place(change):
    """The reference of an op that changes a copy of `x`."""

    def reference(x, *inputs, **named):
        y = x.clone()
        change(y, *inputs, **named)
        return y

    return "", functools.wraps(change)(reference)


def unscaled(*, scale, **grads):
    """The gradients without the scale, and the scale afterwards: that of a GradScaler with PyTorch's defaults."""
    grads = [g.clone() for g in grads.values()]
    found, current, tracker = torch.zeros(1), torch.tensor([scale]), torch.zeros(1, dtype=torch.int32)
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, 1 / current)
    torch._amp_update_scale_(current, tracker, found, 2.0, 0.5, 2000)
    return (*grads, current.reshape(()))


def updated(*, scale, growth, backoff, interval, **grads):
    """Scale and counter after three steps with the same gradients."""
    current, tracker = torch.tensor([scale]), torch.zeros(1, dtype=torch.int32)
    for _ in range(3):
        found = torch.zeros(1)
        torch._amp_foreach_non_finite_check_and_unscale_([g.clone() for g in grads.values()], found, 1 / current)
        torch._amp_update_scale_(current, tracker, found, growth, backoff, interval)
    return current.reshape(()), tracker.reshape(())


OPS |= {
    "fill_": in_place(lambda x, *, value: x.fill_(value)),
    "copy_": in_place(lambda x, src: x.copy_(src)),
    "add_": in_place(lambda x, src: x.add_(src)),
    "mul_": in_place(lambda x, src: x.mul_(src)),
    "scatter_add_": in_place(lambda x, index, src, *, dim: x.scatter_add_(dim, index.long(), src)),
    "index_add_": in_place(lambda x, index, src, *, dim, alpha=1: x.index_add_(dim, index.long(), src, alpha=alpha)),
    "index_put_": (
        "",
        lambda x, values, *, indices, accumulate=False, **tensors: index_put(
            x, values, indices=indices, accumulate=accumulate, **tensors
        ),
    ),
    "accumulate_grad": ("", lambda y, x: y + x),
    "unscale_": ("", unscaled),
    "grad_scaler": ("", updated),
}


def cases(out):
    x, row = normal(3, 4), normal(4)
    out.case("fill_/number", {"x": x}, value=1.5)
    for op in ["copy_", "add_", "mul_"]:
        out.case(f"{op}/same", {"x": x, "src": normal(3, 4)})
        out.case(f"{op}/broadcast", {"x": x, "src": row})
    out.case("scatter_add_/rows", {"x": x, "index": i64([[0, 2, 2, 0], [0, 0, 1, 1]]), "src": normal(2, 4)}, dim=0)
    out.case("scatter_add_/columns", {"x": x, "index": i32([[3], [3], [0]]), "src": normal(3, 1)}, dim=-1)
    out.case("index_add_/rows", {"x": x, "index": i64([2, 0, 2]), "src": normal(3, 4)}, dim=0)
    out.case("index_add_/columns", {"x": x, "index": i32([1, 1]), "src": normal(3, 2)}, dim=1, alpha=-0.5)
    pairs = {"i0": i64([0, -1, 0]), "i1": i64([1, 2, 1])}
    for name, accumulate in [("assign", False), ("accumulate", True)]:
        indices = ["tensor:i0", "tensor:i1"]
        out.case(f"index_put_/{name}", {"x": x, "values": normal(3), **pairs}, indices=indices, accumulate=accumulate)
        masked = {"x": x, "values": normal(), "i0": x > 0}
        out.case(f"index_put_/{name}_mask", masked, indices=["tensor:i0"], accumulate=accumulate)
    out.case("accumulate_grad/same", {"y": x, "x": normal(3, 4)})
    out.case("accumulate_grad/broadcast", {"y": x, "x": row})
    for name, bad in [("finite", 1.0), ("infinity", INF), ("nan", NAN)]:
        grads = {"g0": normal(2, 3), "g1": f64([bad, 2.0])}
        out.case(f"unscale_/{name}", grads, scale=1024.0)
        factors = {"growth": 2.0, "backoff": 0.5, "interval": 2}
        out.case(f"grad_scaler/{name}", grads, scale=8.0, **factors)
