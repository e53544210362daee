"""Functions of one tensor, element by element."""

import torch

from common import F64, INF, NAN, OPS, f64, i32, i64, mask, normal, of_x, positive, sweep, u8


# Functions of PyTorch by their names there: of all numbers, and of positive ones.
OF_NUMBERS = "neg abs exp sin cos square floor ceil trunc round frac sign expm1 erf exp2 atan sinh cosh asinh sinc erfc".split()
OF_POSITIVE = "log sqrt rsqrt reciprocal log1p log2 log10".split()
# Functions of numbers between 0 and 1.
OF_FRACTIONS = "tan asin acos atanh".split()
KINDS = "isnan isinf isfinite".split()
# The gradient of these is 0; a tape drops them.
STEPS = "floor ceil trunc round sign".split()

def nan_to_num(x, *, nan=0.0, infinity=None, minus_infinity=None):
    return torch.nan_to_num(x, nan, infinity, minus_infinity)


OPS |= {name: of_x(getattr(torch, name), "" if name in STEPS else "x") for name in OF_NUMBERS + OF_POSITIVE + OF_FRACTIONS}
OPS |= {name: of_x(getattr(torch, name), "") for name in KINDS}


def log(x):
    """The logarithm, whose gradient is NaN where it is."""
    is_outside = x < 0
    return torch.log(torch.where(is_outside, torch.sqrt(torch.where(is_outside, x, 1.0)), x))


OPS |= {
    "log": of_x(log),
    "acosh": of_x(torch.acosh),
    "erfinv": of_x(torch.special.erfinv),
    "entr": of_x(torch.special.entr),
    "lgamma": of_x(torch.lgamma),
    "digamma": of_x(torch.digamma),
    "logit": ("x", lambda x, *, eps=None: torch.logit(x, eps)),
    "nan_to_num": ("x", nan_to_num),
    "bitwise_not": of_x(torch.bitwise_not, ""),
    "logical_not": of_x(torch.logical_not, ""),
    "not_finite": of_x(lambda x: ~torch.isfinite(x), ""),
}


def fraction(*shape):
    return 0.05 + 0.9 * torch.rand(shape, dtype=F64)


def cases(out):
    steps = f64([-2.5, -1.5, -0.5, -0.0, 0.0, 0.5, 1.5, 2.5, 3.7, -3.7, 1e17])
    for op in OF_NUMBERS:
        sweep(out, op, make=lambda *shape: 3 * normal(*shape))
        out.case(f"{op}/steps", {"x": steps[:-1]})
        out.case(f"{op}/special", {"x": f64([-INF, -1e17, -0.0, 0.0, 1e-300, 1e17, INF, NAN])}, grads=[])
    for op in OF_POSITIVE:
        sweep(out, op, make=positive)
        out.case(f"{op}/special", {"x": f64([-INF, -2.0, -1.0, -0.0, 0.0, 1e-300, 1e300, INF, NAN])}, grads=[])
    special = f64([-INF, -2.0, -1.0, -0.5, -0.0, 0.0, 1e-300, 0.5, 1.0, 2.0, INF, NAN])
    for op in OF_FRACTIONS:
        sweep(out, op, make=fraction)
        out.case(f"{op}/special", {"x": special}, grads=[])
        out.case(f"{op}/negative", {"x": f64([-0.9, -0.3, -1e-9, 1e-9])})
    sweep(out, "acosh", make=lambda *shape: 1 + positive(*shape))
    out.case("acosh/special", {"x": special}, grads=[])
    for op in KINDS:
        out.case(f"{op}/special", {"x": special})
    sweep(out, "logit", make=fraction)
    out.case("logit/special", {"x": special}, grads=[])
    out.case("logit/eps", {"x": f64([-1.0, 0.0, 0.05, 0.3, 0.5, 0.97, 1.0, 3.0])}, eps=0.1)
    out.error("logit/eps_beyond_half", "Attr", {"x": special}, eps=0.6)
    out.case("nan_to_num/defaults", {"x": special})
    out.case("nan_to_num/numbers", {"x": special}, nan=3.5, infinity=9.0, minus_infinity=-7.0)
    out.case("bitwise_not/i64", {"x": i64([-(2**63), -3, 0, 7])})
    out.case("bitwise_not/i32", {"x": i32([-(2**31), -3, 0, 7])})
    out.error("bitwise_not/floats", "Dtype", {"x": normal(2)})
    out.case("sinc/whole", {"x": f64([-2.0, 0.0, 1e-200, 1.0, 3.0])})
    out.case("abs/kink", {"x": f64([-0.0, 0.0, NAN, -INF, INF])})
    out.case("sqrt/zero", {"x": f64([0.0, 4.0, -1.0])})
    out.case("log/negative", {"x": f64([-2.0, 0.0, 0.5])})
    out.case("reciprocal/signs", {"x": f64([-2.0, 0.0, -0.0, 0.5])})
    out.case("rsqrt/zero", {"x": f64([0.0, 4.0, -1.0])})
    out.case("log1p/small", {"x": f64([1e-12, -1e-12, -0.5])})
    out.case("expm1/small", {"x": f64([1e-12, -1e-12, -40.0])})
    for op in "sin", "cos":
        out.case(f"{op}/range_reduction", {"x": f64([1e5, -1e8, 1e15, 3.141592653589793])})
    for op in "neg abs square sign".split():
        out.case(f"{op}/i64", {"x": i64([-(2**63), -3, 0, 7])})
        out.case(f"{op}/i32", {"x": i32([-(2**31), -3, 0, 7])})
    for op in "exp log sqrt rsqrt sin cos floor reciprocal".split():
        out.error(f"{op}/integers", "Dtype", {"x": i64([1, 2])})
    sweep(out, "erfinv", make=fraction)
    out.case("erfinv/special", {"x": special}, grads=[])
    out.case("erfinv/edges", {"x": f64([-0.999999999999, -0.5, -1e-9, 1e-300, 0.5, 0.97, 1 - 2**-50])})
    beside_poles = f64([-0.3, -1.7, -20.4, -3.001, 0.01, 0.499, 0.5, 7.99, 8.0, 30.0, 1e6])
    sweep(out, "lgamma", make=positive)
    out.case("lgamma/negative", {"x": beside_poles})
    # PyTorch's gradient has an error of 1e-9.
    out.case("digamma/positive", {"x": positive(7)}, grads=[])
    out.case("digamma/negative", {"x": beside_poles}, grads=[])
    out.case("lgamma/special", {"x": f64([-INF, -2.0, -1.0, -0.0, 0.0, 1.0, 2.0, 1e-300, 1e300, INF, NAN])}, grads=[])
    out.case("digamma/special", {"x": f64([-2.0, -1.0, 0.0, 1.0, 1e300, INF, NAN])}, grads=[])
    for op in "neg abs square sign bitwise_not".split():
        out.case(f"{op}/u8", {"x": u8([0, 1, 7, 128, 255])})
        out.error(f"{op}/bools", "Dtype", {"x": mask([True])})
    out.case("logical_not/mask", {"x": mask([[True, False, True], [False, False, True]])})
    out.case("not_finite/special", {"x": f64([0.0, -0.0, 1e308, -1e308, INF, -INF, NAN, 5e-324])})
    sweep(out, "entr", make=positive)
    out.case("entr/special", {"x": special}, grads=[])
