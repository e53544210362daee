"""Writes golden values and gradients from PyTorch, which the tests compare with.

Run it with:  pip install torch==2.11.0 safetensors numpy && python tests/golden/generate.py

Each family becomes <family>.json (the cases) and <family>.safetensors (their tensors, in f64). A case names an op, its
attributes and its inputs; a tensor's key is <case>/in/<input>, <case>/out/<number>, <case>/cotangent/<number> or
<case>/grad/<input>. A case with "error" must fail with an error of that kind.
"""

import json
import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

VERSION = "2.11.0"
HERE = pathlib.Path(__file__).parent
SHAPES = [(), (1,), (7,), (2, 3), (1, 1, 5), (2, 3, 2, 2), (0, 3)]
inf, nan = math.inf, math.nan

families = {}



def normal(*shape):
    return torch.randn(shape, dtype=torch.float64)


def positive(*shape):
    return torch.rand(shape, dtype=torch.float64) * 2 + 0.1


def unit(*shape):
    return torch.rand(shape, dtype=torch.float64) * 0.9 + 0.05


def integers(lo, hi, *shape, dtype=torch.int64):
    return torch.randint(lo, hi, shape, dtype=dtype)


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def add(family, op, inputs, compute, constant=(), tolerance=1e-10, **attributes):
    """Records a case: outputs of `compute(*inputs)` and the gradients of its float outputs for random cotangents."""
    cases, tensors = families.setdefault(family, ([], {}))
    name = f"{op}/{sum(case['op'] == op for case in cases)}"
    leaves = {
        key: t.clone().requires_grad_(t.is_floating_point() and key not in constant) for key, t in inputs.items()
    }
    outputs = compute(*leaves.values())
    outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    for key, t in inputs.items():
        tensors[f"{name}/in/{key}"] = t.contiguous()
    for k, y in enumerate(outputs):
        tensors[f"{name}/out/{k}"] = y.detach().clone().contiguous()
    differentiable = [k for k, y in enumerate(outputs) if y.requires_grad]
    wanted = [key for key, t in leaves.items() if t.requires_grad]
    grads = []
    if differentiable and wanted:
        cotangents = [normal(*outputs[k].shape) for k in differentiable]
        found = torch.autograd.grad(
            [outputs[k] for k in differentiable], [leaves[key] for key in wanted], cotangents, allow_unused=True
        )
        for k, c in zip(differentiable, cotangents):
            tensors[f"{name}/cotangent/{k}"] = c
        for key, g in zip(wanted, found):
            if g is not None:
                tensors[f"{name}/grad/{key}"] = g.contiguous()
                grads.append(key)
    cases.append(
        dict(name=name, op=op, attributes=attributes, inputs=list(inputs), outputs=len(outputs), grads=grads,
             tolerance=tolerance)
    )


def fail(family, op, kind, inputs, **attributes):
    """Records a case that must fail."""
    cases, tensors = families.setdefault(family, ([], {}))
    name = f"{op}/{sum(case['op'] == op for case in cases)}"
    for key, t in inputs.items():
        tensors[f"{name}/in/{key}"] = t.contiguous()
    cases.append(dict(name=name, op=op, attributes=attributes, inputs=list(inputs), error=kind))


def unary(family, op, compute, make=normal, special=(), **attributes):
    for shape in SHAPES:
        add(family, op, {"x": make(*shape)}, compute, **attributes)
    if special:
        add(family, op, {"x": f64(special)}, compute, **attributes)


def activations():
    unary("activation", "relu", lambda x: F.relu(x), special=[-1, -0.0, 0, 2, nan, inf, -inf])
    unary("activation", "leaky_relu", lambda x: F.leaky_relu(x, 0.01), special=[-1, 0, 2, nan], slope=0.01)
    unary("activation", "sigmoid", torch.sigmoid, special=[-800, 800, 0, nan, inf, -inf])
    unary("activation", "tanh", torch.tanh, special=[-40, 40, 0, nan, inf, -inf])
    for approximate in ["none", "tanh"]:
        unary("activation", "gelu", lambda x: F.gelu(x, approximate=approximate), special=[-30, -1, 0, 3, nan],
              approximate=approximate)
    unary("activation", "silu", F.silu, special=[-40, 0, 40, nan])
    unary("activation", "elu", lambda x: F.elu(x, 0.7), special=[-40, 0, 2, nan, inf, -inf], alpha=0.7)
    unary("activation", "celu", lambda x: F.celu(x, 0.7), special=[-40, 0, 2, nan, inf], alpha=0.7)
    unary("activation", "selu", F.selu, special=[-40, 0, 2, nan, inf])
    unary("activation", "mish", F.mish, special=[-40, 0, 40, nan])
    unary("activation", "softplus", lambda x: F.softplus(x, 2.0, 5.0), special=[-400, 0, 2.5, 2.6, nan, inf],
          beta=2.0, threshold=5.0)
    unary("activation", "hardswish", F.hardswish, special=[-4, -3, 0, 3, 4, nan])
    unary("activation", "hardsigmoid", F.hardsigmoid, special=[-4, -3, 0, 3, 4])
    unary("activation", "relu6", F.relu6, special=[-1, 0, 3, 6, 7, nan])
    unary("activation", "hardtanh", lambda x: F.hardtanh(x, -0.5, 0.8), special=[-1, -0.5, 0, 0.8, 2, nan],
          min=-0.5, max=0.8)
    unary("activation", "threshold", lambda x: F.threshold(x, 0.1, -2.0), special=[-1, 0.1, 0.2, nan],
          threshold=0.1, value=-2.0)
    unary("activation", "relu_squared", lambda x: F.relu(x).square(), special=[-1, 0, 2])
    for op, compute in [("softmax", F.softmax), ("log_softmax", F.log_softmax)]:
        for shape, dim in [((), 0), ((1,), -1), ((7,), 0), ((2, 3), 0), ((2, 3), 1), ((3, 4, 2), 1), ((0, 3), 1)]:
            add("activation", op, {"x": normal(*shape)}, lambda x: compute(x, dim), dim=dim)
        add("activation", op, {"x": f64([[-inf, -inf], [0, inf], [nan, 1], [1e4, -1e4]])}, lambda x: compute(x, 1), dim=1)
        fail("activation", op, "Attr", {"x": normal(2, 3)}, dim=2)
    for shape in SHAPES:
        add("activation", "swiglu", {"gate": normal(*shape), "up": normal(*shape)}, lambda gate, up: F.silu(gate) * up)
    for shape in [(4,), (3, 6), (2, 0), (2, 1, 2)]:
        add("activation", "silu_and_mul", {"x": normal(*shape)},
            lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1] if x.numel() else x[..., : x.shape[-1] // 2])
    fail("activation", "silu_and_mul", "Shape", {"x": normal(2, 3)})
    fail("activation", "swiglu", "Shape", {"gate": normal(2, 3), "up": normal(3)})
    fail("activation", "celu", "Attr", {"x": normal(2)}, alpha=0.0)
    fail("activation", "softplus", "Attr", {"x": normal(2)}, beta=0.0, threshold=20.0)
    fail("activation", "hardtanh", "Attr", {"x": normal(2)}, min=1.0, max=-1.0)
    fail("activation", "relu", "Dtype", {"x": integers(0, 3, 2)})


def unaries():
    for op, compute, make, special in [
        ("neg", torch.neg, normal, [nan, inf]), ("abs", torch.abs, normal, [-0.0, 0, nan, -inf]),
        ("exp", torch.exp, normal, [-inf, inf, nan, 800]), ("expm1", torch.expm1, normal, [1e-12, -inf]),
        ("log", torch.log, positive, [0, -1, inf, nan]), ("log1p", torch.log1p, positive, [-1, -2, 1e-12]),
        ("sqrt", torch.sqrt, positive, [0, -1, inf, nan]), ("rsqrt", torch.rsqrt, positive, [0, -1, inf]),
        ("sin", torch.sin, normal, [1e6, nan]), ("cos", torch.cos, normal, [1e6, inf]),
        ("erf", torch.erf, normal, [6, -6, inf, nan]), ("square", torch.square, normal, [nan, inf]),
        ("reciprocal", torch.reciprocal, positive, [0, -0.0, inf]), ("frac", torch.frac, normal, [-1.5, 2.25]),
    ]:
        unary("unary", op, compute, make, special)
    for op in ["floor", "ceil", "trunc", "round", "sign"]:
        values = f64([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1.2, -0.0, nan, inf, -inf])
        add("unary", op, {"x": values}, lambda x: getattr(torch, op)(x), constant=["x"])
    for op in ["neg", "abs", "square", "sign"]:
        add("unary", op, {"x": integers(-5, 5, 3, 4)}, lambda x: getattr(torch, op)(x))
    fail("unary", "exp", "Dtype", {"x": integers(0, 3, 2)})


PAIRS = [((), ()), ((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 4)), ((3,), ()), ((2, 1, 3), (4, 1)), ((0, 3), (1, 3))]


def binaries():
    for a, b in PAIRS:
        x = lambda: {"a": normal(*a), "b": normal(*b)}
        p = lambda: {"a": positive(*a), "b": positive(*b)}
        add("binary", "add", x(), lambda a, b: torch.add(a, b, alpha=1.5), alpha=1.5)
        add("binary", "sub", x(), lambda a, b: torch.sub(a, b, alpha=1), alpha=1)
        add("binary", "mul", x(), torch.mul)
        add("binary", "div", p(), torch.div, rounding="none")
        add("binary", "pow", p(), torch.pow)
        add("binary", "maximum", x(), torch.maximum)
        add("binary", "minimum", x(), torch.minimum)
    for rounding in ["floor", "trunc"]:
        inputs = {"a": f64([7, -7, 7, -7, 1, 0, 5.5]), "b": f64([2, 2, -2, -2, 0, 0, 0.1])}
        compute = lambda a, b: torch.div(a, b, rounding_mode=rounding)
        add("binary", "div", inputs, compute, constant=["a", "b"], rounding=rounding)
        add("binary", "div", {"a": integers(-9, 9, 8), "b": f64([1, 2, 3, -1, -2, -3, 4, 5]).long()}, compute,
            rounding=rounding)
    fail("binary", "div", "Value", {"a": integers(1, 5, 2), "b": integers(0, 1, 2)}, rounding="floor")
    fail("binary", "div", "Dtype", {"a": integers(1, 5, 2), "b": integers(1, 2, 2)}, rounding="none")
    add("binary", "pow", {"a": f64([0, 0, 2, 2, -2, 1]), "b": f64([0, 2, 0, 3, 3, 5])}, torch.pow)
    for exponent in [0.0, 2.0, 3.0, 0.5, -1.0, -0.5, -2.0, 1.7]:
        add("binary", "pow", {"a": positive(2, 3)}, lambda a: torch.pow(a, exponent), exponent=exponent)
    add("binary", "pow", {"a": integers(-3, 4, 5), "b": integers(0, 4, 5)}, torch.pow)
    for op in ["eq", "ne", "lt", "gt", "le", "ge"]:
        special = {"a": f64([1, 2, nan, 0.0, inf]), "b": f64([1, 3, nan, -0.0, -inf])}
        add("binary", op, special, lambda a, b: getattr(torch, op)(a, b), constant=["a", "b"])
        add("binary", op, {"a": integers(0, 3, 2, 3), "b": integers(0, 3, 3)}, lambda a, b: getattr(torch, op)(a, b))
    for op in ["add", "mul", "maximum"]:
        add("binary", op, {"a": integers(-9, 9, 2, 3), "b": integers(-9, 9, 3)}, lambda a, b: getattr(torch, op)(a, b))
        fail("binary", op, "Shape", {"a": normal(2, 3), "b": normal(2)})
        fail("binary", op, "Dtype", {"a": normal(2), "b": normal(2).float()})


def fused():
    triple = [((2, 3), (2, 3), (2, 3)), ((2, 3), (3,), (2, 1)), ((), (), ()), ((0, 2), (2,), (1,))]
    for s, a, b in triple:
        add("fused_pointwise", "addcmul", {"s": normal(*s), "a": normal(*a), "b": normal(*b)},
            lambda s, a, b: torch.addcmul(s, a, b, value=0.3), value=0.3)
        add("fused_pointwise", "addcdiv", {"s": normal(*s), "a": normal(*a), "b": positive(*b)},
            lambda s, a, b: torch.addcdiv(s, a, b, value=0.3), value=0.3)
        add("fused_pointwise", "lerp", {"a": normal(*s), "b": normal(*a), "weight": normal(*b)}, lambda a, b, weight: torch.lerp(a, b, weight))
        add("fused_pointwise", "where_cond", {"cond": normal(*s) > 0, "a": normal(*a), "b": normal(*b)}, lambda cond, a, b: torch.where(cond, a, b))
    for weight in [0.0, 0.3, 0.5, 1.0, 1.7]:
        add("fused_pointwise", "lerp", {"a": normal(2, 3), "b": normal(3)}, lambda a, b: torch.lerp(a, b, weight), weight=weight)
    add("fused_pointwise", "where_cond", {"cond": f64([1, 0]).bool(), "a": f64([1, nan]), "b": f64([nan, 2])}, lambda cond, a, b: torch.where(cond, a, b))
    for bounds in [dict(min=-0.5), dict(max=0.5), dict(min=-0.5, max=0.5), dict(min=1.0, max=-1.0)]:
        add("fused_pointwise", "clamp", {"x": f64([-1, -0.5, 0, 0.5, 1, nan])}, lambda x: torch.clamp(x, **bounds), **bounds)
    add("fused_pointwise", "clamp", {"x": normal(3, 4), "min": normal(4) - 1, "max": normal(3, 1) + 1}, lambda x, min, max: torch.clamp(x, min, max))
    fail("fused_pointwise", "clamp", "Attr", {"x": normal(2)})
    fail("fused_pointwise", "where_cond", "Dtype", {"cond": normal(2), "a": normal(2), "b": normal(2)})


def reductions():
    for shape, dims in [((), None), ((7,), None), ((2, 3), None), ((2, 3), [0]), ((2, 3), [1]), ((2, 3), [-1]),
                        ((2, 3, 4), [0, 2]), ((2, 3, 4), [1]), ((2, 0), [1]), ((0, 3), [1])]:
        for keepdim in [False, True]:
            at = dict(dims=dims, keepdim=keepdim) if dims is not None else dict(keepdim=False)
            d = dims if dims is not None else list(range(len(shape)))
            k = at["keepdim"]
            x = lambda: {"x": normal(*shape)}
            add("reduction", "reduce_sum", x(), lambda x: x.sum(d, keepdim=k) if d else x.sum(), **at)
            add("reduction", "mean", x(), lambda x: x.mean(d, keepdim=k) if d else x.mean(), **at)
            add("reduction", "rowwise_l2_norm", x(), lambda x: torch.linalg.vector_norm(x, dim=d, keepdim=k) if d else x.abs(), **at)
            if math.prod(shape) > 0 or 0 not in [shape[i] for i in d]:
                add("reduction", "reduce_max", x(), lambda x: x.amax(d, keepdim=k) if d else x.amax(), **at)
                add("reduction", "amin", x(), lambda x: x.amin(d, keepdim=k) if d else x.amin(), **at)
            if len(d) == 1:
                add("reduction", "prod", x(), lambda x: x.prod(d[0], keepdim=k), **at)
                add("reduction", "logsumexp", x(), lambda x: torch.logsumexp(x, d, keepdim=k), **at)
            if math.prod(shape) > 0 and len(shape) > 0:
                add("reduction", "var", x(), lambda x: x.var(d, correction=0, keepdim=k), correction=0.0, **at)
    for values in [[2.0, 3, 4], [2.0, 0, 4], [0.0, 0, 4]]:
        add("reduction", "prod", {"x": f64(values)}, lambda x: x.prod(), keepdim=False)
    add("reduction", "reduce_max", {"x": f64([[1, 3, 3], [nan, 1, 2]])}, lambda x: x.amax(1), dims=[1], keepdim=False)
    for op in ["max", "min"]:
        for shape, dim in [((5,), 0), ((2, 3), 1), ((2, 3, 4), -2)]:
            add("reduction", op, {"x": normal(*shape)}, lambda x: getattr(torch, op)(x, dim), dim=dim, keepdim=False)
        add("reduction", op, {"x": f64([1, 3, 3, 1])}, lambda x: getattr(torch, op)(x, 0), dim=0, keepdim=False)
    for op, compute in [("argmax_axis", torch.argmax), ("argmin_axis", torch.argmin)]:
        for shape, dim in [((5,), 0), ((2, 3), 1), ((2, 3, 4), -2)]:
            add("reduction", op, {"x": normal(*shape)}, lambda x: compute(x, dim), constant=["x"], dim=dim, keepdim=False)
        add("reduction", op, {"x": f64([[1, nan], [nan, 3]])}, lambda x: compute(x), constant=["x"], keepdim=False)
    for op in ["reduce_sum", "prod"]:
        add("reduction", op, {"x": integers(-3, 4, 3, 4)}, lambda x: (x.sum if op == "reduce_sum" else x.prod)(1), dims=[1], keepdim=False)
    add("reduction", "cumsum", {"x": normal(3, 4)}, lambda x: x.cumsum(0), dim=0)
    add("reduction", "cumsum", {"x": normal(3, 4, 2)}, lambda x: x.cumsum(-2), dim=-2)
    fail("reduction", "mean", "Dtype", {"x": integers(0, 3, 2)}, keepdim=False)
    fail("reduction", "reduce_max", "Value", {"x": normal(2, 0)}, dims=[1], keepdim=False)
    fail("reduction", "reduce_sum", "Attr", {"x": normal(2, 2)}, dims=[0, 0], keepdim=False)
    fail("reduction", "reduce_sum", "Attr", {"x": normal(2, 2)}, dims=[2], keepdim=False)
    fail("reduction", "argmax_axis", "Value", {"x": normal(0)}, keepdim=False)


def utilities():
    add("utility", "transpose_2d", {"x": normal(2, 3)}, lambda x: x.t())
    add("utility", "batched_transpose", {"x": normal(2, 3, 4)}, lambda x: x.mT)
    add("utility", "permute_general", {"x": normal(2, 3, 4)}, lambda x: x.permute(2, 0, 1), perm=[2, 0, 1])
    for shape in SHAPES:
        add("utility", "copy_buffer", {"x": normal(*shape)}, lambda x: x.clone())
    for dtype, name in [(torch.float64, "f64"), (torch.int64, "i64"), (torch.int32, "i32"), (torch.bool, "bool")]:
        add("utility", "cast", {"x": f64([-2.7, -0.5, 0, 0.5, 2.5, 100.9])}, lambda x: x.to(dtype), constant=["x"], dtype=name)
    for shapes, dim in [([(2, 3), (1, 3)], 0), ([(2, 3), (2, 0), (2, 1)], 1), ([(2, 2, 2), (2, 2, 2)], -1)]:
        add("utility", "concat", {f"x{i}": normal(*s) for i, s in enumerate(shapes)}, lambda *xs: torch.cat(xs, dim), dim=dim)
    fail("utility", "concat", "Shape", {"x0": normal(2, 3), "x1": normal(2, 4)}, dim=0)
    for a, b in [((3,), (2, 3)), ((2, 1), (2, 4)), ((), (2, 2))]:
        add("utility", "broadcast_to", {"x": normal(*a)}, lambda x: x.expand(*b), shape=list(b))
        add("utility", "sum_to_size", {"x": normal(*b)}, lambda x: x.sum_to_size(a), shape=list(a))
    fail("utility", "broadcast_to", "Shape", {"x": normal(2)}, shape=[3])
    add("utility", "reshape", {"x": normal(2, 6)}, lambda x: x.reshape(3, 4), shape=[3, 4])
    add("utility", "transpose", {"x": normal(2, 3, 4)}, lambda x: x.transpose(0, -1), dim0=0, dim1=-1)
    add("utility", "narrow", {"x": normal(4, 5)}, lambda x: x.narrow(1, 1, 3), dim=1, start=1, length=3)
    add("utility", "select", {"x": normal(4, 5)}, lambda x: x.select(0, -2), dim=0, index=-2)
    fail("utility", "select", "Index", {"x": normal(4, 5)}, dim=0, index=4)
    fail("utility", "reshape", "Shape", {"x": normal(4)}, shape=[3])


def indexing():
    add("indexing", "gather_kernel", {"x": normal(3, 4), "index": integers(0, 3, 2, 4)}, lambda x, index: x.gather(0, index), dim=0)
    add("indexing", "gather_kernel", {"x": normal(3, 4), "index": integers(0, 4, 2, 5)}, lambda x, index: x.gather(1, index), dim=1)
    add("indexing", "gather_kernel", {"x": normal(2, 3, 4), "index": integers(0, 3, 2, 5, 3)}, lambda x, index: x.gather(-2, index), dim=-2)
    add("indexing", "gather_kernel", {"x": normal(3), "index": integers(0, 3, 4, dtype=torch.int32)}, lambda x, index: x.gather(0, index.long()), dim=0)
    fail("indexing", "gather_kernel", "Index", {"x": normal(3), "index": f64([3]).long()}, dim=0)
    fail("indexing", "gather_kernel", "Index", {"x": normal(3), "index": f64([-1]).long()}, dim=0)
    fail("indexing", "gather_kernel", "Shape", {"x": normal(3, 2), "index": integers(0, 3, 4)}, dim=0)
    fail("indexing", "gather_kernel", "Dtype", {"x": normal(3), "index": normal(3)}, dim=0)
    for op in ["scatter_add_kernel", "scatter"]:
        index = integers(0, 5, 2, 4) if op == "scatter_add_kernel" else torch.stack([torch.randperm(5)[:2] for _ in range(4)], 1)
        compute = (lambda self, index, src: self.scatter_add(0, index, src)) if op == "scatter_add_kernel" else (lambda self, index, src: self.scatter(0, index, src))
        add("indexing", op, {"self": normal(5, 4), "index": index, "src": normal(2, 4)}, compute, dim=0)
        fail("indexing", op, "Index", {"self": normal(2), "index": f64([2]).long(), "src": normal(1)}, dim=0)
    add("indexing", "index_select", {"x": normal(4, 3), "index": integers(0, 4, 6)}, lambda x, index: x.index_select(0, index), dim=0)
    add("indexing", "index_select", {"x": normal(2, 4, 3), "index": integers(0, 4, 2)}, lambda x, index: x.index_select(1, index), dim=1)
    add("indexing", "index_add", {"self": normal(4, 3), "index": integers(0, 4, 6), "src": normal(6, 3)}, lambda self, index, src: self.index_add(0, index, src, alpha=0.5), dim=0, alpha=0.5)
    fail("indexing", "index_select", "Index", {"x": normal(4, 3), "index": f64([4]).long()}, dim=0)
    add("indexing", "index", {"x": normal(2, 3, 4, 5), "i0": integers(-2, 2, 2), "i1": integers(0, 4, 2)}, lambda x, i0, i1: x[i0, :, i1], indices=["tensor:i0", {"slice": [0, None, 1]}, "tensor:i1"])
    add("indexing", "index", {"x": normal(2, 3, 4, 5), "i0": integers(-3, 3, 2), "i1": integers(0, 4, 2)}, lambda x, i0, i1: x[:, i0, i1], indices=[{"slice": [0, None, 1]}, "tensor:i0", "tensor:i1"])
    add("indexing", "index", {"x": normal(4, 5), "i0": integers(0, 4, 2, 3)}, lambda x, i0: x[i0, 1:5:2], indices=["tensor:i0", {"slice": [1, 5, 2]}])
    add("indexing", "index", {"x": normal(3, 4), "i0": normal(3, 4) > 0}, lambda x, i0: x[i0], indices=["tensor:i0"])
    fail("indexing", "index", "Index", {"x": normal(3), "i0": f64([-4]).long()}, indices=["tensor:i0"])
    for accumulate in [False, True]:
        add("indexing", "index_put", {"self": normal(4, 3), "i0": f64([0, 2]).long(), "values": normal(2, 3)},
            lambda self, i0, values: self.index_put((i0,), values, accumulate=accumulate), indices=["tensor:i0"], accumulate=accumulate)
    add("indexing", "index_put", {"self": normal(4), "i0": f64([1, 1, 3]).long(), "values": normal(3)},
        lambda self, i0, values: self.index_put((i0,), values, accumulate=True), indices=["tensor:i0"], accumulate=True)
    for largest in [True, False]:
        add("indexing", "topk", {"x": normal(3, 6)}, lambda x: x.topk(2, 1, largest), k=2, dim=1, largest=largest)
    for descending in [True, False]:
        add("indexing", "sort", {"x": normal(3, 6)}, lambda x: torch.sort(x, dim=0, descending=descending, stable=True), dim=0, descending=descending)
    fail("indexing", "topk", "Attr", {"x": normal(3)}, k=4, dim=0, largest=True)


def embeddings():
    for padding, freq in [(None, False), (1, False), (-1, True)]:
        at = dict(scale_grad_by_freq=freq) | ({} if padding is None else dict(padding_idx=padding))
        add("embedding", "embedding_forward", {"w": normal(5, 3), "idx": integers(0, 5, 2, 4)},
            lambda w, idx: F.embedding(idx, w, padding_idx=padding, scale_grad_by_freq=freq), **at)
    add("embedding", "embedding_forward", {"w": normal(5, 3), "idx": integers(0, 5, 0)}, lambda w, idx: F.embedding(idx, w), scale_grad_by_freq=False)
    fail("embedding", "embedding_forward", "Index", {"w": normal(5, 3), "idx": f64([5]).long()}, scale_grad_by_freq=False)
    fail("embedding", "embedding_forward", "Dtype", {"w": normal(5, 3), "idx": normal(2)}, scale_grad_by_freq=False)
    fail("embedding", "embedding_forward", "Attr", {"w": normal(5, 3), "idx": integers(0, 5, 2)}, scale_grad_by_freq=False, padding_idx=5)
    add("embedding", "embedding_rmsnorm", {"w": normal(5, 4), "idx": integers(0, 5, 3), "gamma": normal(4)},
        lambda w, idx, gamma: F.rms_norm(F.embedding(idx, w), (4,), gamma, eps=1e-6), eps=1e-6)
    add("embedding", "embedding_rmsnorm", {"w": normal(5, 4), "idx": integers(0, 5, 3)},
        lambda w, idx: F.rms_norm(F.embedding(idx, w), (4,), None, eps=1e-6), eps=1e-6)


def matrices():
    for a, b in [((2, 3), (3, 4)), ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4)),
                 ((2, 1, 2, 3), (5, 3, 1)), ((2, 0), (0, 3)), ((0, 2), (2, 3)), ((3,), (5, 3, 2))]:
        add("matmul", "matmul", {"a": normal(*a), "b": normal(*b)}, torch.matmul)
    for trans_a in [False, True]:
        for trans_b in [False, True]:
            shape_a, shape_b = ((3, 2) if trans_a else (2, 3)), ((4, 3) if trans_b else (3, 4))
            t = lambda m, flag: m.t() if flag else m
            add("matmul", "gemm", {"a": normal(*shape_a), "b": normal(*shape_b), "c": normal(2, 4)},
                lambda a, b, c: 0.5 * t(a, trans_a) @ t(b, trans_b) - 2 * c, trans_a=trans_a, trans_b=trans_b, alpha=0.5, beta=-2.0)
    add("matmul", "addmm", {"c": normal(4), "a": normal(2, 3), "b": normal(3, 4)}, lambda c, a, b: torch.addmm(c, a, b, beta=0.7, alpha=1.3), beta=0.7, alpha=1.3)
    for shape in [(2, 3), (3,), (2, 5, 3), (0, 3)]:
        add("matmul", "linear_forward", {"x": normal(*shape), "w": normal(4, 3), "b": normal(4)}, F.linear)
        add("matmul", "linear_forward", {"x": normal(*shape), "w": normal(4, 3)}, F.linear)
    fail("matmul", "matmul", "Shape", {"a": normal(2, 3), "b": normal(2, 3)})
    fail("matmul", "matmul", "Shape", {"a": normal(), "b": normal(3)})
    fail("matmul", "matmul", "Unsupported", {"a": integers(0, 2, 2, 2), "b": integers(0, 2, 2, 2)})


def reduced(loss, reduction):
    return {"none": lambda: loss, "mean": loss.mean, "sum": loss.sum}[reduction]()


def losses():
    for reduction in ["none", "mean", "sum"]:
        r = dict(reduction=reduction)
        for shape in [(4,), (2, 3), (0,), ()]:
            pair = lambda: {"a": normal(*shape), "t": normal(*shape)}
            add("loss", "mse_loss", pair(), lambda a, t: F.mse_loss(a, t, **r), **r)
            add("loss", "l1_loss", pair(), lambda a, t: F.l1_loss(a, t, **r), **r)
            add("loss", "smooth_l1_loss", pair(), lambda a, t: F.smooth_l1_loss(a, t, beta=0.7, **r), beta=0.7, **r)
            add("loss", "huber_loss", pair(), lambda a, t: F.huber_loss(a, t, delta=0.7, **r), delta=0.7, **r)
            add("loss", "bce_loss", {"p": unit(*shape), "t": unit(*shape)}, lambda p, t: F.binary_cross_entropy(p, t, **r), constant=["t"], **r)
            add("loss", "bce_loss", {"p": unit(*shape), "t": unit(*shape), "weight": unit(*shape)}, lambda p, t, weight: F.binary_cross_entropy(p, t, weight, **r), constant=["t", "weight"], **r)
            add("loss", "bce_with_logits", {"x": normal(*shape), "t": unit(*shape)}, lambda x, t: F.binary_cross_entropy_with_logits(x, t, **r), constant=["t"], **r)
            add("loss", "kl_div", {"input": normal(*shape), "target": unit(*shape)}, lambda input, target: F.kl_div(input, target, **r), constant=["target"], log_target=False, **r)
            add("loss", "kl_div", {"input": normal(*shape), "target": normal(*shape)}, lambda input, target: F.kl_div(input, target, log_target=True, **r), constant=["target"], log_target=True, **r)
        add("loss", "bce_with_logits", {"x": normal(2, 3), "t": unit(2, 3), "pos_weight": positive(3)}, lambda x, t, pos_weight: F.binary_cross_entropy_with_logits(x, t, pos_weight=pos_weight, **r), constant=["t", "pos_weight"], **r)
        for smoothing in [0.0, 0.1]:
            at = dict(label_smoothing=smoothing, **r)
            for n, c, rest in [(3, 4, ()), (2, 3, (2, 2)), (0, 3, ())]:
                add("loss", "cross_entropy_loss", {"logits": normal(n, c, *rest), "target": integers(0, c, n, *rest)}, lambda logits, target: F.cross_entropy(logits, target, **at), **at)
                add("loss", "cross_entropy_loss", {"logits": normal(n, c, *rest), "target": integers(0, c, n, *rest), "weight": positive(c)}, lambda logits, target, weight: F.cross_entropy(logits, target, weight, **at), constant=["weight"], **at)
                add("loss", "cross_entropy_loss", {"logits": normal(n, c, *rest), "target": unit(n, c, *rest), "weight": positive(c)}, lambda logits, target, weight: F.cross_entropy(logits, target, weight, **at), constant=["weight"], **at)
            add("loss", "cross_entropy_loss", {"logits": normal(4), "target": torch.tensor(2)}, lambda logits, target: F.cross_entropy(logits, target, **at), **at)
            add("loss", "cross_entropy_loss", {"logits": normal(4, 3), "target": f64([0, 1, 2, 1]).long()}, lambda logits, target: F.cross_entropy(logits, target, ignore_index=1, **at), ignore_index=1, **at)
        add("loss", "cross_entropy_loss", {"logits": normal(2, 3), "target": f64([-100, -100]).long()}, lambda logits, target: F.cross_entropy(logits, target, **r), label_smoothing=0.0, **r)
        add("loss", "nll_loss", {"logp": normal(3, 4), "target": integers(0, 4, 3), "weight": positive(4)}, lambda logp, target, weight: F.nll_loss(logp, target, weight, **r), constant=["weight"], **r)
        add("loss", "nll_loss", {"logp": normal(3, 4, 2), "target": integers(0, 4, 3, 2)}, lambda logp, target: F.nll_loss(logp, target, **r), **r)
        for p, swap in [(2.0, False), (2.0, True), (1.0, False), (3.0, True)]:
            at = dict(margin=1.0, p=p, eps=1e-6, swap=swap, **r)
            add("loss", "triplet_loss", {"a": normal(4, 3), "p": normal(4, 3), "n": normal(4, 3)}, lambda a, p, n: F.triplet_margin_loss(a, p, n, **at), **at)
        for alpha in [0.25, -1.0]:
            for t in [unit(2, 3), (normal(2, 3) > 0).double()]:
                def focal(x, t):
                    p = torch.sigmoid(x)
                    ce = F.binary_cross_entropy_with_logits(x, t, reduction="none")
                    p_t = p * t + (1 - p) * (1 - t)
                    loss = ce * (1 - p_t) ** 2.0
                    return reduced(loss * (alpha * t + (1 - alpha) * (1 - t)) if alpha >= 0 else loss, reduction)
                add("loss", "focal_loss", {"x": normal(2, 3), "t": t}, focal, constant=["t"], alpha=alpha, gamma=2.0, from_logits=True, **r)
        def contrastive(x1, x2, y):
            d = (x1 - x2).norm(dim=1)
            return reduced(y * d**2 + (1 - y) * F.relu(1.0 - d) ** 2, reduction)
        add("loss", "contrastive_loss", {"x1": normal(4, 3) / 3, "x2": normal(4, 3) / 3, "y": f64([1, 0, 1, 0])}, contrastive, constant=["y"], margin=1.0, **r)
    fail("loss", "mse_loss", "Shape", {"a": normal(2, 3), "t": normal(3)}, reduction="mean")
    fail("loss", "bce_loss", "Value", {"p": f64([1.5]), "t": f64([1])}, reduction="mean")
    fail("loss", "cross_entropy_loss", "Value", {"logits": normal(2, 3), "target": f64([0, 3]).long()}, label_smoothing=0.0, reduction="mean")
    fail("loss", "cross_entropy_loss", "Attr", {"logits": normal(2, 3), "target": unit(2, 3)}, label_smoothing=0.0, ignore_index=0, reduction="mean")
    fail("loss", "cross_entropy_loss", "Attr", {"logits": normal(2, 3), "target": integers(0, 3, 2)}, label_smoothing=1.5, reduction="mean")


def optimizers():
    shapes = [(2, 3), (4,)]
    for op, make in [
        ("sgd_step", lambda ps: torch.optim.SGD(ps, lr=0.1, weight_decay=0.01)),
        ("sgd_momentum_update", lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01)),
        ("nag_step", lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
        ("adam_step", lambda ps: torch.optim.Adam(ps, lr=0.1, weight_decay=0.01)),
        ("adam_amsgrad_step", lambda ps: torch.optim.Adam(ps, lr=0.1, weight_decay=0.01, amsgrad=True)),
        ("adamw_step", lambda ps: torch.optim.AdamW(ps, lr=0.1, weight_decay=0.01)),
    ]:
        inputs = {f"p{i}": normal(*s) for i, s in enumerate(shapes)}
        inputs |= {f"g{i}_{k}": normal(*s) for i, s in enumerate(shapes) for k in range(10)}

        def steps(*values):
            tensors = dict(zip(inputs, values))
            ps = [tensors[f"p{i}"].detach().clone().requires_grad_() for i in range(len(shapes))]
            optimizer = make(ps)
            for k in range(10):
                for i, p in enumerate(ps):
                    p.grad = tensors[f"g{i}_{k}"].clone()
                optimizer.step()
            return [p.detach() for p in ps]

        add("optimizer", op, inputs, steps, constant=list(inputs), lr=0.1, weight_decay=0.01)
    for max_norm, norm_type in [(1.0, 2.0), (100.0, 2.0), (1.0, 1.0), (0.5, inf)]:
        def clip(g0, g1):
            ps = [torch.zeros_like(g).requires_grad_() for g in (g0, g1)]
            for p, g in zip(ps, (g0, g1)):
                p.grad = g.clone()
            total = torch.nn.utils.clip_grad_norm_(ps, max_norm, norm_type)
            return [p.grad for p in ps] + [total]
        add("optimizer", "gradient_clip_norm", {"g0": normal(2, 3), "g1": normal(4)}, clip, constant=["g0", "g1"], max_norm=max_norm, norm_type=str(norm_type))
    add("optimizer", "gradient_clip_value", {"g0": f64([-2, -0.5, 0.2, 3, nan])}, lambda g0: g0.clamp(-1, 1), constant=["g0"], clip=1.0)


def main():
    assert torch.__version__.split("+")[0] == VERSION, f"torch {VERSION} is needed, this is {torch.__version__}"
    torch.manual_seed(0)
    for family in [activations, unaries, binaries, fused, reductions, utilities, indexing, embeddings, matrices, losses, optimizers]:
        family()
    for family, (cases, tensors) in families.items():
        lines = ",\n".join(json.dumps(case) for case in cases)
        (HERE / f"{family}.json").write_text(f'{{"torch": "{VERSION}", "cases": [\n{lines}\n]}}\n')
        save_file({key: t.clone().contiguous() for key, t in tensors.items()}, HERE / f"{family}.safetensors")
        print(f"{family}: {len(cases)} cases, {len(tensors)} tensors")


if __name__ == "__main__":
    main()
