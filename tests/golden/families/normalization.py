"""Norms of rows."""

import torch.nn.functional as F

from common import INF, NAN, OPS, f64, i64, normal


def layer_norm(x, weight=None, bias=None, *, dims=1, eps=1e-5):
    return F.layer_norm(x, x.shape[-dims:], weight, bias, eps)


def rms_norm(x, weight=None, *, dims=1, eps=1e-5):
    return F.rms_norm(x, x.shape[-dims:], weight, eps)


OPS |= {
    "layer_norm": ("x weight bias", layer_norm),
    "rms_norm": ("x weight", rms_norm),
}


def cases(out):
    for name, shape, dims in [("3x5", (3, 5), 1), ("2x3x4", (2, 3, 4), 2), ("7", (7,), 1), ("2x1", (2, 1), 1), ("0x3", (0, 3), 1)]:
        row = shape[-dims:]
        for eps in [1e-5, 0.1]:
            x, key = {"x": 3 * normal(*shape) + 1}, f"{name}_eps{eps}"
            weight, bias = {"weight": normal(*row)}, {"bias": normal(*row)}
            out.case(f"layer_norm/{key}", x, dims=dims, eps=eps)
            out.case(f"layer_norm/{key}_weight", x | weight, dims=dims, eps=eps)
            out.case(f"layer_norm/{key}_bias", x | weight | bias, dims=dims, eps=eps)
            out.case(f"rms_norm/{key}", x, dims=dims, eps=eps)
            out.case(f"rms_norm/{key}_weight", x | weight, dims=dims, eps=eps)
    equal = {"x": f64([[2.0, 2.0, 2.0], [0.0, 0.0, 0.0]])}
    special = {"x": f64([[NAN, 1.0], [INF, 1.0], [1e100, 1.0]])}
    for op in ["layer_norm", "rms_norm"]:
        out.case(f"{op}/equal", equal)
        out.case(f"{op}/special", special, grads=[])
        out.error(f"{op}/no_dims", "Attr", equal, dims=0)
        out.error(f"{op}/too_many_dims", "Attr", equal, dims=3)
        out.error(f"{op}/weight_shape", "Shape", equal | {"weight": normal(2)})
        out.error(f"{op}/integers", "Dtype", {"x": i64([[1, 2]])})
