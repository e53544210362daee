"""Copies and casts."""

import math

import torch

from common import DTYPES, I32, INF, NAN, OPS, f64, i64, integers, mask, normal, of_x, sweep


def cast(x, *, dtype):
    target = DTYPES[dtype]
    if not x.is_floating_point() or target.is_floating_point or target == torch.bool:
        return x.to(target)
    info = torch.iinfo(target)
    return torch.tensor([saturate(v, info) for v in x.flatten().tolist()], dtype=target).reshape(x.shape)


def saturate(value, info):
    if math.isnan(value):
        return 0
    if value >= info.max:
        return info.max
    return int(value) if value > info.min else info.min


OPS |= {
    "copy": of_x(torch.clone),
    "contiguous": of_x(torch.clone),
    "cast": ("x", cast),
}


def cases(out):
    for op in "copy", "contiguous":
        sweep(out, op)
        out.case(f"{op}/special", {"x": f64([-0.0, NAN, INF, -INF, 5e-324])})
        out.case(f"{op}/integers", {"x": integers(2, 3, dtype=I32)})
        out.case(f"{op}/bools", {"x": mask([True, False])})
    casts(out)


def casts(out):
    reals = f64([0.0, -0.0, 0.1, -1.5, 2.5, 1 / 3, 2049.0, 65519.0, 65520.0, 6e-8, 1e-40, 3e38, 1e39, INF, -INF, NAN])
    for dtype in "f64", "f32", "f16", "bf16", "i32", "i64", "u8", "bool":
        out.case(f"cast/f64_to_{dtype}", {"x": reals}, grads=[], dtype=dtype)
        out.case(f"cast/i64_to_{dtype}", {"x": i64([0, 1, 2, 7, 100])}, dtype=dtype)
        out.case(f"cast/bool_to_{dtype}", {"x": mask([True, False])}, dtype=dtype)
    out.case("cast/f64_saturates_i32", {"x": f64([1e10, -1e10, 2147483647.9, -2147483648.9])}, dtype="i32")
    out.case("cast/f64_saturates_i64", {"x": f64([1e30, -1e30, 9.3e18])}, dtype="i64")
    for dtype in "f32", "f64":
        out.case(f"cast/gradient_{dtype}", {"x": normal(2, 3)}, dtype=dtype)
    for dtype in "f32", "f16", "bf16":
        out.case(f"cast/{dtype}_to_f64", {"x": cast_to(f64([1 / 3, -2.7, 1e-7, 60000.0, INF]), dtype)}, grads=[], dtype="f64")


def cast_to(x, dtype):
    return OPS["cast"][1](x, dtype=dtype)
