"""What all families share: how a case is written, and how inputs are drawn.

A reference takes its inputs by name and its attributes as keyword-only arguments; their defaults are written into the
case, `None` meaning absent. An attribute that shares its name with an input is renamed by `ATTRIBUTE_NAMES`.
"""

import fnmatch
import inspect
import json

import torch
from safetensors.torch import save_file


# name: the inputs that have a gradient, and the reference; "x*" stands for x0, x1, ..
OPS = {}


ATTRIBUTE_NAMES = {"norm": "p", "lambd": "lambda"}


def long(index):
    """PyTorch wants i64 where we accept i32 as well; masks stay masks."""
    return index if index.dtype == torch.bool else index.long()


def covered_by(index):
    """The part of `src` that is read: PyTorch has no gradient for a larger `src`, ours is 0 outside."""
    return tuple(slice(0, size) for size in index.shape)


def of_x(f, grads="x"):
    return grads, lambda x: f(x)


def of_a_b(f, grads="a b"):
    return grads, lambda a, b: f(a, b)


F64, F32, I64, I32, BOOL = torch.float64, torch.float32, torch.int64, torch.int32, torch.bool
DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "u8": torch.uint8,
    "bool": torch.bool,
}


NAN, INF = float("nan"), float("inf")


VERSION = "2.11.0"
SHAPES = [(), (7,), (2, 3), (3, 1, 2), (2, 1, 3, 2), (2, 0)]


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


def f64(values):
    return torch.tensor(values, dtype=F64)


def i64(values):
    return torch.tensor(values, dtype=I64)


def i32(values):
    return torch.tensor(values, dtype=I32)


def u8(values):
    return torch.tensor(values, dtype=torch.uint8)


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
