"""Softmax, its logarithm, and their kin."""

import torch
import torch.nn.functional as F

from common import INF, NAN, OPS, f64, i64, label, normal


def softmax1(x, *, dim=-1):
    """The softmax beside a further element 0, which is left out."""
    if x.dim() == 0:
        return torch.sigmoid(x)
    shape = list(x.shape)
    shape[dim] = 1
    return F.softmax(torch.cat([x, torch.zeros(shape, dtype=x.dtype)], dim), dim).narrow(dim, 0, x.shape[dim])


OPS |= {
    "softmax": ("x", lambda x, *, dim=-1: F.softmax(x, dim)),
    "log_softmax": ("x", lambda x, *, dim=-1: F.log_softmax(x, dim)),
    "softmax1": ("x", softmax1),
    "softmin": ("x", lambda x, *, dim=-1: F.softmin(x, dim)),
}


def cases(out):
    shapes = [
        ((), -1),
        ((), 0),
        ((7,), 0),
        ((2, 3), -1),
        ((2, 3), 0),
        ((3, 1, 2), 1),
        ((2, 1, 3, 2), -2),
        ((2, 0), 1),
        ((0, 3), 1),
    ]
    for op in "softmax", "log_softmax", "softmin", "softmax1":
        for shape, dim in shapes:
            out.case(f"{op}/{label(shape)}_dim{dim}", {"x": 3 * normal(*shape)}, dim=dim)
        out.case(f"{op}/large", {"x": f64([[1000.0, 1001.0, 999.0], [-1000.0, -1002.0, -999.5]])})
        out.case(f"{op}/equal", {"x": f64([[2.5] * 5])})
        out.case(f"{op}/minus_inf_entry", {"x": f64([[-INF, 1.0, 2.0], [0.5, -INF, -INF]])})
        rows = [[-INF, -INF, -INF], [INF, 0.0, 1.0], [NAN, 0.0, 1.0], [0.0, 1.0, 2.0]]
        out.case(f"{op}/special_rows", {"x": f64(rows)}, grads=[])
        out.error(f"{op}/dim_out_of_range", "Attr", {"x": normal(2, 3)}, dim=2)
    out.error("softmax/integers", "Dtype", {"x": i64([1, -2])})
    literals(out)


def literals(out):
    """Numbers that were written down beforehand, at eight digits, which PyTorch confirms."""
    first = {0: f64([1.0, 0.0, 0.0])}
    x = {"x": f64([1.0, 2.0, 3.0])}
    out.literal(
        "softmax",
        x,
        [f64([0.090030573, 0.24472847, 0.66524096])],
        {"x": f64([0.081925069, -0.022033045, -0.059892025])},
        cotangents=first,
    )
    out.literal(
        "log_softmax",
        x,
        [f64([-2.407606, -1.407606, -0.40760596])],
        {"x": f64([0.90996943, -0.24472847, -0.66524096])},
        cotangents=first,
    )
