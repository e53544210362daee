"""The ops of isograd's registry. Written by generate.py: do not edit."""

# ruff: noqa: A001, A002, E501
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._call import call as _call
from ._isograd import Tensor


def relu(x: Tensor) -> Any:
    """`max(x, 0)`; the gradient at 0 is 0. Float dtypes.

    x: tensor
    """
    return _call("relu", [("x", x)], {})


def leaky_relu(x: Tensor, slope: float) -> Any:
    """`x` where positive, `slope x` elsewhere. Float dtypes.

    x: tensor
    slope: a number
    """
    return _call("leaky_relu", [("x", x)], {"slope": slope})


def sigmoid(x: Tensor) -> Any:
    """`1 / (1 + e^-x)`. Float dtypes.

    x: tensor
    """
    return _call("sigmoid", [("x", x)], {})


def tanh(x: Tensor) -> Any:
    """The hyperbolic tangent. Float dtypes.

    x: tensor
    """
    return _call("tanh", [("x", x)], {})


def gelu(x: Tensor, approximate: Any) -> Any:
    """The Gaussian error linear unit. Float dtypes. Hendrycks, Gimpel 2016, arXiv 1606.08415.

    x: tensor
    approximate: none or tanh
    """
    return _call("gelu", [("x", x)], {"approximate": approximate})


def silu(x: Tensor) -> Any:
    """`x sigmoid(x)`. Float dtypes. Elfwing et al. 2017, arXiv 1702.03118.

    x: tensor
    """
    return _call("silu", [("x", x)], {})


def elu(x: Tensor, alpha: float) -> Any:
    """`x` where positive, `alpha (e^x - 1)` elsewhere. Float dtypes. Clevert et al. 2015, arXiv 1511.07289.

    x: tensor
    alpha: a number
    """
    return _call("elu", [("x", x)], {"alpha": alpha})


def celu(x: Tensor, alpha: float) -> Any:
    """`x` where positive, `alpha (e^(x / alpha) - 1)` elsewhere. Float dtypes. Errors: `Attr` if alpha is 0.

    x: tensor
    alpha: a number
    """
    return _call("celu", [("x", x)], {"alpha": alpha})


def selu(x: Tensor, alpha: float | None = None, gamma: float | None = None) -> Any:
    """The scaled elu of self-normalising networks, `selu_with` of alpha 1.6732632423543772 and gamma 1.0507009873554805. Float dtypes. Klambauer et al. 2017, arXiv 1706.02515.

    x: tensor
    alpha: a number
    gamma: a number
    """
    return _call("selu", [("x", x)], {"alpha": alpha, "gamma": gamma})


def softsign(x: Tensor) -> Any:
    """`x / (1 + |x|)`; 1 and -1 at the infinities. Float dtypes. Turian et al. 2009.

    x: tensor
    """
    return _call("softsign", [("x", x)], {})


def logsigmoid(x: Tensor) -> Any:
    """`ln(sigmoid(x))` without overflow. Float dtypes.

    x: tensor
    """
    return _call("logsigmoid", [("x", x)], {})


def tanhshrink(x: Tensor) -> Any:
    """`x - tanh(x)`. Float dtypes.

    x: tensor
    """
    return _call("tanhshrink", [("x", x)], {})


def softshrink(x: Tensor, lambda_: float) -> Any:
    """`x - lambda` above lambda, `x + lambda` below -lambda, and 0 between. Float dtypes. Lambda is rounded to the dtype of x first. Errors: `Attr` if lambda is negative.

    x: tensor
    lambda_: a number
    """
    return _call("softshrink", [("x", x)], {"lambda": lambda_})


def hardshrink(x: Tensor, lambda_: float) -> Any:
    """`x` outside of -lambda to lambda, and 0 within. Float dtypes. Lambda is rounded to the dtype of x first. Errors: `Attr` if lambda is negative.

    x: tensor
    lambda_: a number
    """
    return _call("hardshrink", [("x", x)], {"lambda": lambda_})


def prelu(x: Tensor, weight: Tensor) -> Any:
    """`x` where positive, `weight x` elsewhere. `weight`: `[1]`, or `[C]`, one for each channel of x `[N, C, ..]`. The gradient of x at 0 is that of a negative number. Float dtypes. Errors: `Shape`. He et al. 2015, arXiv 1502.01852.

    x: tensor
    weight: tensor
    """
    return _call("prelu", [("x", x), ("weight", weight)], {})


def glu(x: Tensor, dim: int) -> Any:
    """Halves the axis `dim`: the first half times the sigmoid of the second. Float dtypes. Errors: `Attr` if there is no such axis; `Shape` if its size is odd. Dauphin et al. 2016, arXiv 1612.08083.

    x: tensor
    dim: an integer
    """
    return _call("glu", [("x", x)], {"dim": dim})


def mish(x: Tensor) -> Any:
    """`x tanh(softplus(x))`. Float dtypes. Misra 2019, arXiv 1908.08681.

    x: tensor
    """
    return _call("mish", [("x", x)], {})


def softplus(x: Tensor, beta: float, threshold: float) -> Any:
    """`ln(1 + e^(beta x)) / beta`, and `x` where `beta x > threshold`. Float dtypes. Errors: `Attr` if beta is 0.

    x: tensor
    beta: a number
    threshold: a number
    """
    return _call("softplus", [("x", x)], {"beta": beta, "threshold": threshold})


def hardswish(x: Tensor) -> Any:
    """`x relu6(x + 3) / 6`; 0 at -infinity. Float dtypes. Howard et al. 2019, arXiv 1905.02244.

    x: tensor
    """
    return _call("hardswish", [("x", x)], {})


def hardsigmoid(x: Tensor, alpha: float = 0.16666666666666666, beta: float = 0.5) -> Any:
    """`relu6(x + 3) / 6`: `hardsigmoid_with` of alpha 1/6 and beta 1/2. Float dtypes.

    x: tensor
    alpha: a number
    beta: a number
    """
    return _call("hardsigmoid", [("x", x)], {"alpha": alpha, "beta": beta})


def relu6(x: Tensor) -> Any:
    """`min(max(x, 0), 6)`. Float dtypes.

    x: tensor
    """
    return _call("relu6", [("x", x)], {})


def hardtanh(x: Tensor, min: float, max: float) -> Any:
    """`min(max(x, lo), hi)`; the gradient at the bounds is 0. Float dtypes. The bounds are rounded to the dtype of x first. Errors: `Attr` if `lo > hi`.

    x: tensor
    min: a number
    max: a number
    """
    return _call("hardtanh", [("x", x)], {"min": min, "max": max})


def threshold(x: Tensor, threshold: float, value: float) -> Any:
    """`value` where `x <= threshold`, `x` elsewhere. Float dtypes. Both numbers are rounded to the dtype of x.

    x: tensor
    threshold: a number
    value: a number
    """
    return _call("threshold", [("x", x)], {"threshold": threshold, "value": value})


def relu_squared(x: Tensor) -> Any:
    """`max(x, 0)^2`. Float dtypes. So et al. 2021, arXiv 2109.08668.

    x: tensor
    """
    return _call("relu_squared", [("x", x)], {})


def swiglu(gate: Tensor, up: Tensor, alpha: float = 1.0, beta: float = 0.0, limit: float | None = None) -> Any:
    """`silu(gate) up` for this tensor `gate`. Float dtypes. Errors: `Shape` if the shapes differ. Shazeer 2020, arXiv 2002.05202.

    gate: tensor
    up: tensor
    alpha: a number
    beta: a number
    limit: a number
    """
    return _call("swiglu", [("gate", gate), ("up", up)], {"alpha": alpha, "beta": beta, "limit": limit})


def silu_and_mul(x: Tensor) -> Any:
    """`silu(x[.., :H]) x[.., H:]` for `x: [.., 2H]`. Float dtypes. Errors: `Shape` if the last dimension is odd or missing.

    x: tensor
    """
    return _call("silu_and_mul", [("x", x)], {})


def neg(x: Tensor) -> Any:
    """`-x`. Float and integer dtypes; integers wrap.

    x: tensor
    """
    return _call("neg", [("x", x)], {})


def abs(x: Tensor) -> Any:
    """`|x|`; the gradient at 0 is 0. Float and integer dtypes; the smallest integer stays as it is.

    x: tensor
    """
    return _call("abs", [("x", x)], {})


def exp(x: Tensor) -> Any:
    """`e^x`. Float dtypes.

    x: tensor
    """
    return _call("exp", [("x", x)], {})


def expm1(x: Tensor) -> Any:
    """`e^x - 1`, exact near 0. Float dtypes.

    x: tensor
    """
    return _call("expm1", [("x", x)], {})


def log(x: Tensor) -> Any:
    """The natural logarithm. Float dtypes.

    x: tensor
    """
    return _call("log", [("x", x)], {})


def log1p(x: Tensor) -> Any:
    """`ln(1 + x)`, exact near 0. Float dtypes.

    x: tensor
    """
    return _call("log1p", [("x", x)], {})


def sqrt(x: Tensor) -> Any:
    """The square root. Float dtypes.

    x: tensor
    """
    return _call("sqrt", [("x", x)], {})


def rsqrt(x: Tensor) -> Any:
    """`1 / sqrt(x)`. Float dtypes.

    x: tensor
    """
    return _call("rsqrt", [("x", x)], {})


def sin(x: Tensor) -> Any:
    """The sine. Float dtypes.

    x: tensor
    """
    return _call("sin", [("x", x)], {})


def cos(x: Tensor) -> Any:
    """The cosine. Float dtypes.

    x: tensor
    """
    return _call("cos", [("x", x)], {})


def erf(x: Tensor) -> Any:
    """The error function. Float dtypes.

    x: tensor
    """
    return _call("erf", [("x", x)], {})


def erfc(x: Tensor) -> Any:
    """`1 - erf(x)`, exact for large x. Float dtypes.

    x: tensor
    """
    return _call("erfc", [("x", x)], {})


def erfinv(x: Tensor) -> Any:
    """The number whose error function is x; infinite at 1 and -1, NaN outside of them. Float dtypes.

    x: tensor
    """
    return _call("erfinv", [("x", x)], {})


def lgamma(x: Tensor) -> Any:
    """The logarithm of the absolute value of the gamma function; infinity at 0 and negative integers. Float dtypes.

    x: tensor
    """
    return _call("lgamma", [("x", x)], {})


def digamma(x: Tensor) -> Any:
    """The derivative of `lgamma`; NaN at negative integers. Float dtypes.

    x: tensor
    """
    return _call("digamma", [("x", x)], {})


def exp2(x: Tensor) -> Any:
    """`2^x`. Float dtypes.

    x: tensor
    """
    return _call("exp2", [("x", x)], {})


def log2(x: Tensor) -> Any:
    """The logarithm to the base 2. Float dtypes.

    x: tensor
    """
    return _call("log2", [("x", x)], {})


def log10(x: Tensor) -> Any:
    """The logarithm to the base 10. Float dtypes.

    x: tensor
    """
    return _call("log10", [("x", x)], {})


def tan(x: Tensor) -> Any:
    """The tangent. Float dtypes.

    x: tensor
    """
    return _call("tan", [("x", x)], {})


def asin(x: Tensor) -> Any:
    """The inverse sine, `-pi/2` to `pi/2`; NaN outside of -1 to 1. Float dtypes.

    x: tensor
    """
    return _call("asin", [("x", x)], {})


def acos(x: Tensor) -> Any:
    """The inverse cosine, 0 to `pi`; NaN outside of -1 to 1. Float dtypes.

    x: tensor
    """
    return _call("acos", [("x", x)], {})


def atan(x: Tensor) -> Any:
    """The inverse tangent, `-pi/2` to `pi/2`. Float dtypes.

    x: tensor
    """
    return _call("atan", [("x", x)], {})


def sinh(x: Tensor) -> Any:
    """The hyperbolic sine. Float dtypes.

    x: tensor
    """
    return _call("sinh", [("x", x)], {})


def cosh(x: Tensor) -> Any:
    """The hyperbolic cosine. Float dtypes.

    x: tensor
    """
    return _call("cosh", [("x", x)], {})


def asinh(x: Tensor) -> Any:
    """The inverse hyperbolic sine. Float dtypes.

    x: tensor
    """
    return _call("asinh", [("x", x)], {})


def acosh(x: Tensor) -> Any:
    """The inverse hyperbolic cosine; NaN below 1. Float dtypes.

    x: tensor
    """
    return _call("acosh", [("x", x)], {})


def atanh(x: Tensor) -> Any:
    """The inverse hyperbolic tangent; NaN outside of -1 to 1. Float dtypes.

    x: tensor
    """
    return _call("atanh", [("x", x)], {})


def sinc(x: Tensor) -> Any:
    """`sin(pi x) / (pi x)`, and 1 at 0. Float dtypes.

    x: tensor
    """
    return _call("sinc", [("x", x)], {})


def entr(x: Tensor) -> Any:
    """The entropy `-x ln x`: 0 at 0, -inf for negative x. Float dtypes.

    x: tensor
    """
    return _call("entr", [("x", x)], {})


def logit(x: Tensor, eps: float | None = None) -> Any:
    """`ln(x / (1 - x))`; NaN outside of 0 to 1, as the gradient. With `eps`, x is first limited to `eps .. 1 - eps`, outside of which the gradient is 0. Float dtypes. Errors: `Attr` if eps is not within 0 .. 0.5.

    x: tensor
    eps: a number
    """
    return _call("logit", [("x", x)], {"eps": eps})


def nan_to_num(x: Tensor, nan: float | None = None, infinity: float | None = None, minus_infinity: float | None = None) -> Any:
    """Numbers in the places of NaN and of infinities, whose gradients are 0. Float dtypes.

    x: tensor
    nan: a number
    infinity: a number
    minus_infinity: a number
    """
    return _call("nan_to_num", [("x", x)], {"nan": nan, "infinity": infinity, "minus_infinity": minus_infinity})


def square(x: Tensor) -> Any:
    """`x^2`. Float and integer dtypes; integers wrap.

    x: tensor
    """
    return _call("square", [("x", x)], {})


def reciprocal(x: Tensor) -> Any:
    """`1 / x`. Float dtypes.

    x: tensor
    """
    return _call("reciprocal", [("x", x)], {})


def frac(x: Tensor) -> Any:
    """`x - trunc(x)`, with the sign of x. Float dtypes.

    x: tensor
    """
    return _call("frac", [("x", x)], {})


def floor(x: Tensor) -> Any:
    """The op `floor`.

    x: tensor
    """
    return _call("floor", [("x", x)], {})


def ceil(x: Tensor) -> Any:
    """The op `ceil`.

    x: tensor
    """
    return _call("ceil", [("x", x)], {})


def trunc(x: Tensor) -> Any:
    """The op `trunc`.

    x: tensor
    """
    return _call("trunc", [("x", x)], {})


def round(x: Tensor) -> Any:
    """The op `round`.

    x: tensor
    """
    return _call("round", [("x", x)], {})


def sign(x: Tensor) -> Any:
    """1, or -1 for the inverse.

    x: tensor
    """
    return _call("sign", [("x", x)], {})


def isnan(x: Tensor) -> Any:
    """The op `isnan`.

    x: tensor
    """
    return _call("isnan", [("x", x)], {})


def isinf(x: Tensor) -> Any:
    """The op `isinf`.

    x: tensor
    """
    return _call("isinf", [("x", x)], {})


def isfinite(x: Tensor) -> Any:
    """The op `isfinite`.

    x: tensor
    """
    return _call("isfinite", [("x", x)], {})


def not_finite(x: Tensor) -> Any:
    """The op `not_finite`.

    x: tensor
    """
    return _call("not_finite", [("x", x)], {})


def add(a: Tensor, b: Tensor, alpha: float = 1) -> Any:
    """`a + b`. Operands broadcast. Float and integer dtypes; integers wrap.

    a: tensor
    b: tensor
    alpha: a number
    """
    return _call("add", [("a", a), ("b", b)], {"alpha": alpha})


def sub(a: Tensor, b: Tensor, alpha: float = 1) -> Any:
    """`a - b`. Operands broadcast. Float and integer dtypes; integers wrap.

    a: tensor
    b: tensor
    alpha: a number
    """
    return _call("sub", [("a", a), ("b", b)], {"alpha": alpha})


def mul(a: Tensor, b: Tensor) -> Any:
    """`a b`. Operands broadcast. Float and integer dtypes; integers wrap.

    a: tensor
    b: tensor
    """
    return _call("mul", [("a", a), ("b", b)], {})


def div(a: Tensor, b: Tensor, rounding: Any = 'none') -> Any:
    """`a / b`. Operands broadcast. Float dtypes; integers need `div_rounded`.

    a: tensor
    b: tensor
    rounding: none, floor or trunc
    """
    return _call("div", [("a", a), ("b", b)], {"rounding": rounding})


def pow(a: Tensor, b: Tensor | None = None, exponent: float | None = None) -> Any:
    """`a^b`. Operands broadcast. Float dtypes, and integer ones outside of the tape.

    a: tensor
    b: tensor
    exponent: a number
    """
    return _call("pow", [("a", a), ("b", b)], {"exponent": exponent})


def atan2(a: Tensor, b: Tensor) -> Any:
    """The op `atan2`.

    a: tensor
    b: tensor
    """
    return _call("atan2", [("a", a), ("b", b)], {})


def hypot(a: Tensor, b: Tensor) -> Any:
    """`sqrt(a^2 + b^2)` without overflow. Operands broadcast. The gradient at (0, 0) is 0. Float dtypes.

    a: tensor
    b: tensor
    """
    return _call("hypot", [("a", a), ("b", b)], {})


def logaddexp(a: Tensor, b: Tensor) -> Any:
    """`ln(e^a + e^b)` without overflow. Operands broadcast. Float dtypes.

    a: tensor
    b: tensor
    """
    return _call("logaddexp", [("a", a), ("b", b)], {})


def xlogy(a: Tensor, b: Tensor) -> Any:
    """The op `xlogy`.

    a: tensor
    b: tensor
    """
    return _call("xlogy", [("a", a), ("b", b)], {})


def fmax(a: Tensor, b: Tensor) -> Any:
    """The op `fmax`.

    a: tensor
    b: tensor
    """
    return _call("fmax", [("a", a), ("b", b)], {})


def fmin(a: Tensor, b: Tensor) -> Any:
    """The op `fmin`.

    a: tensor
    b: tensor
    """
    return _call("fmin", [("a", a), ("b", b)], {})


def remainder(a: Tensor, b: Tensor) -> Any:
    """`a - b floor(a / b)`, which has the sign of b. Operands broadcast. Float and integer dtypes. Errors: `Value` where an integer is divided by 0.

    a: tensor
    b: tensor
    """
    return _call("remainder", [("a", a), ("b", b)], {})


def fmod(a: Tensor, b: Tensor) -> Any:
    """`a - b trunc(a / b)`, which has the sign of a. Operands broadcast. Float and integer dtypes. Errors: `Value` where an integer is divided by 0.

    a: tensor
    b: tensor
    """
    return _call("fmod", [("a", a), ("b", b)], {})


def copysign(a: Tensor, b: Tensor) -> Any:
    """`|a|` with the sign of b, also of -0. Operands broadcast. The gradient of b is 0, and that of a is 0 where a is. Float dtypes.

    a: tensor
    b: tensor
    """
    return _call("copysign", [("a", a), ("b", b)], {})


def heaviside(a: Tensor, b: Tensor) -> Any:
    """The op `heaviside`.

    a: tensor
    b: tensor
    """
    return _call("heaviside", [("a", a), ("b", b)], {})


def bitwise_and(a: Tensor, b: Tensor) -> Any:
    """The op `bitwise_and`.

    a: tensor: i32 or i64 or u8
    b: tensor: i32 or i64 or u8
    """
    return _call("bitwise_and", [("a", a), ("b", b)], {})


def bitwise_or(a: Tensor, b: Tensor) -> Any:
    """The op `bitwise_or`.

    a: tensor: i32 or i64 or u8
    b: tensor: i32 or i64 or u8
    """
    return _call("bitwise_or", [("a", a), ("b", b)], {})


def bitwise_xor(a: Tensor, b: Tensor) -> Any:
    """The op `bitwise_xor`.

    a: tensor: i32 or i64 or u8
    b: tensor: i32 or i64 or u8
    """
    return _call("bitwise_xor", [("a", a), ("b", b)], {})


def bitwise_left_shift(a: Tensor, b: Tensor) -> Any:
    """The op `bitwise_left_shift`.

    a: tensor: i32 or i64 or u8
    b: tensor: i32 or i64 or u8
    """
    return _call("bitwise_left_shift", [("a", a), ("b", b)], {})


def bitwise_right_shift(a: Tensor, b: Tensor) -> Any:
    """The op `bitwise_right_shift`.

    a: tensor: i32 or i64 or u8
    b: tensor: i32 or i64 or u8
    """
    return _call("bitwise_right_shift", [("a", a), ("b", b)], {})


def bitwise_not(x: Tensor) -> Any:
    """The bits that x lacks. Integer dtypes.

    x: tensor: i32 or i64 or u8
    """
    return _call("bitwise_not", [("x", x)], {})


def maximum(a: Tensor, b: Tensor) -> Any:
    """The larger of two; NaN if either is. Operands broadcast. Ties share the gradient. All dtypes; true is larger than false.

    a: tensor
    b: tensor
    """
    return _call("maximum", [("a", a), ("b", b)], {})


def minimum(a: Tensor, b: Tensor) -> Any:
    """The smaller of two; NaN if either is. Operands broadcast. Ties share the gradient. All dtypes; true is larger than false.

    a: tensor
    b: tensor
    """
    return _call("minimum", [("a", a), ("b", b)], {})


def add_scalar(x: Tensor, scalar: float) -> Any:
    """`x + s`. Float and integer dtypes. A float s is rounded to the dtype of arithmetic, f32 for f16 and bf16, not to that of x.

    x: tensor
    scalar: a number
    """
    return _call("add_scalar", [("x", x)], {"scalar": scalar})


def sub_scalar(x: Tensor, scalar: float) -> Any:
    """`x - s`. Float and integer dtypes. A float s is rounded to the dtype of arithmetic, f32 for f16 and bf16, not to that of x.

    x: tensor
    scalar: a number
    """
    return _call("sub_scalar", [("x", x)], {"scalar": scalar})


def rsub_scalar(x: Tensor, scalar: float) -> Any:
    """`s - x`. Float and integer dtypes. A float s is rounded to the dtype of arithmetic, f32 for f16 and bf16, not to that of x.

    x: tensor
    scalar: a number
    """
    return _call("rsub_scalar", [("x", x)], {"scalar": scalar})


def mul_scalar(x: Tensor, scalar: float) -> Any:
    """`x s`. Float and integer dtypes. A float s is rounded to the dtype of arithmetic, f32 for f16 and bf16, not to that of x.

    x: tensor
    scalar: a number
    """
    return _call("mul_scalar", [("x", x)], {"scalar": scalar})


def div_scalar(x: Tensor, scalar: float) -> Any:
    """`x / s`. Float dtypes. The number s is rounded to the dtype of arithmetic, f32 for f16 and bf16, not to that of x.

    x: tensor
    scalar: a number
    """
    return _call("div_scalar", [("x", x)], {"scalar": scalar})


def rdiv_scalar(x: Tensor, scalar: float) -> Any:
    """`s / x`. Float dtypes. The number s is rounded to the dtype of arithmetic, f32 for f16 and bf16, not to that of x.

    x: tensor
    scalar: a number
    """
    return _call("rdiv_scalar", [("x", x)], {"scalar": scalar})


def rpow_scalar(x: Tensor, scalar: float) -> Any:
    """`s^x`. Float dtypes. The number s is rounded to the dtype of arithmetic, f32 for f16 and bf16, not to that of x.

    x: tensor
    scalar: a number
    """
    return _call("rpow_scalar", [("x", x)], {"scalar": scalar})


def eq(a: Tensor, b: Tensor | None = None, scalar: float | None = None) -> Any:
    """The op `eq`.

    a: tensor
    b: tensor
    scalar: a number
    """
    return _call("eq", [("a", a), ("b", b)], {"scalar": scalar})


def ne(a: Tensor, b: Tensor | None = None, scalar: float | None = None) -> Any:
    """The op `ne`.

    a: tensor
    b: tensor
    scalar: a number
    """
    return _call("ne", [("a", a), ("b", b)], {"scalar": scalar})


def lt(a: Tensor, b: Tensor | None = None, scalar: float | None = None) -> Any:
    """The op `lt`.

    a: tensor
    b: tensor
    scalar: a number
    """
    return _call("lt", [("a", a), ("b", b)], {"scalar": scalar})


def gt(a: Tensor, b: Tensor | None = None, scalar: float | None = None) -> Any:
    """The op `gt`.

    a: tensor
    b: tensor
    scalar: a number
    """
    return _call("gt", [("a", a), ("b", b)], {"scalar": scalar})


def le(a: Tensor, b: Tensor | None = None, scalar: float | None = None) -> Any:
    """The op `le`.

    a: tensor
    b: tensor
    scalar: a number
    """
    return _call("le", [("a", a), ("b", b)], {"scalar": scalar})


def ge(a: Tensor, b: Tensor | None = None, scalar: float | None = None) -> Any:
    """The op `ge`.

    a: tensor
    b: tensor
    scalar: a number
    """
    return _call("ge", [("a", a), ("b", b)], {"scalar": scalar})


def logical_not(x: Tensor) -> Any:
    """Logical not of a bool tensor.

    x: tensor: bool
    """
    return _call("logical_not", [("x", x)], {})


def logical_and(a: Tensor, b: Tensor) -> Any:
    """Logical and of bool tensors, which broadcast.

    a: tensor: bool
    b: tensor: bool
    """
    return _call("logical_and", [("a", a), ("b", b)], {})


def logical_or(a: Tensor, b: Tensor) -> Any:
    """Logical or of bool tensors, which broadcast.

    a: tensor: bool
    b: tensor: bool
    """
    return _call("logical_or", [("a", a), ("b", b)], {})


def logical_xor(a: Tensor, b: Tensor) -> Any:
    """Exclusive or of bool tensors, which broadcast.

    a: tensor: bool
    b: tensor: bool
    """
    return _call("logical_xor", [("a", a), ("b", b)], {})


def addcmul(s: Tensor, a: Tensor, b: Tensor, value: float = 1) -> Any:
    """`s + value a b` for this tensor `s`. All broadcast. Float dtypes, and integer ones with an integer value.

    s: tensor
    a: tensor
    b: tensor
    value: a number
    """
    return _call("addcmul", [("s", s), ("a", a), ("b", b)], {"value": value})


def addcdiv(s: Tensor, a: Tensor, b: Tensor, value: float = 1.0) -> Any:
    """`s + value a / b` for this tensor `s`. All broadcast. Float dtypes.

    s: tensor
    a: tensor
    b: tensor
    value: a number
    """
    return _call("addcdiv", [("s", s), ("a", a), ("b", b)], {"value": value})


def lerp(a: Tensor, b: Tensor, weight: Tensor | float | None = None) -> Any:
    """`a + w (b - a)`, exact at 0 and 1, for this tensor `a`. All broadcast. Float dtypes.

    a: tensor
    b: tensor
    weight: tensor
    """
    return _call("lerp", [("a", a), ("b", b), ("weight", weight)], {"weight": weight})


def where_cond(cond: Tensor, a: Tensor, b: Tensor | None = None, scalar: float | None = None) -> Any:
    """`cond ? a : b` for this bool tensor; NaN of the side not selected has no effect. All broadcast. `a` and `b` share any dtype.

    cond: tensor: bool
    a: tensor
    b: tensor
    scalar: a number
    """
    return _call("where_cond", [("cond", cond), ("a", a), ("b", b)], {"scalar": scalar})


def clamp(x: Tensor, min: Tensor | float | None = None, max: Tensor | float | None = None) -> Any:
    """`min(max(x, lo), hi)`. Either bound is optional. The gradient at the bounds is 1. Float and integer dtypes. Float bounds are rounded to the dtype of x first. Errors: `Attr` if both bounds are absent, or if an integer dtype cannot hold a bound that elements would become.

    x: tensor
    min: tensor
    max: tensor
    """
    return _call("clamp", [("x", x), ("min", min), ("max", max)], {"min": min, "max": max})


def copy(x: Tensor) -> Any:
    """A contiguous copy in memory of its own.

    x: tensor
    """
    return _call("copy", [("x", x)], {})


def contiguous(x: Tensor) -> Any:
    """The same tensor if it is contiguous, else a contiguous copy.

    x: tensor
    """
    return _call("contiguous", [("x", x)], {})


def cast(x: Tensor, dtype: str) -> Any:
    """The same values in another dtype. To floats: rounded to the nearest even, with infinity on overflow. To integers: truncated and saturated; NaN becomes 0. To bool: `x != 0`. Results of integer and bool dtypes are outside of the tape.

    x: tensor
    dtype: a dtype
    """
    return _call("cast", [("x", x)], {"dtype": dtype})


def fill_(x: Tensor, value: float) -> Any:
    """Sets every element to `value`. Errors: as `Tensor::full`; `Value` on the tape, or if several elements share a position.

    x: tensor
    value: a number
    """
    return _call("fill_", [("x", x)], {"value": value})


def copy_(x: Tensor, src: Tensor) -> Any:
    """Copies `src`, which broadcasts to this shape and has this dtype. Errors: `Shape`, `Dtype`, `Device`; `Value` on the tape, if the tensors share memory, or if several elements of this tensor share a position.

    x: tensor
    src: tensor
    """
    return _call("copy_", [("x", x), ("src", src)], {})


def add_(x: Tensor, src: Tensor) -> Any:
    """Adds `x`, which broadcasts to this shape and has this float or integer dtype. Errors: as `copy_`.

    x: tensor
    src: tensor
    """
    return _call("add_", [("x", x), ("src", src)], {})


def mul_(x: Tensor, src: Tensor) -> Any:
    """Multiplies by `x`, which broadcasts to this shape and has this float dtype. Errors: as `copy_`.

    x: tensor
    src: tensor
    """
    return _call("mul_", [("x", x), ("src", src)], {})


def reshape(x: Tensor, shape: Sequence[int]) -> Any:
    """The same elements in row-major order under another shape; one extent may be `INFER`. A view where strides allow it, else a copy. Errors: `Shape` if the number of elements differs.

    x: tensor
    shape: a list of integers
    """
    return _call("reshape", [("x", x)], {"shape": shape})


def transpose(x: Tensor, dim0: int, dim1: int) -> Any:
    """Swaps two dimensions (negative ones count from the end). A view. Errors: `Attr` for a dimension out of range.

    x: tensor
    dim0: an integer
    dim1: an integer
    """
    return _call("transpose", [("x", x)], {"dim0": dim0, "dim1": dim1})


def t(x: Tensor) -> Any:
    """Swaps the last two dimensions. A view. Errors: `Shape` below rank 2.

    x: tensor
    """
    return _call("t", [("x", x)], {})


def permute(x: Tensor, perm: Sequence[int]) -> Any:
    """Dimension `k` of the result is dimension `perm[k]`. A view. Errors: `Attr` unless `perm` is a permutation.

    x: tensor
    perm: a list of integers
    """
    return _call("permute", [("x", x)], {"perm": perm})


def narrow(x: Tensor, dim: int, start: int, length: int) -> Any:
    """Elements `start .. start + length` of one dimension. A view. Errors: `Attr` for a dimension, `Index` for a range out of bounds.

    x: tensor
    dim: an integer
    start: a size
    length: a size
    """
    return _call("narrow", [("x", x)], {"dim": dim, "start": start, "length": length})


def slice(x: Tensor, dim: int, start: int, stop: int, step: int) -> Any:
    """Elements `start`, `start + step`, ... below `stop` of one dimension. A view. Errors: `Attr` for a dimension out of range or step 0, `Index` unless `start <= stop <= extent`.

    x: tensor
    dim: an integer
    start: a size
    stop: a size
    step: a size
    """
    return _call("slice", [("x", x)], {"dim": dim, "start": start, "stop": stop, "step": step})


def select(x: Tensor, dim: int, index: int) -> Any:
    """Selects `index` along dimension `dim`, and removes the dimension (negative values count from the end). A view. Errors: `Attr`, `Index`.

    x: tensor
    dim: an integer
    index: an integer
    """
    return _call("select", [("x", x)], {"dim": dim, "index": index})


def windows(x: Tensor, dim: int, size: int, step: int) -> Any:
    """The windows of `size` neighbours along dimension `dim`, `step` apart: `[.., n, ..]` with n windows in place of the dimension, and a last dimension of `size`. Elements after the last whole window are in none. A view, in which windows of `step` below `size` share elements; changes in place refuse it. The gradient of an element is the sum over its windows, in the accumulation dtype. All dtypes. Errors: `Attr` for a dimension out of range, a size or a step of 0; `Shape` for a scalar, a size above the extent, or more dimensions than a tensor has.

    x: tensor
    dim: an integer
    size: a size
    step: a size
    """
    return _call("windows", [("x", x)], {"dim": dim, "size": size, "step": step})


def unsqueeze(x: Tensor, dim: int) -> Any:
    """Adds a dimension of size 1 before `dim` (`-1`: at the end). A view. Errors: `Attr`.

    x: tensor
    dim: an integer
    """
    return _call("unsqueeze", [("x", x)], {"dim": dim})


def squeeze(x: Tensor, dim: int) -> Any:
    """Removes a dimension of size 1. A view. Errors: `Attr` for a dimension out of range, `Shape` if its size is not 1.

    x: tensor
    dim: an integer
    """
    return _call("squeeze", [("x", x)], {"dim": dim})


def flatten(x: Tensor, first: int, last: int) -> Any:
    """Merges dimensions `first..=last` into one. Errors: `Attr`.

    x: tensor
    first: an integer
    last: an integer
    """
    return _call("flatten", [("x", x)], {"first": first, "last": last})


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Any:
    """Expands dimensions of size 1, and adds leading ones, with stride 0. A view. Errors: `Shape` unless the shape broadcasts to `shape`.

    x: tensor
    shape: a list of integers
    """
    return _call("broadcast_to", [("x", x)], {"shape": shape})


def sum_to_size(x: Tensor, shape: Sequence[int]) -> Any:
    """Sums the dimensions that a broadcast from `shape` to this tensor's shape expanded. Errors: `Shape` unless `shape` broadcasts to this shape.

    x: tensor
    shape: a list of integers
    """
    return _call("sum_to_size", [("x", x)], {"shape": shape})


def split(x: Tensor, size: int, dim: int) -> Any:
    """Splits one dimension into pieces of `size`; the last piece may be smaller. Views. Errors: `Attr` for a dimension out of range, a size of 0, or a size that gives more than 2^22 pieces.

    x: tensor
    size: a size
    dim: an integer
    """
    return _call("split", [("x", x)], {"size": size, "dim": dim})


def split_with_sizes(x: Tensor, sizes: Sequence[int], dim: int) -> Any:
    """Splits one dimension into pieces of these sizes, one after the other; a size may be 0. Views. Errors: `Attr` for a dimension out of range; `Shape` for a scalar, or sizes that do not add up to the extent.

    x: tensor
    sizes: a list of integers
    dim: an integer
    """
    return _call("split_with_sizes", [("x", x)], {"sizes": sizes, "dim": dim})


def tensor_split(x: Tensor, count: int, dim: int) -> Any:
    """Splits one dimension into `count` pieces of equal size; if there is a rest, the first ones are larger by 1. Pieces are empty if there are more than elements. Views. Errors: `Attr` for a dimension out of range, a scalar, or a count of 0 or above 2^22.

    x: tensor
    count: a size
    dim: an integer
    """
    return _call("tensor_split", [("x", x)], {"count": count, "dim": dim})


def flip(x: Tensor, dims: Sequence[int]) -> Any:
    """Reverses the order along these dimensions (negative ones count from the end). Errors: `Attr` for a dimension out of range or named twice.

    x: tensor
    dims: a list of integers
    """
    return _call("flip", [("x", x)], {"dims": dims})


def roll(x: Tensor, shift: int, dim: int) -> Any:
    """Moves elements by `shift` places along `dim`; those that leave the end come back at the start. Errors: `Attr`.

    x: tensor
    shift: an integer
    dim: an integer
    """
    return _call("roll", [("x", x)], {"shift": shift, "dim": dim})


def rot90(x: Tensor, dims: Sequence[int], turns: int) -> Any:
    """Turns the plane of two dimensions by `turns` times 90 degrees, from the first dimension toward the second. Errors: `Attr`.

    x: tensor
    dims: a list of integers
    turns: an integer
    """
    return _call("rot90", [("x", x)], {"dims": dims, "turns": turns})


def repeat(x: Tensor, counts: Sequence[int]) -> Any:
    """Copies the tensor `counts[k]` times along each dimension, one after the other. More counts than dimensions: the tensor gets dimensions of size 1 in front. Errors: `Attr` for fewer counts than dimensions.

    x: tensor
    counts: a list of integers
    """
    return _call("repeat", [("x", x)], {"counts": counts})


def repeat_interleave(x: Tensor, count: int, dim: int) -> Any:
    """Copies each element `count` times in place along `dim`. Errors: `Attr`.

    x: tensor
    count: a size
    dim: an integer
    """
    return _call("repeat_interleave", [("x", x)], {"count": count, "dim": dim})


def movedim(x: Tensor, from_: int, to: int) -> Any:
    """Moves a dimension to another place. A view. Errors: `Attr`.

    x: tensor
    from_: an integer
    to: an integer
    """
    return _call("movedim", [("x", x)], {"from": from_, "to": to})


def chunk(x: Tensor, count: int, dim: int) -> Any:
    """At most `count` parts of equal size along `dim`, of which the last may be smaller. Views. Errors: `Attr`, also for 0 parts.

    x: tensor
    count: a size
    dim: an integer
    """
    return _call("chunk", [("x", x)], {"count": count, "dim": dim})


def unbind(x: Tensor, dim: int) -> Any:
    """The slices along `dim`, without this dimension. Views, whose gradients are stacked. Errors: `Attr`; `Shape` for a scalar.

    x: tensor
    dim: an integer
    """
    return _call("unbind", [("x", x)], {"dim": dim})


def masked_fill(x: Tensor, mask: Tensor, value: float) -> Any:
    """`value` where the bool tensor `mask`, which broadcasts to x, is true; x elsewhere. Errors: `Shape`, `Dtype`.

    x: tensor
    mask: tensor: bool
    value: a number
    """
    return _call("masked_fill", [("x", x), ("mask", mask)], {"value": value})


def meshgrid(a: Tensor, b: Tensor) -> Any:
    """Coordinates on a grid: result k is `[n0, n1, ..]` and varies along dimension k, with the elements of the vector k. Views. Errors: `Shape` unless all are vectors; `Attr` for an empty list.

    a: tensor
    b: tensor
    """
    return _call("meshgrid", [("a", a), ("b", b)], {})


def one_hot(x: Tensor, classes: int) -> Any:
    """`[.., classes]` in i64: 1 at the position that the integer names, 0 elsewhere. Errors: `Index` for a class out of range; `Dtype`.

    x: tensor: i32 or i64
    classes: a size
    """
    return _call("one_hot", [("x", x)], {"classes": classes})


def diff(x: Tensor, dim: int) -> Any:
    """Differences of neighbours along `dim`, one fewer than there are elements. Errors: `Attr`; `Shape` for a scalar.

    x: tensor
    dim: an integer
    """
    return _call("diff", [("x", x)], {"dim": dim})


def diagonal(x: Tensor, offset: int = 0) -> Any:
    """The elements `[.., i, i + offset]` of the last two dimensions, which become one at the end. A view. Errors: `Shape` below rank 2.

    x: tensor
    offset: an integer
    """
    return _call("diagonal", [("x", x)], {"offset": offset})


def diag_embed(x: Tensor, offset: int = 0) -> Any:
    """Matrices with these vectors on the diagonal `offset`, and 0 elsewhere: `[.., n]` to `[.., n + |offset|, n + |offset|]`. Errors: `Shape` for a scalar.

    x: tensor
    offset: an integer
    """
    return _call("diag_embed", [("x", x)], {"offset": offset})


def diag(x: Tensor, offset: int = 0) -> Any:
    """The diagonal of a matrix, or the matrix of a diagonal. Errors: `Shape` for other ranks than 1 and 2.

    x: tensor
    offset: an integer
    """
    return _call("diag", [("x", x)], {"offset": offset})


def trace(x: Tensor) -> Any:
    """The sum of the diagonal of the last two dimensions. Errors: `Shape` below rank 2.

    x: tensor
    """
    return _call("trace", [("x", x)], {})


def tril(x: Tensor, offset: int = 0) -> Any:
    """The elements on and below the diagonal of the last two dimensions; 0 above it. Errors: `Shape` below rank 2.

    x: tensor
    offset: an integer
    """
    return _call("tril", [("x", x)], {"offset": offset})


def triu(x: Tensor, offset: int = 0) -> Any:
    """The elements on and above the diagonal of the last two dimensions; 0 below it. Errors: `Shape` below rank 2.

    x: tensor
    offset: an integer
    """
    return _call("triu", [("x", x)], {"offset": offset})


def concat(xs: Sequence[Tensor], dim: int) -> Any:
    """Joins tensors along an existing dimension. Parts whose channels are last in memory make a result whose channels are. Errors: `Attr` for an empty list, `Shape` if other dimensions differ.

    xs: tensors
    dim: an integer
    """
    return _call("concat", [("x", xs)], {"dim": dim})


def stack(xs: Sequence[Tensor], dim: int) -> Any:
    """Joins tensors of the same shape along a new dimension. Errors: `Shape` if the shapes differ; as `concat`.

    xs: tensors
    dim: an integer
    """
    return _call("stack", [("x", xs)], {"dim": dim})


def pad(x: Tensor, padding: Any, mode: Any = 'constant', value: float = 0) -> Any:
    """Adds elements before the first and after the last one of the last dimensions: `ends[k]` are their numbers for the k-th of these dimensions, in the order of the shape. A negative number first removes elements. All dtypes; other paddings than a constant are for up to three dimensions. The gradient of a copy goes to its element. A view if nothing is added. Errors: `Shape` for more pairs than dimensions, if more elements are removed than a dimension has, for copies of an empty dimension, and for more copies than a dimension has elements (`Reflect`: as many); `Attr` for more than three dimensions of copies, or a constant that an integer dtype cannot hold; `Dtype` for a float constant in an integer dtype.

    x: tensor
    padding: a list of pairs of integers
    mode: constant, reflect, replicate or circular
    value: a number
    """
    return _call("pad", [("x", x)], {"padding": padding, "mode": mode, "value": value})


def full(shape: Sequence[int], value: float, dtype: str = 'f64', device: str | None = None) -> Any:
    """Every element is `value`. Errors: `Attr` if an integer dtype cannot hold it, `Dtype` for a float in an integer dtype.

    shape: a list of integers
    value: a number
    dtype: a dtype
    """
    return _call("full", [], {"shape": shape, "value": value, "dtype": dtype}, device)


def arange(end: float, n: int | None = None, start: float = 0, step: float = 1, dtype: str = 'i64', device: str | None = None) -> Any:
    """`0, 1, .., n - 1` as i64.

    n: a size
    start: a number
    end: a number
    step: a number
    dtype: a dtype
    """
    return _call("arange", [], {"n": n, "start": start, "end": end, "step": step, "dtype": dtype}, device)


def linspace(start: float, end: float, steps: int, dtype: str = 'f32', device: str | None = None) -> Any:
    """`steps` numbers at equal distances, of which the first is `start` and the last is `end`. Float dtypes. The numbers are computed on the host, in f64, and rounded once. Errors: `Attr` unless both ends are finite; `Dtype`.

    start: a number
    end: a number
    steps: a size
    dtype: a dtype
    """
    return _call("linspace", [], {"start": start, "end": end, "steps": steps, "dtype": dtype}, device)


def logspace(start: float, end: float, steps: int, base: float = 10.0, dtype: str = 'f32', device: str | None = None) -> Any:
    """`base` to the powers of `linspace`. Errors: as there, and `Attr` for a base that is not finite.

    start: a number
    end: a number
    steps: a size
    base: a number
    dtype: a dtype
    """
    return _call("logspace", [], {"start": start, "end": end, "steps": steps, "base": base, "dtype": dtype}, device)


def gather(x: Tensor, index: Tensor, dim: int) -> Any:
    """`y[p] = x[p with p[dim] = index[p]]`; the result has the index's shape. The index is i64 or i32 and may be smaller than `x` in other dimensions. Errors: `Shape`, `Dtype`, `Attr`; `Index` for an index outside of `0..extent`.

    x: tensor
    index: tensor: i32 or i64
    dim: an integer
    """
    return _call("gather", [("x", x), ("index", index)], {"dim": dim})


def scatter_add(self: Tensor, index: Tensor, src: Tensor, dim: int) -> Any:
    """This tensor with `src[p]` added at `p with p[dim] = index[p]`, for every `p` of the index. The index is i64 or i32 and may be smaller than `src`. Errors: as `gather`.

    self: tensor
    index: tensor: i32 or i64
    src: tensor
    dim: an integer
    """
    return _call("scatter_add", [("self", self), ("index", index), ("src", src)], {"dim": dim})


def scatter_add_(x: Tensor, index: Tensor, src: Tensor, dim: int) -> Any:
    """`scatter_add` in place. Errors: as there, and `Value` if this tensor is on the tape, shares memory with `src` or the index, or has several elements at one position.

    x: tensor
    index: tensor: i32 or i64
    src: tensor
    dim: an integer
    """
    return _call("scatter_add_", [("x", x), ("index", index), ("src", src)], {"dim": dim})


def scatter(self: Tensor, index: Tensor, src: Tensor, dim: int) -> Any:
    """This tensor with `src[p]` written at `p with p[dim] = index[p]`. Of several values for one position, the last in row-major order is written; the others have gradient 0. Errors: as `gather`.

    self: tensor
    index: tensor: i32 or i64
    src: tensor
    dim: an integer
    """
    return _call("scatter", [("self", self), ("index", index), ("src", src)], {"dim": dim})


def index_select(x: Tensor, index: Tensor, dim: int) -> Any:
    """Slices of `x` along `dim`, one for each element of the index `[L]` or `[]`. Repeats are allowed. Errors: `Shape`, `Dtype`, `Attr`; `Index` for an index outside of `0..extent`.

    x: tensor
    index: tensor: i32 or i64
    dim: an integer
    """
    return _call("index_select", [("x", x), ("index", index)], {"dim": dim})


def index_add(self: Tensor, index: Tensor, src: Tensor, dim: int, alpha: float = 1) -> Any:
    """This tensor with `alpha src[.., l, ..]` added at `[.., index[l], ..]`. Errors: as `index_select`.

    self: tensor
    index: tensor: i32 or i64
    src: tensor
    dim: an integer
    alpha: a number
    """
    return _call("index_add", [("self", self), ("index", index), ("src", src)], {"dim": dim, "alpha": alpha})


def index_add_(x: Tensor, index: Tensor, src: Tensor, dim: int, alpha: float = 1) -> Any:
    """`index_add` in place. Errors: as there, and `Value` if this tensor is on the tape, shares memory with `src` or the index, or has several elements at one position.

    x: tensor
    index: tensor: i32 or i64
    src: tensor
    dim: an integer
    alpha: a number
    """
    return _call("index_add_", [("x", x), ("index", index), ("src", src)], {"dim": dim, "alpha": alpha})


def index(x: Tensor, indices: Sequence[int], index: Sequence[Tensor] | None = None) -> Any:
    """The elements at an advanced index. Entries apply to the leading dimensions in order. Index tensors broadcast to a common shape. It replaces their dimensions in place if these are adjacent; otherwise it comes first. A mask of rank r counts as r index tensors: the positions of its true elements in row-major order. Positions that are numbers apply first. Errors: `Shape` for too many entries, a mask that does not fit or indices that do not broadcast; `Dtype`; `Index` for a position outside of `-extent..extent`.

    x: tensor
    index: tensors: bool or i32 or i64
    indices: a list of integers
    """
    return _call("index", [("x", x), ("i", index)], {"indices": indices})


def index_put(self: Tensor, values: Tensor, indices: Sequence[int], index: Sequence[Tensor] | None = None, accumulate: bool = False) -> Any:
    """This tensor with `values` written at an advanced index. `values` broadcast. Errors: as `index`.

    self: tensor
    index: tensors: bool or i32 or i64
    values: tensor
    indices: a list of integers
    accumulate: a bool
    """
    return _call("index_put", [("self", self), ("i", index), ("values", values)], {"indices": indices, "accumulate": accumulate})


def index_put_(x: Tensor, index: Sequence[Tensor], values: Tensor, indices: Sequence[int], accumulate: bool = False) -> Any:
    """`index_put` in place: `x[index] = values`. Errors: as there, and `Value` if this tensor is on the tape, shares memory with `values` or an index, or has several elements at one position.

    x: tensor
    index: tensors: bool or i64
    values: tensor
    indices: a list of integers
    accumulate: a bool
    """
    return _call("index_put_", [("x", x), ("i", index), ("values", values)], {"indices": indices, "accumulate": accumulate})


def nonzero(x: Tensor) -> Any:
    """The positions of the true elements of a bool tensor in row-major order, one i64 tensor per dimension. Reads back their number, or the mask if the backend has no kernel. Errors: `Dtype`.

    x: tensor: bool
    """
    return _call("nonzero", [("x", x)], {})


def topk(x: Tensor, k: int, dim: int, largest: bool = False) -> Any:
    """The first `k` of the sorted values along `dim`, and their original positions (i64). Of equal values, the lower position is first. Errors: `Attr` if `k` is larger than the extent; otherwise as `sort`.

    x: tensor
    k: a size
    dim: an integer
    largest: a bool
    """
    return _call("topk", [("x", x)], {"k": k, "dim": dim, "largest": largest})


def sort(x: Tensor, dim: int, descending: bool = False) -> Any:
    """The values sorted along `dim`, and their original positions (i64). Stable; NaN is the largest. The gradient goes to these positions. All dtypes; true is larger than false. Errors: `Attr` for a dimension out of range.

    x: tensor
    dim: an integer
    descending: a bool
    """
    return _call("sort", [("x", x)], {"dim": dim, "descending": descending})


def embedding(w: Tensor, idx: Tensor, padding_idx: int | None = None, scale_grad_by_freq: bool = False) -> Any:
    """Rows of this table `[V, E]` by index (i64 or i32, any shape): `[index.., E]`. Errors: `Shape`, `Dtype`; `Attr` for a padding index out of range; `Index` for an index outside of `0..V`.

    w: tensor
    idx: tensor: i32 or i64
    padding_idx: an integer
    scale_grad_by_freq: a bool
    """
    return _call("embedding", [("w", w), ("idx", idx)], {"padding_idx": padding_idx, "scale_grad_by_freq": scale_grad_by_freq})


def embedding_rmsnorm(w: Tensor, idx: Tensor, gamma: Tensor | None = None, eps: float = 1e-06) -> Any:
    """Rows of this table by index, each divided by its root mean square and scaled by `gamma: [E]`, which has the table's dtype or f32. Errors: as `embedding`, and `Attr` for a negative eps.

    w: tensor
    idx: tensor: i32 or i64
    gamma: tensor
    eps: a number
    """
    return _call("embedding_rmsnorm", [("w", w), ("idx", idx), ("gamma", gamma)], {"eps": eps})


def scatter_sum(src: Tensor, index: Tensor, size: int | None = None) -> Any:
    """The sum of the rows `[E, *]` of each node by index `[E]`: `[size, *]`, 0 for a node without rows. The default `size` is the largest index plus 1, which is read back. Errors: `Shape`, `Dtype`; `Index` for an index outside of `0..size`.

    src: tensor
    index: tensor: i32 or i64
    size: a size
    """
    return _call("scatter_sum", [("src", src), ("index", index)], {"size": size})


def scatter_mean(src: Tensor, index: Tensor, size: int | None = None) -> Any:
    """The mean of the rows `[E, *]` of each node by index `[E]`: `[size, *]`, 0 for a node without rows. Integer means are rounded down. A mean whose sum overflows is infinite. `size` and errors are as for `scatter_sum`.

    src: tensor
    index: tensor: i32 or i64
    size: a size
    """
    return _call("scatter_mean", [("src", src), ("index", index)], {"size": size})


def scatter_max(src: Tensor, index: Tensor, ties: Any = 'even', size: int | None = None) -> Any:
    """The maximum of the rows `[E, *]` of each node by index `[E]`, for each element, and the first row that has it (i64). Both are `[size, *]`; a node without rows has 0 and -1. NaN is the largest. `ties` selects the rows that get the gradient. `size` and errors are as for `scatter_sum`.

    src: tensor
    index: tensor: i32 or i64
    ties: even or first
    size: a size
    """
    return _call("scatter_max", [("src", src), ("index", index)], {"ties": ties, "size": size})


def masked_select(x: Tensor, mask: Tensor) -> Any:
    """The elements where the bool `mask` is true, in row-major order: a vector. Both broadcast. Reads back their number. Errors: `Shape`, `Dtype`.

    x: tensor
    mask: tensor: bool
    """
    return _call("masked_select", [("x", x), ("mask", mask)], {})


def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Any:
    """This tensor with the first elements of `source`, in row-major order, where the bool `mask`, which broadcasts to it, is true. Reads back their number. Errors: `Shape` if the source has fewer elements, or for a mask that does not fit; `Dtype`.

    self: tensor
    mask: tensor: bool
    source: tensor
    """
    return _call("masked_scatter", [("self", self), ("mask", mask), ("source", source)], {})


def take(x: Tensor, index: Tensor) -> Any:
    """The elements at positions in row-major order, in the index's shape. Negative positions count from the end. Errors: `Dtype`, `Index`.

    x: tensor
    index: tensor: i32 or i64
    """
    return _call("take", [("x", x), ("index", index)], {})


def take_along_dim(x: Tensor, index: Tensor, dim: int) -> Any:
    """`gather` along `dim`, where this tensor and the index broadcast in the other dimensions. Errors: as there.

    x: tensor
    index: tensor: i64
    dim: an integer
    """
    return _call("take_along_dim", [("x", x), ("index", index)], {"dim": dim})


def index_fill(x: Tensor, index: Tensor, dim: int, value: float) -> Any:
    """This tensor with `value` in the slices along `dim` that the index `[L]` names. Errors: as `index_select`.

    x: tensor
    index: tensor: i64
    dim: an integer
    value: a number
    """
    return _call("index_fill", [("x", x), ("index", index)], {"dim": dim, "value": value})


def index_copy(self: Tensor, index: Tensor, src: Tensor, dim: int) -> Any:
    """This tensor with slices of `src` along `dim` in the places that the index `[L]` names. Of several slices for one place the last is written. Errors: as `index_add`.

    self: tensor
    index: tensor: i32 or i64
    src: tensor
    dim: an integer
    """
    return _call("index_copy", [("self", self), ("index", index), ("src", src)], {"dim": dim})


def searchsorted(sorted: Tensor, values: Tensor, right: bool = False) -> Any:
    """The positions (i64, in the shape of `values`) at which these values would be inserted along the last dimension of this tensor, which is sorted there, and stays sorted. A vector serves all values; otherwise the leading dimensions are the same as those of `values`. NaN is the largest, and a value of NaN comes after all. Some log2 of the extent rounds of kernels. Outside of the tape. Float and integer dtypes. Errors: `Shape`; `Dtype` for bool, or operands of two dtypes.

    sorted: tensor
    values: tensor
    right: a bool
    """
    return _call("searchsorted", [("sorted", sorted), ("values", values)], {"right": right})


def bucketize(x: Tensor, boundaries: Tensor, right: bool = False) -> Any:
    """For each element the number of the interval between `boundaries` (a sorted vector) in which it lies: 0 below the first, and as many as there are boundaries above the last. With `Side::Left` an interval contains its upper boundary, with `Side::Right` its lower one. As `searchsorted`.

    x: tensor
    boundaries: tensor
    right: a bool
    """
    return _call("bucketize", [("x", x), ("boundaries", boundaries)], {"right": right})


def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Any:
    """The number of occurrences of each integer from 0 on (i64, `[n]`), or the sum of the weights of its occurrences, which have a gradient. n is at least `minlength`, and larger than all integers, whose largest is read back. Errors: `Dtype`; `Shape` unless integers and weights have one shape; `Value` for a negative integer.

    x: tensor: i64
    weights: tensor
    minlength: a size
    """
    return _call("bincount", [("x", x), ("weights", weights)], {"minlength": minlength})


def histc(x: Tensor, bins: int, min: float | None = None, max: float | None = None) -> Any:
    """The number of elements (i64, `[bins]`) in each of `bins` intervals of equal width between the ends of `range`. The last interval contains its upper end; elements outside of the range, and NaN, are not counted. Without a range its ends are the smallest and the largest element, which are read back; if all elements are equal, 1 below and above them. Float dtypes; arithmetic is in f32, or f64 for f64. Outside of the tape. Errors: `Attr` for 0 bins, or a range that is empty or not finite; `Dtype`; `Value` if elements are not finite and no range is given.

    x: tensor
    min: a number
    max: a number
    bins: a size
    """
    return _call("histc", [("x", x)], {"min": min, "max": max, "bins": bins})


def unique(x: Tensor) -> Any:
    """The distinct elements in ascending order. Each NaN is distinct. Reads back their number. Outside of the tape. Errors: `Dtype` for bool.

    x: tensor
    """
    return _call("unique", [("x", x)], {})


def unique_consecutive(x: Tensor) -> Any:
    """The first of each run of equal elements, in row-major order. Reads back their number. Outside of the tape. Errors: `Dtype` for bool.

    x: tensor
    """
    return _call("unique_consecutive", [("x", x)], {})


def scatter_reduce(self: Tensor, index: Tensor, src: Tensor, dim: int, reduce: Any, include_self: bool = True) -> Any:
    """This tensor with the values `src[p]` reduced to place `p with p[dim] = index[p]`. The index is i64 or i32 and may be smaller than `src`. Values that share an extremum share its gradient. Products take some log2 of the number of values kernels. Float and integer dtypes. Errors: as `scatter_add`.

    self: tensor
    index: tensor: i32 or i64
    src: tensor
    dim: an integer
    reduce: sum, prod, mean, amax or amin
    include_self: a bool
    """
    return _call("scatter_reduce", [("self", self), ("index", index), ("src", src)], {"dim": dim, "reduce": reduce, "include_self": include_self})


def index_reduce(self: Tensor, index: Tensor, src: Tensor, dim: int, reduce: Any, include_self: bool = True) -> Any:
    """`scatter_reduce` of the slices of `src` along `dim`, one for each element of the index `[L]`.

    self: tensor
    index: tensor: i64
    src: tensor
    dim: an integer
    reduce: sum, prod, mean, amax or amin
    include_self: a bool
    """
    return _call("index_reduce", [("self", self), ("index", index), ("src", src)], {"dim": dim, "reduce": reduce, "include_self": include_self})


def embedding_bag(w: Tensor, index: Tensor, per_sample_weights: Tensor | None = None, offsets: Tensor | None = None, mode: Any = 'mean', padding_idx: int | None = None) -> Any:
    """Rows of this table `[V, E]` by index, reduced over bags: `[B, E]`, 0 for an empty bag. The index (i64 or i32) is `[B, L]`, or `[N]` with the `offsets: [B]` at which bags begin, of which the first is 0. Errors: `Shape`; `Dtype`; `Attr` for weights of means or maxima; `Index`.

    per_sample_weights: tensor
    w: tensor
    index: tensor: i32 or i64
    offsets: tensor: i64
    mode: mean, sum or max
    padding_idx: an integer
    """
    return _call("embedding_bag", [("per_sample_weights", per_sample_weights), ("w", w), ("index", index), ("offsets", offsets)], {"mode": mode, "padding_idx": padding_idx})


def sum(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """The sum over `axes`. Integers and bool sum to i64. An empty sum is 0. Errors: `Attr` for a dimension out of range or named twice.

    x: tensor
    dims: a list of integers
    keepdim: a bool
    """
    return _call("sum", [("x", x)], {"dims": dims, "keepdim": keepdim})


def mean(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """The mean over `axes`; NaN of an empty slice. It is correct even if the sum overflows. A term below the number of elements times the smallest normal number may be rounded to a multiple of the smallest subnormal number before it is added. Float dtypes. Errors: `Attr`, `Dtype`.

    x: tensor
    dims: a list of integers
    keepdim: a bool
    """
    return _call("mean", [("x", x)], {"dims": dims, "keepdim": keepdim})


def l2_norm(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """The Euclidean norm over `axes`; 0 of an empty slice. The gradient at 0 is 0. The norm is correct even if squares overflow. Float dtypes. Errors: `Attr`, `Dtype`.

    x: tensor
    dims: a list of integers
    keepdim: a bool
    """
    return _call("l2_norm", [("x", x)], {"dims": dims, "keepdim": keepdim})


def amax(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """The largest element over `axes`. NaN wins, and ties share the gradient. All dtypes; true is larger than false. Errors: `Value` for an empty slice, `Attr`.

    x: tensor
    dims: a list of integers
    keepdim: a bool
    """
    return _call("amax", [("x", x)], {"dims": dims, "keepdim": keepdim})


def amin(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """The smallest element over `axes`. NaN wins, and ties share the gradient. Errors: as `amax`.

    x: tensor
    dims: a list of integers
    keepdim: a bool
    """
    return _call("amin", [("x", x)], {"dims": dims, "keepdim": keepdim})


def prod(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """The product over `axes`. Integers and bool multiply to i64. An empty product is 1. It is correct even if the product of some of the factors is out of range. So is the gradient, also if factors are zero; for rows of more than `LONGEST_PRODUCT` bytes, the products of all factors before and of all after each must be in range. Errors: `Attr`.

    x: tensor
    dims: a list of integers
    keepdim: a bool
    """
    return _call("prod", [("x", x)], {"dims": dims, "keepdim": keepdim})


def var(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False, correction: float = 0.0) -> Any:
    """The variance over `axes`: the sum of squared deviations divided by `count - correction` (1: unbiased, 0: biased). It is correct even if sums overflow. It is NaN for a slice with infinite elements, and so are the gradients of all of its elements. Float dtypes. Errors: `Attr`, also for a NaN correction; `Dtype`.

    x: tensor
    dims: a list of integers
    keepdim: a bool
    correction: a number
    """
    return _call("var", [("x", x)], {"dims": dims, "keepdim": keepdim, "correction": correction})


def logsumexp(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """`ln sum(e^x)` over `axes`, without overflow; -inf of an empty slice. Float dtypes. Errors: `Attr`. If all elements of a slice are -inf, their gradient is 0 (in PyTorch NaN): masked elements do not contribute to a loss. In a slice with +inf, the gradient of that element is NaN, and the gradient of the others 0.

    x: tensor
    dims: a list of integers
    keepdim: a bool
    """
    return _call("logsumexp", [("x", x)], {"dims": dims, "keepdim": keepdim})


def max(x: Tensor, keepdim: bool = False, dim: int | None = None) -> Any:
    """The largest elements along `dim` and their first positions (i64). Only these positions get the gradient. The largest element of the whole tensor, or over several axes, is `amax`: `x.amax(..)`. Errors: as `amax`.

    x: tensor
    keepdim: a bool
    dim: an integer
    """
    return _call("max", [("x", x)], {"keepdim": keepdim, "dim": dim})


def min(x: Tensor, keepdim: bool = False, dim: int | None = None) -> Any:
    """The smallest elements along `dim` and their first positions (i64). Only these positions get the gradient. The smallest element of the whole tensor, or over several axes, is `amin`: `x.amin(..)`. Errors: as `amax`.

    x: tensor
    keepdim: a bool
    dim: an integer
    """
    return _call("min", [("x", x)], {"keepdim": keepdim, "dim": dim})


def argmax(x: Tensor, dim: int | None = None, last: bool = False, keepdim: bool = False) -> Any:
    """The first position (i64) of the largest element over `axes`, counted in row-major order over these dimensions. NaN is the largest. Errors: as `amax`.

    x: tensor
    dim: an integer
    last: a bool
    keepdim: a bool
    """
    return _call("argmax", [("x", x)], {"dim": dim, "last": last, "keepdim": keepdim})


def argmin(x: Tensor, dim: int | None = None, last: bool = False, keepdim: bool = False) -> Any:
    """The first position (i64) of the smallest element; NaN is the smallest. Errors: as `amax`.

    x: tensor
    dim: an integer
    last: a bool
    keepdim: a bool
    """
    return _call("argmin", [("x", x)], {"dim": dim, "last": last, "keepdim": keepdim})


def cumsum(x: Tensor, dim: int, exclusive: bool = False, reverse: bool = False) -> Any:
    """The running sum along `dim`. Integers sum to i64. Errors: `Attr` for a dimension out of range, `Dtype` for bool.

    x: tensor
    dim: an integer
    exclusive: a bool
    reverse: a bool
    """
    return _call("cumsum", [("x", x)], {"dim": dim, "exclusive": exclusive, "reverse": reverse})


def std(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False, correction: float = 0.0) -> Any:
    """The standard deviation over `axes`: the root of `var`. Its gradient is 0 where it is 0. Float dtypes. Errors: `Attr`, `Dtype`.

    x: tensor
    dims: a list of integers
    keepdim: a bool
    correction: a number
    """
    return _call("std", [("x", x)], {"dims": dims, "keepdim": keepdim, "correction": correction})


def var_mean(x: Tensor, dims: Sequence[int] | None = None, correction: float = 0.0) -> Any:
    """`var` and `mean` over `axes`. Float dtypes. Errors: `Attr`, `Dtype`.

    x: tensor
    dims: a list of integers
    correction: a number
    """
    return _call("var_mean", [("x", x)], {"dims": dims, "correction": correction})


def std_mean(x: Tensor, dims: Sequence[int] | None = None, correction: float = 0.0) -> Any:
    """`std` and `mean` over `axes`. Float dtypes. Errors: `Attr`, `Dtype`.

    x: tensor
    dims: a list of integers
    correction: a number
    """
    return _call("std_mean", [("x", x)], {"dims": dims, "correction": correction})


def norm(x: Tensor, p: float, dims: Sequence[int] | None = None) -> Any:
    """The norm of order p over `axes`: `(sum |x|^p)^(1/p)`, the largest absolute value for infinity, the smallest for -infinity, and the number of elements other than 0 for p = 0, which is outside of the tape. It is correct even if powers overflow. The gradient at 0 is 0. Float dtypes. Errors: `Attr`, also if p is NaN; `Dtype`; `Value` for the infinite norms of a slice without elements.

    x: tensor
    p: a number
    dims: a list of integers
    """
    return _call("norm", [("x", x)], {"p": p, "dims": dims})


def l1_norm(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """The sum of absolute values over `axes`. Float dtypes. Errors: `Attr`, `Dtype`.

    x: tensor
    dims: a list of integers
    keepdim: a bool
    """
    return _call("l1_norm", [("x", x)], {"dims": dims, "keepdim": keepdim})


def log_sum(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """The logarithm of the sum over `axes`. Float dtypes. Errors: `Attr`, `Dtype`.

    x: tensor
    dims: a list of integers
    keepdim: a bool
    """
    return _call("log_sum", [("x", x)], {"dims": dims, "keepdim": keepdim})


def sum_square(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """The sum of squares over `axes`. Float dtypes. Errors: `Attr`, `Dtype`.

    x: tensor
    dims: a list of integers
    keepdim: a bool
    """
    return _call("sum_square", [("x", x)], {"dims": dims, "keepdim": keepdim})


def nansum(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """The sum of all elements but NaN over `axes`; 0 if there are none. Float dtypes. Errors: `Attr`, `Dtype`.

    x: tensor
    dims: a list of integers
    keepdim: a bool
    """
    return _call("nansum", [("x", x)], {"dims": dims, "keepdim": keepdim})


def nanmean(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """The mean of all elements but NaN over `axes`; NaN if there are none. Float dtypes. Errors: `Attr`, `Dtype`.

    x: tensor
    dims: a list of integers
    keepdim: a bool
    """
    return _call("nanmean", [("x", x)], {"dims": dims, "keepdim": keepdim})


def all(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """True where all elements over `axes` are true, or not 0; true without elements. Outside of the tape. Errors: `Attr`.

    x: tensor
    dims: a list of integers
    keepdim: a bool
    """
    return _call("all", [("x", x)], {"dims": dims, "keepdim": keepdim})


def any(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """True where any element over `axes` is true, or not 0; false without elements. Outside of the tape. Errors: `Attr`.

    x: tensor
    dims: a list of integers
    keepdim: a bool
    """
    return _call("any", [("x", x)], {"dims": dims, "keepdim": keepdim})


def count_nonzero(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """The number (i64) of elements over `axes` that are true, or not 0. Outside of the tape. Errors: `Attr`.

    x: tensor
    dims: a list of integers
    keepdim: a bool
    """
    return _call("count_nonzero", [("x", x)], {"dims": dims, "keepdim": keepdim})


def kthvalue(x: Tensor, dim: int, k: int) -> Any:
    """The smallest element along `dim` for k = 1, the next for k = 2, and so on, and its position (i64). Of equal elements the first comes first; NaN is the largest. Float and integer dtypes. Errors: `Attr` unless k is 1 up to the extent; `Dtype`.

    x: tensor
    dim: an integer
    k: a size
    """
    return _call("kthvalue", [("x", x)], {"dim": dim, "k": k})


def median(x: Tensor, dim: int) -> Any:
    """The element along `dim` that has as many smaller as larger ones, the smaller of two, and its position (i64); NaN if there is one. Float and integer dtypes. Errors: `Attr`; `Dtype`; `Value` for a slice without elements.

    x: tensor
    dim: an integer
    """
    return _call("median", [("x", x)], {"dim": dim})


def mode(x: Tensor, dim: int) -> Any:
    """The most frequent element along `dim`, the smallest of several, and the last of its positions (i64). Float and integer dtypes; no NaN equals another. Errors: `Attr`; `Dtype`; `Value` for a slice without elements.

    x: tensor
    dim: an integer
    """
    return _call("mode", [("x", x)], {"dim": dim})


def quantile(x: Tensor, q: float, dim: int, between: Any = 'linear') -> Any:
    """The number below which a share q of the elements along `dim` lies; NaN if there is one. The gradient goes to the one or two elements that it lies between. Float dtypes. Errors: `Attr` unless q is 0 to 1; `Dtype`; `Value` for a slice without elements.

    x: tensor
    q: a number
    dim: an integer
    between: linear, lower, higher, midpoint or nearest
    """
    return _call("quantile", [("x", x)], {"q": q, "dim": dim, "between": between})


def cumprod(x: Tensor, dim: int, exclusive: bool = False, reverse: bool = False) -> Any:
    """The running product along `dim`. Out of range it is 0 or infinite, and in range again if later factors allow it. The gradient is correct even if factors are zero; its kernels are some log2 of the extent. Integers multiply to i64, outside of the tape. Errors: `Attr`; `Dtype` for bool.

    x: tensor
    dim: an integer
    exclusive: a bool
    reverse: a bool
    """
    return _call("cumprod", [("x", x)], {"dim": dim, "exclusive": exclusive, "reverse": reverse})


def cummax(x: Tensor, dim: int) -> Any:
    """The largest element up to each along `dim`, and the last of its positions so far (i64). NaN is the largest. The gradient goes to these positions. Some log2 of the extent kernels. Float and integer dtypes. Errors: `Attr`; `Dtype` for bool.

    x: tensor
    dim: an integer
    """
    return _call("cummax", [("x", x)], {"dim": dim})


def cummin(x: Tensor, dim: int) -> Any:
    """The smallest element up to each along `dim`, and the last of its positions so far (i64). NaN is the smallest. As `cummax`.

    x: tensor
    dim: an integer
    """
    return _call("cummin", [("x", x)], {"dim": dim})


def logcumsumexp(x: Tensor, dim: int) -> Any:
    """The logarithm of the running sum of `e^x` along `dim`, without overflow. Some log2 of the extent kernels. Float dtypes. Errors: `Attr`, `Dtype`.

    x: tensor
    dim: an integer
    """
    return _call("logcumsumexp", [("x", x)], {"dim": dim})


def matmul(a: Tensor, b: Tensor) -> Any:
    """The matrix product. A tensor of rank 1 is a row on the left and a column on the right. Leading dimensions are batches, which broadcast. Float dtypes. Errors: `Shape` where inner extents differ or an operand has rank 0.

    a: tensor
    b: tensor
    """
    return _call("matmul", [("a", a), ("b", b)], {})


def gemm(a: Tensor, b: Tensor, c: Tensor | None = None, alpha: float = 1.0, beta: float = 1.0, trans_a: bool = False, trans_b: bool = False) -> Any:
    """`beta c + alpha a @ b` for this matrix `a: [M, K]`, `b: [K, N]` and `c`, which broadcasts to `[M, N]`; or for batches of such matrices, all three with a first dimension. With `beta` 0, `c` is not read. With `alpha` 0, `a` and `b` are not read. Float dtypes. Errors: `Shape`.

    a: tensor
    b: tensor
    c: tensor
    alpha: a number
    beta: a number
    trans_a: a bool
    trans_b: a bool
    """
    return _call("gemm", [("a", a), ("b", b), ("c", c)], {"alpha": alpha, "beta": beta, "trans_a": trans_a, "trans_b": trans_b})


def linear(x: Tensor, w: Tensor, b: Tensor | None = None) -> Any:
    """`x w^T + b` for `x: [.., I]`, `w: [O, I]`, `b: [O]`. Float dtypes. Errors: `Shape`.

    x: tensor
    w: tensor
    b: tensor
    """
    return _call("linear", [("x", x), ("w", w), ("b", b)], {})


def gemm_bias(a: Tensor, b: Tensor, bias: Tensor | None = None, trans_a: bool = False, trans_b: bool = False, activation: Any = 'identity') -> Any:
    """`activation(a @ b + bias)` for this matrix `a: [M, K]`, `b: [K, N]` and `bias: [N]`, rounded once. Transposed matrices are `[K, M]` and `[N, K]`. An `a: [.., K]` that is not transposed may have any rank but 0. Float dtypes. Errors: `Shape`.

    a: tensor
    b: tensor
    bias: tensor
    trans_a: a bool
    trans_b: a bool
    activation: identity, relu, gelu, gelu_tanh, sigmoid, tanh or silu
    """
    return _call("gemm_bias", [("a", a), ("b", b), ("bias", bias)], {"trans_a": trans_a, "trans_b": trans_b, "activation": activation})


def einsum(xs: Sequence[Tensor], equation: Any) -> Any:
    """The sum of products that an equation describes, as in PyTorch: `"bij,bjk->bik"` is a batch of matrix products. Each operand has a letter for each of its dimensions, and `...` stands for any number of dimensions, which broadcast. Dimensions of one letter have one extent, or 1. A letter that an operand repeats takes its diagonal. Letters that are not in the output are summed. Without `->`, the output is `...` and then the letters that occur once, capitals first, in the order of the alphabet. Spaces have no meaning. Operands are multiplied two at a time. The order is the one with the fewest multiplications for up to six operands, and is chosen greedily for more. A step that sums is a product of matrices, or of batches of them; in 16 bits each step is rounded. Float dtypes. Errors: `Attr` for an equation that is not valid or has another number of operands; `Shape` if a rank or an extent does not fit, or if a result has more than 8 dimensions; `Dtype`.

    xs: tensors
    equation: an equation
    """
    return _call("einsum", [("x", xs)], {"equation": equation})


def outer(a: Tensor, b: Tensor) -> Any:
    """`y[i, j] = a[i] b[j]` for this vector `a: [N]` and `b: [M]`. Errors: `Shape` unless both are vectors; `Dtype`.

    a: tensor
    b: tensor
    """
    return _call("outer", [("a", a), ("b", b)], {})


def kron(a: Tensor, b: Tensor) -> Any:
    """The Kronecker product: each element of this tensor, in place, times all of `b`. The operand of lower rank gets dimensions of size 1 in front; extents are multiplied. Errors: `Shape` for a rank above 4; `Dtype`.

    a: tensor
    b: tensor
    """
    return _call("kron", [("a", a), ("b", b)], {})


def bilinear(x: Tensor, y: Tensor, w: Tensor, b: Tensor | None = None) -> Any:
    """`y[.., o] = x[.., i] w[o, i, j] other[.., j] + b[o]`, summed over i and j, for this tensor `x: [.., I]`, `other: [.., J]`, `w: [O, I, J]` and `b: [O]`. Float dtypes. Errors: `Shape`, `Dtype`.

    x: tensor
    y: tensor
    w: tensor
    b: tensor
    """
    return _call("bilinear", [("x", x), ("y", y), ("w", w), ("b", b)], {})


def dequantize(weight: Tensor, columns: int, format: Any, dtype: str) -> Any:
    """The numbers `[rows, columns]` in a dtype of floats, each rounded once, with the same bits on every device. Errors: `Dtype` for another dtype; `OutOfMemory`.

    weight: tensor: u8
    columns: a size
    format: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4 or NF4
    dtype: a dtype
    """
    return _call("dequantize", [("weight", weight)], {"columns": columns, "format": format, "dtype": dtype})


def quantized_linear(x: Tensor, weight: Tensor, format: Any, bias: Tensor | None = None) -> Any:
    """`x w^T + bias` for `x: [.., in]`, a quantised weight `[out, in]` and `bias: [out]`. Float dtypes; sums are in f32, and rounded once. Few rows of x are multiplied with the blocks themselves. For more of them a GPU dequantises the weight, in parts if it is large, and rounds it to the dtype of x. The weight is a constant: x and the bias have gradients. Errors: `Shape`; `Dtype` unless x and the bias are floats of one dtype; `Device`.

    x: tensor
    weight: tensor: u8
    bias: tensor
    format: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4 or NF4
    """
    return _call("quantized_linear", [("x", x), ("weight", weight), ("bias", bias)], {"format": format})


def cdist(a: Tensor, b: Tensor, p: float = 2.0) -> Any:
    """The distance of order p between each row of this tensor `[.., P, M]` and each row of `other: [.., R, M]`: `[.., P, R]`. Leading dimensions broadcast. The order is the order of `norm`: 0 counts the components that differ, and is outside of the tape; infinity is the largest difference. The gradient is 0 where the distance is 0. For p = 2 and more than 25 rows on either side, distances are `sqrt(|x|^2 + |y|^2 - 2 x y)` with a matrix product, as in PyTorch: rows that nearly coincide lose digits. Otherwise the differences of all pairs, `[.., P, R, M]`, are in memory. 16-bit dtypes are computed in f32. Float dtypes. Errors: `Shape`, `Dtype`; `Attr` for a negative order or NaN.

    a: tensor
    b: tensor
    p: a number
    """
    return _call("cdist", [("a", a), ("b", b)], {"p": p})


def pairwise_distance(a: Tensor, b: Tensor, p: float = 2.0, eps: float = 1e-06) -> Any:
    """The distance of order p between vectors along the last dimension: the `norm` of `x - other + eps`. Operands broadcast. PyTorch's defaults are p = 2 and eps = 1e-6. Float dtypes. Errors: `Shape`, `Dtype`; `Attr` for an order that is NaN; `Value` for the infinite norms of vectors without elements.

    a: tensor
    b: tensor
    p: a number
    eps: a number
    """
    return _call("pairwise_distance", [("a", a), ("b", b)], {"p": p, "eps": eps})


def cosine_similarity(a: Tensor, b: Tensor, dim: int = 1, eps: float = 1e-08) -> Any:
    """The cosine of the angle between vectors along `dim`: `x other / (max(|x|, eps) max(|other|, eps))`. Operands broadcast, and `dim` is a dimension of their common shape. PyTorch's default is eps = 1e-8. Float dtypes. Errors: `Shape`, `Dtype`, `Attr`.

    a: tensor
    b: tensor
    dim: an integer
    eps: a number
    """
    return _call("cosine_similarity", [("a", a), ("b", b)], {"dim": dim, "eps": eps})


def softmax(x: Tensor, dim: int) -> Any:
    """`e^x / sum(e^x)` along `dim`, without overflow. Float dtypes. The softmax is NaN for a slice with NaN or +inf, or of -inf alone. Errors: `Attr` for a dimension out of range. In such a slice the gradient of elements that are -inf is 0 (in PyTorch NaN), so that a slice that is masked throughout does not make other gradients NaN. The gradient of other elements is NaN.

    x: tensor
    dim: an integer
    """
    return _call("softmax", [("x", x)], {"dim": dim})


def log_softmax(x: Tensor, dim: int) -> Any:
    """`ln softmax(x)` along `dim`. Float dtypes. NaN and its gradients are as in `softmax`. Errors: `Attr`.

    x: tensor
    dim: an integer
    """
    return _call("log_softmax", [("x", x)], {"dim": dim})


def softmax1(x: Tensor, dim: int) -> Any:
    """`e^x / (1 + sum(e^x))` along `dim`, without overflow: a softmax with one more element 0, which is left out. As weights of attention it can attend to nothing. Float dtypes. It is 0 for a slice of -inf alone, and NaN for a slice with NaN or +inf. Errors: `Attr` for a dimension out of range. Miller 2023, "Attention Is Off By One".

    x: tensor
    dim: an integer
    """
    return _call("softmax1", [("x", x)], {"dim": dim})


def softmin(x: Tensor, dim: int) -> Any:
    """`softmax` of `-x`.

    x: tensor
    dim: an integer
    """
    return _call("softmin", [("x", x)], {"dim": dim})


def layer_norm(x: Tensor, dims: int, eps: float, weight: Tensor | None = None, bias: Tensor | None = None, normalized_shape: Sequence[int] | None = None) -> Any:
    """`(x - mean) / sqrt(var + eps) * weight + bias` over the last `dims` dimensions, with the biased variance. Weight and bias have the shape of these dimensions and the dtype of x or f32; they default to 1 and 0. Float dtypes. Ba et al. 2016, arXiv:1607.06450. Errors: `Attr` unless `1 <= dims <= rank` and `eps >= 0`, `Shape`, `Dtype`.

    x: tensor
    weight: tensor
    bias: tensor
    normalized_shape: a list of integers
    dims: a size
    eps: a number
    """
    return _call("layer_norm", [("x", x), ("weight", weight), ("bias", bias)], {"normalized_shape": normalized_shape, "dims": dims, "eps": eps})


def rms_norm(x: Tensor, dims: int, eps: float, weight: Tensor | None = None, normalized_shape: Sequence[int] | None = None) -> Any:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last `dims` dimensions. Weight and errors are as for `layer_norm`. Float dtypes. Zhang and Sennrich 2019, NeurIPS.

    x: tensor
    weight: tensor
    normalized_shape: a list of integers
    dims: a size
    eps: a number
    """
    return _call("rms_norm", [("x", x), ("weight", weight)], {"normalized_shape": normalized_shape, "dims": dims, "eps": eps})


def layer_norm_activation(x: Tensor, dims: int, eps: float, weight: Tensor | None = None, bias: Tensor | None = None, normalized_shape: Sequence[int] | None = None, activation: Any = 'identity') -> Any:
    """An activation of `layer_norm`, rounded once. The kernels of GPUs apply relu, gelu and silu.

    weight: tensor
    bias: tensor
    x: tensor
    normalized_shape: a list of integers
    dims: a size
    eps: a number
    activation: identity, relu, gelu, gelu_tanh, sigmoid, tanh or silu
    """
    return _call("layer_norm_activation", [("weight", weight), ("bias", bias), ("x", x)], {"normalized_shape": normalized_shape, "dims": dims, "eps": eps, "activation": activation})


def residual_layer_norm(x: Tensor, residual: Tensor, dims: int, eps: float, weight: Tensor | None = None, bias: Tensor | None = None, normalized_shape: Sequence[int] | None = None, wide_sum: bool = False) -> Any:
    """The sum `s = x + residual`, rounded, and its `layer_norm` y: `(y, s)`. The residual has the shape and the dtype of x, or is f32 where x has 16 bits. The sum has the dtype of the residual, and y that of x. Both results have gradients. Errors: as for `layer_norm`.

    x: tensor
    residual: tensor
    weight: tensor
    bias: tensor
    normalized_shape: a list of integers
    dims: a size
    eps: a number
    wide_sum: a bool
    """
    return _call("residual_layer_norm", [("x", x), ("residual", residual), ("weight", weight), ("bias", bias)], {"normalized_shape": normalized_shape, "dims": dims, "eps": eps, "wide_sum": wide_sum})


def batch_norm(x: Tensor, eps: float, running_mean: Tensor | None = None, running_var: Tensor | None = None, num_batches: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None, training: bool = True, momentum: float | None = None) -> Any:
    """`(x - mean) / sqrt(var + eps) * weight + bias` for each channel of x `[N, C, ..]`. Mean and biased variance are over all other dimensions, or are running statistics. Weight and bias are `[C]`, in the dtype of x or f32, and default to 1 and 0. Float dtypes. Ioffe and Szegedy 2015, arXiv:1502.03167. Errors: `Shape`; `Dtype`; `Attr` if eps is negative, or if all batches have the same weight and there is no count of batches; `Value` for the variance of a single element, or if running statistics require a gradient or share memory with another operand.

    running_mean: tensor
    running_var: tensor
    num_batches: tensor
    weight: tensor
    bias: tensor
    x: tensor
    training: a bool
    momentum: a number
    eps: a number
    """
    return _call("batch_norm", [("running_mean", running_mean), ("running_var", running_var), ("num_batches", num_batches), ("weight", weight), ("bias", bias), ("x", x)], {"training": training, "momentum": momentum, "eps": eps})


def batch_norm_relu(x: Tensor, eps: float, running_mean: Tensor | None = None, running_var: Tensor | None = None, num_batches: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None, training: bool = True, momentum: float | None = None) -> Any:
    """`max(batch_norm(x) + residual, 0)` with the parameters of `batch_norm`, and a residual like x where it is given: what follows a convolution in residual networks. One kernel on GPUs, forward and backward. He et al. 2016, arXiv:1512.03385. Errors: as `batch_norm`; `Shape`, `Dtype` or `Device` for a residual that is not like x.

    running_mean: tensor
    running_var: tensor
    num_batches: tensor
    weight: tensor
    bias: tensor
    residual: tensor
    x: tensor
    training: a bool
    momentum: a number
    eps: a number
    """
    return _call("batch_norm_relu", [("running_mean", running_mean), ("running_var", running_var), ("num_batches", num_batches), ("weight", weight), ("bias", bias), ("residual", residual), ("x", x)], {"training": training, "momentum": momentum, "eps": eps})


def batch_norm_relu6(x: Tensor, eps: float, running_mean: Tensor | None = None, running_var: Tensor | None = None, num_batches: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None, training: bool = True, momentum: float | None = None) -> Any:
    """`min(max(batch_norm(x), 0), 6)` with the parameters of `batch_norm`: what follows a convolution in networks for small devices. One kernel on GPUs, forward and backward, whose gradient is 0 where the norm is 6 or more before it is rounded. Sandler et al. 2018, arXiv:1801.04381. Errors: as `batch_norm`.

    running_mean: tensor
    running_var: tensor
    num_batches: tensor
    weight: tensor
    bias: tensor
    x: tensor
    training: a bool
    momentum: a number
    eps: a number
    """
    return _call("batch_norm_relu6", [("running_mean", running_mean), ("running_var", running_var), ("num_batches", num_batches), ("weight", weight), ("bias", bias), ("x", x)], {"training": training, "momentum": momentum, "eps": eps})


def group_norm(x: Tensor, num_groups: int, eps: float, weight: Tensor | None = None, bias: Tensor | None = None) -> Any:
    """Normalises each of `groups` groups of adjacent channels of x `[N, C, ..]` by its mean and biased variance, separately for each sample. Weight and bias are as in `batch_norm`. Float dtypes. Wu and He 2018, arXiv:1803.08494. Errors: `Attr` if eps is negative or the groups do not divide C; `Shape`; `Dtype`; `Value` if each group has only one element in the whole batch.

    x: tensor
    weight: tensor
    bias: tensor
    num_groups: a size
    eps: a number
    """
    return _call("group_norm", [("x", x), ("weight", weight), ("bias", bias)], {"num_groups": num_groups, "eps": eps})


def instance_norm(x: Tensor, eps: float, running_mean: Tensor | None = None, running_var: Tensor | None = None, num_batches: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True, momentum: float | None = None) -> Any:
    """Normalises each channel of each sample of x `[N, C, ..]` by its mean and biased variance, or by running statistics. Training updates the running statistics with the means over N of the samples' means and unbiased variances. Weight and bias are as in `batch_norm`. Float dtypes. Ulyanov et al. 2016, arXiv:1607.08022. Errors: as `batch_norm`.

    running_mean: tensor
    running_var: tensor
    num_batches: tensor
    weight: tensor
    bias: tensor
    x: tensor
    use_input_stats: a bool
    momentum: a number
    eps: a number
    """
    return _call("instance_norm", [("running_mean", running_mean), ("running_var", running_var), ("num_batches", num_batches), ("weight", weight), ("bias", bias), ("x", x)], {"use_input_stats": use_input_stats, "momentum": momentum, "eps": eps})


def batch_norm_running(x: Tensor, eps: float, running_mean: Tensor | None = None, running_var: Tensor | None = None, num_batches: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None, training: bool = True, momentum: float | None = None) -> Any:
    """The op `batch_norm_running`.

    running_mean: tensor
    running_var: tensor
    num_batches: tensor: i64
    weight: tensor
    bias: tensor
    x: tensor
    training: a bool
    momentum: a number
    eps: a number
    """
    return _call("batch_norm_running", [("running_mean", running_mean), ("running_var", running_var), ("num_batches", num_batches), ("weight", weight), ("bias", bias), ("x", x)], {"training": training, "momentum": momentum, "eps": eps})


def instance_norm_running(x: Tensor, eps: float, running_mean: Tensor | None = None, running_var: Tensor | None = None, num_batches: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True, momentum: float | None = None) -> Any:
    """The op `instance_norm_running`.

    running_mean: tensor
    running_var: tensor
    num_batches: tensor: i64
    weight: tensor
    bias: tensor
    x: tensor
    use_input_stats: a bool
    momentum: a number
    eps: a number
    """
    return _call("instance_norm_running", [("running_mean", running_mean), ("running_var", running_var), ("num_batches", num_batches), ("weight", weight), ("bias", bias), ("x", x)], {"use_input_stats": use_input_stats, "momentum": momentum, "eps": eps})


def normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:
    """Vectors along `dim` divided by their `norm` of order p, or by `eps` if that is larger. Float dtypes. Errors: `Attr`, `Dtype`.

    x: tensor
    p: a number
    dim: an integer
    eps: a number
    """
    return _call("normalize", [("x", x)], {"p": p, "dim": dim, "eps": eps})


def local_response_norm(x: Tensor, size: int, alpha: float = 0.0001, beta: float = 0.75, k: float = 1.0) -> Any:
    """Elements of `[N, C, ..]` divided by `(k + alpha m)^beta`, where m is the sum of squares of the `size` nearest channels over `size`. Float dtypes. Errors: `Dtype`; `Attr` for a size of 0; `Shape` below rank 3. Krizhevsky et al. 2012, section 3.3.

    x: tensor
    size: a size
    alpha: a number
    beta: a number
    k: a number
    """
    return _call("local_response_norm", [("x", x)], {"size": size, "alpha": alpha, "beta": beta, "k": k})


def weight_norm(v: Tensor, g: Tensor, dim: int | None = None) -> Any:
    """A weight of this direction and of size g: `g v / |v|`, with a norm over all dimensions but `dim`, where g has extents of 1, or over all of them for `None`. Float dtypes. The gradient of v at 0 is NaN. Errors: `Attr`, `Dtype`, `Shape`. Salimans and Kingma 2016, arXiv 1602.07868.

    v: tensor
    g: tensor
    dim: an integer
    """
    return _call("weight_norm", [("v", v), ("g", g)], {"dim": dim})


def max_pool1d(x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = None, padding_end: Any = None, dilation: Any = None, ceil_mode: bool = False, return_indices: bool = False) -> Any:
    """The op `max_pool1d`.

    x: tensor
    kernel_size: a size, or a list of one for each dimension
    stride: a size, or a list of one for each dimension
    padding: a size, or a list of one for each dimension
    padding_end: a size, or a list of one for each dimension
    dilation: a size, or a list of one for each dimension
    ceil_mode: a bool
    return_indices: a bool
    """
    return _call("max_pool1d", [("x", x)], {"kernel_size": kernel_size, "stride": stride, "padding": padding, "padding_end": padding_end, "dilation": dilation, "ceil_mode": ceil_mode, "return_indices": return_indices})


def max_pool2d(x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = None, padding_end: Any = None, dilation: Any = None, ceil_mode: bool = False, return_indices: bool = False) -> Any:
    """The op `max_pool2d`.

    x: tensor
    kernel_size: a size, or a list of one for each dimension
    stride: a size, or a list of one for each dimension
    padding: a size, or a list of one for each dimension
    padding_end: a size, or a list of one for each dimension
    dilation: a size, or a list of one for each dimension
    ceil_mode: a bool
    return_indices: a bool
    """
    return _call("max_pool2d", [("x", x)], {"kernel_size": kernel_size, "stride": stride, "padding": padding, "padding_end": padding_end, "dilation": dilation, "ceil_mode": ceil_mode, "return_indices": return_indices})


def max_pool3d(x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = None, padding_end: Any = None, dilation: Any = None, ceil_mode: bool = False, return_indices: bool = False) -> Any:
    """The op `max_pool3d`.

    x: tensor
    kernel_size: a size, or a list of one for each dimension
    stride: a size, or a list of one for each dimension
    padding: a size, or a list of one for each dimension
    padding_end: a size, or a list of one for each dimension
    dilation: a size, or a list of one for each dimension
    ceil_mode: a bool
    return_indices: a bool
    """
    return _call("max_pool3d", [("x", x)], {"kernel_size": kernel_size, "stride": stride, "padding": padding, "padding_end": padding_end, "dilation": dilation, "ceil_mode": ceil_mode, "return_indices": return_indices})


def avg_pool1d(x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = None, padding_end: Any = None, dilation: Any = None, ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None) -> Any:
    """The op `avg_pool1d`.

    x: tensor
    kernel_size: a size, or a list of one for each dimension
    stride: a size, or a list of one for each dimension
    padding: a size, or a list of one for each dimension
    padding_end: a size, or a list of one for each dimension
    dilation: a size, or a list of one for each dimension
    ceil_mode: a bool
    count_include_pad: a bool
    divisor_override: an integer
    """
    return _call("avg_pool1d", [("x", x)], {"kernel_size": kernel_size, "stride": stride, "padding": padding, "padding_end": padding_end, "dilation": dilation, "ceil_mode": ceil_mode, "count_include_pad": count_include_pad, "divisor_override": divisor_override})


def avg_pool2d(x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = None, padding_end: Any = None, dilation: Any = None, ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None) -> Any:
    """The op `avg_pool2d`.

    x: tensor
    kernel_size: a size, or a list of one for each dimension
    stride: a size, or a list of one for each dimension
    padding: a size, or a list of one for each dimension
    padding_end: a size, or a list of one for each dimension
    dilation: a size, or a list of one for each dimension
    ceil_mode: a bool
    count_include_pad: a bool
    divisor_override: an integer
    """
    return _call("avg_pool2d", [("x", x)], {"kernel_size": kernel_size, "stride": stride, "padding": padding, "padding_end": padding_end, "dilation": dilation, "ceil_mode": ceil_mode, "count_include_pad": count_include_pad, "divisor_override": divisor_override})


def avg_pool3d(x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = None, padding_end: Any = None, dilation: Any = None, ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None) -> Any:
    """The op `avg_pool3d`.

    x: tensor
    kernel_size: a size, or a list of one for each dimension
    stride: a size, or a list of one for each dimension
    padding: a size, or a list of one for each dimension
    padding_end: a size, or a list of one for each dimension
    dilation: a size, or a list of one for each dimension
    ceil_mode: a bool
    count_include_pad: a bool
    divisor_override: an integer
    """
    return _call("avg_pool3d", [("x", x)], {"kernel_size": kernel_size, "stride": stride, "padding": padding, "padding_end": padding_end, "dilation": dilation, "ceil_mode": ceil_mode, "count_include_pad": count_include_pad, "divisor_override": divisor_override})


def global_max_pool2d(x: Tensor, return_indices: bool = False) -> Any:
    """The op `global_max_pool2d`.

    x: tensor
    return_indices: a bool
    """
    return _call("global_max_pool2d", [("x", x)], {"return_indices": return_indices})


def global_max_pool3d(x: Tensor, return_indices: bool = False) -> Any:
    """The op `global_max_pool3d`.

    x: tensor
    return_indices: a bool
    """
    return _call("global_max_pool3d", [("x", x)], {"return_indices": return_indices})


def global_avg_pool2d(x: Tensor) -> Any:
    """The op `global_avg_pool2d`.

    x: tensor
    """
    return _call("global_avg_pool2d", [("x", x)], {})


def global_avg_pool3d(x: Tensor) -> Any:
    """The op `global_avg_pool3d`.

    x: tensor
    """
    return _call("global_avg_pool3d", [("x", x)], {})


def adaptive_max_pool1d(x: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The op `adaptive_max_pool1d`.

    x: tensor
    output_size: a size, or a list of one for each dimension
    return_indices: a bool
    """
    return _call("adaptive_max_pool1d", [("x", x)], {"output_size": output_size, "return_indices": return_indices})


def adaptive_max_pool2d(x: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The op `adaptive_max_pool2d`.

    x: tensor
    output_size: a size, or a list of one for each dimension
    return_indices: a bool
    """
    return _call("adaptive_max_pool2d", [("x", x)], {"output_size": output_size, "return_indices": return_indices})


def adaptive_max_pool3d(x: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The op `adaptive_max_pool3d`.

    x: tensor
    output_size: a size, or a list of one for each dimension
    return_indices: a bool
    """
    return _call("adaptive_max_pool3d", [("x", x)], {"output_size": output_size, "return_indices": return_indices})


def adaptive_avg_pool1d(x: Tensor, output_size: Any) -> Any:
    """The op `adaptive_avg_pool1d`.

    x: tensor
    output_size: a size, or a list of one for each dimension
    """
    return _call("adaptive_avg_pool1d", [("x", x)], {"output_size": output_size})


def adaptive_avg_pool2d(x: Tensor, output_size: Any) -> Any:
    """The op `adaptive_avg_pool2d`.

    x: tensor
    output_size: a size, or a list of one for each dimension
    """
    return _call("adaptive_avg_pool2d", [("x", x)], {"output_size": output_size})


def adaptive_avg_pool3d(x: Tensor, output_size: Any) -> Any:
    """The op `adaptive_avg_pool3d`.

    x: tensor
    output_size: a size, or a list of one for each dimension
    """
    return _call("adaptive_avg_pool3d", [("x", x)], {"output_size": output_size})


def lp_pool1d(x: Tensor, kernel_size: Any, norm_type: float, stride: Any = None, ceil_mode: bool = False) -> Any:
    """The op `lp_pool1d`.

    x: tensor
    kernel_size: a size, or a list of one for each dimension
    stride: a size, or a list of one for each dimension
    ceil_mode: a bool
    norm_type: a number
    """
    return _call("lp_pool1d", [("x", x)], {"kernel_size": kernel_size, "stride": stride, "ceil_mode": ceil_mode, "norm_type": norm_type})


def lp_pool2d(x: Tensor, kernel_size: Any, norm_type: float, stride: Any = None, ceil_mode: bool = False) -> Any:
    """The op `lp_pool2d`.

    x: tensor
    kernel_size: a size, or a list of one for each dimension
    stride: a size, or a list of one for each dimension
    ceil_mode: a bool
    norm_type: a number
    """
    return _call("lp_pool2d", [("x", x)], {"kernel_size": kernel_size, "stride": stride, "ceil_mode": ceil_mode, "norm_type": norm_type})


def lp_pool3d(x: Tensor, kernel_size: Any, norm_type: float, stride: Any = None, ceil_mode: bool = False) -> Any:
    """The op `lp_pool3d`.

    x: tensor
    kernel_size: a size, or a list of one for each dimension
    stride: a size, or a list of one for each dimension
    ceil_mode: a bool
    norm_type: a number
    """
    return _call("lp_pool3d", [("x", x)], {"kernel_size": kernel_size, "stride": stride, "ceil_mode": ceil_mode, "norm_type": norm_type})


def max_unpool1d(x: Tensor, indices: Tensor, output_size: Any) -> Any:
    """The op `max_unpool1d`.

    x: tensor
    indices: tensor: i64
    output_size: a size, or a list of one for each dimension
    """
    return _call("max_unpool1d", [("x", x), ("indices", indices)], {"output_size": output_size})


def max_unpool2d(x: Tensor, indices: Tensor, output_size: Any) -> Any:
    """The op `max_unpool2d`.

    x: tensor
    indices: tensor: i64
    output_size: a size, or a list of one for each dimension
    """
    return _call("max_unpool2d", [("x", x), ("indices", indices)], {"output_size": output_size})


def max_unpool3d(x: Tensor, indices: Tensor, output_size: Any) -> Any:
    """The op `max_unpool3d`.

    x: tensor
    indices: tensor: i64
    output_size: a size, or a list of one for each dimension
    """
    return _call("max_unpool3d", [("x", x), ("indices", indices)], {"output_size": output_size})


def interpolate(x: Tensor, scale_factor: Any = None, size: Any = None, policy: Any = 'stretch', mode: Any = 'nearest', align_corners: bool = False, antialias: bool = False, cubic_a: float | None = None, excludes_outside: bool = False) -> Any:
    """Other extents of the last `N` dimensions, up to three, of `[N, C, ..]` or `[C, ..]`, with interpolated elements. Float dtypes. Positions and weights are computed in f64, and positions of `Nearest` from extents in integers. Errors: `Dtype`; `Attr` for other numbers of dimensions, options of another mode, or a factor that is not positive; `Shape` for another rank, an empty dimension beyond the batch, or an output extent of 0.

    x: tensor
    scale_factor: a factor for each dimension
    size: a size for each dimension
    policy: stretch, not_larger or not_smaller
    mode: nearest, nearest-exact, linear, bilinear, trilinear, bicubic or area
    align_corners: a bool
    antialias: a bool
    cubic_a: a number
    excludes_outside: a bool
    """
    return _call("interpolate", [("x", x)], {"scale_factor": scale_factor, "size": size, "policy": policy, "mode": mode, "align_corners": align_corners, "antialias": antialias, "cubic_a": cubic_a, "excludes_outside": excludes_outside})


def upsample3d_nearest(x: Tensor, scale_factor: Any = None, mode: Any = 'nearest', policy: Any = 'stretch', align_corners: bool = False, size: Any = None, antialias: bool = False, cubic_a: float | None = None, excludes_outside: bool = False) -> Any:
    """The op `upsample3d_nearest`.

    x: tensor
    scale_factor: a factor for each dimension
    mode: nearest, nearest-exact, linear, bilinear, trilinear, bicubic or area
    policy: stretch, not_larger or not_smaller
    align_corners: a bool
    size: a size for each dimension
    antialias: a bool
    cubic_a: a number
    excludes_outside: a bool
    """
    return _call("upsample3d_nearest", [("x", x)], {"scale_factor": scale_factor, "mode": mode, "policy": policy, "align_corners": align_corners, "size": size, "antialias": antialias, "cubic_a": cubic_a, "excludes_outside": excludes_outside})


def pixel_shuffle(x: Tensor, upscale_factor: int) -> Any:
    """Channels as pixels: `[.., C r^2, H, W]` to `[.., C, H r, W r]`. Channel `(c r + i) r + j` has the pixels in row i and column j of squares of r x r. All dtypes. Errors: `Attr` for a factor of 0; `Shape` below three dimensions, or if channels are no multiple of r^2. Shi et al. 2016, arXiv 1609.05158.

    x: tensor
    upscale_factor: a size
    """
    return _call("pixel_shuffle", [("x", x)], {"upscale_factor": upscale_factor})


def pixel_unshuffle(x: Tensor, downscale_factor: int) -> Any:
    """Pixels as channels: `[.., C, H r, W r]` to `[.., C r^2, H, W]`, the inverse of `pixel_shuffle`. All dtypes. Errors: `Attr` for a factor of 0; `Shape` below three dimensions, or if an extent is no multiple of r.

    x: tensor
    downscale_factor: a size
    """
    return _call("pixel_unshuffle", [("x", x)], {"downscale_factor": downscale_factor})


def grid_sample(x: Tensor, grid: Tensor, mode: Any = 'bilinear', padding_mode: Any = 'zeros', align_corners: bool = False) -> Any:
    """The values of images `[N, C, H, W]` at points `[N, h, w, 2]`, whose coordinates (x along W, then y along H) are -1 to 1: `[N, C, h, w]`; or of volumes `[N, C, D, H, W]` at points `[N, d, h, w, 3]`: `[N, C, d, h, w]`. Points that are not finite are outside of the image. Gradients of both; that of a point is 0 for the nearest element, and where a point is moved to the edge. Float dtypes. Jaderberg et al. 2015, arXiv 1506.02025. Errors: `Dtype`; `Shape` for other shapes, or images without elements; `Attr` for cubic values of volumes.

    x: tensor
    grid: tensor
    mode: bilinear, nearest or bicubic
    padding_mode: zeros, border or reflection
    align_corners: a bool
    """
    return _call("grid_sample", [("x", x), ("grid", grid)], {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners})


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool = False) -> Any:
    """The points at which images are sampled for affine maps `theta: [N, 2, 3]`, and `size` `[h, w]`: `[N, h, w, 2]`; or for `[N, 3, 4]` and `[d, h, w]`: `[N, d, h, w, 3]`. The last column of a map is its translation. `ends` are as for `grid_sample`. Float dtypes. Errors: `Dtype`, `Shape`.

    theta: tensor
    size: a list of integers
    align_corners: a bool
    """
    return _call("affine_grid", [("theta", theta)], {"size": size, "align_corners": align_corners})


def channel_shuffle(x: Tensor, groups: int) -> Any:
    """Channels of different groups side by side: `[N, C, ..]` to the same shape, where channel `c groups + g` was channel c of group g. All dtypes. Errors: `Attr` for 0 groups; `Shape` below two dimensions, or if channels are no multiple of the groups. Zhang et al. 2017, arXiv 1707.01083.

    x: tensor
    groups: a size
    """
    return _call("channel_shuffle", [("x", x)], {"groups": groups})


def conv1d(x: Tensor, w: Tensor, b: Tensor | None = None, stride: Any = 1, padding: Any = 'valid', dilation: Any = 1, groups: int = 1) -> Any:
    """The op `conv1d`.

    x: tensor
    w: tensor
    b: tensor
    stride: a size, or a list of one for each dimension
    padding: valid, same, a size for each dimension, or pairs
    dilation: a size, or a list of one for each dimension
    groups: a size
    """
    return _call("conv1d", [("x", x), ("w", w), ("b", b)], {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups})


def conv2d(x: Tensor, w: Tensor, b: Tensor | None = None, stride: Any = 1, padding: Any = 'valid', dilation: Any = 1, groups: int = 1) -> Any:
    """The op `conv2d`.

    x: tensor
    w: tensor
    b: tensor
    stride: a size, or a list of one for each dimension
    padding: valid, same, a size for each dimension, or pairs
    dilation: a size, or a list of one for each dimension
    groups: a size
    """
    return _call("conv2d", [("x", x), ("w", w), ("b", b)], {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups})


def conv3d(x: Tensor, w: Tensor, b: Tensor | None = None, stride: Any = 1, padding: Any = 'valid', dilation: Any = 1, groups: int = 1) -> Any:
    """The op `conv3d`.

    x: tensor
    w: tensor
    b: tensor
    stride: a size, or a list of one for each dimension
    padding: valid, same, a size for each dimension, or pairs
    dilation: a size, or a list of one for each dimension
    groups: a size
    """
    return _call("conv3d", [("x", x), ("w", w), ("b", b)], {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups})


def conv_transpose1d(x: Tensor, w: Tensor, b: Tensor | None = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
    """The op `conv_transpose1d`.

    x: tensor
    w: tensor
    b: tensor
    stride: a size, or a list of one for each dimension
    padding: a size, or a list of one for each dimension
    output_padding: a size, or a list of one for each dimension
    dilation: a size, or a list of one for each dimension
    groups: a size
    """
    return _call("conv_transpose1d", [("x", x), ("w", w), ("b", b)], {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation, "groups": groups})


def conv_transpose2d(x: Tensor, w: Tensor, b: Tensor | None = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
    """The op `conv_transpose2d`.

    x: tensor
    w: tensor
    b: tensor
    stride: a size, or a list of one for each dimension
    padding: a size, or a list of one for each dimension
    output_padding: a size, or a list of one for each dimension
    dilation: a size, or a list of one for each dimension
    groups: a size
    """
    return _call("conv_transpose2d", [("x", x), ("w", w), ("b", b)], {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation, "groups": groups})


def conv_transpose3d(x: Tensor, w: Tensor, b: Tensor | None = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
    """The op `conv_transpose3d`.

    x: tensor
    w: tensor
    b: tensor
    stride: a size, or a list of one for each dimension
    padding: a size, or a list of one for each dimension
    output_padding: a size, or a list of one for each dimension
    dilation: a size, or a list of one for each dimension
    groups: a size
    """
    return _call("conv_transpose3d", [("x", x), ("w", w), ("b", b)], {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation, "groups": groups})


def deform_conv2d(x: Tensor, w: Tensor, offset: Tensor, mask: Tensor | None = None, b: Tensor | None = None, stride: Any = 1, padding: Any = 'valid', dilation: Any = 1, groups: int = 1) -> Any:
    """The convolution of `[N, C, H, W]` or `[C, H, W]` by a weight `[O, C / groups, k, l]` and a bias `[O]`, whose windows read elements beside their places. `offset` has the distances `[N, 2 G k l, h, w]` for each output: for each of G groups of channels and each element of the window, along H, then along W. `mask` has factors `[N, G k l, h, w]` of the elements. Values between elements are linear along both dimensions, and 0 outside of the input. G divides C, and follows from the offsets. A sample `[C, H, W]` has offsets and a mask without the batch. Gradients of all operands. Float dtypes; all operands have the same, and sums are in f32, or f64. As torchvision's. Dai et al. 2017, arXiv 1703.06211; with a mask Zhu et al. 2018, arXiv 1811.11168. Errors: `Dtype`; `Attr` as for `conv2d`; `Shape` for operands that do not fit each other, a window that does not fit, or an input without elements beyond the batch.

    mask: tensor
    b: tensor
    x: tensor
    w: tensor
    offset: tensor
    stride: a size, or a list of one for each dimension
    padding: valid, same, a size for each dimension, or pairs
    dilation: a size, or a list of one for each dimension
    groups: a size
    """
    return _call("deform_conv2d", [("mask", mask), ("b", b), ("x", x), ("w", w), ("offset", offset)], {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups})


def unfold(x: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    """The elements of the windows of `[N, C, H, W]` or `[C, H, W]` as columns `[N, C k, Q]`: the k elements of Q windows, both in row-major order (im2col). Float dtypes. The gradient is `fold`. Errors: `Dtype`; `Attr` for a kernel, stride or dilation of 0, and for sizes that exceed the kernels' 32-bit indices; `Shape` for another rank, or a window that does not fit.

    x: tensor
    kernel_size: a size, or a list of one for each dimension
    dilation: a size, or a list of one for each dimension
    padding: a size, or a list of one for each dimension
    stride: a size, or a list of one for each dimension
    """
    return _call("unfold", [("x", x)], {"kernel_size": kernel_size, "dilation": dilation, "padding": padding, "stride": stride})


def fold(x: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    """Adds columns `[N, C k, Q]` or `[C k, Q]` to images `[N, C, H, W]` of `size`: each pixel gets the sum of its copies in `unfold` (col2im). Float dtypes. The gradient is `unfold`. Errors: `Dtype`; `Attr` as for `unfold`; `Shape` for another rank, a number of rows that is no multiple of k, or another number of windows.

    x: tensor
    output_size: a size, or a list of one for each dimension
    kernel_size: a size, or a list of one for each dimension
    dilation: a size, or a list of one for each dimension
    padding: a size, or a list of one for each dimension
    stride: a size, or a list of one for each dimension
    """
    return _call("fold", [("x", x)], {"output_size": output_size, "kernel_size": kernel_size, "dilation": dilation, "padding": padding, "stride": stride})


def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, key_lengths: Tensor | None = None, causal: Any = 'none', scale: float | None = None, score_cap: float | None = None, p: float = 0.0, seed: Any = 0, offset: Any = 0, stream: Any = 0, window: Any = None, lse: bool = False) -> Any:
    """`softmax(scale q k^T + mask) v` for queries (this tensor, `[B, Hq, Tq, D]`), keys `[B, Hk, Tk, D]` and values `[B, Hk, Tk, Dv]`: `[B, Hq, Tq, Dv]`. Query head h attends to the keys of head `h / (Hq / Hk)`. Float dtypes; the arithmetic is in the accumulation dtype. No tensor of `Tq Tk` elements is made, except for the gradient of a float mask of that size. A query that attends to no key has the output 0 and no gradient. Masked keys and values must be finite: a product of 0 and infinity may be NaN. With dropout, weights are multiplied by 0 or `1 / (1 - p)`; element `((b Hq + h) Tq + q) Tk + k` of the draws decides about a weight. Vaswani et al. 2017, arXiv 1706.03762; Dao 2023, arXiv 2307.08691. Errors: `Shape` for extents that do not fit, `Hq` that is no multiple of `Hk`, and a mask that does not broadcast; `Dtype`; `Device`; `Attr` for a dropout probability outside of 0 to 1, and for a limit of scores that is not above 0; `Index` for a number of keys outside of 0 to Tk, unless the scores have a limit in a captured step.

    mask: tensor
    key_lengths: tensor: i32 or i64
    q: tensor
    k: tensor
    v: tensor
    causal: none, top_left or bottom_right
    scale: a number
    score_cap: a number
    p: a number
    seed: a number from 0 on
    offset: a number from 0 on
    stream: a number from 0 on
    window: a list of two sizes
    lse: a bool
    """
    return _call("scaled_dot_product_attention", [("mask", mask), ("key_lengths", key_lengths), ("q", q), ("k", k), ("v", v)], {"causal": causal, "scale": scale, "score_cap": score_cap, "p": p, "seed": seed, "offset": offset, "stream": stream, "window": window, "lse": lse})


def varlen_attention(q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor, mask: Tensor | None = None, key_lengths: Tensor | None = None, causal: Any = 'none', scale: float | None = None, score_cap: float | None = None, p: float = 0.0, seed: Any = 0, offset: Any = 0, stream: Any = 0, window: Any = None, lse: bool = False) -> Any:
    """`scaled_dot_product_attention` of sequences of several lengths that lie one after the other, without padding: queries (this tensor) `[Tq, Hq, D]`, keys `[Tk, Hk, D]` and values `[Tk, Hk, Dv]` to `[Tq, Hq, Dv]`. Sequence n has the queries `q_starts[n]..q_starts[n + 1]` and the keys and values `k_starts[n]..k_starts[n + 1]`; both are `[N + 1]` (i64 or i32), as PyTorch's `cu_seq_q` and `cu_seq_k`, and stay on the device. A query attends to keys of its own sequence; positions of `causal` and `window` count in it. Rows outside of all sequences have the output 0 and no gradient. A mask broadcasts to `[1, Hq, Tq, Tk]`. Errors: as there; `Index` for numbers that fall, or are outside of 0 to Tq or Tk; `Attr` for `key_lengths`. Devices without a kernel for the call read the numbers, for which they wait.

    mask: tensor
    key_lengths: tensor
    q: tensor
    k: tensor
    v: tensor
    q_starts: tensor: i32 or i64
    k_starts: tensor: i32 or i64
    causal: none, top_left or bottom_right
    scale: a number
    score_cap: a number
    p: a number
    seed: a number from 0 on
    offset: a number from 0 on
    stream: a number from 0 on
    window: a list of two sizes
    lse: a bool
    """
    return _call("varlen_attention", [("mask", mask), ("key_lengths", key_lengths), ("q", q), ("k", k), ("v", v), ("q_starts", q_starts), ("k_starts", k_starts)], {"causal": causal, "scale": scale, "score_cap": score_cap, "p": p, "seed": seed, "offset": offset, "stream": stream, "window": window, "lse": lse})


def multi_head_attention(query: Tensor, key: Tensor, value: Tensor, out_weight: Tensor, heads: int, weight: Tensor | None = None, q_weight: Tensor | None = None, k_weight: Tensor | None = None, v_weight: Tensor | None = None, bias: Tensor | None = None, out_bias: Tensor | None = None, key_padding_mask: Tensor | None = None, mask: Tensor | None = None, causal: Any = 'none', p: float = 0.0, seed: Any = 0, offset: Any = 0, stream: Any = 0) -> Any:
    """The attention of query (this tensor, `[B, Tq, E]`) to key `[B, Tk, Ek]` and value `[B, Tk, Ev]`: each is projected to width E and divided into heads, and the results of all heads are projected to `[B, Tq, E]`. Float dtypes. A query that attends to no key gives the bias of the last projection. Vaswani et al. 2017, arXiv 1706.03762, section 3.2.2. Errors: `Shape` for operands that do not fit each other; `Attr` for heads that do not divide E; `Dtype`; `Device`; the errors of `scaled_dot_product_attention`.

    query: tensor
    key: tensor
    value: tensor
    weight: tensor
    q_weight: tensor
    k_weight: tensor
    v_weight: tensor
    bias: tensor
    out_weight: tensor
    out_bias: tensor
    key_padding_mask: tensor: bool
    mask: tensor
    heads: a size
    causal: none, top_left or bottom_right
    p: a number
    seed: a number from 0 on
    offset: a number from 0 on
    stream: a number from 0 on
    """
    return _call("multi_head_attention", [("query", query), ("key", key), ("value", value), ("weight", weight), ("q_weight", q_weight), ("k_weight", k_weight), ("v_weight", v_weight), ("bias", bias), ("out_weight", out_weight), ("out_bias", out_bias), ("key_padding_mask", key_padding_mask), ("mask", mask)], {"heads": heads, "causal": causal, "p": p, "seed": seed, "offset": offset, "stream": stream})


def cross_attention(query: Tensor, context: Tensor, out_weight: Tensor, heads: int, weight: Tensor | None = None, q_weight: Tensor | None = None, k_weight: Tensor | None = None, v_weight: Tensor | None = None, bias: Tensor | None = None, out_bias: Tensor | None = None, key_padding_mask: Tensor | None = None, mask: Tensor | None = None, causal: Any = 'none', p: float = 0.0, seed: Any = 0, offset: Any = 0, stream: Any = 0) -> Any:
    """`multi_head_attention` of this tensor `[B, Tq, E]` to a context `[B, Tk, Ec]`, which is key and value. Errors: as there.

    query: tensor
    context: tensor
    weight: tensor
    q_weight: tensor
    k_weight: tensor
    v_weight: tensor
    bias: tensor
    out_weight: tensor
    out_bias: tensor
    key_padding_mask: tensor: bool
    mask: tensor: bool
    heads: a size
    causal: none, top_left or bottom_right
    p: a number
    seed: a number from 0 on
    offset: a number from 0 on
    stream: a number from 0 on
    """
    return _call("cross_attention", [("query", query), ("context", context), ("weight", weight), ("q_weight", q_weight), ("k_weight", k_weight), ("v_weight", v_weight), ("bias", bias), ("out_weight", out_weight), ("out_bias", out_bias), ("key_padding_mask", key_padding_mask), ("mask", mask)], {"heads": heads, "causal": causal, "p": p, "seed": seed, "offset": offset, "stream": stream})


def lstm_cell(x: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None, w_hr: Tensor | None = None) -> Any:
    """A step of an LSTM from `x: [B, I]` and the states `h: [B, H]` and `c: [B, H]` to h' and c': `i, f, o = sigmoid(a)`, `g = tanh(a)` of their blocks of `a = x w_ih^T + b_ih + h w_hh^T + b_hh`; `c' = f c + i g`, `h' = o tanh(c')`. With a projection h is `[B, P]`. Float dtypes; all operands have the same. Errors: `Shape`; `Dtype`; `Device`. Hochreiter and Schmidhuber 1997; Gers et al. 2000.

    x: tensor
    h: tensor
    c: tensor
    w_ih: tensor
    w_hh: tensor
    b_ih: tensor
    b_hh: tensor
    w_hr: tensor
    """
    return _call("lstm_cell", [("x", x), ("h", h), ("c", c), ("w_ih", w_ih), ("w_hh", w_hh), ("b_ih", b_ih), ("b_hh", b_hh), ("w_hr", w_hr)], {})


def lstm(x: Tensor, w_ih: Tensor, w_hh: Tensor, h: Tensor | None = None, c: Tensor | None = None, b_ih: Tensor | None = None, b_hh: Tensor | None = None, w_hr: Tensor | None = None, lengths: Tensor | None = None, reverse: bool = False) -> Any:
    """An LSTM over `x: [T, B, I]` from the states `h0: [B, H]` and `c0: [B, H]`, by default zeros: the hidden states `[T, B, H]`, the last one, and the last cell state. The cell state is carried in the accumulation dtype. With a projection, hidden states have P elements instead of H. Errors: `Attr` if T is 0; `Index` for a length outside of `1..=T`; else as `lstm_cell`, which has the formula.

    x: tensor
    h: tensor
    c: tensor
    w_ih: tensor
    w_hh: tensor
    b_ih: tensor
    b_hh: tensor
    w_hr: tensor
    lengths: tensor: i64
    reverse: a bool
    """
    return _call("lstm", [("x", x), ("h", h), ("c", c), ("w_ih", w_ih), ("w_hh", w_hh), ("b_ih", b_ih), ("b_hh", b_hh), ("w_hr", w_hr), ("lengths", lengths)], {"reverse": reverse})


def gru_cell(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None) -> Any:
    """A step of a GRU from `x: [B, I]` and the state `h: [B, H]` to `h' = (1 - z) n + z h`, where `r, z = sigmoid(a + u)` and `n = tanh(a + r u)` of their blocks of `a = x w_ih^T + b_ih` and `u = h w_hh^T + b_hh`. Float dtypes; all operands have the same. Errors: `Attr` for a projection; `Shape`; `Dtype`; `Device`. Cho et al. 2014, arXiv 1406.1078; as in PyTorch, the reset gate multiplies the product.

    x: tensor
    h: tensor
    w_ih: tensor
    w_hh: tensor
    b_ih: tensor
    b_hh: tensor
    """
    return _call("gru_cell", [("x", x), ("h", h), ("w_ih", w_ih), ("w_hh", w_hh), ("b_ih", b_ih), ("b_hh", b_hh)], {})


def gru(x: Tensor, w_ih: Tensor, w_hh: Tensor, h: Tensor | None = None, b_ih: Tensor | None = None, b_hh: Tensor | None = None, lengths: Tensor | None = None, reverse: bool = False) -> Any:
    """A GRU over `x: [T, B, I]` from the state `h0: [B, H]`, by default zeros: the hidden states `[T, B, H]`, and the last one. Errors: `Attr` if T is 0; `Index` for a length outside of `1..=T`; else as `gru_cell`, which has the formula.

    x: tensor
    h: tensor
    w_ih: tensor
    w_hh: tensor
    b_ih: tensor
    b_hh: tensor
    lengths: tensor: i64
    reverse: a bool
    """
    return _call("gru", [("x", x), ("h", h), ("w_ih", w_ih), ("w_hh", w_hh), ("b_ih", b_ih), ("b_hh", b_hh), ("lengths", lengths)], {"reverse": reverse})


def rnn_cell(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None, nonlinearity: Any = 'tanh') -> Any:
    """A step of a plain RNN from `x: [B, I]` and the state `h: [B, H]` to `h' = f(x w_ih^T + b_ih + h w_hh^T + b_hh)`. Float dtypes; all operands have the same. Errors: `Attr` for a projection; `Shape`; `Dtype`; `Device`. Elman 1990.

    x: tensor
    h: tensor
    w_ih: tensor
    w_hh: tensor
    b_ih: tensor
    b_hh: tensor
    nonlinearity: tanh or relu
    """
    return _call("rnn_cell", [("x", x), ("h", h), ("w_ih", w_ih), ("w_hh", w_hh), ("b_ih", b_ih), ("b_hh", b_hh)], {"nonlinearity": nonlinearity})


def rnn(x: Tensor, w_ih: Tensor, w_hh: Tensor, h: Tensor | None = None, b_ih: Tensor | None = None, b_hh: Tensor | None = None, lengths: Tensor | None = None, nonlinearity: Any = 'tanh', reverse: bool = False) -> Any:
    """A plain RNN over `x: [T, B, I]` from the state `h0: [B, H]`, by default zeros: the hidden states `[T, B, H]`, and the last one. Errors: `Attr` if T is 0; `Index` for a length outside of `1..=T`; else as `rnn_cell`, which has the formula.

    x: tensor
    h: tensor
    w_ih: tensor
    w_hh: tensor
    b_ih: tensor
    b_hh: tensor
    lengths: tensor: i64
    nonlinearity: tanh or relu
    reverse: a bool
    """
    return _call("rnn", [("x", x), ("h", h), ("w_ih", w_ih), ("w_hh", w_hh), ("b_ih", b_ih), ("b_hh", b_hh), ("lengths", lengths)], {"nonlinearity": nonlinearity, "reverse": reverse})


def conv_lstm_cell(x: Tensor, h: Tensor, c: Tensor, w_x: Tensor, w_h: Tensor, b: Tensor | None = None) -> Any:
    """A step of a ConvLSTM from `x: [B, I, H, W]` and the states `h: [B, C, H, W]` and `c: [B, C, H, W]` to h' and c': as `lstm_cell` of `a = conv2d(x, w_x) + b + conv2d(h, w_h)`, with zeros around images and a stride of 1. Float dtypes; all operands have the same. Errors: `Attr` for a kernel with an even extent; `Shape`; `Dtype`; `Device`. Shi et al. 2015, arXiv 1506.04214, without peepholes.

    x: tensor
    h: tensor
    c: tensor
    w_x: tensor
    w_h: tensor
    b: tensor
    """
    return _call("conv_lstm_cell", [("x", x), ("h", h), ("c", c), ("w_x", w_x), ("w_h", w_h), ("b", b)], {})


def conv_lstm(x: Tensor, w_x: Tensor, w_h: Tensor, h: Tensor | None = None, c: Tensor | None = None, b: Tensor | None = None, reverse: bool = False) -> Any:
    """A ConvLSTM over `x: [T, B, I, H, W]` from the states `h0: [B, C, H, W]` and `c0: [B, C, H, W]`, by default zeros: the hidden states `[T, B, C, H, W]`, the last one, and the last cell state, which is carried in the accumulation dtype. Errors: `Attr` if T is 0; else as `conv_lstm_cell`.

    x: tensor
    h: tensor
    c: tensor
    w_x: tensor
    w_h: tensor
    b: tensor
    reverse: a bool
    """
    return _call("conv_lstm", [("x", x), ("h", h), ("c", c), ("w_x", w_x), ("w_h", w_h), ("b", b)], {"reverse": reverse})


def apply_rotary_embedding(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None, direction: int = 1, style: Any = 'half', rotary_dim: int | None = None) -> Any:
    """Rotates queries (this tensor, `[B, Hq, T, D]`) and keys `[B, Hk, T, D]`: each pair `(x1, x2)` of a row becomes `(x1 cos - x2 sin, x2 cos + x1 sin)`. The tables `cos` and `sin` are `[P, R/2]`, in the queries' dtype or f32; R is the `rotary_dim`. The tables have no gradient. Float dtypes. Su et al. 2021, arXiv 2104.09864. Errors: `Shape`; `Dtype`; `Attr` for an R that is odd or above D; `Index` for a position outside of `0..P`.

    positions: tensor: i32 or i64
    q: tensor
    k: tensor
    cos: tensor
    sin: tensor
    direction: an integer
    style: half or interleaved
    rotary_dim: a size
    """
    return _call("apply_rotary_embedding", [("positions", positions), ("q", q), ("k", k), ("cos", cos), ("sin", sin)], {"direction": direction, "style": style, "rotary_dim": rotary_dim})


def sample_logits(logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, num_samples: int = 1, seed: Any = 0, offset: Any = 0, stream: Any = 0) -> Any:
    """Positions (i64, `[B]`, or `[B, n]` for n samples above 1), drawn from each row of logits `[B, V]` by the softmax of the logits that `sampling` keeps. Float dtypes. Arithmetic is in f32; f64 is rounded to it first. Positions are the same on every device. The draw of a sample is the corresponding element of `Tensor::rand` `[B, n]`. The position is the first at which the running sum of the kept probabilities, in the order of positions, exceeds the draw. An element whose probability is below 2^-40 of the largest is never drawn. With temperature 0 or `top_k` 1, the result is the position of the largest logit, and the generator does not advance. Outside of the tape. Holtzman et al. 2019, arXiv 1904.09751. Errors: `Dtype` unless the logits are floats; `Shape` unless they are `[B, V]` with V from 1 to 2^22; `Attr` for a temperature that is negative or not finite, a `top_p` outside of 0 (exclusive) to 1, or no samples; `Value` for a row that contains NaN or infinity, or only -infinity.

    logits: tensor
    temperature: a number
    top_k: a size
    top_p: a number
    num_samples: a size
    seed: a number from 0 on
    offset: a number from 0 on
    stream: a number from 0 on
    """
    return _call("sample_logits", [("logits", logits)], {"temperature": temperature, "top_k": top_k, "top_p": top_p, "num_samples": num_samples, "seed": seed, "offset": offset, "stream": stream})


def edge_softmax(src: Tensor, index: Tensor, size: int | None = None) -> Any:
    """The softmax of the edges `[E]` or `[E, H]` of each target of a graph, or of the entries of each row of a pattern: `e^(x - max) / (sum + 1e-16)` over the edges of the same target, for each head. A target whose edges are all `-inf` has NaN. Float dtypes; sums are in the accumulation dtype, in a fixed order. Errors: `Shape`, `Dtype`, `Device`.

    src: tensor
    index: tensor: i32 or i64
    size: a size
    """
    return _call("edge_softmax", [("src", src), ("index", index)], {"size": size})


def diffusion_conv(evals: Tensor, evecs: Tensor, times: Tensor, x: Tensor, weight: Tensor, mass: Tensor | None = None, bias: Tensor | None = None, log_times: bool = False) -> Any:
    """Diffuses features x `[V, C]` or `[B, V, C]` for each time, and maps the results linearly: `y = [D_1 .. D_T] weight^T + bias`, `[.., V, O]`, where `D_t = vectors (e^(-values t) * (vectors^T (mass * x)))`. The weight is `[O, T C]`: column `t C + c` is of time t and feature c; the bias is `[O]`. All have the dtype of x. Float dtypes; arithmetic in the accumulation dtype. Errors: `Shape`, `Dtype`; `Value` for a negative time. Sharp et al. 2022, arXiv:2012.00888.

    evals: tensor
    evecs: tensor
    mass: tensor
    times: tensor
    x: tensor
    weight: tensor
    bias: tensor
    log_times: a bool
    """
    return _call("diffusion_conv", [("evals", evals), ("evecs", evecs), ("mass", mass), ("times", times), ("x", x), ("weight", weight), ("bias", bias)], {"log_times": log_times})


def message_passing(x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None, edge_attr: Tensor | None = None, x_dst: Tensor | None = None, w1: Tensor | None = None, b1: Tensor | None = None, w2: Tensor | None = None, b2: Tensor | None = None, nodes: int | None = None, message: Any = 'copy', reduce: Any = 'sum') -> Any:
    """Sends a message along each edge of a graph, and reduces the messages of each target: y `[targets, F]` from features of sources x `[sources, F]`, or `[targets, H, F]` from `[sources, H, F]`; `[targets, M]` with `Message::Mlp`. The pattern has a row for each target and a column for each source. Float dtypes; sums are in the accumulation dtype, in the order of edges. Gilmer et al. 2017, arXiv 1704.01212. Errors: `Shape`, `Dtype`, `Device`.

    x: tensor
    edge_index: tensor: i32 or i64
    edge_weight: tensor
    edge_attr: tensor
    x_dst: tensor
    w1: tensor
    b1: tensor
    w2: tensor
    b2: tensor
    nodes: a size
    message: copy, mul_w, add_e or mlp
    reduce: sum, mean or max
    """
    return _call("message_passing", [("x", x), ("edge_index", edge_index), ("edge_weight", edge_weight), ("edge_attr", edge_attr), ("x_dst", x_dst), ("w1", w1), ("b1", b1), ("w2", w2), ("b2", b2)], {"nodes": nodes, "message": message, "reduce": reduce})


def mesh_conv(x: Tensor, neighbors: Tensor, w: Tensor, b: Tensor | None = None) -> Any:
    """Convolves features of edges x `[E, C]` or `[B, E, C]` by neighbours `[E, K]`: `y[e] = weight [x[e], x[n_1] .. x[n_K]] + bias`, `[.., E, O]`. The weight is `[O, (1 + K) C]`: column `k C + c` is of feature c of the edge itself (k = 0) or of neighbour k. The bias is `[O]`. A neighbour of -1 is absent and adds nothing. The order of neighbours counts. Float dtypes. Errors: `Shape`, `Dtype`, `Device`. After Hanocka et al. 2019, arXiv:1809.05910, without their symmetric functions of neighbours.

    x: tensor
    neighbors: tensor: i32 or i64
    w: tensor
    b: tensor
    """
    return _call("mesh_conv", [("x", x), ("neighbors", neighbors), ("w", w), ("b", b)], {})


def spiral_conv(x: Tensor, spirals: Tensor, w: Tensor, b: Tensor | None = None) -> Any:
    """Convolves features of vertices x `[V, C]` or `[B, V, C]` along spirals `[V, S]`: `y[v] = weight [x[s_1] .. x[s_S]] + bias`, `[.., V, O]`, for the vertices s of the spiral of v. The weight is `[O, S C]`: column `k C + c` is of feature c of vertex k of a spiral. The bias is `[O]`. A vertex of -1 is absent and adds nothing. Samples share the spirals. Float dtypes. Errors: `Shape`, `Dtype`, `Device`. Gong et al. 2019, arXiv:1911.05856.

    x: tensor
    spirals: tensor: i32 or i64
    w: tensor
    b: tensor
    """
    return _call("spiral_conv", [("x", x), ("spirals", spirals), ("w", w), ("b", b)], {})


def sparse_mm(row_ptr: Tensor, col: Tensor, x: Tensor, columns: int, val: Tensor | None = None) -> Any:
    """The product of a sparse matrix `[M, K]` and this matrix: `y[i] = sum of val[e] x[column of e]` over the entries e of row i. For x `[K, F]` and the values `val` `[E]`, which are 1 by default, y is `[M, F]`; for x `[K, H, F]` and values `[E, H]` it is `[M, H, F]`. A row without entries is 0, and only entries are multiplied: NaN in other rows of x does not matter. Float dtypes; sums are in the accumulation dtype, in the order of entries. Errors: `Shape`, `Dtype`, `Device`.

    row_ptr: tensor: i32 or i64
    col: tensor: i32 or i64
    x: tensor
    val: tensor
    columns: a size
    """
    return _call("sparse_mm", [("row_ptr", row_ptr), ("col", col), ("x", x), ("val", val)], {"columns": columns})


def dropout(x: Tensor, p: float, training: bool = True, seed: Any = 0, offset: Any = 0, stream: Any = 0) -> Any:
    """Multiplies each element by 0 with probability `p`, and by `1 / (1 - p)` otherwise. With `p` 0 nothing is drawn; with `p` 1 every element is multiplied by 0. Float dtypes. Errors: `Attr` unless `0 <= p <= 1`. Srivastava et al. 2014, JMLR 15.

    x: tensor
    p: a number
    training: a bool
    seed: a number from 0 on
    offset: a number from 0 on
    stream: a number from 0 on
    """
    return _call("dropout", [("x", x)], {"p": p, "training": training, "seed": seed, "offset": offset, "stream": stream})


def bias_dropout(x: Tensor, bias: Tensor, p: float, seed: Any = 0, offset: Any = 0, stream: Any = 0) -> Any:
    """`dropout` of the sum of this tensor `[.., C]` and a bias `[C]`, rounded once. With `p` 0 nothing is drawn. Float dtypes. Errors: `Attr` unless `0 <= p <= 1`, `Shape`, `Dtype`.

    x: tensor
    bias: tensor
    p: a number
    seed: a number from 0 on
    offset: a number from 0 on
    stream: a number from 0 on
    """
    return _call("bias_dropout", [("x", x), ("bias", bias)], {"p": p, "seed": seed, "offset": offset, "stream": stream})


def rand(shape: Sequence[int], lo: float, hi: float, dtype: str = 'f32', seed: Any = 0, offset: Any = 0, stream: Any = 0, device: str | None = None) -> Any:
    """Uniform in `[lo, hi)`. Float dtypes. Errors: `Attr` unless `lo <= hi` and `hi - lo` is finite in f32.

    shape: a list of integers
    lo: a number
    hi: a number
    dtype: a dtype
    seed: a number from 0 on
    offset: a number from 0 on
    stream: a number from 0 on
    """
    return _call("rand", [], {"shape": shape, "lo": lo, "hi": hi, "dtype": dtype, "seed": seed, "offset": offset, "stream": stream}, device)


def randn(shape: Sequence[int], mean: float, std: float, dtype: str = 'f32', seed: Any = 0, offset: Any = 0, stream: Any = 0, device: str | None = None) -> Any:
    """Normal with mean `mean` and deviation `std`. Float dtypes. Errors: `Attr` unless both are finite in f32 and `std >= 0`.

    shape: a list of integers
    mean: a number
    std: a number
    dtype: a dtype
    seed: a number from 0 on
    offset: a number from 0 on
    stream: a number from 0 on
    """
    return _call("randn", [], {"shape": shape, "mean": mean, "std": std, "dtype": dtype, "seed": seed, "offset": offset, "stream": stream}, device)


def bernoulli(shape: Sequence[int], p: float, seed: Any = 0, offset: Any = 0, stream: Any = 0, device: str | None = None) -> Any:
    """u8: 1 with probability `p`, else 0. Errors: `Attr` unless `0 <= p <= 1`.

    shape: a list of integers
    p: a number
    seed: a number from 0 on
    offset: a number from 0 on
    stream: a number from 0 on
    """
    return _call("bernoulli", [], {"shape": shape, "p": p, "seed": seed, "offset": offset, "stream": stream}, device)


def randint(shape: Sequence[int], low: int, high: int, seed: Any = 0, offset: Any = 0, stream: Any = 0, device: str | None = None) -> Any:
    """Integers (i64) from `low` up to, but without, `high`, all alike but for at most a share of 2^-16. The same on every device. Errors: `Attr` unless `low < high`, at most 2^46 apart.

    shape: a list of integers
    low: an integer
    high: an integer
    seed: a number from 0 on
    offset: a number from 0 on
    stream: a number from 0 on
    """
    return _call("randint", [], {"shape": shape, "low": low, "high": high, "seed": seed, "offset": offset, "stream": stream}, device)


def randperm(n: int, seed: Any = 0, offset: Any = 0, stream: Any = 0, device: str | None = None) -> Any:
    """The numbers `0..n` (i64) in random order. The same on every device. Errors: as `Tensor::arange`.

    n: a size
    seed: a number from 0 on
    offset: a number from 0 on
    stream: a number from 0 on
    """
    return _call("randperm", [], {"n": n, "seed": seed, "offset": offset, "stream": stream}, device)


def multinomial(weights: Tensor, num_samples: int, replacement: bool = False, seed: Any = 0, offset: Any = 0, stream: Any = 0) -> Any:
    """Positions (i64, `[.., n]`) drawn from each row of weights `[.., C]`, with probabilities proportional to these weights. Without `replacement` all positions of a row are distinct. Positions are the same on every device. Float dtypes; arithmetic is in f32, to which f64 is rounded. A weight below 2^-40 of the row's largest is never drawn with replacement. Outside of the tape. Errors: `Dtype`; `Shape` for a scalar, or C of 0 or above 2^22; `Attr` for 0 draws; `Value` for a weight that is negative or not finite, and for a row with too few positive weights.

    weights: tensor
    replacement: a bool
    num_samples: a size
    seed: a number from 0 on
    offset: a number from 0 on
    stream: a number from 0 on
    """
    return _call("multinomial", [("weights", weights)], {"replacement": replacement, "num_samples": num_samples, "seed": seed, "offset": offset, "stream": stream})


def bernoulli_each(p: Tensor, seed: Any = 0, offset: Any = 0, stream: Any = 0) -> Any:
    """u8, in this tensor's shape: 1 with the probability that the element of this tensor is, else 0. The draws are those of `Tensor::rand` in f32. Float dtypes. Outside of the tape. Errors: `Dtype`; `Value` unless all are 0 to 1.

    p: tensor
    seed: a number from 0 on
    offset: a number from 0 on
    stream: a number from 0 on
    """
    return _call("bernoulli_each", [("p", p)], {"seed": seed, "offset": offset, "stream": stream})


def normal(mean: Tensor, std: Tensor, seed: Any = 0, offset: Any = 0, stream: Any = 0) -> Any:
    """Normal with these means and deviations, which broadcast: `mean + std z` with z of `Tensor::randn`, and its gradients. Float dtypes. Errors: `Dtype`; `Shape`; `Value` for a negative or NaN deviation.

    mean: tensor
    std: tensor
    seed: a number from 0 on
    offset: a number from 0 on
    stream: a number from 0 on
    """
    return _call("normal", [("mean", mean), ("std", std)], {"seed": seed, "offset": offset, "stream": stream})


def mse_loss(a: Tensor, t: Tensor, reduction: Any) -> Any:
    """`(a - t)^2`. Operands broadcast, and both have gradients. Float dtypes. Errors: `Shape`.

    a: tensor
    t: tensor
    reduction: none, mean, sum or batchmean
    """
    return _call("mse_loss", [("a", a), ("t", t)], {"reduction": reduction})


def l1_loss(a: Tensor, t: Tensor, reduction: Any) -> Any:
    """`|a - t|`. Operands broadcast, and both have gradients. Float dtypes. Errors: `Shape`.

    a: tensor
    t: tensor
    reduction: none, mean, sum or batchmean
    """
    return _call("l1_loss", [("a", a), ("t", t)], {"reduction": reduction})


def smooth_l1_loss(a: Tensor, t: Tensor, beta: float, reduction: Any) -> Any:
    """`d^2 / (2 beta)` where `d = |a - t| < beta`, `d - beta / 2` elsewhere. Operands broadcast, and both have gradients. Float dtypes. Errors: `Shape`; `Attr` if beta is negative. Girshick 2015, arXiv 1504.08083.

    a: tensor
    t: tensor
    beta: a number
    reduction: none, mean, sum or batchmean
    """
    return _call("smooth_l1_loss", [("a", a), ("t", t)], {"beta": beta, "reduction": reduction})


def huber_loss(a: Tensor, t: Tensor, delta: float, reduction: Any) -> Any:
    """`delta` times `smooth_l1_loss` with `beta = delta`; half of the square if delta is infinite. Errors: as there, and `Attr` unless delta is positive.

    a: tensor
    t: tensor
    delta: a number
    reduction: none, mean, sum or batchmean
    """
    return _call("huber_loss", [("a", a), ("t", t)], {"delta": delta, "reduction": reduction})


def bce_loss(p: Tensor, t: Tensor, reduction: Any, weight: Tensor | None = None) -> Any:
    """`-w (t ln p + (1 - t) ln(1 - p))` for probabilities p. Logarithms are at least -100. p and t have gradients. Float dtypes. Errors: `Shape` if the shapes differ, `Value` where p is outside of `0..=1`.

    p: tensor
    t: tensor
    weight: tensor
    reduction: none, mean, sum or batchmean
    """
    return _call("bce_loss", [("p", p), ("t", t), ("weight", weight)], {"reduction": reduction})


def bce_with_logits(x: Tensor, t: Tensor, reduction: Any, weight: Tensor | None = None, pos_weight: Tensor | None = None) -> Any:
    """`bce_loss` of `sigmoid(x)`, without the rounding of the sigmoid. `positive_weight`, which broadcasts, is the weight of the term of `t`. x and t have gradients. Float dtypes. Errors: `Shape` if the shapes differ.

    x: tensor
    t: tensor
    weight: tensor
    pos_weight: tensor
    reduction: none, mean, sum or batchmean
    """
    return _call("bce_with_logits", [("x", x), ("t", t), ("weight", weight), ("pos_weight", pos_weight)], {"reduction": reduction})


def kl_div(input: Tensor, target: Tensor, reduction: Any, log_target: bool = False) -> Any:
    """The Kullback-Leibler divergence `t (ln t - x)` for log probabilities x; 0 where t is 0, as is the gradient of t there. x and t have gradients. For the mathematical mean over a batch use `BatchMean`. Float dtypes. Errors: `Shape` if the shapes differ.

    input: tensor
    target: tensor
    log_target: a bool
    reduction: none, mean, sum or batchmean
    """
    return _call("kl_div", [("input", input), ("target", target)], {"log_target": log_target, "reduction": reduction})


def focal_loss(x: Tensor, t: Tensor, alpha: float, gamma: float, reduction: Any, from_logits: bool = True) -> Any:
    """Cross entropy of a sigmoid, weighted by `(1 - p_t)^gamma`. Only x has a gradient. Float dtypes. Errors: `Shape` if the shapes differ, `Attr` if gamma is negative. Lin et al. 2017, arXiv 1708.02002.

    x: tensor
    t: tensor
    from_logits: a bool
    alpha: a number
    gamma: a number
    reduction: none, mean, sum or batchmean
    """
    return _call("focal_loss", [("x", x), ("t", t)], {"from_logits": from_logits, "alpha": alpha, "gamma": gamma, "reduction": reduction})


def cross_entropy(logits: Tensor, target: Tensor, reduction: Any, weight: Tensor | None = None, token_bytes: Tensor | None = None, ignore_index: int | None = None, label_smoothing: float = 0.0) -> Any:
    """The mean cross entropy of logits `[N, C, d..]` or `[C]` with class indices `[N, d..]` (i64 or i32) or probabilities `[N, C, d..]`. Errors: as `cross_entropy_with`.

    logits: tensor
    target: tensor
    weight: tensor
    token_bytes: tensor
    ignore_index: an integer
    label_smoothing: a number
    reduction: none, mean, sum, batchmean or byte_mean
    """
    return _call("cross_entropy", [("logits", logits), ("target", target), ("weight", weight), ("token_bytes", token_bytes)], {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction})


def nll_loss(logp: Tensor, target: Tensor, reduction: Any, weight: Tensor | None = None, token_bytes: Tensor | None = None, ignore_index: int | None = None, label_smoothing: float = 0.0) -> Any:
    """`-w[t] logp[t]` for log probabilities `[N, C, d..]` or `[C]` and class indices `[N, d..]`. Label smoothing is ignored. Errors: as `cross_entropy_with`.

    logp: tensor
    target: tensor: i32 or i64
    weight: tensor
    token_bytes: tensor
    ignore_index: an integer
    label_smoothing: a number
    reduction: none, mean, sum, batchmean or byte_mean
    """
    return _call("nll_loss", [("logp", logp), ("target", target), ("weight", weight), ("token_bytes", token_bytes)], {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction})


def triplet_loss(a: Tensor, p: Tensor, n: Tensor, margin: float, p_: float, eps: float, reduction: Any, swap: bool = False) -> Any:
    """`max(0, d(a, positive) - d(a, negative) + margin)` for rows of this tensor `a: [N, D]`. All three have gradients. Float dtypes. Errors: `Shape`, `Attr`; `Value` for the infinite norm of rows without elements. Balntas et al. 2016, BMVC.

    a: tensor
    p: tensor
    n: tensor
    swap: a bool
    margin: a number
    p_: a number
    eps: a number
    reduction: none, mean, sum or batchmean
    """
    return _call("triplet_loss", [("a", a), ("p", p), ("n", n)], {"swap": swap, "margin": margin, "p": p_, "eps": eps, "reduction": reduction})


def contrastive_loss(x1: Tensor, x2: Tensor, y: Tensor, margin: float, reduction: Any) -> Any:
    """`y d^2 + (1 - y) max(0, margin - d)^2` with the Euclidean distance `d` of rows of this tensor and `other` (`[N, D]`); `y: [N]` is 1 where they are alike. The rows have gradients. Float dtypes. Errors: `Shape`; `Attr` for a margin that is NaN. Hadsell et al. 2006, CVPR (with labels inverted and without the factor 1/2).

    x1: tensor
    x2: tensor
    y: tensor
    margin: a number
    reduction: none, mean, sum or batchmean
    """
    return _call("contrastive_loss", [("x1", x1), ("x2", x2), ("y", y)], {"margin": margin, "reduction": reduction})


def ctc_loss(targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, x: Tensor, reduction: Any, blank: int = 0, zero_infinity: bool = False) -> Any:
    """The negative logarithm of the probability that frames spell labels. This tensor has the logarithms of probabilities `[T, N, C]`, as `log_softmax` gives them. Sequence n has the first `target_lengths[n]` labels of `targets: [N, S]`, none of which is the blank, in its first `input_lengths[n]` frames (integers, `[N]`). The gradient is that of this function, where PyTorch's contains that of a `log_softmax` before it: after `log_softmax` both are the same. Sums over alignments are in f64 where the device has it. On a GPU they are one kernel for up to 511 labels. Errors: `Dtype`; `Shape`; `Attr` for a blank that is no class; `Index` for a label that is no class, and for lengths of more frames or labels than there are, or no frames. Graves et al. 2006, "Connectionist Temporal Classification".

    targets: tensor: i64
    input_lengths: tensor: i64
    target_lengths: tensor: i64
    x: tensor
    blank: a size
    reduction: none, mean, sum or batchmean
    zero_infinity: a bool
    """
    return _call("ctc_loss", [("targets", targets), ("input_lengths", input_lengths), ("target_lengths", target_lengths), ("x", x)], {"blank": blank, "reduction": reduction, "zero_infinity": zero_infinity})


def cosine_embedding_loss(x1: Tensor, x2: Tensor, y: Tensor, margin: float, reduction: Any) -> Any:
    """`1 - cos` of the rows of this tensor and `other` where `y` is 1, and `max(0, cos - margin)` where it is -1. Rows are `[N, D]` or `[D]`, and broadcast; `y` is `[N]` or `[]`. Squared lengths are increased by 1e-12. The rows have gradients. Float dtypes. Errors: `Shape`, `Dtype`; `Attr` for a margin that is NaN.

    x1: tensor
    x2: tensor
    y: tensor
    margin: a number
    reduction: none, mean, sum or batchmean
    """
    return _call("cosine_embedding_loss", [("x1", x1), ("x2", x2), ("y", y)], {"margin": margin, "reduction": reduction})


def margin_ranking_loss(x1: Tensor, x2: Tensor, y: Tensor, margin: float, reduction: Any) -> Any:
    """`max(0, -y (x - other) + margin)`: where `y` is 1, x should rank higher by the margin, where it is -1, `other`. Operands broadcast, and all have gradients. Float dtypes. Errors: `Shape`, `Dtype`; `Attr` for a margin that is NaN.

    x1: tensor
    x2: tensor
    y: tensor
    margin: a number
    reduction: none, mean, sum or batchmean
    """
    return _call("margin_ranking_loss", [("x1", x1), ("x2", x2), ("y", y)], {"margin": margin, "reduction": reduction})


def hinge_embedding_loss(x: Tensor, y: Tensor, margin: float, reduction: Any) -> Any:
    """`x` where `y` is 1, and `max(0, margin - x)` where it is -1; both terms for other numbers. Operands broadcast. Only x has a gradient. Float dtypes. Errors: `Shape`, `Dtype`; `Attr` for a margin that is NaN.

    x: tensor
    y: tensor
    margin: a number
    reduction: none, mean, sum or batchmean
    """
    return _call("hinge_embedding_loss", [("x", x), ("y", y)], {"margin": margin, "reduction": reduction})


def soft_margin_loss(x: Tensor, y: Tensor, reduction: Any) -> Any:
    """`ln(1 + e^(-y x))` without overflow. Operands broadcast, and both have gradients. Float dtypes. Errors: `Shape`, `Dtype`.

    x: tensor
    y: tensor
    reduction: none, mean, sum or batchmean
    """
    return _call("soft_margin_loss", [("x", x), ("y", y)], {"reduction": reduction})


def multi_margin_loss(x: Tensor, target: Tensor, margin: float, reduction: Any, weight: Tensor | None = None, p: int = 1) -> Any:
    """`sum of max(0, margin - x[target] + x[i])^p over the other classes i, / C` for scores `[N, C]` or `[C]` and classes `[N]` or `[]` (i64 or i32). `weight: [C]` is a factor for the losses of each class. Only x has a gradient. Float dtypes. Errors: `Shape`, `Dtype`; `Attr` for another exponent than 1 and 2 or a margin that is NaN; `Index` for a class outside of `0..C`.

    x: tensor
    target: tensor: i64
    weight: tensor
    p: a size
    margin: a number
    reduction: none, mean, sum or batchmean
    """
    return _call("multi_margin_loss", [("x", x), ("target", target), ("weight", weight)], {"p": p, "margin": margin, "reduction": reduction})


def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: Any) -> Any:
    """`sum of max(0, 1 - x[j] + x[i]) over the classes j of the target and the other classes i, / C` for scores `[N, C]` or `[C]`. The target (i64 or i32) has the shape of x: a row lists its classes, and ends before its first negative number. Only x has a gradient. Float dtypes. Errors: `Shape`, `Dtype`; `Index` for a class of C or more.

    x: tensor
    target: tensor: i64
    reduction: none, mean, sum or batchmean
    """
    return _call("multilabel_margin_loss", [("x", x), ("target", target)], {"reduction": reduction})


def multilabel_soft_margin_loss(x: Tensor, y: Tensor, reduction: Any, weight: Tensor | None = None) -> Any:
    """The mean over classes of `-w (y ln(sigmoid(x)) + (1 - y) ln(sigmoid(-x)))` for logits `[N, C]` or `[C]`; `y` has the shape of x, and the factors `weight` broadcast to it. x and y have gradients. Float dtypes. Errors: `Shape`, `Dtype`.

    x: tensor
    y: tensor
    weight: tensor
    reduction: none, mean, sum or batchmean
    """
    return _call("multilabel_soft_margin_loss", [("x", x), ("y", y), ("weight", weight)], {"reduction": reduction})


def poisson_nll_loss(x: Tensor, target: Tensor, reduction: Any, log_input: bool = True, full: bool = False, eps: float = 1e-08) -> Any:
    """`e^x - t x`, or `x - t ln(x + eps)` for plain rates, of counts `t`: the negative logarithm of a Poisson likelihood. With all terms, `t ln t - t + ln(2 pi t) / 2` is added where t is above 1. Operands broadcast, and both have gradients. Float dtypes. Errors: `Shape`, `Dtype`; `Attr` for an eps that is negative or NaN.

    x: tensor
    target: tensor
    log_input: a bool
    full: a bool
    eps: a number
    reduction: none, mean, sum or batchmean
    """
    return _call("poisson_nll_loss", [("x", x), ("target", target)], {"log_input": log_input, "full": full, "eps": eps, "reduction": reduction})


def gaussian_nll_loss(x: Tensor, target: Tensor, var: Tensor, reduction: Any, full: bool = False, eps: float = 1e-06) -> Any:
    """`(ln v + (x - t)^2 / v) / 2` for variances `v = max(var, eps)`: the negative logarithm of a normal likelihood. With all terms, `ln(2 pi) / 2` is added. `var` has the shape of x, its last extent may be 1 or missing; x and the target broadcast. All have gradients; the gradient of `var` does not stop at eps. Float dtypes. Errors: `Shape`, `Dtype`; `Attr` unless eps is positive.

    x: tensor
    target: tensor
    var: tensor
    full: a bool
    eps: a number
    reduction: none, mean, sum or batchmean
    """
    return _call("gaussian_nll_loss", [("x", x), ("target", target), ("var", var)], {"full": full, "eps": eps, "reduction": reduction})


def cholesky(x: Tensor, shift: float = 0.0, symmetric: bool = False) -> Any:
    """The lower triangular matrices L with `x = L L^T` of symmetric positive definite matrices `[.., N, N]`. Only the lower triangle is read. The gradient is symmetric. Dtypes f32 and f64. Errors: `Shape`, `Dtype`; `Value` for a matrix that is not positive definite, or not finite. The gradient is that of Murray 2016, arXiv 1602.07527.

    x: tensor
    shift: a number
    symmetric: a bool
    """
    return _call("cholesky", [("x", x)], {"shift": shift, "symmetric": symmetric})


def solve_triangular(a: Tensor, b: Tensor, triangle: Any = 'lower', side: Any = 'left', diagonal: Any = 'own', shift: float = 0.0, symmetric: bool = False) -> Any:
    """The solution x of `a x = b`, or of `x a = b`, for triangular matrices `a: [.., N, N]` and `b: [.., N, K]`, or `[.., K, N]` on the other side. Only one triangle is read, and its gradient is a triangle. Batches broadcast. Dtypes f32 and f64. Errors: `Shape`, `Dtype`; `Value` for a 0 on the diagonal.

    a: tensor
    b: tensor
    triangle: lower or upper
    side: left or right
    diagonal: own or ones
    shift: a number
    symmetric: a bool
    """
    return _call("solve_triangular", [("a", a), ("b", b)], {"triangle": triangle, "side": side, "diagonal": diagonal, "shift": shift, "symmetric": symmetric})


def solve(a: Tensor, b: Tensor, shift: float = 0.0, symmetric: bool = False) -> Any:
    """The solution x of `a x = b` for square matrices `a: [.., N, N]` and `b: [.., N, K]`. b is a vector if it is `[N]`, or if its shape is a's without the last dimension; so is x then. Batches broadcast. Dtypes f32 and f64. A system with NaN or infinity gives NaN. Errors: `Shape`, `Dtype`; `Value` for a singular matrix.

    a: tensor
    b: tensor
    shift: a number
    symmetric: a bool
    """
    return _call("solve", [("a", a), ("b", b)], {"shift": shift, "symmetric": symmetric})


def inv(x: Tensor, shift: float = 0.0, symmetric: bool = False) -> Any:
    """The inverses of square matrices `[.., N, N]`. Dtypes f32 and f64. A matrix with NaN or infinity gives NaN. `solve` is faster and more accurate where an inverse would be multiplied. Errors: `Shape`, `Dtype`; `Value` for a singular matrix.

    x: tensor
    shift: a number
    symmetric: a bool
    """
    return _call("inv", [("x", x)], {"shift": shift, "symmetric": symmetric})


def det(x: Tensor, shift: float = 0.0, symmetric: bool = False) -> Any:
    """The determinants of square matrices: `[.., N, N]` to `[..]`. It is 0 for a singular matrix, whose gradient is its matrix of cofactors, as everywhere. Dtypes f32 and f64. A matrix with NaN or infinity gives NaN. Errors: `Shape`, `Dtype`; `Value` for the second derivative of a singular matrix.

    x: tensor
    shift: a number
    symmetric: a bool
    """
    return _call("det", [("x", x)], {"shift": shift, "symmetric": symmetric})


def slogdet(x: Tensor, shift: float = 0.0, symmetric: bool = False) -> Any:
    """The sign of the determinants of square matrices, -1, 0 or 1, and the logarithms of their absolute values: `[.., N, N]` to `[..]` and `[..]`. The logarithm is -infinity for a singular matrix whose pivots are exact; another has a pivot that is a rounding, and with it some sign and a finite logarithm. The sign has the gradient 0. Dtypes f32 and f64. A matrix with NaN or infinity gives NaN. Errors: `Shape`, `Dtype`; `Value` for the gradient of a singular matrix.

    x: tensor
    shift: a number
    symmetric: a bool
    """
    return _call("slogdet", [("x", x)], {"shift": shift, "symmetric": symmetric})


def qr(x: Tensor, shift: float = 0.0, symmetric: bool = False) -> Any:
    """The reduced decompositions `x = Q R` of matrices `[.., M, N]`: Q `[.., M, K]` with orthonormal columns and R `[.., K, N]`, which is upper triangular, for `K = min(M, N)`. The signs of R's rows are not specified. Dtypes f32 and f64. A matrix with NaN or infinity gives NaN. Errors: `Shape`, `Dtype`; `Value` for the gradient of a matrix whose first K columns are dependent. The gradient is that of Walter, Lehmann and Lamour 2012, Optimization Methods and Software 27 (2).

    x: tensor
    shift: a number
    symmetric: a bool
    """
    return _call("qr", [("x", x)], {"shift": shift, "symmetric": symmetric})


def eigh(x: Tensor, shift: float = 0.0, symmetric: bool = False) -> Any:
    """The eigenvalues `[.., N]` of symmetric matrices `[.., N, N]`, ascending, and their eigenvectors, the columns of `[.., N, N]`. Only the lower triangle is read. The signs of eigenvectors are not specified. The gradient is symmetric. Of equal eigenvalues it is NaN, unless the gradients of their eigenvectors are 0 among them, as for a norm or a trace. Dtypes f32 and f64. Errors: `Shape`, `Dtype`; `Value` for a matrix that is not finite, or where the iteration does not converge. The gradient is that of Giles 2008, Oxford NA-08/01, section 3.1.

    x: tensor
    shift: a number
    symmetric: a bool
    """
    return _call("eigh", [("x", x)], {"shift": shift, "symmetric": symmetric})


def svd(x: Tensor, shift: float = 0.0, symmetric: bool = False) -> Any:
    """The thin decompositions `x = U diag(S) Vh` of matrices `[.., M, N]`: U `[.., M, K]` and Vh `[.., K, N]`, whose columns and rows are orthonormal, and the singular values S `[.., K]`, descending, for `K = min(M, N)`. It is PyTorch's with `full_matrices=False`. The signs of singular vectors are not specified. Of equal singular values the gradient is NaN, and of those that are 0 in a matrix that is not square, unless the gradients of their vectors are 0, as for a norm of the product. Dtypes f32 and f64. Errors: `Shape`, `Dtype`; `Value` for a matrix that is not finite, or where the iteration does not converge. The gradient is that of Townsend 2016, "Differentiating the singular value decomposition".

    x: tensor
    shift: a number
    symmetric: a bool
    """
    return _call("svd", [("x", x)], {"shift": shift, "symmetric": symmetric})


def clip_grad_norm(gs: Sequence[Tensor], max_norm: float, norm_type: float, error_if_nonfinite: bool = False) -> Any:
    """The op `clip_grad_norm`.

    gs: tensors
    error_if_nonfinite: a bool
    max_norm: a number
    norm_type: a number
    """
    return _call("clip_grad_norm", [("g", gs)], {"error_if_nonfinite": error_if_nonfinite, "max_norm": max_norm, "norm_type": norm_type})


def clip_grad_value(gs: Sequence[Tensor], clip: float) -> Any:
    """The op `clip_grad_value`.

    gs: tensors
    clip: a number
    """
    return _call("clip_grad_value", [("g", gs)], {"clip": clip})


def unscale_(gs: Sequence[Tensor], scale: float) -> Any:
    """Divides float tensors by `scale` in place, as a product with its f32 inverse. Sets `found_inf` to 1 if an element of a tensor was NaN or infinite before; otherwise it is unchanged. `scale` and `found_inf` are f32 and of rank 0. Some devices run all tensors of a dtype in one launch, which reads them once. A quotient that a tensor's dtype does not hold is 0: gradients in f16 are cast to f32 first. Errors: `Shape` or `Dtype` for `scale` and `found_inf`; `Dtype` or `Device` for the tensors; `Value` on the tape, if a tensor shares memory with `scale` or `found_inf`, or if several elements of a tensor share a position.

    gs: tensors
    scale: a number
    """
    return _call("unscale_", [("g", gs)], {"scale": scale})


def grad_scaler(gs: Sequence[Tensor], scale: float, growth: float, backoff: float, interval: int) -> Any:
    """The op `grad_scaler`.

    gs: tensors
    scale: a number
    growth: a number
    backoff: a number
    interval: an integer
    """
    return _call("grad_scaler", [("g", gs)], {"scale": scale, "growth": growth, "backoff": backoff, "interval": interval})


def accumulate_grad(y: Tensor, x: Tensor) -> Any:
    """The op `accumulate_grad`.

    y: tensor
    x: tensor
    """
    return _call("accumulate_grad", [("y", y), ("x", x)], {})


def eye(n: int, dtype: str = 'f32', device: str | None = None) -> Any:
    """The identity matrix `[n, n]`.

    n: a size
    dtype: a dtype
    """
    return _call("eye", [], {"n": n, "dtype": dtype}, device)


def argsort(x: Tensor, dim: int, descending: bool = False) -> Any:
    """The positions (i64) that sort the values along `dim`. Errors: as `sort`.

    x: tensor
    dim: an integer
    descending: a bool
    """
    return _call("argsort", [("x", x)], {"dim": dim, "descending": descending})


def grad_norm(gs: Sequence[Tensor], norm_type: float = 2.0) -> Any:
    """The op `grad_norm`.

    gs: tensors
    norm_type: a number
    """
    return _call("grad_norm", [("g", gs)], {"norm_type": norm_type})


__all__ = [
    "abs",
    "accumulate_grad",
    "acos",
    "acosh",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "add",
    "add_",
    "add_scalar",
    "addcdiv",
    "addcmul",
    "affine_grid",
    "all",
    "amax",
    "amin",
    "any",
    "apply_rotary_embedding",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "batch_norm_relu",
    "batch_norm_relu6",
    "batch_norm_running",
    "bce_loss",
    "bce_with_logits",
    "bernoulli",
    "bernoulli_each",
    "bias_dropout",
    "bilinear",
    "bincount",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "broadcast_to",
    "bucketize",
    "cast",
    "cdist",
    "ceil",
    "celu",
    "channel_shuffle",
    "cholesky",
    "chunk",
    "clamp",
    "clip_grad_norm",
    "clip_grad_value",
    "concat",
    "contiguous",
    "contrastive_loss",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_lstm",
    "conv_lstm_cell",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "copy",
    "copy_",
    "copysign",
    "cos",
    "cosh",
    "cosine_embedding_loss",
    "cosine_similarity",
    "count_nonzero",
    "cross_attention",
    "cross_entropy",
    "ctc_loss",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "deform_conv2d",
    "dequantize",
    "det",
    "diag",
    "diag_embed",
    "diagonal",
    "diff",
    "diffusion_conv",
    "digamma",
    "div",
    "div_scalar",
    "dropout",
    "edge_softmax",
    "eigh",
    "einsum",
    "elu",
    "embedding",
    "embedding_bag",
    "embedding_rmsnorm",
    "entr",
    "eq",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "eye",
    "fill_",
    "flatten",
    "flip",
    "floor",
    "fmax",
    "fmin",
    "fmod",
    "focal_loss",
    "fold",
    "frac",
    "full",
    "gather",
    "gaussian_nll_loss",
    "ge",
    "gelu",
    "gemm",
    "gemm_bias",
    "global_avg_pool2d",
    "global_avg_pool3d",
    "global_max_pool2d",
    "global_max_pool3d",
    "glu",
    "grad_norm",
    "grad_scaler",
    "grid_sample",
    "group_norm",
    "gru",
    "gru_cell",
    "gt",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "heaviside",
    "hinge_embedding_loss",
    "histc",
    "huber_loss",
    "hypot",
    "index",
    "index_add",
    "index_add_",
    "index_copy",
    "index_fill",
    "index_put",
    "index_put_",
    "index_reduce",
    "index_select",
    "instance_norm",
    "instance_norm_running",
    "interpolate",
    "inv",
    "isfinite",
    "isinf",
    "isnan",
    "kl_div",
    "kron",
    "kthvalue",
    "l1_loss",
    "l1_norm",
    "l2_norm",
    "layer_norm",
    "layer_norm_activation",
    "le",
    "leaky_relu",
    "lerp",
    "lgamma",
    "linear",
    "linspace",
    "local_response_norm",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_softmax",
    "log_sum",
    "logaddexp",
    "logcumsumexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logit",
    "logsigmoid",
    "logspace",
    "logsumexp",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "lstm",
    "lstm_cell",
    "lt",
    "margin_ranking_loss",
    "masked_fill",
    "masked_scatter",
    "masked_select",
    "matmul",
    "max",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "maximum",
    "mean",
    "median",
    "mesh_conv",
    "meshgrid",
    "message_passing",
    "min",
    "minimum",
    "mish",
    "mode",
    "movedim",
    "mse_loss",
    "mul",
    "mul_",
    "mul_scalar",
    "multi_head_attention",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "multinomial",
    "nan_to_num",
    "nanmean",
    "nansum",
    "narrow",
    "ne",
    "neg",
    "nll_loss",
    "nonzero",
    "norm",
    "normal",
    "normalize",
    "not_finite",
    "one_hot",
    "outer",
    "pad",
    "pairwise_distance",
    "permute",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "pow",
    "prelu",
    "prod",
    "qr",
    "quantile",
    "quantized_linear",
    "rand",
    "randint",
    "randn",
    "randperm",
    "rdiv_scalar",
    "reciprocal",
    "relu",
    "relu6",
    "relu_squared",
    "remainder",
    "repeat",
    "repeat_interleave",
    "reshape",
    "residual_layer_norm",
    "rms_norm",
    "rnn",
    "rnn_cell",
    "roll",
    "rot90",
    "round",
    "rpow_scalar",
    "rsqrt",
    "rsub_scalar",
    "sample_logits",
    "scaled_dot_product_attention",
    "scatter",
    "scatter_add",
    "scatter_add_",
    "scatter_max",
    "scatter_mean",
    "scatter_reduce",
    "scatter_sum",
    "searchsorted",
    "select",
    "selu",
    "sigmoid",
    "sign",
    "silu",
    "silu_and_mul",
    "sin",
    "sinc",
    "sinh",
    "slice",
    "slogdet",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmax1",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "solve",
    "solve_triangular",
    "sort",
    "sparse_mm",
    "spiral_conv",
    "split",
    "split_with_sizes",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "std_mean",
    "sub",
    "sub_scalar",
    "sum",
    "sum_square",
    "sum_to_size",
    "svd",
    "swiglu",
    "t",
    "take",
    "take_along_dim",
    "tan",
    "tanh",
    "tanhshrink",
    "tensor_split",
    "threshold",
    "topk",
    "trace",
    "transpose",
    "tril",
    "triplet_loss",
    "triu",
    "trunc",
    "unbind",
    "unfold",
    "unique",
    "unique_consecutive",
    "unscale_",
    "unsqueeze",
    "upsample3d_nearest",
    "var",
    "var_mean",
    "varlen_attention",
    "weight_norm",
    "where_cond",
    "windows",
    "xlogy",
]


METHODS = [
    "abs",
    "accumulate_grad",
    "acos",
    "acosh",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "add",
    "add_",
    "add_scalar",
    "addcdiv",
    "addcmul",
    "affine_grid",
    "all",
    "amax",
    "amin",
    "any",
    "apply_rotary_embedding",
    "argmax",
    "argmin",
    "argsort",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "batch_norm_relu",
    "batch_norm_relu6",
    "batch_norm_running",
    "bce_loss",
    "bce_with_logits",
    "bernoulli_each",
    "bias_dropout",
    "bilinear",
    "bincount",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "broadcast_to",
    "bucketize",
    "cast",
    "cdist",
    "ceil",
    "celu",
    "channel_shuffle",
    "cholesky",
    "chunk",
    "clamp",
    "contiguous",
    "contrastive_loss",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_lstm",
    "conv_lstm_cell",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "copy",
    "copy_",
    "copysign",
    "cos",
    "cosh",
    "cosine_embedding_loss",
    "cosine_similarity",
    "count_nonzero",
    "cross_attention",
    "cross_entropy",
    "ctc_loss",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "deform_conv2d",
    "dequantize",
    "det",
    "diag",
    "diag_embed",
    "diagonal",
    "diff",
    "diffusion_conv",
    "digamma",
    "div",
    "div_scalar",
    "dropout",
    "edge_softmax",
    "eigh",
    "elu",
    "embedding",
    "embedding_bag",
    "embedding_rmsnorm",
    "entr",
    "eq",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "fill_",
    "flatten",
    "flip",
    "floor",
    "fmax",
    "fmin",
    "fmod",
    "focal_loss",
    "fold",
    "frac",
    "gather",
    "gaussian_nll_loss",
    "ge",
    "gelu",
    "gemm",
    "gemm_bias",
    "global_avg_pool2d",
    "global_avg_pool3d",
    "global_max_pool2d",
    "global_max_pool3d",
    "glu",
    "grid_sample",
    "group_norm",
    "gru",
    "gru_cell",
    "gt",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "heaviside",
    "hinge_embedding_loss",
    "histc",
    "huber_loss",
    "hypot",
    "index",
    "index_add",
    "index_add_",
    "index_copy",
    "index_fill",
    "index_put",
    "index_put_",
    "index_reduce",
    "index_select",
    "instance_norm",
    "instance_norm_running",
    "interpolate",
    "inv",
    "isfinite",
    "isinf",
    "isnan",
    "kl_div",
    "kron",
    "kthvalue",
    "l1_loss",
    "l1_norm",
    "l2_norm",
    "layer_norm",
    "layer_norm_activation",
    "le",
    "leaky_relu",
    "lerp",
    "lgamma",
    "linear",
    "local_response_norm",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_softmax",
    "log_sum",
    "logaddexp",
    "logcumsumexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logit",
    "logsigmoid",
    "logsumexp",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "lstm",
    "lstm_cell",
    "lt",
    "margin_ranking_loss",
    "masked_fill",
    "masked_scatter",
    "masked_select",
    "matmul",
    "max",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "maximum",
    "mean",
    "median",
    "mesh_conv",
    "meshgrid",
    "message_passing",
    "min",
    "minimum",
    "mish",
    "mode",
    "movedim",
    "mse_loss",
    "mul",
    "mul_",
    "mul_scalar",
    "multi_head_attention",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "multinomial",
    "nan_to_num",
    "nanmean",
    "nansum",
    "narrow",
    "ne",
    "neg",
    "nll_loss",
    "nonzero",
    "norm",
    "normal",
    "normalize",
    "not_finite",
    "one_hot",
    "outer",
    "pad",
    "pairwise_distance",
    "permute",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "pow",
    "prelu",
    "prod",
    "qr",
    "quantile",
    "quantized_linear",
    "rdiv_scalar",
    "reciprocal",
    "relu",
    "relu6",
    "relu_squared",
    "remainder",
    "repeat",
    "repeat_interleave",
    "reshape",
    "residual_layer_norm",
    "rms_norm",
    "rnn",
    "rnn_cell",
    "roll",
    "rot90",
    "round",
    "rpow_scalar",
    "rsqrt",
    "rsub_scalar",
    "sample_logits",
    "scaled_dot_product_attention",
    "scatter",
    "scatter_add",
    "scatter_add_",
    "scatter_max",
    "scatter_mean",
    "scatter_reduce",
    "scatter_sum",
    "searchsorted",
    "select",
    "selu",
    "sigmoid",
    "sign",
    "silu",
    "silu_and_mul",
    "sin",
    "sinc",
    "sinh",
    "slice",
    "slogdet",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmax1",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "solve",
    "solve_triangular",
    "sort",
    "sparse_mm",
    "spiral_conv",
    "split",
    "split_with_sizes",
    "sqrt",
    "square",
    "squeeze",
    "std",
    "std_mean",
    "sub",
    "sub_scalar",
    "sum",
    "sum_square",
    "sum_to_size",
    "svd",
    "swiglu",
    "t",
    "take",
    "take_along_dim",
    "tan",
    "tanh",
    "tanhshrink",
    "tensor_split",
    "threshold",
    "topk",
    "trace",
    "transpose",
    "tril",
    "triplet_loss",
    "triu",
    "trunc",
    "unbind",
    "unfold",
    "unique",
    "unique_consecutive",
    "unsqueeze",
    "upsample3d_nearest",
    "var",
    "var_mean",
    "varlen_attention",
    "weight_norm",
    "where_cond",
    "windows",
    "xlogy",
]
"""The ops that are methods of tensors too."""
