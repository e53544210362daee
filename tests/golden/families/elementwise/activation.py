"""Activations. PyTorch computes some with an f32 constant, or with a gradient at NaN that depends on the length: these have a formula."""

import torch
import torch.nn.functional as F

from common import INF, NAN, OPS, SHAPES, f64, i64, label, normal, of_x, sweep


SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def exponential_unit(x, alpha, scale=1.0, width=1.0):
    return scale * torch.where(x <= 0, alpha * torch.expm1(x.clamp(max=0) / width), x)


def hardtanh(x, *, min=-1.0, max=1.0):
    return torch.where(x <= min, min, torch.where(x >= max, max, x))


def hardsigmoid(x, *, alpha=None, beta=None):
    if alpha is not None:
        y = alpha * x + beta
        return torch.where((0 < y) & (y < 1), y, y.clamp(0, 1).detach())
    return torch.where((-3 < x) & (x < 3), (x + 3) / 6, ((x + 3).clamp(0, 6) / 6).detach())


def swiglu(gate, up, *, alpha=None, beta=None, limit=None):
    if alpha is None:
        return F.silu(gate) * up
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + beta)


KINKS = [-30.0, -6.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 10.0, 25.0, 40.0]


FIVE = [-3.0, -1.0, 0.0, 0.5, 3.0]


FIVE_POINTS = [
    (
        "gelu/none",
        {"approximate": "none"},
        [-0.0040496941, -0.15865525, 0, 0.34573123, 2.9959503],
        [-0.011945647, -0.083315471, 0.5, 0.86749512, 1.0119456],
    ),
    (
        "gelu/tanh",
        {"approximate": "tanh"},
        [-0.0036373921, -0.15880801, 0, 0.34571401, 2.9963626],
        [-0.011584167, -0.082964084, 0.5, 0.8673699, 1.0115842],
    ),
    ("silu", {}, [-0.14227762, -0.26894142, 0, 0.31122967, 2.8577224], [-0.088104106, 0.072329488, 0.5, 0.73996119, 1.0881041]),
    ("mish", {}, [-0.14564746, -0.30340146, 0, 0.37524521, 2.986535], [-0.093393115, 0.059216756, 0.6, 0.88642438, 1.0211069]),
    (
        "softplus",
        {"beta": 2.0, "threshold": 5.0},
        [0.0012378426, 0.063464006, 0.34657359, 0.65663084, 3],
        [0.0024726232, 0.11920292, 0.5, 0.73105858, 1],
    ),
    ("hardswish", {}, [-0.0, -0.33333333, 0, 0.29166667, 3], [0, 0.16666667, 0.5, 0.66666667, 1]),
    ("elu", {"alpha": 0.7}, [-0.66514905, -0.44248439, 0, 0.5, 3], [0.034850948, 0.25751561, 0.7, 1, 1]),
    ("celu", {"alpha": 0.7}, [-0.69036535, -0.53224427, 0, 0.5, 3], [0.013763786, 0.23965103, 1, 1, 1]),
    ("selu", {}, [-1.6705687, -1.1113307, 0, 0.52535049, 3.152103], [0.087530612, 0.6467686, 1.7580993, 1.050701, 1.050701]),
]


# name: the reference of an elementwise op, and by the beginnings of the cases' names the attributes of each sweep
POINTWISE = {
    "relu": (lambda x: F.relu(x), {"": {}}),
    "leaky_relu": (lambda x, *, slope=0.01: F.leaky_relu(x, slope), {"": {}, "slope_": {"slope": -0.3}}),
    "sigmoid": (lambda x: torch.sigmoid(x), {"": {}}),
    "tanh": (lambda x: torch.tanh(x), {"": {}}),
    "gelu": (lambda x, *, approximate="none": F.gelu(x, approximate=approximate), {"none_": {"approximate": "none"}, "tanh_": {"approximate": "tanh"}}),
    "silu": (lambda x: F.silu(x), {"": {}}),
    "elu": (lambda x, *, alpha=1.0: exponential_unit(x, alpha), {"": {}, "alpha_": {"alpha": 0.7}}),
    "mish": (lambda x: F.mish(x), {"": {}}),
    "softplus": (lambda x, *, beta=1.0, threshold=20.0: F.softplus(x, beta, threshold), {"": {}, "beta_": {"beta": 2.0, "threshold": 5.0}}),
    # The limits at infinity, where PyTorch has NaN.
    "hardswish": (lambda x: F.hardswish(x.clamp(min=-3.0)), {"": {}}),
    "relu6": (lambda x: hardtanh(x, min=0.0, max=6.0), {"": {}}),
    "selu": (lambda x, *, alpha=None, gamma=None: exponential_unit(x, alpha or SELU_ALPHA, gamma or SELU_SCALE), {"": {}}),
    "celu": (lambda x, *, alpha=1.0: exponential_unit(x, alpha, width=alpha), {"": {}, "alpha_": {"alpha": 0.7}}),
    "hardtanh": (hardtanh, {"": {}, "bounds_": {"min": -0.5, "max": 2.0}, "point_": {"min": 0.5, "max": 0.5}}),
    "hardsigmoid": (hardsigmoid, {"": {}}),
    "threshold": (lambda x, *, threshold, value: F.threshold(x, threshold, value), {"": {"threshold": 0.5, "value": -2.0}}),
    "relu_squared": (lambda x: F.relu(x).square(), {"": {}}),
    "softsign": (lambda x: torch.where(x.isinf(), x.sign(), F.softsign(x)), {"": {}}),
    "logsigmoid": (lambda x: F.logsigmoid(x), {"": {}}),
    "tanhshrink": (lambda x: F.tanhshrink(x), {"": {}}),
    "softshrink": (lambda x, *, lambd=0.5: F.softshrink(x, lambd), {"": {}, "lambda_": {"lambd": 2.0}}),
    "hardshrink": (lambda x, *, lambd=0.5: F.hardshrink(x, lambd), {"": {}, "lambda_": {"lambd": 2.0}}),
}

OPS |= {name: ("x", reference) for name, (reference, _) in POINTWISE.items()} | {
    "glu": ("x", lambda x, *, dim=-1: F.glu(x, dim)),
    "prelu": ("x weight", lambda x, weight: F.prelu(x, weight)),
    "swiglu": ("gate up", swiglu),
    "silu_and_mul": of_x(lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]),
}


def cases(out):
    for op, (_, variants) in POINTWISE.items():
        for suffix, attributes in variants.items():
            sweep(out, op, suffix, make=lambda *shape: 2 * normal(*shape), **attributes)
            # NaN has a gradient of its own in each; hardswish's is not settled.
            nan = [] if op == "hardswish" else [NAN]
            out.case(f"{op}/{suffix}kinks", {"x": f64(KINKS + nan)}, **attributes)
            out.case(
                f"{op}/{suffix}special", {"x": f64([-INF, -800.0, -1e-300, 1e-300, 800.0, INF, NAN])}, grads=[], **attributes
            )
    gated(out)
    activation_errors(out)
    constants(out)
    literals(out)


def gated(out):
    for shape in SHAPES:
        out.case(f"swiglu/{label(shape)}", {"gate": 2 * normal(*shape), "up": normal(*shape)})
    for shape in [(6,), (2, 4), (3, 1, 2), (2, 1, 3, 2), (0, 4), (3, 0)]:
        out.case(f"silu_and_mul/{label(shape)}", {"x": normal(*shape)})
    for shape, dim in [((6,), 0), ((2, 4), -1), ((4, 3), 0), ((3, 2, 2), 1), ((0, 4), 1), ((2, 0), -1)]:
        out.case(f"glu/{label(shape)}_dim{dim}", {"x": normal(*shape)}, dim=dim)
    out.error("glu/odd", "Shape", {"x": normal(2, 3)}, dim=1)
    out.error("glu/dim_out_of_range", "Attr", {"x": normal(2, 4)}, dim=2)
    for shape, weight in [((7,), (1,)), ((2, 3), (3,)), ((2, 3), (1,)), ((2, 3, 4), (3,)), ((2, 3, 2, 2), (3,)), ((2, 0), (1,)), ((), (1,))]:
        out.case(f"prelu/{label(shape)}_{label(weight)}", {"x": normal(*shape), "weight": normal(*weight)})
    out.case("prelu/kinks", {"x": f64([-INF, -1.0, -0.0, 0.0, 1.0, INF, NAN]), "weight": f64([0.25])}, grads=["x"])
    out.error("prelu/channels", "Shape", {"x": normal(2, 3), "weight": normal(2)})
    out.error("swiglu/no_broadcast", "Shape", {"gate": normal(2, 3), "up": normal(3)})
    out.error("silu_and_mul/odd", "Shape", {"x": normal(2, 3)})
    out.error("silu_and_mul/scalar", "Shape", {"x": normal()})


def activation_errors(out):
    x = normal(3)
    out.error("softplus/beta_zero", "Attr", {"x": x}, beta=0.0)
    out.error("softshrink/negative", "Attr", {"x": x}, lambd=-0.5)
    out.error("hardshrink/negative", "Attr", {"x": x}, lambd=-0.5)
    out.error("celu/alpha_zero", "Attr", {"x": x}, alpha=0.0)
    out.error("hardtanh/crossed", "Attr", {"x": x}, min=1.0, max=-1.0)
    for op in "relu", "sigmoid", "gelu":
        out.error(f"{op}/integers", "Dtype", {"x": i64([1, -2])})


def constants(out):
    for shape in [(), (7,), (2, 3)]:
        out.case(f"hardsigmoid/constants_{label(shape)}", {"x": 2 * normal(*shape)}, alpha=0.3, beta=0.4)
        out.case(f"selu/constants_{label(shape)}", {"x": 2 * normal(*shape)}, alpha=0.9, gamma=1.3)
        inputs = {"gate": 2 * normal(*shape), "up": 2 * normal(*shape)}
        out.case(f"swiglu/constants_{label(shape)}", inputs, alpha=1.702, beta=1.0, limit=1.5)
    out.case("hardsigmoid/constants_kinks", {"x": f64(KINKS + [NAN])}, alpha=-0.25, beta=0.5)
    out.case("selu/constants_kinks", {"x": f64(KINKS + [NAN])}, alpha=2.0, gamma=-1.5)
    special = {"gate": f64([-INF, -800.0, 7.0, 8.0, INF, NAN, 1.0, 1.0, 1.0]), "up": f64([1.0, 2.0, -7.0, 7.5, -8.0, 1.0, INF, -INF, NAN])}
    out.case("swiglu/constants_special", special, grads=[], alpha=1.702, beta=1.0, limit=7.0)
    out.case("swiglu/limits", {name: x[2:5] for name, x in special.items()}, alpha=1.702, beta=1.0, limit=7.0)
    out.error("swiglu/limit", "Attr", {"gate": normal(2), "up": normal(2)}, alpha=1.0, beta=0.0, limit=0.0)


def literals(out):
    """Numbers that were written down beforehand, at eight digits, which PyTorch confirms."""
    for name, attributes, y, dx in FIVE_POINTS:
        out.literal(name, {"x": f64(FIVE)}, [f64(y)], {"x": f64(dx)}, **attributes)
    out.literal(
        "silu_and_mul",
        {"x": f64([1.0, -2.0, 3.0, 0.5])},
        [f64([2.1931757, -0.11920292])],
        {"x": f64([2.7830115, -0.045392124, 0.73105858, -0.23840584])},
    )
