"""Matrix products."""

import itertools

import torch
import torch.nn.functional as F

from common import F32, F64, NAN, OPS, f64, integers, label, normal, of_a_b


def gemm(a, b, c=None, *, trans_a=False, trans_b=False, alpha=1.0, beta=0.0):
    """An operand with factor 0 is not read."""
    a, b = a.t() if trans_a else a, b.t() if trans_b else b
    y = alpha * (a @ b) if alpha != 0 else a.new_zeros(a.shape[0], b.shape[1])
    return y if beta == 0 else y + beta * c


def linear(x, w, b=None):
    return F.linear(x, w, b)


OPS |= {
    "gemm": ("a b c", gemm),
    "matmul": of_a_b(torch.matmul),
    "linear": ("x w b", linear),
}


def cases(out):
    gemms(out)
    products(out)
    affine(out)


def gemms(out):
    for m, k, n in [(1, 1, 1), (2, 3, 4), (5, 7, 1), (0, 3, 2), (2, 0, 3)]:
        for ta, tb in itertools.product([False, True], repeat=2):
            a, b = normal(*((k, m) if ta else (m, k))), normal(*((n, k) if tb else (k, n)))
            key = f"{m}x{k}x{n}_{'nt'[ta]}{'nt'[tb]}"
            out.case(f"gemm/{key}", {"a": a, "b": b}, trans_a=ta, trans_b=tb)
    abc = {"a": normal(2, 3), "b": normal(3, 4), "c": normal(2, 4)}
    out.case("gemm/alpha_beta", abc, alpha=0.7, beta=-1.3)
    out.case("gemm/beta_only_empty_inner", {"a": normal(2, 0), "b": normal(0, 3), "c": normal(2, 3)}, beta=2.0)
    unread = torch.full((2, 4), NAN, dtype=F64)
    out.case("gemm/beta0_ignores_c", abc | {"c": unread}, grads=["a", "b"])
    out.case("gemm/alpha0_ignores_ab", abc | {"a": torch.full((2, 3), NAN, dtype=F64)}, grads=["c"], alpha=0.0, beta=0.5)
    out.case("gemm/zero_times_nan", {"a": f64([[0.0, 1.0]]), "b": f64([[NAN], [1.0]])}, grads=[])
    out.error("gemm/inner", "Shape", {"a": normal(2, 3), "b": normal(2, 3)})
    out.error("gemm/rank", "Shape", {"a": normal(3), "b": normal(3, 2)})
    out.error("gemm/c_shape", "Shape", {**abc, "c": normal(3, 3)}, beta=1.0)
    out.error("gemm/integers", "Unsupported", {"a": integers(2, 2), "b": integers(2, 2)})
    out.error("gemm/mixed_dtypes", "Dtype", {"a": normal(2, 2), "b": normal(2, 2).to(F32)})


def products(out):
    shapes = [
        ((3,), (3,)),
        ((3,), (3, 2)),
        ((2, 3), (3,)),
        ((2, 3), (3, 5)),
        ((3,), (2, 3, 4)),
        ((2, 4, 3), (3,)),
        ((2, 2, 3), (2, 3, 4)),
        ((2, 2, 3), (3, 4)),
        ((2, 3), (2, 3, 4)),
        ((2, 1, 2, 3), (3, 3, 2)),
        ((1, 2, 3), (4, 3, 1)),
        ((2, 0, 3), (3, 4)),
        ((2, 2, 0), (2, 0, 3)),
        ((0, 2, 3), (0, 3, 2)),
        ((0,), (0,)),
    ]
    for a, b in shapes:
        out.case(f"matmul/{label(a)}_{label(b)}", {"a": normal(*a), "b": normal(*b)})
    out.error("matmul/scalar", "Shape", {"a": normal(), "b": normal(3)})
    out.error("matmul/inner", "Shape", {"a": normal(2, 3), "b": normal(4, 2)})
    out.error("matmul/batch", "Shape", {"a": normal(2, 2, 3), "b": normal(3, 3, 2)})
    out.error("matmul/mixed_dtypes", "Dtype", {"a": normal(2, 2), "b": integers(2, 2)})


def affine(out):
    for c in [(2, 4), (4,), (2, 1), ()]:
        inputs = {"c": normal(*c), "a": normal(2, 3), "b": normal(3, 4)}
        out.case(f"gemm/c_{label(c)}", inputs, beta=1.0)
        out.case(f"gemm/c_{label(c)}_scaled", inputs, beta=0.5, alpha=-2.0)
    out.case("gemm/c_empty_inner", {"c": normal(3), "a": normal(2, 0), "b": normal(0, 3)}, beta=2.0)
    out.case("gemm/c_beta0", {"c": f64([NAN]), "a": normal(2, 3), "b": normal(3, 4)}, grads=["a", "b"], beta=0.0)
    for shape in [(3,), (1, 3), (5, 3), (2, 1, 3), (0, 3)]:
        inputs = {"x": normal(*shape), "w": normal(4, 3)}
        out.case(f"linear/{label(shape)}", inputs)
        out.case(f"linear/{label(shape)}_bias", inputs | {"b": normal(4)})
    out.case("linear/empty_inner", {"x": normal(2, 0), "w": normal(3, 0), "b": normal(3)})
    out.error("gemm/c_c_shape", "Shape", {"c": normal(3), "a": normal(2, 3), "b": normal(3, 4)}, beta=1.0)
    out.error("linear/inner", "Shape", {"x": normal(2, 4), "w": normal(4, 3)})
    out.error("linear/bias", "Shape", {"x": normal(2, 3), "w": normal(4, 3), "b": normal(3)})
