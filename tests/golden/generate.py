"""Write the golden values: for every op, inputs, results and gradients as PyTorch computes them in f64 on the CPU.

    python -m venv venv && venv/bin/pip install torch==2.11.0 safetensors numpy
    venv/bin/python tests/golden/generate.py

The files land beside this script; README.md describes them. What an op means stands in ops.py.
Two runs give the same bytes.
"""

import fnmatch
import inspect
import itertools
import json
import pathlib
import warnings

import torch
from safetensors.torch import save_file

from ops import ATTRIBUTE_NAMES, OPS

VERSION = "2.11.0"
F64, F32, I64, I32, BOOL = torch.float64, torch.float32, torch.int64, torch.int32, torch.bool
NAN, INF = float("nan"), float("inf")
SHAPES = [(), (7,), (2, 3), (3, 1, 2), (2, 1, 3, 2), (2, 0)]
FAMILIES = []


class Family:
    """The cases of one file, and their tensors."""

    def __init__(self, name):
        self.name, self.cases, self.tensors = name, [], {}

    def case(self, name, inputs, *, grads=None, tolerance=None, **attributes):
        """Runs the op (the name up to the slash); `grads` narrows the inputs whose gradient is kept."""
        extra = {} if tolerance is None else {"tolerance": tolerance}
        differentiable, reference = OPS[op_of(name)]
        wanted = [n for n, x in inputs.items() if x.is_floating_point() and matches(n, differentiable, grads)]
        inputs = {n: x.clone().requires_grad_(n in wanted) for n, x in inputs.items()}
        attributes = with_defaults(reference, attributes)
        outputs = as_tuple(reference(**inputs, **attributes))
        cotangents = {k: torch.randn(y.shape, dtype=F64).to(y.dtype) for k, y in enumerate(outputs) if y.requires_grad}
        gradients = vjp(outputs, cotangents, {n: inputs[n] for n in wanted})
        self.record(name, attributes, inputs, outputs, cotangents, gradients, **extra)

    def literal(self, name, inputs, outputs, gradients, *, cotangents=None, **attributes):
        """Numbers written down beforehand, kept as they stand, after a check that PyTorch agrees."""
        reference = OPS[op_of(name)][1]
        attributes = with_defaults(reference, attributes)
        leaves = {n: x.clone().requires_grad_(n in gradients) for n, x in inputs.items()}
        computed = as_tuple(reference(**leaves, **attributes))
        if gradients and cotangents is None:
            cotangents = {0: torch.ones_like(outputs[0])}
        derived = vjp(computed, cotangents or {}, {n: leaves[n] for n in gradients})
        for ours, theirs in zip([*outputs, *gradients.values()], [*computed, *derived.values()], strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=1e-7, atol=1e-12)
        self.record(name, attributes, inputs, outputs, cotangents or {}, gradients, tolerance=1e-7)

    def error(self, name, kind, inputs, **attributes):
        """A call that must be refused; nothing is run."""
        attributes = with_defaults(OPS[op_of(name)][1], attributes)
        self.record(name, attributes, inputs, (), {}, {}, error=kind)

    def record(self, name, attributes, inputs, outputs, cotangents, gradients, **extra):
        assert all(case["name"] != name for case in self.cases), name
        case = {"name": name, "op": op_of(name), "attributes": written(attributes), "inputs": list(inputs)}
        if "error" not in extra:
            case |= {"outputs": len(outputs), "grads": list(gradients)}
        self.cases.append(case | extra)
        parts = {"in": inputs, "out": dict(enumerate(outputs)), "cotangent": cotangents, "grad": gradients}
        for part, tensors in parts.items():
            for key, x in tensors.items():
                self.tensors[f"{name}/{part}/{key}"] = x.detach().clone(memory_format=torch.contiguous_format)

    def save(self, folder):
        lines = ",\n".join(json.dumps(case, allow_nan=False) for case in self.cases)
        text = f'{{"torch": "{VERSION}", "cases": [\n{lines}\n]}}\n'
        (folder / f"{self.name}.json").write_text(text)
        save_file(self.tensors, folder / f"{self.name}.safetensors")


def op_of(name):
    return name.split("/")[0]


def matches(name, differentiable, grads):
    return any(fnmatch.fnmatch(name, pattern) for pattern in differentiable.split()) and (grads is None or name in grads)


def with_defaults(reference, attributes):
    parameters = inspect.signature(reference).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind == p.KEYWORD_ONLY and p.default is not p.empty}
    return defaults | attributes


def written(attributes):
    return {ATTRIBUTE_NAMES.get(name, name): value for name, value in attributes.items() if value is not None}


def as_tuple(outputs):
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


def vjp(outputs, cotangents, leaves):
    if not leaves or not cotangents:
        return {}
    seeds = [outputs[k] for k in cotangents]
    return dict(zip(leaves, torch.autograd.grad(seeds, list(leaves.values()), list(cotangents.values()))))


def family(cases):
    """Registers a function that fills the family of its name."""
    FAMILIES.append(cases)
    return cases


# Inputs


def f64(values):
    return torch.tensor(values, dtype=F64)


def i64(values):
    return torch.tensor(values, dtype=I64)


def i32(values):
    return torch.tensor(values, dtype=I32)


def mask(values):
    return torch.tensor(values, dtype=BOOL)


def normal(*shape):
    return torch.randn(shape, dtype=F64)


def positive(*shape):
    return torch.rand(shape, dtype=F64) * 3 + 0.2


def inner(*shape):
    """In (0.05, 0.95)."""
    return torch.rand(shape, dtype=F64) * 0.9 + 0.05


def integers(*shape, low=-9, high=10, dtype=I64):
    return torch.randint(low, high, shape, dtype=dtype)


def label(shape):
    return "x".join(map(str, shape)) or "scalar"


def sweep(out, op, suffix="", make=normal, shapes=SHAPES, **attributes):
    for shape in shapes:
        out.case(f"{op}/{suffix}{label(shape)}", {"x": make(*shape)}, **attributes)


# Families


KINKS = [-30.0, -6.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 10.0, 25.0, 40.0]
POINTWISE = {
    "relu": {"": {}},
    "leaky_relu": {"": {}, "slope_": {"slope": -0.3}},
    "sigmoid": {"": {}},
    "tanh": {"": {}},
    "gelu": {"none_": {"approximate": "none"}, "tanh_": {"approximate": "tanh"}},
    "silu": {"": {}},
    "elu": {"": {}, "alpha_": {"alpha": 0.7}},
    "mish": {"": {}},
    "softplus": {"": {}, "beta_": {"beta": 2.0, "threshold": 5.0}},
    "hardswish": {"": {}},
    "relu6": {"": {}},
    "selu": {"": {}},
    "celu": {"": {}, "alpha_": {"alpha": 0.7}},
    "hardtanh": {"": {}, "bounds_": {"min": -0.5, "max": 2.0}, "point_": {"min": 0.5, "max": 0.5}},
    "hardsigmoid": {"": {}},
    "threshold": {"": {"threshold": 0.5, "value": -2.0}},
    "relu_squared": {"": {}},
}


@family
def activation(out):
    for op, variants in POINTWISE.items():
        for suffix, attributes in variants.items():
            sweep(out, op, suffix, make=lambda *shape: 2 * normal(*shape), **attributes)
            # NaN has a gradient of its own in each; hardswish's is not settled.
            nan = [] if op == "hardswish" else [NAN]
            out.case(f"{op}/{suffix}kinks", {"x": f64(KINKS + nan)}, **attributes)
            out.case(
                f"{op}/{suffix}special", {"x": f64([-INF, -800.0, -1e-300, 1e-300, 800.0, INF, NAN])}, grads=[], **attributes
            )
    softmaxes(out)
    gated(out)
    activation_errors(out)


def softmaxes(out):
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
    for op in "softmax", "log_softmax":
        for shape, dim in shapes:
            out.case(f"{op}/{label(shape)}_dim{dim}", {"x": 3 * normal(*shape)}, dim=dim)
        out.case(f"{op}/large", {"x": f64([[1000.0, 1001.0, 999.0], [-1000.0, -1002.0, -999.5]])})
        out.case(f"{op}/equal", {"x": f64([[2.5] * 5])})
        out.case(f"{op}/minus_inf_entry", {"x": f64([[-INF, 1.0, 2.0], [0.5, -INF, -INF]])})
        rows = [[-INF, -INF, -INF], [INF, 0.0, 1.0], [NAN, 0.0, 1.0], [0.0, 1.0, 2.0]]
        out.case(f"{op}/special_rows", {"x": f64(rows)}, grads=[])
        out.error(f"{op}/dim_out_of_range", "Attr", {"x": normal(2, 3)}, dim=2)


def gated(out):
    for shape in SHAPES:
        out.case(f"swiglu/{label(shape)}", {"gate": 2 * normal(*shape), "up": normal(*shape)})
    for shape in [(6,), (2, 4), (3, 1, 2), (2, 1, 3, 2), (0, 4), (3, 0)]:
        out.case(f"silu_and_mul/{label(shape)}", {"x": normal(*shape)})
    out.error("swiglu/no_broadcast", "Shape", {"gate": normal(2, 3), "up": normal(3)})
    out.error("silu_and_mul/odd", "Shape", {"x": normal(2, 3)})
    out.error("silu_and_mul/scalar", "Shape", {"x": normal()})


def activation_errors(out):
    x = normal(3)
    out.error("softplus/beta_zero", "Attr", {"x": x}, beta=0.0)
    out.error("celu/alpha_zero", "Attr", {"x": x}, alpha=0.0)
    out.error("hardtanh/crossed", "Attr", {"x": x}, min=1.0, max=-1.0)
    for op in "relu", "sigmoid", "gelu", "softmax":
        out.error(f"{op}/integers", "Dtype", {"x": i64([1, -2])})


REDUCTIONS = ["none", "mean", "sum"]


@family
def loss(out):
    elementwise_losses(out)
    classification(out)
    binary_losses(out)
    distance_losses(out)


def elementwise_losses(out):
    variants = {
        "mse_loss": [{}],
        "l1_loss": [{}],
        "smooth_l1_loss": [{}, {"beta": 0.7}, {"beta": 0.0}],
        "huber_loss": [{}, {"delta": 0.7}],
    }
    for op, options in variants.items():
        for option, reduction in itertools.product(options, REDUCTIONS):
            suffix = "_".join([reduction, *(f"{k}{v}" for k, v in option.items())])
            for shape in [(), (5,), (2, 1, 3), (0, 3)]:
                out.case(
                    f"{op}/{suffix}_{label(shape)}", {"a": normal(*shape), "t": normal(*shape)}, reduction=reduction, **option
                )
        out.error(f"{op}/no_broadcast", "Shape", {"a": normal(2, 3), "t": normal(3)})
        out.error(f"{op}/mixed_dtypes", "Dtype", {"a": normal(3), "t": normal(3).to(F32)})
    kinks = {"a": f64([-2.0, -0.5, 0.0, 0.5, 2.0]), "t": torch.zeros(5, dtype=F64)}
    out.case("smooth_l1_loss/kinks", kinks, beta=0.5, reduction="none")
    out.case("smooth_l1_loss/kinks_beta0", kinks, beta=0.0, reduction="none")
    out.case("huber_loss/kinks", kinks, delta=0.5, reduction="none")
    for op in variants:
        out.case(f"{op}/special", {"a": f64([NAN, INF, 1.0]), "t": f64([0.0, 1.0, NAN])}, grads=[], reduction="none")
    out.error("smooth_l1_loss/negative_beta", "Attr", {"a": normal(3), "t": normal(3)}, beta=-1.0)
    kl_divergence(out)


def kl_divergence(out):
    for reduction, log_target in itertools.product([*REDUCTIONS, "batchmean"], [False, True]):
        target = torch.softmax(normal(3, 4), 1)
        inputs = {"input": torch.log_softmax(normal(3, 4), 1), "target": target.log() if log_target else target}
        suffix = "log" if log_target else "plain"
        out.case(f"kl_div/{reduction}_{suffix}", inputs, log_target=log_target, reduction=reduction)
    out.case("kl_div/zero_target", {"input": f64([-1.0, -2.0]), "target": f64([0.0, 1.0])}, reduction="none")


def classification(out):
    for reduction in REDUCTIONS:
        for name, logits, target in class_targets():
            key = f"{reduction}_{name}"
            out.case(f"cross_entropy/{key}", {"logits": logits, "target": target}, reduction=reduction)
            logp = torch.log_softmax(logits, 1 if logits.dim() > 1 else 0)
            out.case(f"nll_loss/{key}", {"logp": logp, "target": target}, reduction=reduction)
        weighted_classes(out, reduction)
        probability_targets(out, reduction)
    cross_entropy_edges(out)
    byte_mean(out)
    classification_errors(out)


def class_targets():
    return [
        ("1d", normal(5), i64(3)),
        ("2d", normal(4, 5), i64([0, 4, 2, 2])),
        ("i32", normal(3, 4), i32([3, 0, 1])),
        ("4d", normal(2, 3, 2, 2), integers(2, 2, 2, low=0, high=3)),
        ("one_class", normal(3, 1), i64([0, 0, 0])),
        ("ignored", normal(4, 3), i64([0, -100, 2, -100])),
        ("empty", normal(0, 3), i64([])),
    ]


def weighted_classes(out, reduction):
    target, weight = i64([0, 1, 3, 1]), positive(4)
    common = {"target": target, "weight": weight}
    out.case(
        f"nll_loss/{reduction}_weight",
        {"logp": torch.log_softmax(normal(4, 4), 1), **common},
        ignore_index=1,
        reduction=reduction,
    )
    for smoothing in 0.0, 0.1, 1.0:
        inputs = {"logits": normal(4, 4), **common}
        out.case(
            f"cross_entropy/{reduction}_weight_smooth{smoothing}",
            inputs,
            ignore_index=1,
            label_smoothing=smoothing,
            reduction=reduction,
        )
        inputs = {"logits": normal(2, 3, 2), "target": integers(2, 2, low=0, high=3)}
        out.case(
            f"cross_entropy/{reduction}_spatial_smooth{smoothing}", inputs, label_smoothing=smoothing, reduction=reduction
        )


def probability_targets(out, reduction):
    for smoothing in 0.0, 0.2:
        inputs = {"logits": normal(3, 4), "target": torch.softmax(normal(3, 4), 1), "weight": positive(4)}
        out.case(
            f"cross_entropy/{reduction}_probabilities_smooth{smoothing}",
            inputs,
            label_smoothing=smoothing,
            reduction=reduction,
        )
    inputs = {"logits": normal(2, 3, 2), "target": torch.softmax(normal(2, 3, 2), 1)}
    out.case(f"cross_entropy/{reduction}_probabilities_spatial", inputs, reduction=reduction)


def cross_entropy_edges(out):
    ignored = i64([-100, -100])
    for reduction in "mean", "sum", "none":
        out.case(f"cross_entropy/{reduction}_all_ignored", {"logits": normal(2, 3), "target": ignored}, reduction=reduction)
        logp = torch.log_softmax(normal(2, 3), 1)
        out.case(f"nll_loss/{reduction}_all_ignored", {"logp": logp, "target": ignored}, reduction=reduction)
    target = i64([0, 1])
    out.case("cross_entropy/minus_inf_at_target", {"logits": f64([[-INF, 1.0, 0.5], [0.0, 1.0, 2.0]]), "target": target})
    out.case("cross_entropy/minus_inf_elsewhere", {"logits": f64([[1.0, -INF, 0.5], [0.0, 1.0, -INF]]), "target": target})
    out.case("cross_entropy/large", {"logits": f64([[1e4, -1e4, 0.0], [1e4, 1e4, 1e4]]), "target": target})


def byte_mean(out):
    token_bytes = f64([1.0, 3.0, 0.0, 5.0])
    for name, target in {"plain": i64([0, 1, 3, 2]), "ignored": i64([-100, 1, 3, -100]), "zero": i64([2, -100, 2, 2])}.items():
        inputs = {"logits": normal(4, 4), "target": target, "token_bytes": token_bytes}
        out.case(f"cross_entropy/byte_mean_{name}", inputs, reduction="byte_mean")


def classification_errors(out):
    logits, target = normal(2, 3), i64([0, 2])
    for op, name in ("cross_entropy", "logits"), ("nll_loss", "logp"):
        out.error(f"{op}/class_too_large", "Value", {name: logits, "target": i64([0, 3])})
        out.error(f"{op}/class_negative", "Value", {name: logits, "target": i64([-1, 0])})
        out.error(f"{op}/target_length", "Shape", {name: logits, "target": i64([0, 1, 2])})
        out.error(f"{op}/weight_length", "Shape", {name: logits, "target": target, "weight": positive(2)})
    out.error("cross_entropy/smoothing_above_1", "Attr", {"logits": logits, "target": target}, label_smoothing=1.5)
    probabilities = {"logits": logits, "target": torch.softmax(normal(2, 3), 1)}
    out.error("cross_entropy/probabilities_ignore_index", "Attr", probabilities, ignore_index=1)


def binary_losses(out):
    for reduction in REDUCTIONS:
        for shape in [(), (5,), (2, 1, 3), (0, 3)]:
            key = f"{reduction}_{label(shape)}"
            out.case(f"bce_loss/{key}", {"p": inner(*shape), "t": inner(*shape)}, reduction=reduction)
            out.case(f"bce_with_logits/{key}", {"x": normal(*shape), "t": inner(*shape)}, reduction=reduction)
            out.case(f"focal_loss/{key}", {"x": normal(*shape), "t": inner(*shape)}, reduction=reduction)
        weighted = {"t": inner(2, 3), "weight": positive(2, 3)}
        out.case(f"bce_loss/{reduction}_weight", {"p": inner(2, 3), **weighted}, reduction=reduction)
        out.case(f"bce_with_logits/{reduction}_weight", {"x": normal(2, 3), **weighted}, reduction=reduction)
        out.case(
            f"bce_with_logits/{reduction}_pos_weight",
            {"x": normal(2, 3), "t": inner(2, 3), "pos_weight": positive(3)},
            reduction=reduction,
        )
    edges = {"p": f64([0.0, 0.0, 1.0, 1.0, 1e-20, 0.5]), "t": f64([0.0, 1.0, 0.0, 1.0, 1.0, 0.25])}
    # PyTorch keeps the least divisor, 1e-12, in f32.
    out.case("bce_loss/edges", edges, reduction="none", tolerance=1e-8)
    edges = {"x": f64([-800.0, -50.0, 0.0, 50.0, 800.0]), "t": f64([1.0, 0.0, 0.5, 0.0, 1.0])}
    out.case("bce_with_logits/edges", edges, reduction="none")
    focal_variants(out)
    out.error("bce_loss/above_1", "Value", {"p": f64([0.5, 1.5]), "t": f64([0.0, 1.0])})
    out.error("bce_loss/below_0", "Value", {"p": f64([-0.25, 0.5]), "t": f64([0.0, 1.0])})
    out.error("bce_loss/no_broadcast", "Shape", {"p": inner(2, 3), "t": inner(3)})


def focal_variants(out):
    t = f64([[0.0, 1.0, 1.0], [0.0, 0.3, 1.0]])
    for name, options in {
        "alpha_off": {"alpha": -1.0},
        "gamma0": {"gamma": 0.0},
        "gamma1": {"gamma": 1.0},
        "gamma2.5": {"gamma": 2.5},
    }.items():
        out.case(f"focal_loss/{name}", {"x": 2 * normal(2, 3), "t": t}, reduction="none", **options)
        out.case(f"focal_loss/probability_{name}", {"x": inner(2, 3), "t": t}, from_logits=False, reduction="none", **options)
    clamped = {"x": f64([0.0, 1.0, 0.25]), "t": f64([0.0, 1.0, 1.0])}
    out.case("focal_loss/probability_clamped", clamped, from_logits=False, reduction="none")
    out.error("focal_loss/negative_gamma", "Attr", {"x": normal(2), "t": inner(2)}, gamma=-1.0)


def distance_losses(out):
    for reduction in REDUCTIONS:
        for swap, norm in itertools.product([False, True], [2.0, 1.0, 3.0]):
            inputs = {"a": normal(5, 3), "p": normal(5, 3), "n": normal(5, 3)}
            key = f"{reduction}_p{norm}" + ("_swap" if swap else "")
            out.case(f"triplet_loss/{key}", inputs, margin=1.5, norm=norm, swap=swap, reduction=reduction)
        inputs = {"x1": normal(4, 3), "x2": normal(4, 3), "y": f64([1.0, 0.0, 0.0, 1.0])}
        out.case(f"contrastive_loss/{reduction}_4x3", inputs, margin=3.0, reduction=reduction)
        empty = {"x1": normal(0, 3), "x2": normal(0, 3), "y": f64([])}
        out.case(f"contrastive_loss/{reduction}_0x3", empty, reduction=reduction)
    out.case("triplet_loss/inactive", {"a": f64([[0.0, 0.0]]), "p": f64([[0.1, 0.0]]), "n": f64([[9.0, 9.0]])}, reduction="none")
    same = {
        "x1": f64([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]]),
        "x2": f64([[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]]),
        "y": f64([1.0, 0.0, 0.0]),
    }
    out.case("contrastive_loss/zero_distance", same, reduction="none")
    out.error("triplet_loss/margin_zero", "Attr", {name: normal(2, 3) for name in "apn"}, margin=0.0)
    out.error("triplet_loss/shapes", "Shape", {"a": normal(2, 3), "p": normal(2, 3), "n": normal(1, 3)})
    out.error("contrastive_loss/label_length", "Shape", {"x1": normal(2, 3), "x2": normal(2, 3), "y": f64([1.0])})


@family
def embedding(out):
    tables(out)
    gathers(out)
    scatter_adds(out)


def tables(out):
    w, gamma = normal(5, 3), positive(3)
    indices = {"scalar": i64(2), "5": i64([0, 4, 4, 1, 4]), "2x2_i32": i32([[1, 1], [0, 3]]), "empty": i64([])}
    for name, idx in indices.items():
        out.case(f"embedding/{name}", {"w": w, "idx": idx})
        out.case(f"embedding_rmsnorm/{name}", {"w": w, "idx": idx, "gamma": gamma})
        out.case(f"embedding_rmsnorm/{name}_plain", {"w": w, "idx": idx}, eps=1e-3)
    idx = i64([0, 4, 4, 1, 4, 0])
    out.case("embedding/padding", {"w": w, "idx": idx}, padding_idx=4)
    out.case("embedding/padding_negative", {"w": w, "idx": idx}, padding_idx=-5)
    out.case("embedding/frequency", {"w": w, "idx": idx}, scale_grad_by_freq=True)
    out.case("embedding/frequency_padding", {"w": w, "idx": idx}, padding_idx=0, scale_grad_by_freq=True)
    out.case("embedding_rmsnorm/zero_row", {"w": f64([[0.0, 0.0], [3.0, 4.0]]), "idx": i64([0, 1])})
    for op in "embedding", "embedding_rmsnorm":
        out.error(f"{op}/too_large", "Index", {"w": w, "idx": i64([0, 5])})
        out.error(f"{op}/negative", "Index", {"w": w, "idx": i64([-1])})
        out.error(f"{op}/float_index", "Dtype", {"w": w, "idx": f64([1.0])})
    out.error("embedding/padding_out_of_range", "Attr", {"w": w, "idx": idx}, padding_idx=5)


def gathers(out):
    x = normal(3, 4)
    out.case("gather/rows", {"x": x, "index": i64([[2, 0, 0, 1], [2, 2, 0, 0]])}, dim=0)
    out.case("gather/columns", {"x": x, "index": i64([[3, 3, 3, 0, 1], [0, 1, 2, 3, 0]])}, dim=1)
    out.case("gather/i32", {"x": x, "index": i32([[3, 1], [0, 0], [2, 2]])}, dim=-1)
    out.case("gather/rank3", {"x": normal(2, 3, 2), "index": integers(2, 4, 1, low=0, high=3)}, dim=1)
    out.case("gather/scalar", {"x": normal(), "index": i64(0)}, dim=0)
    out.case("gather/empty", {"x": x, "index": integers(3, 0)}, dim=1)
    out.case("gather/integers", {"x": integers(3, 4), "index": i64([[2, 0, 0, 1]])}, dim=0)
    out.case("gather/bools", {"x": mask([True, False, True]), "index": i64([1, 1, 0, 2])}, dim=0)
    out.error("gather/negative", "Index", {"x": x, "index": i64([[-1]])}, dim=0)
    out.error("gather/too_large", "Index", {"x": x, "index": i64([[3]])}, dim=0)
    out.error("gather/rank", "Shape", {"x": x, "index": i64([0])}, dim=0)
    out.error("gather/wider", "Shape", {"x": x, "index": integers(3, 5, low=0, high=3)}, dim=0)


def scatter_adds(out):
    x, op = normal(3, 4), "scatter_add"
    out.case(f"{op}/rows", {"self": x, "index": i64([[2, 0, 0, 1], [2, 2, 0, 1]]), "src": normal(2, 4)}, dim=0)
    out.case(f"{op}/columns_i32", {"self": x, "index": i32([[3, 3, 3, 0, 1], [0, 1, 2, 3, 0]]), "src": normal(2, 5)}, dim=-1)
    out.case(f"{op}/larger_src", {"self": x, "index": i64([[2, 0], [1, 1]]), "src": normal(3, 4)}, dim=0)
    out.case(f"{op}/scalar", {"self": normal(), "index": i64(0), "src": normal()}, dim=0)
    out.case(f"{op}/empty", {"self": x, "index": integers(0, 4), "src": normal(0, 4)}, dim=0)
    out.case(f"{op}/integers", {"self": integers(4), "index": i64([1, 1, 3]), "src": integers(3)}, dim=0)
    out.error(f"{op}/negative", "Index", {"self": x, "index": i64([[-1]]), "src": normal(1, 1)}, dim=0)
    out.error(f"{op}/too_large", "Index", {"self": x, "index": i64([[3]]), "src": normal(1, 1)}, dim=0)
    out.error(f"{op}/src_smaller", "Shape", {"self": x, "index": i64([[0, 1]]), "src": normal(1, 1)}, dim=0)


@family
def utility(out):
    layouts(out)
    casts(out)
    joins(out)
    clamps(out)
    selections(out)
    extremum_positions(out)
    dropouts(out)


def layouts(out):
    sweep(out, "t", shapes=[(2, 3), (1, 5), (7, 1), (0, 3)])
    sweep(out, "t", shapes=[(2, 3, 4), (1, 1, 5), (2, 0, 3)])
    for shape, perm in [
        ((3,), [0]),
        ((2, 3), [1, 0]),
        ((2, 3, 4), [2, 0, 1]),
        ((2, 1, 3, 2), [3, 1, 0, 2]),
        ((2, 0, 3), [1, 2, 0]),
    ]:
        out.case(f"permute/{label(shape)}", {"x": normal(*shape)}, perm=perm)
    for op in "copy", "contiguous":
        sweep(out, op)
        out.case(f"{op}/special", {"x": f64([-0.0, NAN, INF, -INF, 5e-324])})
        out.case(f"{op}/integers", {"x": integers(2, 3, dtype=I32)})
        out.case(f"{op}/bools", {"x": mask([True, False])})
    for shape, to in [((2, 3), [3, 2]), ((6,), [2, -1]), ((2, 3, 2), [-1]), ((), [1, 1]), ((1, 1), []), ((2, 0), [0, 5])]:
        out.case(f"reshape/{label(shape)}_to_{label(to)}", {"x": normal(*shape)}, shape=to)
    for shape, a, b in [((2, 3), 0, 1), ((2, 3, 4), -1, 0), ((2, 1, 3, 2), 1, 2), ((3,), 0, 0), ((2, 0), 0, 1)]:
        out.case(f"transpose/{label(shape)}", {"x": normal(*shape)}, dim0=a, dim1=b)
    for shape, dim, start, length in [((7,), 0, 2, 3), ((2, 5), -1, 4, 1), ((3, 2, 2), 0, 0, 3), ((3, 2), 0, 3, 0)]:
        out.case(f"narrow/{label(shape)}_{start}_{length}", {"x": normal(*shape)}, dim=dim, start=start, length=length)
    out.error("permute/repeated", "Attr", {"x": normal(2, 3)}, perm=[0, 0])
    out.error("permute/short", "Attr", {"x": normal(2, 3)}, perm=[0])
    out.error("reshape/numel", "Shape", {"x": normal(2, 3)}, shape=[4])
    out.error("t/rank", "Shape", {"x": normal(3)})


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


def joins(out):
    for name, shapes, dim in [
        ("vectors", [(2,), (3,)], 0),
        ("rows", [(1, 3), (2, 3), (1, 3)], 0),
        ("columns", [(2, 3), (2, 1)], -1),
        ("rank4", [(2, 1, 3, 2), (2, 2, 3, 2)], 1),
        ("empty_member", [(2, 3), (0, 3)], 0),
        ("one", [(2, 3)], 1),
    ]:
        out.case(f"concat/{name}", {f"x{k}": normal(*shape) for k, shape in enumerate(shapes)}, dim=dim)
    out.case("concat/integers", {"x0": integers(2), "x1": integers(3)}, dim=0)
    broadcasts = [((), (2, 3)), ((3,), (2, 3)), ((2, 1), (2, 3)), ((1, 3, 1), (2, 2, 3, 4)), ((2, 3), (2, 3)), ((1,), (0,))]
    for small, big in broadcasts:
        for key in "", "expand_":
            out.case(f"broadcast_to/{key}{label(small)}_to_{label(big)}", {"x": normal(*small)}, shape=list(big))
        out.case(f"sum_to_size/{label(big)}_to_{label(small)}", {"x": normal(*big)}, shape=list(small))
    for shape, value in [((), 1.5), ((2, 3), -0.25), ((0, 2), 1.0)]:
        out.case(f"full/{label(shape)}", {}, shape=list(shape), value=value)
    out.case("full/integers", {}, shape=[3], value=-7, dtype="i64")
    out.error("concat/off_dim", "Shape", {"x0": normal(2, 3), "x1": normal(2, 4)}, dim=0)
    out.error("concat/mixed_dtypes", "Dtype", {"x0": normal(2), "x1": integers(2)}, dim=0)
    out.error("broadcast_to/mismatch", "Shape", {"x": normal(3)}, shape=[2, 4])
    out.error("sum_to_size/mismatch", "Shape", {"x": normal(2, 3)}, shape=[2])
    out.error("full/integer_range", "Attr", {}, shape=[2], value=300, dtype="u8")


def clamps(out):
    bounds = {"both": {"min": -0.5, "max": 0.5}, "min": {"min": 0.25}, "max": {"max": 0.25}, "crossed": {"min": 1.0, "max": -1.0}}
    for name, attributes in bounds.items():
        sweep(out, "clamp", f"{name}_", shapes=[(), (7,), (2, 1, 3, 2), (2, 0)], **attributes)
    out.case("clamp/inclusive", {"x": f64([-1.0, -0.5, -0.0, 0.5, 1.0, INF, -INF, NAN])}, min=-0.5, max=0.5)
    out.case("clamp/integers", {"x": i64([-5, 0, 5])}, min=-2, max=3)
    low, high = -positive(2, 3), positive(2, 3)
    out.case("clamp/tensors", {"x": 2 * normal(2, 3), "min": low, "max": high})
    out.case("clamp/tensors_broadcast", {"x": 2 * normal(2, 3), "min": low[0], "max": high[:, :1]})
    out.case("clamp/tensor_min", {"x": normal(2, 3), "min": low})
    out.case("clamp/tensor_max", {"x": normal(2, 3), "max": high})
    special = {"x": f64([NAN, 1.0, 2.0, 3.0]), "min": f64([0.0, NAN, 0.0, 5.0]), "max": f64([1.0, 2.0, NAN, 4.0])}
    out.case("clamp/tensors_special", special, grads=[])
    out.error("clamp/no_bounds", "Attr", {"x": normal(3)})


def selections(out):
    for c, a, b in [
        ((), (), ()),
        ((7,), (7,), (7,)),
        ((2, 3), (3,), (2, 1)),
        ((3, 1), (1, 2), ()),
        ((2, 1, 1, 2), (3, 1), (2, 1, 3, 2)),
        ((0,), (0,), (1,)),
    ]:
        inputs = {"cond": integers(*c, low=0, high=2).bool(), "a": normal(*a), "b": normal(*b)}
        out.case(f"where_cond/{label(c)}_{label(a)}_{label(b)}", inputs)
    cond = mask([True, False, True, False])
    out.case("where_cond/no_leak", {"cond": cond, "a": f64([1.0, NAN, INF, INF]), "b": f64([NAN, 2.0, NAN, -0.0])})
    out.case("where_cond/integers", {"cond": cond, "a": integers(4), "b": integers(4)})
    out.error("where_cond/cond_dtype", "Dtype", {"cond": i64([1, 0]), "a": normal(2), "b": normal(2)})
    out.error("where_cond/shapes", "Shape", {"cond": mask([True, False]), "a": normal(3), "b": normal(3)})
    out.error("where_cond/mixed_dtypes", "Dtype", {"cond": mask([True, False]), "a": normal(2), "b": integers(2)})


def extremum_positions(out):
    for op in "argmax", "argmin":
        for shape, dim in [
            ((), None),
            ((), 0),
            ((7,), 0),
            ((2, 3), None),
            ((2, 3), 0),
            ((3, 1, 2), 1),
            ((2, 1, 3, 2), -2),
            ((0, 3), 1),
        ]:
            out.case(f"{op}/{label(shape)}_dim{'' if dim is None else dim}", {"x": normal(*shape)}, dim=dim)
        out.case(f"{op}/keepdim", {"x": normal(2, 3)}, dim=1, keepdim=True)
        ties = [[2.0, 3.0, 3.0, 1.0, 1.0], [4.0, 4.0, 4.0, 4.0, 4.0], [-INF, -INF, -INF, -INF, -INF], [1.0, NAN, 5.0, NAN, -INF]]
        out.case(f"{op}/ties", {"x": f64(ties)}, dim=1)
        out.case(f"{op}/ties_columns", {"x": f64(ties).t()}, dim=0)
        out.case(f"{op}/integers", {"x": i64([[3, 1, 3], [1, 1, 2]])}, dim=1)
        out.error(f"{op}/bools", "Dtype", {"x": mask([True, False])}, dim=0)
        out.error(f"{op}/empty", "Value", {"x": normal(2, 0)}, dim=1)
        out.error(f"{op}/dim_out_of_range", "Attr", {"x": normal(2, 3)}, dim=2)


def dropouts(out):
    x = f64([[1.0, -2.0, 0.0], [3.5, 1e300, -0.25]])
    out.case("dropout/p0", {"x": x}, p=0.0)
    out.case("dropout/p1", {"x": x}, p=1.0)
    out.case("dropout/p1_special", {"x": f64([INF, NAN, 1.0])}, p=1.0)
    out.case("dropout/eval", {"x": x}, p=0.5, training=False)
    out.case("dropout/empty", {"x": normal(0, 3)}, p=0.0)
    out.error("dropout/above_1", "Attr", {"x": x}, p=1.5)
    out.error("dropout/below_0", "Attr", {"x": x}, p=-0.1)


@family
def unary(out):
    steps = f64([-2.5, -1.5, -0.5, -0.0, 0.0, 0.5, 1.5, 2.5, 3.7, -3.7, 1e17])
    for op in "neg abs exp sin cos square floor ceil trunc round frac sign expm1 erf".split():
        sweep(out, op, make=lambda *shape: 3 * normal(*shape))
        out.case(f"{op}/steps", {"x": steps[:-1]})
        out.case(f"{op}/special", {"x": f64([-INF, -1e17, -0.0, 0.0, 1e-300, 1e17, INF, NAN])}, grads=[])
    for op in "log sqrt rsqrt reciprocal log1p".split():
        sweep(out, op, make=positive)
        out.case(f"{op}/special", {"x": f64([-INF, -2.0, -1.0, -0.0, 0.0, 1e-300, 1e300, INF, NAN])}, grads=[])
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


PAIRS = [((), ()), ((7,), (7,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((3, 1, 2), ()), ((2, 1, 3, 1), (4, 1, 2)), ((2, 0), (1,))]


@family
def binary(out):
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
    powers(out)
    comparisons(out)


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


@family
def fused_pointwise(out):
    triples = [
        ((), (), ()),
        ((7,), (7,), (7,)),
        ((2, 3), (3,), (2, 1)),
        ((1,), (3, 1, 2), (1, 2)),
        ((2, 1, 3, 1), (2,), ()),
        ((0,), (1,), (0,)),
    ]
    for s, a, b in triples:
        key = f"{label(s)}_{label(a)}_{label(b)}"
        out.case(f"addcmul/{key}", {"s": normal(*s), "a": normal(*a), "b": normal(*b)}, value=0.7)
        out.case(f"addcdiv/{key}", {"s": normal(*s), "a": normal(*a), "b": positive(*b)}, value=-1.3)
        out.case(f"lerp/{key}", {"a": normal(*s), "b": normal(*a), "weight": normal(*b)})
    for op in "addcmul", "addcdiv":
        out.case(f"{op}/plain", {name: normal(2, 3) for name in "sab"})
        out.error(f"{op}/shapes", "Shape", {"s": normal(2), "a": normal(3), "b": normal(3)})
        out.error(f"{op}/mixed_dtypes", "Dtype", {"s": normal(3), "a": normal(3), "b": normal(3).to(F32)})
    integer = {"s": integers(3), "a": integers(3), "b": integers(3)}
    out.case("addcmul/integers", integer, value=2)
    out.error("addcdiv/integers", "Dtype", integer)
    zero = {"s": f64([0.0, 1.0]), "a": f64([1.0, 0.0]), "b": f64([0.0, 0.0])}
    out.case("addcdiv/by_zero", zero, grads=[])
    for weight in 0.0, 0.25, 0.5, 1.0, 1.5, -0.5:
        out.case(f"lerp/weight{weight}", {"a": normal(2, 3), "b": normal(3)}, weight=weight)
    exact = {"a": f64([1e16, 1.0, 0.1]), "b": f64([1.0, 1e16, 0.3]), "weight": f64([1.0, 1.0, 0.0])}
    out.case("lerp/exact_ends", exact)
    out.error("lerp/shapes", "Shape", {"a": normal(2), "b": normal(3)}, weight=0.5)


REDUCED = [
    ((), None),
    ((7,), [0]),
    ((2, 3), None),
    ((2, 3), [-1]),
    ((3, 1, 2), [1]),
    ((2, 3, 2), [0, 2]),
    ((2, 1, 3, 2), [1, -1]),
    ((2, 3), []),
]


@family
def reduction(out):
    for op in "sum", "mean", "prod", "amax", "amin", "l2_norm", "logsumexp", "var":
        shapes = [r for r in REDUCED if op != "var" or r[0] not in [(), (3, 1, 2)]]
        for shape, dims in shapes:
            dims_label = "all" if dims is None else "_".join(map(str, dims)) or "none"
            out.case(f"{op}/{label(shape)}_{dims_label}", {"x": normal(*shape)}, dims=dims)
        out.case(f"{op}/keepdim", {"x": normal(2, 3)}, dims=[1], keepdim=True)
        out.case(f"{op}/other_extent_empty", {"x": normal(0, 3)}, dims=[1])
        out.error(f"{op}/dim_out_of_range", "Attr", {"x": normal(2, 3)}, dims=[2])
        out.error(f"{op}/dim_twice", "Attr", {"x": normal(2, 3)}, dims=[0, -2])
    for op in "sum", "mean", "prod", "l2_norm":
        out.case(f"{op}/empty_extent", {"x": normal(2, 0)}, dims=[1])
        out.case(f"{op}/nan_inf", {"x": f64([[NAN, 1.0], [INF, 2.0], [INF, -INF]])}, dims=[1], grads=[])
    for op in "amax", "amin":
        out.case(f"{op}/integers", {"x": integers(2, 3)}, dims=[0])
        out.case(f"{op}/ties", {"x": f64([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0], [NAN, 1.0, NAN, 2.0]])}, dims=[1])
        out.error(f"{op}/empty_extent", "Value", {"x": normal(2, 0)}, dims=[1])
    reduction_edges(out)
    extrema(out)
    scans(out)


def reduction_edges(out):
    for op in "sum", "prod":
        for dtype in I64, I32:
            out.case(f"{op}/{'i64' if dtype == I64 else 'i32'}", {"x": integers(2, 3, dtype=dtype)}, dims=[1])
        out.case(f"{op}/bools", {"x": mask([[True, False], [True, True]])}, dims=[1])
    out.case("prod/zeros", {"x": f64([[1.0, 2.0, 3.0], [0.0, 2.0, 3.0], [0.0, 2.0, 0.0]])}, dims=[1])
    out.case("prod/zeros_all", {"x": f64([[1.5, 0.0], [2.0, 3.0]])})
    out.case("l2_norm/zero_row", {"x": f64([[0.0, 0.0], [3.0, -4.0]])})
    out.case("logsumexp/large", {"x": f64([[1000.0, 1001.0], [-1000.0, -INF]])}, dims=[1])
    out.case("logsumexp/special", {"x": f64([[-INF, -INF], [INF, 1.0], [NAN, 0.0]])}, dims=[1], grads=[])
    for correction in 0, 2:
        out.case(f"var/correction{correction}", {"x": normal(3, 4)}, dims=[1], correction=correction)
    out.case("var/far_from_zero", {"x": 1e3 + normal(2, 5)}, dims=[1])
    out.error("mean/integers", "Dtype", {"x": i64([1, 2])})


def extrema(out):
    ties = f64([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0], [NAN, 1.0, NAN, 2.0], [-INF, -INF, -INF, -INF]])
    for op in "max", "min":
        for shape, dim in [
            ((), None),
            ((), 0),
            ((7,), None),
            ((7,), 0),
            ((2, 3), None),
            ((2, 3), 0),
            ((3, 1, 2), 1),
            ((2, 1, 3, 2), -2),
            ((0, 3), 1),
        ]:
            out.case(f"{op}/{label(shape)}_{'all' if dim is None else dim}", {"x": normal(*shape)}, dim=dim)
        out.case(f"{op}/keepdim", {"x": normal(2, 3)}, dim=1, keepdim=True)
        out.case(f"{op}/ties", {"x": ties}, dim=1)
        out.case(f"{op}/ties_all_shared", {"x": f64([[1.0, 3.0], [3.0, 1.0]])})
        out.case(f"{op}/nan_all", {"x": f64([1.0, NAN, INF])}, grads=[])
        out.case(f"{op}/integers", {"x": integers(2, 5, dtype=I32)}, dim=1)
        out.error(f"{op}/empty", "Value", {"x": normal(2, 0)}, dim=1)
        out.error(f"{op}/empty_all", "Value", {"x": normal(0)})
        out.error(f"{op}/dim_out_of_range", "Attr", {"x": normal(2, 3)}, dim=-3)


def scans(out):
    for shape, dim in [((7,), 0), ((2, 3), 0), ((2, 3), -1), ((3, 1, 2), 1), ((2, 1, 3, 2), 2), ((2, 0), 1), ((), 0)]:
        out.case(f"cumsum/{label(shape)}_{dim}", {"x": normal(*shape)}, dim=dim)
    out.case("cumsum/integers", {"x": integers(2, 3)}, dim=1)
    out.case("cumsum/nan", {"x": f64([1.0, NAN, 2.0])}, dim=0, grads=[])
    out.error("cumsum/dim_out_of_range", "Attr", {"x": normal(2, 3)}, dim=2)


@family
def indexing(out):
    rows(out)
    subscripts(out)
    assignments(out)
    orderings(out)
    scatters(out)


def rows(out):
    x = normal(3, 4, 2)
    for name, dim, at in [
        ("dim0", 0, i64([2, 0, 2])),
        ("dim1_i32", 1, i32([3, 3, 1, 0])),
        ("last", -1, i64([1])),
        ("scalar", 1, i64(2)),
        ("empty", 0, i64([])),
    ]:
        out.case(f"index_select/{name}", {"x": x, "index": at}, dim=dim)
        src = normal(*x.index_select(dim, at.long()).shape)
        if at.dim() == 1:
            out.case(f"index_add/{name}", {"self": x, "index": at, "src": src}, dim=dim)
    out.case("index_select/integers", {"x": integers(4), "index": i64([3, 3])}, dim=0)
    out.case("index_select/bools", {"x": mask([True, False]), "index": i64([1, 0, 0])}, dim=0)
    out.case("index_add/alpha", {"self": normal(3), "index": i64([1, 1, 0, 1]), "src": normal(4)}, dim=0, alpha=-2.5)
    out.case("index_add/integers", {"self": integers(3), "index": i64([1, 1]), "src": integers(2)}, dim=0, alpha=2)
    for dim, at in [(0, 1), (1, -1), (-1, 0)]:
        out.case(f"select/dim{dim}_{at}", {"x": x}, dim=dim, index=at)
    out.case("select/vector", {"x": normal(5)}, dim=0, index=3)
    for kind, at in ("negative", i64([-1])), ("too_large", i64([3])):
        out.error(f"index_select/{kind}", "Index", {"x": x, "index": at}, dim=0)
        out.error(f"index_add/{kind}", "Index", {"self": x, "index": at, "src": normal(1, 4, 2)}, dim=0)
    out.error("index_select/rank", "Shape", {"x": x, "index": i64([[0]])}, dim=0)
    out.error("index_select/float_index", "Dtype", {"x": x, "index": f64([0.0])}, dim=0)
    out.error("select/out_of_range", "Index", {"x": x}, dim=0, index=3)
    out.error("select/below", "Index", {"x": x}, dim=0, index=-4)


def every(size):
    return {"slice": [0, size, 1]}


def subscript_cases():
    """name, shape of x, tensors, subscript: positions as `"tensor:i0"` or `{"slice": [start, stop, step]}`."""
    i, j = i64([0, 1]), i64([1, -1])
    grid = i64([[0, 2], [1, 1]])
    rows_, picked = mask([True, False, True]), mask([[True, False, True, False], [False] * 4, [True, True, False, False]])
    return [
        ("vector", (5,), [i64([4, 0, -2, 4])], ["tensor:i0"]),
        ("scalar_index", (3, 4), [i64(-1)], ["tensor:i0"]),
        ("i32", (3, 4), [i32([2, 0])], ["tensor:i0"]),
        ("rows", (3, 4), [grid], ["tensor:i0"]),
        ("columns", (3, 4), [grid], [every(3), "tensor:i0"]),
        ("pairs", (3, 4), [i, j], ["tensor:i0", "tensor:i1"]),
        ("outer", (3, 4), [i.reshape(2, 1), j], ["tensor:i0", "tensor:i1"]),
        ("adjacent", (2, 3, 4, 2), [i, j], [every(2), "tensor:i0", "tensor:i1"]),
        ("apart", (2, 3, 4, 2), [i, j], ["tensor:i0", every(3), "tensor:i1"]),
        ("apart_grid", (2, 3, 3), [i, grid], ["tensor:i0", every(3), "tensor:i1"]),
        ("slices", (5, 4), [], [{"slice": [1, 4, 1]}, {"slice": [0, 4, 2]}]),
        ("slice_and_tensor", (5, 4), [j], [{"slice": [0, 5, 3]}, "tensor:i0"]),
        ("empty_index", (3, 4), [i64([])], ["tensor:i0"]),
        ("mask_rows", (3, 4), [rows_], ["tensor:i0"]),
        ("mask_all", (3, 4), [picked], ["tensor:i0"]),
        ("mask_leading", (3, 4, 2), [picked], ["tensor:i0"]),
        ("mask_inner", (2, 3, 2), [rows_], [every(2), "tensor:i0"]),
        ("mask_and_index", (3, 4), [rows_, j], ["tensor:i0", "tensor:i1"]),
        ("mask_none", (3,), [mask([False] * 3)], ["tensor:i0"]),
    ]


def subscripts(out):
    for name, shape, tensors, indices in subscript_cases():
        out.case(f"index/{name}", {"x": normal(*shape), **numbered(tensors)}, indices=indices)
    out.case("index/integers", {"x": integers(4), "i0": i64([-1, 0])}, indices=["tensor:i0"])
    for name, kind, tensors in bad_subscripts():
        out.error(
            f"index/{name}", kind, {"x": normal(3, 4), **numbered(tensors)}, indices=[f"tensor:i{k}" for k in range(len(tensors))]
        )


def bad_subscripts():
    return [
        ("too_large", "Index", [i64([0, 3])]),
        ("too_small", "Index", [i64([-4])]),
        ("mask_shape", "Shape", [mask([True, False])]),
        ("float_index", "Dtype", [f64([1.0])]),
        ("no_broadcast", "Shape", [i64([0, 1]), i64([0, 1, 2])]),
    ]


def numbered(tensors):
    return {f"i{k}": x for k, x in enumerate(tensors)}


def assignments(out):
    for name, shape, tensors, indices in subscript_cases():
        x = normal(*shape)
        y = OPS["index"][1](x, indices=indices, **numbered(tensors))
        inputs = {"self": x, **numbered(tensors), "values": normal(*y.shape)}
        # With a repeated place, "vector" and "rows", the last one wins; the gradient of the others is left open.
        grads = ["self"] if name in ("vector", "rows", "columns") else None
        out.case(f"index_put/{name}", inputs, grads=grads, indices=indices)
        out.case(f"index_put/{name}_accumulate", inputs, indices=indices, accumulate=True)
    broadcast = {"self": normal(3, 4), "i0": i64([2, 0]), "values": normal(4)}
    out.case("index_put/broadcast_row", broadcast, indices=["tensor:i0"])
    out.case("index_put/broadcast_scalar", broadcast | {"values": normal()}, indices=["tensor:i0"])
    for name, kind, tensors in bad_subscripts():
        inputs = {"self": normal(3, 4), **numbered(tensors), "values": normal()}
        out.error(f"index_put/{name}", kind, inputs, indices=[f"tensor:i{k}" for k in range(len(tensors))])
    out.error("index_put/values_shape", "Shape", broadcast | {"values": normal(3)}, indices=["tensor:i0"])


def orderings(out):
    ties = f64([[2.0, 5.0, 5.0, NAN, 1.0, 2.0, -INF], [0.0, -0.0, 0.0, 1.0, 1.0, INF, NAN]])
    for flag in False, True:
        order = "largest" if flag else "smallest"
        out.case(f"topk/{order}", {"x": normal(3, 7)}, k=3, largest=flag)
        out.case(f"topk/{order}_dim0", {"x": normal(5, 2)}, k=5, dim=0, largest=flag)
        out.case(f"topk/{order}_ties", {"x": ties}, k=5, largest=flag)
        order = "descending" if flag else "ascending"
        out.case(f"sort/{order}", {"x": normal(2, 7)}, descending=flag)
        out.case(f"sort/{order}_dim0", {"x": normal(3, 1, 2)}, dim=0, descending=flag)
        out.case(f"sort/{order}_ties", {"x": ties}, descending=flag)
        out.case(f"sort/{order}_integers", {"x": integers(9, low=0, high=4)}, descending=flag)
        out.case(f"sort/{order}_empty", {"x": normal(2, 0)}, descending=flag)
    out.case("topk/k0", {"x": normal(2, 3)}, k=0)
    out.case("topk/integers", {"x": i64([3, 1, 3, 2])}, k=2)
    out.error("topk/k_too_large", "Attr", {"x": normal(2, 3)}, k=4)


def scatters(out):
    x = normal(3, 4)
    out.case("scatter/rows", {"self": x, "index": i64([[2, 0, 0, 1], [1, 2, 1, 0]]), "src": normal(2, 4)}, dim=0)
    out.case("scatter/columns_i32", {"self": x, "index": i32([[3, 1, 0], [0, 1, 2]]), "src": normal(2, 3)}, dim=1)
    out.case("scatter/larger_src", {"self": x, "index": i64([[2, 0], [1, 1]]), "src": normal(3, 4)}, dim=0)
    out.case("scatter/empty", {"self": x, "index": integers(0, 4), "src": normal(0, 4)}, dim=0)
    out.error("scatter/negative", "Index", {"self": x, "index": i64([[-1]]), "src": normal(1, 1)}, dim=0)
    out.error("scatter/too_large", "Index", {"self": x, "index": i64([[4]]), "src": normal(1, 1)}, dim=1)


@family
def matmul(out):
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


@family
def optimizer(out):
    lr = {"lr": 0.1}
    for (op, key), variants in {
        ("sgd", ""): {"plain": lr, "decay": lr | {"wd": 0.1}, "maximize": lr | {"maximize": True}},
        ("sgd", "momentum_"): {
            "plain": lr | {"momentum": 0.9},
            "dampening": lr | {"momentum": 0.8, "dampening": 0.2, "wd": 0.05},
            "maximize": lr | {"momentum": 0.9, "wd": 0.05, "maximize": True},
        },
        ("sgd", "nesterov_"): {
            "plain": lr | {"momentum": 0.9, "nesterov": True},
            "decay": lr | {"momentum": 0.8, "wd": 0.05, "nesterov": True},
        },
        ("adam", ""): adam_variants(),
        ("adamw", ""): adam_variants() | {"no_decay": lr | {"wd": 0.0}},
    }.items():
        for name, attributes in variants.items():
            out.case(f"{op}/{key}{name}", training(), **attributes)
        optimizer_errors(out, f"{op}/{key}", variants["plain"])
    clipping(out)
    for op, variants in {
        "rmsprop": {
            "plain": lr,
            "decay": lr | {"wd": 0.1, "alpha": 0.9, "eps": 1e-3},
            "momentum": lr | {"momentum": 0.9},
            "centered": lr | {"centered": True, "alpha": 0.8},
            "centered_momentum": lr | {"centered": True, "momentum": 0.5, "wd": 0.1},
            "maximize": lr | {"maximize": True},
        },
        "adagrad": {
            "plain": lr,
            "decay": lr | {"wd": 0.1, "lr_decay": 0.2},
            "start": lr | {"initial_accumulator": 0.5, "eps": 1e-3},
            "maximize": lr | {"maximize": True},
        },
    }.items():
        for name, attributes in variants.items():
            out.case(f"{op}/{name}", training(), **attributes)
        optimizer_errors(out, f"{op}/", variants["plain"])
    step = {"p0": normal(2), "g0_0": normal(2)}
    for option, value in ("alpha", 1.0), ("alpha", -0.1), ("eps", -1e-8), ("momentum", -0.1):
        out.error(f"rmsprop/{option}_{value}", "Attr", step, **lr | {option: value})
    for option in "lr_decay", "initial_accumulator", "eps":
        out.error(f"adagrad/negative_{option}", "Attr", step, **lr | {option: -0.1})
    layerwise(out)
    muon(out)
    for (op, key), plain in clipped_and_grouped().items():
        inputs = matrices([(3, 4), (5, 2)]) if op == "muon" else training()
        out.case(f"{op}/{key}clip_value", inputs, **plain[0], clip_value=0.4)
        groups = {f"group0_{option}": value for option, value in plain[1].items()}
        out.case(f"{op}/{key}group", inputs, **plain[0], groups=[[1]], **groups)
        out.error(f"{op}/{key}negative_clip_value", "Attr", inputs, **plain[0], clip_value=-1.0)
        out.error(f"{op}/{key}group_out_of_range", "Attr", inputs, **plain[0], groups=[[1]], group0_wd=-1.0)


def clipped_and_grouped():
    """By optimizer: its options, and those of a group."""
    lr = {"lr": 0.1}
    return {
        ("sgd", ""): (lr | {"wd": 0.1}, {"lr": 0.05, "wd": 0.0, "maximize": True}),
        ("sgd", "momentum_"): (lr | {"momentum": 0.9}, {"momentum": 0.5, "dampening": 0.2, "wd": 0.1}),
        ("sgd", "nesterov_"): (lr | {"momentum": 0.9, "nesterov": True}, {"momentum": 0.5, "wd": 0.1}),
        ("adam", ""): (lr, {"lr": 0.05, "beta1": 0.5, "beta2": 0.6, "eps": 1e-3, "wd": 0.1, "amsgrad": True}),
        ("adamw", ""): (lr | {"amsgrad": True}, {"beta2": 0.6, "eps": 1e-3, "wd": 0.5, "maximize": True}),
        ("rmsprop", ""): (lr, {"alpha": 0.5, "eps": 1e-3, "momentum": 0.9, "centered": True, "wd": 0.1}),
        ("adagrad", ""): (lr, {"lr_decay": 0.2, "eps": 1e-3, "wd": 0.1}),
        ("lars", ""): ({"lr": 5.0}, {"momentum": 0.5, "trust": 0.02, "eps": 1e-3, "wd": 0.1, "nesterov": True}),
        ("lamb", ""): (lr, {"beta1": 0.5, "beta2": 0.6, "eps": 1e-3, "wd": 0.1, "skip": True}),
        ("muon", ""): (lr, {"lr": 0.05, "momentum": 0.5, "wd": 0.5, "nesterov": False}),
    }


def layerwise(out):
    # A rate at which the trust ratio of 1e-3 moves something.
    lr = {"lr": 5.0}
    for op, variants in {
        "lars": {
            "plain": lr,
            "decay": lr | {"momentum": 0.8, "wd": 0.1, "trust": 0.02, "eps": 1e-3},
            "nesterov": lr | {"nesterov": True, "wd": 0.0},
            "skip": {"lr": 0.1, "skip": True},
            "maximize": lr | {"maximize": True, "momentum": 0.0},
        },
        "lamb": {
            "plain": {"lr": 0.1},
            "decay": {"lr": 0.05, "wd": 0.5, "beta1": 0.5, "beta2": 0.9, "eps": 1e-3},
            "bound": {"lr": 0.1, "max_trust": 0.3},
            "unbound": {"lr": 0.1, "max_trust": "inf", "wd": 0.0},
            "uncorrected": {"lr": 0.1, "bias_correction": False},
            "skip": {"lr": 0.1, "skip": True},
            "maximize": {"lr": 0.1, "maximize": True},
        },
    }.items():
        for name, attributes in variants.items():
            out.case(f"{op}/{name}", training(), **attributes)
        zeros = {name: torch.zeros_like(x) if name[1] == "0" else x for name, x in training(3).items()}
        out.case(f"{op}/zero_gradient", training(3) | {"g0_0": torch.zeros(3, 2, dtype=F64)}, lr=0.1)
        out.case(f"{op}/zeros", zeros, lr=0.1)
        out.case(f"{op}/empty", {"p0": normal(0, 2), "g0_0": normal(0, 2)}, lr=0.1)
        optimizer_errors(out, f"{op}/", variants["plain"])
    step = {"p0": normal(2), "g0_0": normal(2)}
    for option in "momentum", "trust", "eps":
        out.error(f"lars/{option}", "Attr", step, **lr | {option: -0.1})
    for option, value in ("beta1", 1.0), ("beta2", -0.1), ("eps", -1e-6), ("max_trust", 0.0):
        out.error(f"lamb/{option}", "Attr", step, **lr | {option: value})


def muon(out):
    lr = {"lr": 0.1}
    shapes = {"wide": [(3, 5), (3, 5)], "tall": [(6, 2)], "square": [(4, 4)], "several": [(3, 5), (5, 3), (2, 2), (3, 5)]}
    for name, dims in shapes.items():
        out.case(f"muon/{name}", matrices(dims), **lr)
    for name, attributes in {
        "decay": {"wd": 0.5},
        "momentum": {"momentum": 0.5, "nesterov": False},
        "iteration": {"ns_steps": 3, "a": 2.0, "b": -1.5, "c": 0.5},
        "eps": {"eps": 10.0},
        "adjusted": {"adjust": "match_rms_adamw"},
    }.items():
        out.case(f"muon/{name}", matrices([(3, 4), (5, 2)]), **lr | attributes)
    out.case("muon/rank3", matrices([(3, 2, 4), (6, 1, 2)]), **lr)
    step = matrices([(3, 4)], 1)
    out.case("muon/zero_gradient", step | {"g0_0": torch.zeros(3, 4, dtype=F64)}, **lr)
    optimizer_errors(out, "muon/", lr)
    out.error("muon/rank1", "Shape", {"p0": normal(3), "g0_0": normal(3)}, **lr)
    out.error("muon/rank0", "Shape", {"p0": normal(), "g0_0": normal()}, **lr)
    for option, value in ("momentum", 1.0), ("eps", -1e-7), ("ns_steps", 0), ("ns_steps", 100):
        out.error(f"muon/{option}_{value}", "Attr", step, **lr | {option: value})


def matrices(dims, steps=10):
    params = {f"p{i}": normal(*shape) for i, shape in enumerate(dims)}
    return params | {f"g{i}_{s}": normal(*shape) for s in range(steps) for i, shape in enumerate(dims)}


def adam_variants():
    return {
        "plain": {"lr": 0.1},
        "decay": {"lr": 0.05, "wd": 0.1},
        "betas": {"lr": 0.1, "beta1": 0.5, "beta2": 0.9, "eps": 1e-3},
        "amsgrad": {"lr": 0.1, "beta2": 0.6, "amsgrad": True},
        "maximize": {"lr": 0.1, "wd": 0.1, "maximize": True},
    }


def training(steps=10):
    params = {"p0": normal(3, 2), "p1": normal(4)}
    return params | {f"g{i}_{s}": normal(*params[f"p{i}"].shape) for s in range(steps) for i in range(2)}


def optimizer_errors(out, start, attributes):
    """Cases of refused options; their names begin with `start`."""
    step = {"p0": normal(2), "g0_0": normal(2)}
    out.error(f"{start}negative_lr", "Attr", step, **attributes | {"lr": -0.1})
    out.error(f"{start}negative_decay", "Attr", step, **attributes | {"wd": -0.1})
    out.error(f"{start}gradient_shape", "Shape", step | {"g0_0": normal(3)}, **attributes)
    if "momentum" in attributes:
        out.error(f"{start}negative_momentum", "Attr", step, **attributes | {"momentum": -0.1})
    if start.startswith("adam"):
        out.error(f"{start}beta1", "Attr", step, **attributes | {"beta1": 1.0})
        out.error(f"{start}beta2", "Attr", step, **attributes | {"beta2": -0.1})
        out.error(f"{start}negative_eps", "Attr", step, **attributes | {"eps": -1e-8})


def clipping(out):
    gradients = {"g0": 2 * normal(2, 3), "g1": normal(4)}
    for norm_type in 1.0, 2.0, "inf":
        for max_norm in 0.5, 100.0:
            out.case(f"clip_grad_norm/p{norm_type}_max{max_norm}", gradients, max_norm=max_norm, norm_type=norm_type)
    out.case("clip_grad_norm/zero", {"g0": torch.zeros(3, dtype=F64)}, max_norm=1.0)
    out.case("clip_grad_norm/nan", {"g0": f64([1.0, NAN]), "g1": f64([2.0])}, max_norm=1.0)
    out.case("clip_grad_norm/inf", {"g0": f64([1.0, INF]), "g1": f64([2.0])}, max_norm=1.0)
    out.error("clip_grad_norm/nonfinite", "Value", {"g0": f64([1.0, NAN])}, max_norm=1.0, error_if_nonfinite=True)
    out.case("clip_grad_value/0.5", gradients | {"g2": f64([-INF, -0.5, 0.5, INF, NAN])}, clip=0.5)
    out.case("clip_grad_value/zero", gradients, clip=0.0)
    out.error("clip_grad_value/negative", "Attr", gradients, clip=-1.0)


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


@family
def table28(out):
    for name, attributes, y, dx in FIVE_POINTS:
        out.literal(name, {"x": f64(FIVE)}, [f64(y)], {"x": f64(dx)}, **attributes)
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
    out.literal(
        "silu_and_mul",
        {"x": f64([1.0, -2.0, 3.0, 0.5])},
        [f64([2.1931757, -0.11920292])],
        {"x": f64([2.7830115, -0.045392124, 0.73105858, -0.23840584])},
    )
    table_norms(out)
    table_losses(out)
    table_distances(out)
    table_optimizers(out)
    table_rest(out)


def table_norms(out):
    x, g = f64([1.0, 2.0, 4.0]), {0: f64([1.0, 0.0, -1.0])}
    weight, bias = f64([1.0, 2.0, 3.0]), f64([0.0, 1.0, -1.0])
    gradients = {"x": f64([-0.11453084, 0.17181258, -0.057281741]), "weight": f64([-1.0690415, 0, -1.3363019]), "bias": g[0]}
    y = f64([-1.0690415, 0.46547923, 3.0089057])
    out.literal("layer_norm", {"x": x, "weight": weight, "bias": bias}, [y], gradients, cotangents=g)
    gradients = {"x": f64([0.57594517, 0.39596193, -0.34196874]), "weight": f64([0.3779642, 0, -1.5118568])}
    y = f64([0.3779642, 1.5118568, 4.5355704])
    out.literal("rms_norm", {"x": x, "weight": weight}, [y], gradients, cotangents=g)
    x, g = f64([[1.0, 2.0], [3.0, 6.0], [5.0, 4.0]]), {0: f64([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])}
    y = f64([[-1.2247426, -1.2247426], [0, 1.2247426], [1.2247426, 0]])
    gradients = {"x": f64([[0.10206303, 0.10206073], [-0.20412376, 0.10206303], [0.10206073, -0.20412376]])}
    out.literal("batch_norm", {"x": x}, [y], gradients, cotangents=g)
    statistics = {"running_mean": f64([0.0, 0.0]), "running_var": f64([1.0, 1.0])}
    out.literal("batch_norm_running", {"x": x} | statistics, [f64([0.3, 0.4]), f64([1.3, 1.3])], {})
    x, g = torch.arange(8, dtype=F64).square().reshape(1, 4, 2), {0: torch.eye(8, dtype=F64)[3].reshape(1, 4, 2)}
    y = [-0.99999959, -0.71428542, 0.14285708, 1.5714279, -1.2561834, -0.52678657, 0.36469839, 1.4182715]
    gradients = {"x": f64([0.040816218, 0.0087462867, -0.087463508, 0.037901003, 0, 0, 0, 0]).reshape(1, 4, 2)}
    out.literal("group_norm", {"x": x}, [f64(y).reshape(1, 4, 2)], gradients, cotangents=g, num_groups=2)


def table_losses(out):
    inputs = {
        "logits": f64([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]),
        "target": i64([2, -100, 0]),
        "weight": f64([1.0, 2.0, 0.5]),
    }
    dlogits = [[0.011789328, 0.048008534, -0.059797861], [0, 0, 0], [-0.3962963, 0.18148148, 0.21481481]]
    out.literal("cross_entropy/mean", inputs, [f64(0.98748836)], {"logits": f64(dlogits)}, label_smoothing=0.1)
    row = [-0.039250292, -0.11561554, 0.15486583]
    dlogits = [row, row, [0.046851852, -0.084259259, 0.037407407]]
    inputs |= {"target": f64([[0.2, 0.3, 0.5]] * 3)}
    out.literal("cross_entropy/probabilities", inputs, [f64(1.36617)], {"logits": f64(dlogits)}, label_smoothing=0.1)
    inputs = {"p": f64([0.1, 0.9, 0.0, 1.0]), "t": f64([1.0, 1.0, 1.0, 0.5])}
    out.literal(
        "bce_loss", inputs, [f64([2.3025851, 0.10536052, 100, 50])], {"p": f64([-10, -1.1111111, -1e12, 5e11])}, reduction="none"
    )
    inputs = {"a": f64([-2.0, -0.3, 0.0, 0.7, 1.0]), "t": torch.zeros(5, dtype=F64)}
    out.literal(
        "smooth_l1_loss",
        inputs,
        [f64([1.65, 0.064285714, 0, 0.35, 0.65])],
        {"a": f64([-1, -0.42857143, 0, 1, 1])},
        beta=0.7,
        reduction="none",
    )
    inputs = {"x": f64([-2.0, 0.5, 3.0]), "t": f64([1.0, 1.0, 0.0])}
    out.literal(
        "focal_loss",
        inputs,
        [f64([0.41251954, 0.016893373, 2.0747103])],
        {"x": f64([-0.26917843, -0.034484249, 0.84506241])},
        reduction="none",
    )


def table_distances(out):
    inputs = {"a": f64([[1.0, 2.0]]), "p": f64([[1.0, 0.0]]), "n": f64([[1.5, -0.5]])}
    gradients = {"a": f64([[4.9999975e-07, 1]]), "p": f64([[0.70710487, -1.7071082]]), "n": f64([[-0.70710537, 0.7071082]])}
    out.literal("triplet_loss/swap", inputs, [f64(2.2928942)], gradients, swap=True)
    inputs = {"x1": f64([[1.0, 2.0], [0.0, 0.0]]), "x2": f64([[0.0, 0.0], [0.3, 0.4]]), "y": f64([1.0, 0.0])}
    out.literal("contrastive_loss", inputs, [f64(2.625)], {"x1": f64([[1, 2], [0.3, 0.4]])})


def table_optimizers(out):
    inputs = {"p0": f64([1.0, -2.0]), "g0_0": f64([0.5, 1.0]), "g0_1": f64([-0.25, 2.0]), "g0_2": f64([0.1, 0.1])}
    common = {"lr": 0.1, "wd": 0.01}
    for op, p, attributes in [
        ("sgd/momentum", [0.8930849387, -2.610864539], {"momentum": 0.9, "dampening": 0.1}),
        ("sgd/nesterov", [0.8691892082, -2.887078688], {"momentum": 0.9, "nesterov": True}),
        ("adam", [0.8372923664, -2.273154631], {}),
        ("adamw", [0.8390714757, -2.267617763], {}),
        ("lamb", [0.6759461466, -2.607532411], {}),
        ("lars", [0.9996236178, -2.001120873], {"wd": 1e-4}),
    ]:
        out.literal(op, inputs, [f64(p)], {}, **common | attributes)
    u = {"p0": torch.zeros(3, 2, dtype=F64), "g0_0": f64([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])}
    x = f64([[-0.46751858, 0.57347331], [0.072432281, 0.40945262], [0.61238314, 0.24543193]])
    # PyTorch multiplies the step of a tall matrix by the root of its sides' ratio.
    out.literal("muon", u, [-(1.5**0.5) * x], {}, lr=1.0)
    clipped = [f64([0.5999999, 0.7999998]), f64([0]), f64(5)]
    out.literal("clip_grad_norm/clipped", {"g0": f64([3.0, 4.0]), "g1": f64([0.0])}, clipped, {}, max_norm=1.0)
    small = f64([0.3, 0.4])
    out.literal("clip_grad_norm/unchanged", {"g0": small}, [small, f64(0.5)], {}, max_norm=1.0)


def table_rest(out):
    inputs = {"a": f64([0.0, 0.0, 2.0, 2.0]), "b": f64([0.0, 2.0, 0.0, 3.0])}
    gradients = {"a": f64([0, 0, 0, 12]), "b": f64([0, 0, 0.69314718, 5.5451774])}
    out.literal("pow", inputs, [f64([1, 0, 1, 8])], gradients)
    x = {"x": f64([1.0, 3.0, 3.0])}
    out.literal("amax", x, [f64(3)], {"x": f64([0, 0.5, 0.5])})
    out.literal("max", x, [f64(3), i64(1)], {"x": f64([0, 1, 0])}, dim=0)
    x, pair = torch.arange(120, dtype=F64).reshape(2, 3, 4, 5), i64([0, 1])
    apart, adjacent = ["tensor:i0", every(3), "tensor:i1"], [every(2), "tensor:i0", "tensor:i1"]
    for name, indices, shape in [("apart", apart, (2, 3, 5)), ("adjacent", adjacent, (2, 2, 5))]:
        y = OPS["index"][1](x, indices=indices, i0=pair, i1=pair)
        assert y.shape == shape
        out.literal(f"index/{name}", {"x": x, "i0": pair, "i1": pair}, [y], {}, indices=indices)


@family
def normalization(out):
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


@family
def gemm_bias(out):
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


@family
def pooling(out):
    windows = {
        "k2": dict(kernel_size=2),
        "k3s2p1": dict(kernel_size=3, stride=2, padding=1),
        "k3s1p1_ceil": dict(kernel_size=3, stride=1, padding=1, ceil_mode=True),
        "k2s3_ceil": dict(kernel_size=2, stride=3, ceil_mode=True),
        "k3s2_ceil": dict(kernel_size=3, stride=2, ceil_mode=True),
        "k4s1p2": dict(kernel_size=4, stride=1, padding=2),
    }
    for n, shape in [(1, (2, 3, 7)), (2, (2, 3, 5, 7)), (2, (3, 6, 4)), (3, (2, 2, 4, 5, 6)), (3, (2, 4, 4, 5))]:
        x = {"x": normal(*shape)}
        for name, given in windows.items():
            out.case(f"max_pool{n}d/{label(shape)}_{name}", x, **given)
            out.case(f"avg_pool{n}d/{label(shape)}_{name}", x, **given)
            out.case(f"avg_pool{n}d/{label(shape)}_{name}_inside", x, count_include_pad=False, **given)
        out.case(f"max_pool{n}d/{label(shape)}_values", x, kernel_size=3, stride=2, padding=1, return_indices=False)
        out.case(f"max_pool{n}d/{label(shape)}_dilated", x, kernel_size=2, stride=1, padding=1, dilation=2)
        out.case(f"max_pool{n}d/{label(shape)}_dilated_values", x, kernel_size=2, stride=1, dilation=3, return_indices=False)
        out.case(f"avg_pool{n}d/{label(shape)}_divisor", x, kernel_size=3, stride=2, padding=1, divisor_override=5)
        out.case(f"avg_pool{n}d/{label(shape)}_minus", x, kernel_size=2, divisor_override=-2)
        sizes = [[1] * n, [2] * n, [3] * n, shape[-n:], [9] * n, [0] * n, [4] + [None] * (n - 1)]
        for size in sizes[: 6 if n == 1 else 7]:
            name = "x".join("keep" if s is None else str(s) for s in size)
            for op in [f"adaptive_max_pool{n}d", f"adaptive_avg_pool{n}d"]:
                if 0 in size and "max" in op:
                    continue
                # PyTorch has no gradient of nothing.
                out.case(f"{op}/{label(shape)}_{name}", x, grads=[] if 0 in size else None, output_size=list(size))
    uneven = {"x": normal(2, 3, 9, 8)}
    out.case("max_pool2d/uneven", uneven, kernel_size=[3, 2], stride=[1, 3], padding=[1, 0], dilation=[2, 1], ceil_mode=True)
    out.case("avg_pool2d/uneven", uneven, kernel_size=[3, 2], stride=[1, 3], padding=[1, 0], ceil_mode=True)
    empty = {"x": normal(0, 3, 4, 4)}
    ties, nans = {"x": f64([[[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0.0, 1.0]]])}, {"x": f64([[[NAN, 1.0], [2.0, NAN]]])}
    scattered = normal(1, 6, 6)
    scattered[0, 1, 2] = scattered[0, 2, 1] = scattered[0, 5, 5] = NAN
    scattered[0, 3, 3] = scattered[0, 0, 0] = INF
    lowest = {"x": torch.full((1, 5, 5), -INF, dtype=F64)}
    for name, given in [("max_pool2d", dict(kernel_size=2, stride=1)), ("global_max_pool2d", {}), ("adaptive_max_pool2d", dict(output_size=[2, 1]))]:
        out.case(f"{name}/empty", empty, **given)
        out.case(f"{name}/ties", ties, **given)
        out.case(f"{name}/nans", nans, **given)
        out.case(f"{name}/scattered_nans", {"x": scattered}, **given)
        out.case(f"{name}/lowest", lowest, **given)
        out.error(f"{name}/no_channels", "Shape", {"x": normal(2, 0, 4, 4)}, **given)
        out.error(f"{name}/no_rows", "Shape", {"x": normal(2, 3, 0, 4)}, **given)
        out.error(f"{name}/rank", "Shape", {"x": normal(4, 4)}, **given)
        out.error(f"{name}/integers", "Dtype", {"x": integers(1, 4, 4)}, **given)
    out.case("max_pool2d/lowest_padded", lowest, kernel_size=3, stride=2, padding=1)
    out.case("max_pool2d/nans_padded", {"x": scattered}, kernel_size=3, stride=2, padding=1)
    for name, given in [("avg_pool2d", dict(kernel_size=2)), ("global_avg_pool2d", {}), ("adaptive_avg_pool2d", dict(output_size=[2, 1]))]:
        out.case(f"{name}/empty", empty, **given)
        out.case(f"{name}/special", {"x": scattered}, grads=[], **given)
        out.error(f"{name}/no_channels", "Shape", {"x": normal(2, 0, 4, 4)}, **given)
        out.error(f"{name}/rank", "Shape", {"x": normal(4)}, **given)
        out.error(f"{name}/integers", "Dtype", {"x": integers(1, 4, 4)}, **given)
    out.case("global_avg_pool2d/2x3x5x7", {"x": normal(2, 3, 5, 7)})
    out.case("global_max_pool2d/2x3x5x7", {"x": normal(2, 3, 5, 7)})
    out.case("global_max_pool2d/3x4x4", {"x": normal(3, 4, 4)})
    x = {"x": normal(1, 4, 4)}
    for op in ["max_pool2d", "avg_pool2d"]:
        out.error(f"{op}/kernel_0", "Attr", x, kernel_size=[0, 2])
        out.error(f"{op}/stride_0", "Attr", x, kernel_size=2, stride=0)
        out.error(f"{op}/much_padding", "Attr", x, kernel_size=3, padding=2)
        out.error(f"{op}/no_window", "Shape", x, kernel_size=5)
    out.error("max_pool2d/dilation_0", "Attr", x, kernel_size=2, dilation=0)
    out.error("max_pool2d/dilated_padding", "Attr", x, kernel_size=2, dilation=2, padding=2)
    out.error("max_pool2d/hollow", "Shape", {"x": normal(1, 1, 1)}, kernel_size=2, dilation=2, padding=1)
    out.error("avg_pool2d/divisor_0", "Attr", x, kernel_size=2, divisor_override=0)
    table_pools(out)
    # Planes that no single thread looks through.
    large = integers(2, 3, 20, 33, low=0, high=40).to(F64)
    large[1, :, 3::7, 5::11] = NAN
    large[0, 1] = -INF
    for size in [(33,), (32,)]:
        out.case(f"global_max_pool2d/large_{size[0]}", {"x": large[..., : size[0]].clone()})
        out.case(f"global_avg_pool2d/large_{size[0]}", {"x": normal(2, 3, 20, *size)})
    out.case("max_pool2d/wide_window", {"x": large}, kernel_size=[17, 16], stride=2, padding=[8, 3], return_indices=False)
    out.case("adaptive_max_pool3d/large_1", {"x": large}, output_size=1)


def table_pools(out):
    counted = torch.arange(1, 26, dtype=F64).reshape(1, 5, 5)
    given = dict(kernel_size=3, stride=2, padding=1)
    cut = [[1.7777778, 3.6666667, 3.1111111], [7.6666667, 13, 9.6666667], [8.4444444, 13.666667, 9.7777778]]
    inside = [[4, 5.5, 7], [11.5, 13, 14.5], [19, 20.5, 22]]
    ones = [[0.44444444, 0.66666667, 0.33333333], [0.66666667, 1, 0.5], [0.33333333, 0.5, 0.25]]
    out.literal("avg_pool2d/table_ceil", {"x": counted}, [f64([cut])], {}, ceil_mode=True, **given)
    out.literal("avg_pool2d/table_inside", {"x": counted}, [f64([inside])], {}, count_include_pad=False, **given)
    out.literal("avg_pool2d/table_ones", {"x": torch.ones(1, 4, 4, dtype=F64)}, [f64([ones])], {}, ceil_mode=True, **given)
    adapted = [[4.5, 6.5], [12, 14], [19.5, 21.5]]
    out.literal("adaptive_avg_pool2d/table", {"x": counted}, [f64([adapted])], {}, output_size=[3, 2])
    zeros, first = torch.zeros(1, 6, 6, dtype=F64), i64([[[7, 8], [13, 14]]])
    out.literal("max_pool2d/table_dilated", {"x": zeros}, [zeros[:, :2, :2], first], {}, kernel_size=3, padding=1, dilation=2)
    nans = f64([[[NAN, 1.0], [2.0, NAN]]])
    assert OPS["max_pool2d"][1](nans, kernel_size=2)[1].item() == 3
    extents = [(5, 2, 2, 0, 1, 1, 3), (4, 2, 3, 1, 1, 1, 2), (6, 1, 4, 0, 1, 1, 2), (5, 3, 4, 1, 1, 1, 2), (3, 2, 2, 1, 1, 1, 2), (7, 3, 2, 1, 2, 1, 3)]
    for l, k, s, p, d, ceil, n in extents:
        x = normal(1, l)
        assert OPS["max_pool1d"][1](x, kernel_size=k, stride=s, padding=p, dilation=d, ceil_mode=bool(ceil))[0].shape == (1, n)
        out.case(f"max_pool1d/extent_{l}_{k}_{s}_{p}_{d}", {"x": x}, kernel_size=k, stride=s, padding=p, dilation=d, ceil_mode=bool(ceil))


@family
def channel_norm(out):
    shapes = {"3x4": (3, 4), "2x6x5": (2, 6, 5), "2x4x3x2": (2, 4, 3, 2), "1x2x2x1x3": (1, 2, 2, 1, 3), "2x1x7": (2, 1, 7)}
    statistics = lambda c: {"running_mean": normal(c), "running_var": positive(c)}
    for name, shape in shapes.items():
        x, channels = {"x": 3 * normal(*shape) + 1}, shape[1]
        weight, bias, kept = {"weight": normal(channels)}, {"bias": normal(channels)}, statistics(channels)
        for key, inputs in {"": x, "_weight": x | weight, "_bias": x | bias, "_affine": x | weight | bias}.items():
            out.case(f"batch_norm/{name}{key}", inputs)
            out.case(f"batch_norm/{name}{key}_eval", inputs | kept, training=False)
            for groups in sorted(g for g in {1, 2, channels} if channels % g == 0):
                out.case(f"group_norm/{name}{key}_{groups}", inputs, num_groups=groups)
            if len(shape) > 2:
                out.case(f"instance_norm/{name}{key}", inputs)
                out.case(f"instance_norm/{name}{key}_eval", inputs | kept, use_input_stats=False)
        out.case(f"batch_norm/{name}_kept", x | weight | bias | kept, eps=0.1, momentum=0.3)
        for op in ["batch_norm_running", "instance_norm_running"][: 2 if len(shape) > 2 else 1]:
            counted = {"num_batches": torch.tensor(3)}
            out.case(f"{op}/{name}", x | kept)
            out.case(f"{op}/{name}_counted", x | kept | counted, momentum=0.5)
            out.case(f"{op}/{name}_average", x | kept | counted, momentum=None)
    # PyTorch has no gradient of an empty batch.
    empty = {"x": normal(0, 4, 2), "weight": normal(4), "bias": normal(4)}
    out.case("batch_norm/empty", empty, grads=[])
    out.case("group_norm/empty", empty, num_groups=2)
    equal = {"x": torch.full((2, 2, 3), 2.0, dtype=F64)}
    special = {"x": f64([[[NAN, 1.0]], [[2.0, 1.0]]]).expand(2, 3, 2).clone()}
    special["x"][0, 1, 0], special["x"][0, 2, 0] = INF, -3.0
    one = {"x": normal(1, 3, 1)}
    for op, attributes in {"batch_norm": {}, "group_norm": {"num_groups": 1}, "instance_norm": {}}.items():
        out.case(f"{op}/equal", equal, **attributes)
        out.case(f"{op}/special", special, grads=[], **attributes)
        out.error(f"{op}/weight_shape", "Shape", equal | {"weight": normal(3)}, **attributes)
        out.error(f"{op}/rank", "Shape", {"x": normal(3)}, **attributes)
        out.error(f"{op}/integers", "Dtype", {"x": i64([[[1, 2]]])}, **attributes)
        out.error(f"{op}/eps", "Attr", equal, **attributes | {"eps": -1.0})
    out.error("batch_norm/one_value", "Value", one)
    out.error("batch_norm/no_statistics", "Value", equal, training=False)
    out.error("batch_norm/statistics_shape", "Shape", equal | statistics(3), training=False)
    out.error("group_norm/one_value", "Value", {"x": normal(1, 3, 1)}, num_groups=3)
    out.error("group_norm/groups", "Attr", equal, num_groups=3)
    out.error("group_norm/no_groups", "Attr", equal, num_groups=0)
    out.error("instance_norm/one_value", "Value", one)
    out.error("batch_norm_running/not_counted", "Attr", equal | statistics(2), momentum=None)


@family
def graph(out):
    index = i64([2, 0, 2, 5, 0, 2, 5])
    for op in "scatter_sum", "scatter_mean", "scatter_max":
        for rest in (), (3,), (2, 4):
            out.case(f"{op}/{label((7, *rest))}", {"src": normal(7, *rest), "index": index}, size=6)
        out.case(f"{op}/i32_index", {"src": normal(4, 3), "index": i32([1, 1, 0, 1])}, size=3)
        out.case(f"{op}/no_size", {"src": normal(7, 3), "index": index})
        out.case(f"{op}/no_edges", {"src": normal(0, 3), "index": i64([])}, size=2)
        out.case(f"{op}/no_features", {"src": normal(7, 0), "index": index}, size=6)
        out.case(f"{op}/integers", {"src": integers(7, 3), "index": index}, size=6)
        special = f64([[NAN, INF, -INF], [1.0, -INF, -INF], [INF, 2.0, 1.0], [NAN, -INF, NAN], [-INF, NAN, NAN]])
        out.case(f"{op}/special", {"src": special, "index": i64([0, 0, 1, 1, 2])}, size=3, grads=())
        wrong = {"src": normal(2, 3), "index": i64([0, 1])}
        out.error(f"{op}/negative", "Index", wrong | {"index": i64([0, -1])}, size=2)
        out.error(f"{op}/too_large", "Index", wrong, size=1)
        out.error(f"{op}/no_nodes", "Index", wrong, size=0)
        out.error(f"{op}/length", "Shape", wrong | {"index": i64([0])}, size=2)
        out.error(f"{op}/index_rank", "Shape", wrong | {"index": i64([[0], [1]])}, size=2)
        out.error(f"{op}/scalar", "Shape", {"src": normal(), "index": i64([0])}, size=2)
        out.error(f"{op}/float_index", "Dtype", wrong | {"index": f64([0.0, 1.0])}, size=2)
        out.error(f"{op}/bools", "Dtype", wrong | {"src": mask([True, False])}, size=2)
    tied = {"src": f64([[1.0, 2.0], [3.0, 2.0], [3.0, 2.0], [3.0, 0.0], [0.0, -0.0]]), "index": i64([0, 0, 0, 0, 2])}
    broken = {"src": f64([[1.0, NAN], [NAN, 2.0], [NAN, 3.0], [4.0, 5.0]]), "index": i64([0, 0, 0, 1])}
    for ties in "even", "first":
        out.case(f"scatter_max/ties_{ties}", tied, size=3, ties=ties)
        out.case(f"scatter_max/nan_{ties}", broken, size=2, ties=ties)


@family
def sequence(out):
    op = "apply_rotary_embedding"
    angles = torch.outer(torch.arange(5, dtype=F64), 1e4 ** (-torch.arange(3, dtype=F64) / 3))
    tables = {"cos": angles.cos(), "sin": angles.sin()}
    inputs = {"q": normal(2, 3, 4, 6), "k": normal(2, 1, 4, 6)} | tables
    for style in "half", "interleaved":
        for direction in 1, -1:
            out.case(f"{op}/{style}_{direction}", inputs, style=style, direction=direction)
        out.case(f"{op}/{style}_positions", inputs | {"positions": i64([4, 0, 2, 2])}, style=style)
        out.case(f"{op}/{style}_positions_of_batches", inputs | {"positions": i32([[4, 0, 2, 2], [1, 2, 3, 4]])}, style=style)
        part = {"q": normal(1, 2, 4, 9), "k": normal(1, 2, 4, 9)} | tables
        out.case(f"{op}/{style}_part", part, rotary_dim=6, style=style)
        out.case(f"{op}/{style}_empty", {"q": normal(2, 3, 0, 6), "k": normal(2, 1, 0, 6)} | tables, style=style)
    out.error(f"{op}/odd", "Attr", inputs, rotary_dim=5)
    out.error(f"{op}/above", "Attr", inputs, rotary_dim=8)
    out.error(f"{op}/odd_row", "Attr", inputs | {"q": normal(2, 3, 4, 7), "k": normal(2, 1, 4, 7)})
    out.error(f"{op}/tables", "Shape", inputs, rotary_dim=4)
    out.error(f"{op}/sin", "Shape", inputs | {"sin": normal(4, 3)})
    out.error(f"{op}/lengths", "Shape", inputs | {"k": normal(2, 1, 3, 6)})
    out.error(f"{op}/rank", "Shape", inputs | {"k": normal(2, 4, 6)})
    out.error(f"{op}/positions_shape", "Shape", inputs | {"positions": i64([[0, 1, 2, 3]])})
    out.error(f"{op}/positions_dtype", "Dtype", inputs | {"positions": f64([0.0, 1.0, 2.0, 3.0])})
    out.error(f"{op}/negative", "Index", inputs | {"positions": i64([0, -1, 2, 3])})
    out.error(f"{op}/too_large", "Index", inputs | {"positions": i64([0, 5, 2, 3])})
    out.error(f"{op}/too_long", "Index", {"q": normal(1, 1, 6, 6), "k": normal(1, 1, 6, 6)} | tables)
    out.error(f"{op}/mixed_dtypes", "Dtype", inputs | {"k": normal(2, 1, 4, 6).to(F32)})
    out.error(f"{op}/integers", "Dtype", {name: integers(*x.shape) for name, x in inputs.items()})
    op, logits = "sample_logits", {"logits": normal(3, 7)}
    ties = {"logits": f64([[1.0, 1.0, 3.0, -INF], [2.0, -0.0, 0.0, 2.0], [-INF, -INF, -1e30, -1e30], [0.0, -0.0, 0.0, -5.0]])}
    for name, inputs in {"": logits, "_ties": ties, "_long": {"logits": normal(1, 600)}, "_one": {"logits": normal(2, 1)}}.items():
        out.case(f"{op}/temperature0{name}", inputs, temperature=0.0)
        out.case(f"{op}/top_k1{name}", inputs, top_k=1, temperature=0.7)
        out.case(f"{op}/top_p{name}", inputs, top_p=1e-9)
        out.case(f"{op}/top_k_and_top_p{name}", inputs, top_k=2, top_p=1e-9, num_samples=3)
    alone = {"logits": f64([[-INF, 3e38, -3e38], [7.0, -INF, -INF]])}
    out.case(f"{op}/alone", alone, num_samples=5)
    out.case(f"{op}/alone_of_few", alone, num_samples=2, top_k=2)
    out.case(f"{op}/cold", {"logits": f64([[1.0, 2.0, 1.5]])}, temperature=1e-3, num_samples=2)
    out.case(f"{op}/empty", {"logits": normal(0, 3)}, temperature=0.0)
    for name, bad in {"nan": [0.0, NAN, 1.0], "infinity": [0.0, INF, -INF], "nothing": [-INF, -INF, -INF]}.items():
        rows = {"logits": f64([[1.0, 2.0, 3.0], bad])}
        out.error(f"{op}/{name}", "Value", rows)
        out.error(f"{op}/{name}_top_k", "Value", rows, top_k=2)
        out.error(f"{op}/{name}_greedy", "Value", rows, temperature=0.0)
    out.error(f"{op}/no_classes", "Shape", {"logits": normal(2, 0)})
    out.error(f"{op}/rank", "Shape", {"logits": normal(3)})
    out.error(f"{op}/integers", "Dtype", {"logits": integers(2, 3)})
    out.error(f"{op}/negative_temperature", "Attr", logits, temperature=-1.0)
    out.error(f"{op}/no_temperature", "Attr", logits, temperature="nan")
    out.error(f"{op}/top_p0", "Attr", logits, top_p=0.0)
    out.error(f"{op}/top_p2", "Attr", logits, top_p=2.0)
    out.error(f"{op}/no_samples", "Attr", logits, num_samples=0)


@family
def scalars(out):
    for op in "add_scalar sub_scalar mul_scalar div_scalar rsub_scalar".split():
        sweep(out, op, scalar=-1.75)
    sweep(out, "rdiv_scalar", make=positive, scalar=-1.75)
    sweep(out, "rpow_scalar", scalar=1.75)


@family
def shapes(out):
    x = {"x": normal(2, 3, 1, 4)}
    for first, last in [(0, -1), (1, 2), (-2, -1), (2, 2)]:
        out.case(f"flatten/{first}_{last}", x, first=first, last=last)
    for dim, start, stop, step in [(0, 0, 2, 1), (1, 1, 3, 1), (3, 0, 4, 3), (-1, 1, 4, 2), (1, 2, 2, 1)]:
        out.case(f"slice/{dim}_{start}_{stop}_{step}", x, dim=dim, start=start, stop=stop, step=step)
    for size, dim in [(2, 1), (1, 0), (3, -1), (9, 3)]:
        out.case(f"split/{size}_{dim}", x, size=size, dim=dim)
    for dim in [2, -2]:
        out.case(f"squeeze/{dim}", x, dim=dim)
    out.error("squeeze/0", "Shape", x, dim=0)
    for dim in [0, 2, -1, 4]:
        out.case(f"unsqueeze/{dim}", x, dim=dim)
    for dim in [0, 1, -1]:
        out.case(f"stack/{dim}", {f"x{k}": normal(2, 3) for k in range(3)}, dim=dim)
    a, b = mask([[True, False, True], [False, False, True]]), mask([[True], [False]])
    out.case("logical_not/mask", {"x": a})
    out.case("logical_and/broadcast", {"a": a, "b": b})
    out.case("logical_or/broadcast", {"a": a, "b": b})
    out.case("nonzero/mask", {"x": a})
    out.case("nonzero/none", {"x": mask([False, False])})
    out.case("not_finite/special", {"x": f64([0.0, -0.0, 1e308, -1e308, INF, -INF, NAN, 5e-324])})
    for shape in [(2, 3, 2, 3, 4), (3, 1, 1, 5)]:
        out.case(f"global_max_pool3d/{label(shape)}", {"x": normal(*shape)})
        out.case(f"global_avg_pool3d/{label(shape)}", {"x": normal(*shape)})


@family
def in_place(out):
    x, row = normal(3, 4), normal(4)
    out.case("fill_/number", {"x": x}, value=1.5)
    for op in ["copy_", "add_", "mul_"]:
        out.case(f"{op}/same", {"x": x, "src": normal(3, 4)})
        out.case(f"{op}/broadcast", {"x": x, "src": row})
    out.case("scatter_add_/rows", {"x": x, "index": i64([[0, 2, 2, 0], [0, 0, 1, 1]]), "src": normal(2, 4)}, dim=0)
    out.case("scatter_add_/columns", {"x": x, "index": i32([[3], [3], [0]]), "src": normal(3, 1)}, dim=-1)
    out.case("index_add_/rows", {"x": x, "index": i64([2, 0, 2]), "src": normal(3, 4)}, dim=0)
    out.case("index_add_/columns", {"x": x, "index": i32([1, 1]), "src": normal(3, 2)}, dim=1, alpha=-0.5)
    pairs = {"i0": i64([0, -1, 0]), "i1": i64([1, 2, 1])}
    for name, accumulate in [("assign", False), ("accumulate", True)]:
        indices = ["tensor:i0", "tensor:i1"]
        out.case(f"index_put_/{name}", {"x": x, "values": normal(3), **pairs}, indices=indices, accumulate=accumulate)
        masked = {"x": x, "values": normal(), "i0": x > 0}
        out.case(f"index_put_/{name}_mask", masked, indices=["tensor:i0"], accumulate=accumulate)
    out.case("accumulate_grad/same", {"y": x, "x": normal(3, 4)})
    out.case("accumulate_grad/broadcast", {"y": x, "x": row})
    for name, bad in [("finite", 1.0), ("infinity", INF), ("nan", NAN)]:
        grads = {"g0": normal(2, 3), "g1": f64([bad, 2.0])}
        out.case(f"unscale_/{name}", grads, scale=1024.0)
        factors = {"growth": 2.0, "backoff": 0.5, "interval": 2}
        out.case(f"grad_scaler/{name}", grads, scale=8.0, **factors)


def main():
    assert torch.__version__.split("+")[0] == VERSION, f"torch {torch.__version__}, expected {VERSION}"
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    folder = pathlib.Path(__file__).parent
    for seed, fill in enumerate(FAMILIES):
        torch.manual_seed(seed)
        out = Family(fill.__name__)
        fill(out)
        out.save(folder)
        print(f"{out.name}: {len(out.cases)} cases, {len(out.tensors)} tensors")


if __name__ == "__main__":
    main()
