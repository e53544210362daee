"""Norms of rows, and divisions by norms."""

import torch
import torch.nn.functional as F

from common import F32, INF, NAN, OPS, f64, i64, normal
from families.matrix.gemm_bias import ACTIVATIONS


def layer_norm(x, weight=None, bias=None, *, dims=1, eps=1e-5):
    return F.layer_norm(x, x.shape[-dims:], weight, bias, eps)


def rms_norm(x, weight=None, *, dims=1, eps=1e-5):
    return F.rms_norm(x, x.shape[-dims:], weight, eps)


def layer_norm_activation(x, weight=None, bias=None, *, dims=1, eps=1e-5, activation="identity"):
    return ACTIVATIONS[activation](layer_norm(x, weight, bias, dims=dims, eps=eps))


def residual_layer_norm(x, residual, weight=None, bias=None, *, dims=1, eps=1e-5):
    return layer_norm(x + residual, weight, bias, dims=dims, eps=eps), x + residual


def weight_norm(v, g, *, dim=None):
    return v * (g / v.norm()) if dim is None else torch._weight_norm(v, g, dim)


OPS |= {
    "layer_norm": ("x weight bias", layer_norm),
    "rms_norm": ("x weight", rms_norm),
    "layer_norm_activation": ("x weight bias", layer_norm_activation),
    "residual_layer_norm": ("x residual weight bias", residual_layer_norm),
    "normalize": ("x", lambda x, *, p=2.0, dim=1, eps=1e-12: F.normalize(x, float(p), dim, eps)),
    "local_response_norm": ("x", lambda x, *, size, alpha=1e-4, beta=0.75, k=1.0: F.local_response_norm(x, size, alpha, beta, k)),
    "weight_norm": ("v g", weight_norm),
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
    fused_with_norms(out, equal, special)
    by_norms(out)
    literals(out)


def fused_with_norms(out, equal, special):
    for name, shape, dims in [("3x5", (3, 5), 1), ("2x3x4", (2, 3, 4), 2), ("2x1", (2, 1), 1), ("0x3", (0, 3), 1)]:
        x, row = {"x": 3 * normal(*shape) + 1}, shape[-dims:]
        parameters = {"weight": normal(*row), "bias": normal(*row)}
        for activation in "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh":
            out.case(f"layer_norm_activation/{activation}_{name}", x | parameters, dims=dims, activation=activation)
        residual = {"residual": normal(*shape)}
        out.case(f"residual_layer_norm/{name}", x | residual, dims=dims, eps=0.1)
        out.case(f"residual_layer_norm/{name}_bias", x | residual | parameters, dims=dims)
    for activation in "relu", "gelu":
        out.case(f"layer_norm_activation/{activation}_no_parameters", {"x": normal(3, 5)}, activation=activation)
        out.case(f"layer_norm_activation/{activation}_special", special, grads=[], activation=activation)
    out.case("layer_norm_activation/relu_equal", equal, activation="relu")
    out.case("residual_layer_norm/special", special | {"residual": f64([[1.0, NAN], [-INF, 1.0], [1e100, 1.0]])}, grads=[])
    out.error("layer_norm_activation/integers", "Dtype", {"x": i64([[1, 2]])}, activation="relu")
    out.error("layer_norm_activation/weight_shape", "Shape", equal | {"weight": normal(2)}, activation="gelu")
    out.error("residual_layer_norm/shape", "Shape", equal | {"residual": normal(1, 3)})
    out.error("residual_layer_norm/dtype", "Dtype", equal | {"residual": normal(2, 3).to(F32)})
    out.error("residual_layer_norm/no_dims", "Attr", equal | {"residual": normal(2, 3)}, dims=0)


def by_norms(out):
    x = {"x": normal(3, 4)}
    for p in 1.0, 2.0, 3.0, INF:
        for dim in 0, 1:
            out.case(f"normalize/p{p}_{dim}", x, p=str(p) if p == INF else p, dim=dim)
    out.case("normalize/small", {"x": f64([[1e-3, 0.0], [2.0, 1.0]])}, eps=0.5)
    out.error("normalize/integers", "Dtype", {"x": i64([[1, 2]])})
    for size in 1, 2, 3, 8:
        out.case(f"local_response_norm/{size}", {"x": normal(2, 5, 3)}, size=size, alpha=0.5)
    out.case("local_response_norm/image", {"x": normal(1, 4, 2, 3)}, size=3, alpha=2.0, beta=0.5, k=2.0)
    out.case("local_response_norm/empty", {"x": normal(0, 4, 2)}, size=3)
    out.error("local_response_norm/matrix", "Shape", {"x": normal(2, 3)}, size=3)
    out.error("local_response_norm/size", "Attr", {"x": normal(2, 3, 1)}, size=0)
    out.case("weight_norm/rows", {"v": normal(3, 2, 2), "g": normal(3, 1, 1)}, dim=0)
    out.case("weight_norm/last", {"v": normal(3, 2), "g": normal(1, 2)}, dim=1)
    out.case("weight_norm/whole", {"v": normal(3, 2), "g": normal()})
    out.error("weight_norm/shape", "Shape", {"v": normal(3, 2), "g": normal(3)}, dim=0)


def literals(out):
    """Numbers that were written down beforehand, at eight digits, which PyTorch confirms."""
    x, g = f64([1.0, 2.0, 4.0]), {0: f64([1.0, 0.0, -1.0])}
    weight, bias = f64([1.0, 2.0, 3.0]), f64([0.0, 1.0, -1.0])
    gradients = {"x": f64([-0.11453084, 0.17181258, -0.057281741]), "weight": f64([-1.0690415, 0, -1.3363019]), "bias": g[0]}
    y = f64([-1.0690415, 0.46547923, 3.0089057])
    out.literal("layer_norm", {"x": x, "weight": weight, "bias": bias}, [y], gradients, cotangents=g)
    gradients = {"x": f64([0.57594517, 0.39596193, -0.34196874]), "weight": f64([0.3779642, 0, -1.5118568])}
    y = f64([0.3779642, 1.5118568, 4.5355704])
    out.literal("rms_norm", {"x": x, "weight": weight}, [y], gradients, cotangents=g)
