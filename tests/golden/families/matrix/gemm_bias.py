"""Matrix products with a bias and an activation."""

import itertools

import torch
import torch.nn.functional as F

from common import F32, OPS, integers, label, normal


ACTIVATIONS = {
    "identity": lambda z: z,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
}


def gemm_bias(a, b, bias=None, *, trans_a=False, trans_b=False, activation="identity"):
    z = (a.t() if trans_a else a) @ (b.t() if trans_b else b)
    return ACTIVATIONS[activation](z if bias is None else z + bias)


OPS |= {
    "gemm_bias": ("a b bias", gemm_bias),
}


def cases(out):
    for activation in "identity", "relu", "gelu", "sigmoid", "tanh", "silu":
        start, given = "gemm_bias/" + ("" if activation == "identity" else f"{activation}_"), {"activation": activation}
        for ta, tb in itertools.product([False, True], repeat=2):
            a, b = normal(*((3, 2) if ta else (2, 3))), normal(*((4, 3) if tb else (3, 4)))
            inputs = {"a": a, "b": b, "bias": normal(4)}
            out.case(f"{start}2x3x4_{'nt'[ta]}{'nt'[tb]}", inputs, trans_a=ta, trans_b=tb, **given)
        for shape in [(3,), (2, 2, 3), (0, 3), (5, 3)]:
            out.case(f"{start}{label(shape)}_nt", {"a": normal(*shape), "b": normal(1, 3), "bias": normal(1)}, trans_b=True, **given)
        out.case(f"{start}empty_inner", {"a": normal(2, 0), "b": normal(0, 3), "bias": normal(3)}, **given)
        out.case(f"{start}no_bias", {"a": normal(4, 5), "b": normal(5, 6)}, **given)
        out.error(f"{start}inner", "Shape", {"a": normal(2, 3), "b": normal(4, 3), "bias": normal(3)}, **given)
        out.error(f"{start}bias", "Shape", {"a": normal(2, 3), "b": normal(3, 4), "bias": normal(1)}, **given)
        out.error(f"{start}turned_batches", "Shape", {"a": normal(2, 3, 2), "b": normal(3, 4), "bias": normal(4)}, trans_a=True, **given)
        out.error(f"{start}integers", "Dtype", {"a": integers(2, 2), "b": integers(2, 2), "bias": integers(2)}, **given)
        out.error(f"{start}mixed_dtypes", "Dtype", {"a": normal(2, 2), "b": normal(2, 2), "bias": normal(2).to(F32)}, **given)
    for ta, tb in itertools.product([False, True], repeat=2):
        a, b = normal(*((3, 5) if ta else (5, 3))), normal(*((2, 3) if tb else (3, 2)))
        inputs = {"a": a, "b": b, "bias": normal(2)}
        out.case(f"gemm_bias/gelu_tanh_{'nt'[ta]}{'nt'[tb]}", inputs, trans_a=ta, trans_b=tb, activation="gelu_tanh")
