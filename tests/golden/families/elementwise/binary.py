"""Functions of two tensors, element by element."""

import torch

from common import F32, I32, INF, NAN, OPS, f64, i32, i64, integers, label, mask, normal, of_a_b, positive, sweep, u8


def div(a, b, *, rounding="none"):
    return torch.div(a, b, rounding_mode=None if rounding == "none" else rounding)


def pow_(a, b=None, *, exponent=None):
    return torch.pow(a, exponent if b is None else b)


def hypot(a, b):
    """Its gradient at the origin is 0; PyTorch's is NaN."""
    is_origin = (a == 0) & (b == 0)
    return torch.where(is_origin, 0, torch.hypot(torch.where(is_origin, 1, a), b))


FLOATS = "atan2 logaddexp xlogy fmax fmin".split()
DIVISIONS = "remainder fmod".split()
BITS = "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift".split()


# Functions of a tensor and a number. name: the reference, how the inputs of its sweep are drawn, and the number
SCALARS = {
    "add_scalar": (lambda x, *, scalar: x + scalar, normal, -1.75),
    "sub_scalar": (lambda x, *, scalar: x - scalar, normal, -1.75),
    "mul_scalar": (lambda x, *, scalar: x * scalar, normal, -1.75),
    "div_scalar": (lambda x, *, scalar: x / scalar, normal, -1.75),
    "rsub_scalar": (lambda x, *, scalar: scalar - x, normal, -1.75),
    "rdiv_scalar": (lambda x, *, scalar: scalar / x, positive, -1.75),
    "rpow_scalar": (lambda x, *, scalar: torch.pow(scalar, x), normal, 1.75),
}


OPS |= {name: ("x", reference) for name, (reference, *_) in SCALARS.items()}
OPS |= {
    "add": ("a b", lambda a, b, *, alpha=1: torch.add(a, b, alpha=alpha)),
    "sub": ("a b", lambda a, b, *, alpha=1: torch.sub(a, b, alpha=alpha)),
    "mul": of_a_b(torch.mul),
    "div": ("a b", div),
    "pow": ("a b", pow_),
    "maximum": of_a_b(torch.maximum),
    "minimum": of_a_b(torch.minimum),
    **{name: of_a_b(getattr(torch, name), "") for name in "eq ne lt gt le ge heaviside logical_and logical_or logical_xor".split()},
    **{name: of_a_b(getattr(torch, name)) for name in FLOATS + DIVISIONS},
    "hypot": of_a_b(hypot),
    "copysign": of_a_b(torch.copysign, "a"),
    **{name: of_a_b(getattr(torch, name), "") for name in BITS},
}


PAIRS = [((), ()), ((7,), (7,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((3, 1, 2), ()), ((2, 1, 3, 1), (4, 1, 2)), ((2, 0), (1,))]


def cases(out):
    for op, attributes in [("add", {}), ("sub", {}), ("mul", {}), ("div", {}), ("maximum", {}), ("minimum", {})]:
        for a, b in PAIRS:
            out.case(f"{op}/{label(a)}_{label(b)}", {"a": normal(*a), "b": normal(*b)}, **attributes)
        special = {"a": f64([INF, INF, NAN, 0.0, -0.0, 1.0, -1.0, 3.0]), "b": f64([INF, -INF, 1.0, 0.0, 0.0, 0.0, 0.0, NAN])}
        out.case(f"{op}/special", special, grads=[])
        out.error(f"{op}/shapes", "Shape", {"a": normal(2, 3), "b": normal(4)})
        out.error(f"{op}/mixed_dtypes", "Dtype", {"a": normal(2), "b": integers(2)})
        out.error(f"{op}/mixed_widths", "Dtype", {"a": normal(2), "b": normal(2).to(F32)})
    for op in "add", "sub":
        out.case(f"{op}/alpha", {"a": normal(2, 3), "b": normal(3)}, alpha=-2.5)
        out.case(f"{op}/alpha_integers", {"a": integers(2, 3), "b": integers(3)}, alpha=3)
    for op in "add", "sub", "mul", "maximum", "minimum":
        out.case(f"{op}/i64", {"a": integers(2, 3), "b": integers(3)})
        out.case(
            f"{op}/i32_wraps",
            {"a": i32([2**31 - 1, -(2**31), 5]), "b": i32([2, 2, -7])},
            **({} if op[0] == "m" else {"alpha": 1}),
        )
    for op in "maximum", "minimum":
        out.case(f"{op}/ties", {"a": f64([1.0, 2.0, 3.0]), "b": f64([1.0, 3.0, 2.0])})
    divisions(out)
    functions(out)
    bits(out)
    powers(out)
    comparisons(out)
    bytes_and_bools(out)
    scalars(out)
    logic(out)
    literals(out)


def divisions(out):
    a = f64([7.0, -7.0, 7.0, -7.0, 6.0, 0.3, 1.0, 0.0, -1.0, INF, 5.0])
    b = f64([2.0, 2.0, -2.0, -2.0, 3.0, 0.1, 0.0, 0.0, 0.0, 2.0, INF])
    m, n = i64([7, -7, 7, -7, 6, 0]), i64([2, 2, -2, -2, 3, 5])
    for rounding in "floor", "trunc":
        out.case(f"div/{rounding}", {"a": a, "b": b}, grads=[], rounding=rounding)
        out.case(f"div/{rounding}_i64", {"a": m, "b": n}, rounding=rounding)
        out.case(f"div/{rounding}_i32_broadcast", {"a": m.to(I32).reshape(2, 3), "b": i32(-4)}, rounding=rounding)
        out.error(f"div/{rounding}_by_zero", "Value", {"a": m, "b": i64([1, 0, 1, 1, 1, 1])}, rounding=rounding)
    out.error("div/true_integers", "Dtype", {"a": m, "b": n})


def functions(out):
    special = {
        "a": f64([INF, INF, -INF, -INF, NAN, 0.0, -0.0, 0.0, 0.0, 1.0, -1.0, 3.0, 0.0, -2.0]),
        "b": f64([INF, -INF, -INF, 1.0, 1.0, 0.0, 0.0, -0.0, -1.0, 0.0, 0.0, NAN, NAN, -0.0]),
    }
    for op in FLOATS + ["hypot", "copysign", "heaviside"] + DIVISIONS:
        for a, b in PAIRS:
            out.case(f"{op}/{label(a)}_{label(b)}", {"a": normal(*a), "b": positive(*b)})
        # A remainder of PyTorch's by an infinity is not the formula's.
        kept = [k for k in range(14) if op not in DIVISIONS or abs(special["b"][k]) != INF]
        out.case(f"{op}/special", {name: x[kept] for name, x in special.items()}, grads=[])
        out.error(f"{op}/shapes", "Shape", {"a": normal(2, 3), "b": normal(4)})
        out.error(f"{op}/mixed_widths", "Dtype", {"a": normal(2), "b": normal(2).to(F32)})
    out.case("hypot/origin", {"a": f64([0.0, 3.0, 1e200, 1e-200]), "b": f64([0.0, -4.0, 1e200, 1e-200])})
    out.case("logaddexp/far", {"a": f64([1000.0, -1000.0, 0.5]), "b": f64([0.0, -1001.0, 0.5])})
    out.case("xlogy/zeros", {"a": f64([0.0, 0.0, 2.0]), "b": f64([0.0, 3.0, 0.5])}, grads=["a"])
    for op in "fmax", "fmin":
        out.case(f"{op}/ties", {"a": f64([1.0, 2.0, 3.0, NAN, 1.0]), "b": f64([1.0, 3.0, 2.0, 1.0, NAN])})
    for op in DIVISIONS:
        a, b = f64([7.5, -7.5, 7.5, -7.5, 6.0, 0.0]), f64([2.0, 2.0, -2.0, -2.0, 4.0, 5.0])
        out.case(f"{op}/signs", {"a": a, "b": b})
        out.case(f"{op}/i64", {"a": i64([7, -7, 7, -7, 6, 0]), "b": i64([2, 2, -2, -2, 3, 5])})
        out.case(f"{op}/i32_broadcast", {"a": i32([[7, -7], [6, -1]]), "b": i32(-4)})
        out.error(f"{op}/by_zero", "Value", {"a": i64([1, 2]), "b": i64([1, 0])})
    out.case("heaviside/i64", {"a": i64([-5, 0, 7]), "b": i64([2, 3, 4])})
    out.case("logical_xor/broadcast", {"a": mask([[True, False, True]]), "b": mask([[True], [False]])})
    out.error("logical_xor/floats", "Dtype", {"a": normal(2), "b": normal(2)})


def bits(out):
    for op in BITS:
        is_shift = op.endswith("shift")
        b = [0, 1, 5, 31, 62] if is_shift else [7, -1, 2**62 + 5, 0, 12345]
        out.case(f"{op}/i64", {"a": i64([-(2**63), -3, 0, 7, 2**62 + 5]), "b": i64(b)})
        b = [0, 1, 5, 30] if is_shift else [7, -1, 2**30 + 5, 0]
        out.case(f"{op}/i32_broadcast", {"a": i32([[-(2**31)], [-3], [7]]), "b": i32(b)})
        out.error(f"{op}/floats", "Dtype", {"a": normal(2), "b": normal(2)})


def powers(out):
    for a, b in PAIRS:
        out.case(f"pow/{label(a)}_{label(b)}", {"a": positive(*a), "b": normal(*b)})
    out.case("pow/zeros", {"a": f64([0.0, 0.0, 0.0, 2.0, 1.0]), "b": f64([0.0, 1.0, 2.0, 0.0, 3.0])})
    special = {
        "a": f64([NAN, 1.0, -2.0, -2.0, 0.0, -0.0, INF, -INF, 0.5, 1.0]),
        "b": f64([0.0, NAN, 0.5, 3.0, -1.0, -1.0, -1.0, 3.0, INF, INF]),
    }
    out.case("pow/special", special, grads=[])
    out.case("pow/negative_base", {"a": f64([-2.0, -0.5, -3.0]), "b": f64([2.0, 3.0, -1.0])}, grads=["a"])
    for exponent in 0.0, 1.0, 2.0, 3.0, 0.5, -1.0, -0.5, -2.0, 1.7:
        out.case(f"pow/exponent{exponent}", {"a": positive(2, 3)}, exponent=exponent)
    out.case("pow/exponent2_signs", {"a": f64([-3.0, -0.0, 0.0, 2.0])}, exponent=2.0)
    out.case("pow/exponent0_nan", {"a": f64([NAN, INF, 0.0])}, grads=[], exponent=0.0)
    out.case("pow/integers", {"a": i64([2, -3, 0, 7, 10]), "b": i64([10, 3, 0, 1, 18])})
    out.case("pow/integers_negative_exponent", {"a": i64([1, -1, -1, 2, -5]), "b": i64([-3, -3, -2, -1, -2])})
    out.case("pow/integers_scalar", {"a": i64([2, -3, 0, 7])}, exponent=3)


def comparisons(out):
    values = f64([-INF, -1.0, -0.0, 0.0, 1.0, INF, NAN])
    a, b = values.repeat_interleave(7).reshape(7, 7), values.expand(7, 7)
    for op in "eq", "ne", "lt", "gt", "le", "ge":
        out.case(f"{op}/special", {"a": a, "b": b})
        out.case(f"{op}/broadcast", {"a": integers(3, 1, dtype=I32, low=0, high=3), "b": integers(4, dtype=I32, low=0, high=3)})
        big = 2**53
        out.case(f"{op}/i64_exact", {"a": i64([big, big + 1, -5]), "b": i64([big + 1, big + 1, -5])})
        out.case(f"{op}/empty", {"a": normal(0, 3), "b": normal(3)})
        out.error(f"{op}/mixed_dtypes", "Dtype", {"a": normal(2), "b": integers(2)})
        out.error(f"{op}/shapes", "Shape", {"a": normal(2), "b": normal(3)})


def bytes_and_bools(out):
    a, b = u8([[0], [1], [7], [100], [255]]), u8([1, 2, 3, 200, 255])
    for op in "add sub mul maximum minimum heaviside remainder fmod pow".split() + BITS:
        out.case(f"{op}/u8", {"a": a, "b": b})
    for op in "add", "sub":
        out.case(f"{op}/u8_alpha", {"a": a, "b": b}, alpha=3)
    out.case("pow/u8_scalar", {"a": a}, exponent=3)
    for rounding in "floor", "trunc":
        out.case(f"div/{rounding}_u8", {"a": a, "b": b}, rounding=rounding)
        out.error(f"div/{rounding}_u8_by_zero", "Value", {"a": b, "b": u8([0])}, rounding=rounding)
    out.error("div/true_u8", "Dtype", {"a": a, "b": b})
    for op in DIVISIONS:
        out.error(f"{op}/u8_by_zero", "Value", {"a": b, "b": u8([0])})
    bools = {"a": mask([[True], [False]]), "b": mask([True, False])}
    for op in "maximum", "minimum":
        out.case(f"{op}/bools", bools)
    for op in "add", "sub", "mul", "bitwise_and":
        out.error(f"{op}/bools", "Dtype", bools)


def scalars(out):
    for op, (_, make, scalar) in SCALARS.items():
        sweep(out, op, make=make, scalar=scalar)
    for op, scalar in [("add_scalar", 200), ("sub_scalar", 2), ("mul_scalar", 3), ("rsub_scalar", 1)]:
        out.case(f"{op}/u8", {"x": u8([0, 1, 7, 128, 255])}, scalar=scalar)


def logic(out):
    a, b = mask([[True, False, True], [False, False, True]]), mask([[True], [False]])
    out.case("logical_and/broadcast", {"a": a, "b": b})
    out.case("logical_or/broadcast", {"a": a, "b": b})


def literals(out):
    """Numbers that were written down beforehand, at eight digits, which PyTorch confirms."""
    inputs = {"a": f64([0.0, 0.0, 2.0, 2.0]), "b": f64([0.0, 2.0, 0.0, 3.0])}
    gradients = {"a": f64([0, 0, 0, 12]), "b": f64([0, 0, 0.69314718, 5.5451774])}
    out.literal("pow", inputs, [f64([1, 0, 1, 8])], gradients)
