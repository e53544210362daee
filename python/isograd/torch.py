"""isograd's ops on PyTorch's tensors, without a copy, with first and second derivatives.

`isograd.torch.ops.softmax(x, dim=-1)` is any op of the registry. The functions of this module have PyTorch's arguments; the modules stand for
PyTorch's. `patch` replaces the norms, gated activations and losses of a model of transformers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch as _torch

from torch.utils.dlpack import to_dlpack as _to_dlpack

from . import _isograd
from . import ops as _ops
from ._call import enable_grad as _enable_grad
from ._check import Library as _Library
from ._isograd import Tensor

_FLOATS = (_torch.float64, _torch.float32, _torch.float16, _torch.bfloat16)


def to_isograd(t: _torch.Tensor) -> Tensor:
    """The same memory as a tensor of isograd. Its device's work waits for that of PyTorch's current stream."""
    if t.is_cuda:
        return _isograd.from_dlpack(t.detach(), stream=_torch.cuda.current_stream(t.device).cuda_stream)
    return _isograd.from_dlpack(_to_dlpack(t.detach()))


def to_torch(t: Tensor) -> _torch.Tensor:
    """The same memory as a tensor of PyTorch, whose current stream waits for isograd's work."""
    return _torch.from_dlpack(t.detach())


Spec = tuple[str, tuple[str, ...], str, str | None]
"""An op, the names of its inputs, its attributes as JSON, and the device of one without inputs."""


def _run(spec: Spec, inputs: Sequence[Tensor]) -> list[Tensor]:
    name, keys, attributes, device = spec
    return _isograd.call(name, list(zip(keys, inputs, strict=True)), json.loads(attributes), device)


def _leaves(tensors: Sequence[_torch.Tensor], needs: Sequence[bool]) -> list[Tensor]:
    return [to_isograd(t).require_grad() if need else to_isograd(t) for t, need in zip(tensors, needs, strict=True)]


def _gradients(
    results: Sequence[Tensor],
    given: Sequence[_torch.Tensor | None],
    leaves: Sequence[Tensor],
) -> list[_torch.Tensor | None]:
    pairs = [(y, to_isograd(dy)) for y, dy in zip(results, given, strict=True) if dy is not None and y.requires_grad]
    targets = [t for t in leaves if t.requires_grad]
    found = iter(_isograd.gradients(pairs, targets, True, False)) if pairs else iter([None] * len(targets))
    each = [next(found) if t.requires_grad else None for t in leaves]
    return [to_torch(gradient) if gradient is not None else None for gradient in each]


class _Call(_torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, spec: Spec, *tensors: _torch.Tensor) -> Any:
        leaves = _leaves(tensors, [t.requires_grad and t.dtype in _FLOATS for t in tensors])
        with _enable_grad():
            results = _run(spec, leaves)
        ctx.spec, ctx.recording = spec, (leaves, results)
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        found = tuple(to_torch(y) for y in results)
        ctx.mark_non_differentiable(*(y for y in found if y.dtype not in _FLOATS))
        return found

    @staticmethod
    def backward(ctx: Any, *given: _torch.Tensor | None) -> Any:
        tensors = ctx.saved_tensors
        if _torch.is_grad_enabled():
            has = [dy is not None for dy in given]
            return (None, *_Gradients.apply(ctx.spec, len(tensors), has, *tensors, *(dy for dy in given if dy is not None)))
        leaves, results = ctx.recording
        return (None, *_gradients(results, given, leaves))


class _Gradients(_torch.autograd.Function):
    """The gradients of an op, as a function of its inputs and of the gradients of its results."""

    @staticmethod
    def forward(ctx: Any, spec: Spec, count: int, has: list[bool], *tensors: _torch.Tensor) -> Any:
        leaves = _leaves(tensors, [t.requires_grad and t.dtype in _FLOATS for t in tensors])
        inputs, given = leaves[:count], iter(leaves[count:])
        with _enable_grad():
            results = _run(spec, inputs)
            pairs = [(y, next(given)) for y, is_given in zip(results, has, strict=True) if is_given]
            each = iter(_isograd.gradients(pairs, [t for t in inputs if t.requires_grad], True, True))
        found = [next(each) if t.requires_grad else None for t in inputs]
        ctx.recording = (leaves, [g for g in found if g is not None])
        ctx.places = [i for i, g in enumerate(found) if g is not None]
        ctx.set_materialize_grads(False)
        return tuple(to_torch(g) if g is not None else None for g in found)

    @staticmethod
    @_torch.autograd.function.once_differentiable
    def backward(ctx: Any, *given: _torch.Tensor | None) -> Any:
        leaves, results = ctx.recording
        return (None, None, None, *_gradients(results, [given[i] for i in ctx.places], leaves))


def call(name: str, inputs: Sequence[tuple[str, Any]], attributes: dict[str, Any], device: str | None = None) -> Any:
    """As isograd's calls, of tensors of PyTorch."""
    keys: list[str] = []
    tensors: list[_torch.Tensor] = []
    for key, value in inputs:
        if isinstance(value, (list, tuple)):
            keys.extend(f"{key}{i}" for i in range(len(value)))
            tensors.extend(value)
        elif isinstance(value, _torch.Tensor):
            keys.append(key)
            tensors.append(value)
        elif value is not None and attributes.get(key) is not value:
            raise TypeError(f"{name}: `{key}` is a {type(value).__name__}, expected a torch.Tensor")
    absent = {key for key, value in attributes.items() if value is None or isinstance(value, _torch.Tensor)}
    given = _json({key: value for key, value in attributes.items() if key not in absent})
    found = _apply((name, tuple(keys), given, device), tensors)
    return found[0] if len(found) == 1 else found


def _json(value: Any) -> str:
    """An attribute as JSON, by code that `torch.compile` can follow."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        # JSON has no infinities; the registry reads their names.
        return repr(value) if abs(value) < float("inf") else f'"{value}"'
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join([_json(item) for item in value]) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join([f'"{key}": {_json(item)}' for key, item in value.items()]) + "}"
    return '"' + str(value).removeprefix("torch.").replace("\\", "\\\\").replace('"', '\\"') + '"'


def _apply(spec: Spec, tensors: Sequence[_torch.Tensor]) -> tuple[_torch.Tensor, ...]:
    if _torch.compiler.is_compiling() and spec[0] in _SHAPES:
        name, keys, attributes, _ = spec
        return tuple(_compiled_call(name, ",".join(keys), attributes, list(tensors)))
    return _eager(spec, tensors)


@_torch.compiler.disable
def _eager(spec: Spec, tensors: Sequence[_torch.Tensor]) -> tuple[_torch.Tensor, ...]:
    return _Call.apply(spec, *tensors)


def _like_first(inputs: dict[str, _torch.Tensor], attributes: dict[str, Any]) -> list[_torch.Tensor]:
    x = next(iter(inputs.values()))
    return [_torch.empty(x.shape, dtype=x.dtype, device=x.device)]


def _like_x(inputs: dict[str, _torch.Tensor], attributes: dict[str, Any]) -> list[_torch.Tensor]:
    x = inputs["x"]
    return [_torch.empty(x.shape, dtype=x.dtype, device=x.device)]


def _loss(inputs: dict[str, _torch.Tensor], attributes: dict[str, Any]) -> list[_torch.Tensor]:
    logits, target = inputs["logits"], inputs["target"]
    return [logits.new_empty(target.shape if attributes["reduction"] == "none" else ())]


def _rotated(inputs: dict[str, _torch.Tensor], attributes: dict[str, Any]) -> list[_torch.Tensor]:
    return [_torch.empty(inputs[key].shape, dtype=inputs[key].dtype, device=inputs[key].device) for key in ("q", "k")]


_SHAPES: dict[str, Callable[..., list[_torch.Tensor]]] = {
    "softmax": _like_x,
    "log_softmax": _like_x,
    "layer_norm": _like_x,
    "rms_norm": _like_x,
    "gelu": _like_x,
    "silu": _like_x,
    "dropout": _like_x,
    "swiglu": _like_first,
    "mul": _like_first,
    "cross_entropy": _loss,
    "apply_rotary_embedding": _rotated,
}
"""The results of ops that compiled functions of PyTorch call without a break of the graph. Their backward passes compute the op once more."""


@_torch.library.custom_op("isograd::call", mutates_args=())
def _compiled_call(name: str, keys: str, attributes: str, inputs: list[_torch.Tensor]) -> list[_torch.Tensor]:
    given = [to_isograd(t) for t in inputs]
    return [to_torch(y) for y in _run((name, tuple(keys.split(",")), attributes, None), given)]


@_compiled_call.register_fake
def _(name: str, keys: str, attributes: str, inputs: list[_torch.Tensor]) -> list[_torch.Tensor]:
    return _SHAPES[name](dict(zip(keys.split(","), inputs, strict=True)), json.loads(attributes))


@_torch.library.custom_op("isograd::gradients", mutates_args=())
def _compiled_gradients(
    name: str,
    keys: str,
    attributes: str,
    needs: list[bool],
    inputs: list[_torch.Tensor],
    given: list[_torch.Tensor],
) -> list[_torch.Tensor]:
    leaves = _leaves(inputs, needs)
    with _enable_grad():
        results = _run((name, tuple(keys.split(",")), attributes, None), leaves)
    found = _gradients(results, given, leaves)
    return [g if g is not None else _torch.zeros_like(t) for g, t in zip(found, inputs, strict=True)]


@_compiled_gradients.register_fake
def _(
    name: str,
    keys: str,
    attributes: str,
    needs: list[bool],
    inputs: list[_torch.Tensor],
    given: list[_torch.Tensor],
) -> list[_torch.Tensor]:
    return [_torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in inputs]


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    name, keys, attributes, tensors = inputs
    ctx.spec, ctx.needs = (name, keys, attributes), [t.requires_grad and t.dtype in _FLOATS for t in tensors]
    ctx.save_for_backward(*tensors)


def _compiled_backward(ctx: Any, given: list[_torch.Tensor]) -> Any:
    tensors = list(ctx.saved_tensors)
    found = _compiled_gradients(*ctx.spec, ctx.needs, tensors, [dy.contiguous() for dy in given])
    return None, None, None, [g if need else None for g, need in zip(found, ctx.needs, strict=True)]


_compiled_call.register_autograd(_compiled_backward, setup_context=_keep)


class _Operators:
    """The ops of the registry on tensors of PyTorch."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        import types

        function = getattr(_ops, name)
        bound = {**function.__globals__, "_call": call}
        made = types.FunctionType(function.__code__, bound, name, function.__defaults__, function.__closure__)
        made.__doc__, made.__kwdefaults__ = function.__doc__, function.__kwdefaults__
        setattr(self, name, made)
        return made

    def __dir__(self) -> list[str]:
        return list(_ops.__all__)


ops = _Operators()


def softmax(x: _torch.Tensor, dim: int) -> _torch.Tensor:
    """As `torch.softmax`."""
    return call("softmax", [("x", x)], {"dim": dim})


def layer_norm(
    x: _torch.Tensor,
    weight: _torch.Tensor | None = None,
    bias: _torch.Tensor | None = None,
    eps: float = 1e-5,
) -> _torch.Tensor:
    """Over the last dimension, as `torch.nn.functional.layer_norm`."""
    return call("layer_norm", [("x", x), ("weight", weight), ("bias", bias)], {"dims": 1, "eps": eps})


def rms_norm(x: _torch.Tensor, weight: _torch.Tensor | None = None, eps: float = 1e-6) -> _torch.Tensor:
    """Over the last dimension, as `torch.nn.functional.rms_norm`."""
    return call("rms_norm", [("x", x), ("weight", weight)], {"dims": 1, "eps": eps})


def swiglu(gate: _torch.Tensor, up: _torch.Tensor) -> _torch.Tensor:
    """`silu(gate) * up`."""
    return call("swiglu", [("gate", gate), ("up", up)], {})


def geglu(gate: _torch.Tensor, up: _torch.Tensor, approximate: str = "tanh") -> _torch.Tensor:
    """`gelu(gate) * up`."""
    activated = call("gelu", [("x", gate)], {"approximate": approximate})
    return call("mul", [("a", activated), ("b", up)], {})


def rotary(
    q: _torch.Tensor,
    k: _torch.Tensor,
    cos: _torch.Tensor,
    sin: _torch.Tensor,
) -> tuple[_torch.Tensor, _torch.Tensor]:
    """Queries and keys `[B, H, T, D]`, rotated by tables `[T, D / 2]`, whose pairs are D / 2 apart."""
    inputs = [("q", q), ("k", k), ("cos", cos), ("sin", sin)]
    return call("apply_rotary_embedding", inputs, {"style": "half"})


def cross_entropy(
    logits: _torch.Tensor,
    target: _torch.Tensor,
    weight: _torch.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> _torch.Tensor:
    """As `torch.nn.functional.cross_entropy`, for logits `[N, C]` and indices `[N]`."""
    inputs = [("logits", logits), ("target", target), ("weight", weight)]
    options = {"ignore_index": ignore_index, "reduction": reduction, "label_smoothing": label_smoothing}
    return call("cross_entropy", inputs, options)


def attention(
    q: _torch.Tensor,
    k: _torch.Tensor,
    v: _torch.Tensor,
    mask: _torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> _torch.Tensor:
    """As `torch.nn.functional.scaled_dot_product_attention`."""
    inputs = [("q", q), ("k", k), ("v", v), ("mask", mask)]
    return call("scaled_dot_product_attention", inputs, {"causal": "top_left" if is_causal else None, "scale": scale})


def embedding(index: _torch.Tensor, weight: _torch.Tensor, padding_idx: int | None = None) -> _torch.Tensor:
    """As `torch.nn.functional.embedding`."""
    return call("embedding", [("idx", index), ("w", weight)], {"padding_idx": padding_idx})


def dropout(x: _torch.Tensor, p: float, seed: int, training: bool = True) -> _torch.Tensor:
    """Elements become 0 with probability p, the others are divided by 1 - p. A seed has the same draws on every device."""
    return call("dropout", [("x", x)], {"p": p, "seed": seed, "training": training})


def gather(x: _torch.Tensor, dim: int, index: _torch.Tensor) -> _torch.Tensor:
    """As `torch.gather`."""
    return call("gather", [("x", x), ("index", index)], {"dim": dim})


def scatter_add(x: _torch.Tensor, dim: int, index: _torch.Tensor, src: _torch.Tensor) -> _torch.Tensor:
    """As `torch.scatter_add`, with sums in a fixed order."""
    return call("scatter_add", [("self", x), ("index", index), ("src", src)], {"dim": dim})


class RMSNorm(_torch.nn.RMSNorm):
    """As `torch.nn.RMSNorm` over one dimension."""

    def forward(self, x: _torch.Tensor) -> _torch.Tensor:
        eps = self.eps if self.eps is not None else _torch.finfo(x.dtype).eps
        return rms_norm(x, self.weight, eps)


class LayerNorm(_torch.nn.LayerNorm):
    """As `torch.nn.LayerNorm` over one dimension."""

    def forward(self, x: _torch.Tensor) -> _torch.Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)


class CrossEntropyLoss(_torch.nn.CrossEntropyLoss):
    """As `torch.nn.CrossEntropyLoss` of indices."""

    def forward(self, input: _torch.Tensor, target: _torch.Tensor) -> _torch.Tensor:
        return cross_entropy(input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing)


class Optimizer:
    """An optimizer of isograd on parameters of PyTorch, which it changes in place: `Optimizer("adamw", model.parameters(), lr=1e-3)`."""

    def __init__(self, name: str, parameters: Any, lr: float, **options: Any) -> None:
        self._pairs = [(p, to_isograd(p).require_grad()) for p in parameters]
        self._optimizer = _isograd.Optimizer(name, [leaf for _, leaf in self._pairs], {"lr": lr, **options})

    @_torch.no_grad()
    def step(self) -> None:
        """Updates every parameter that has a gradient."""
        for p, leaf in self._pairs:
            leaf.set_grad(to_isograd(p.grad) if p.grad is not None else None)
        self._optimizer.step()
        for p, _ in self._pairs:
            # PyTorch notices the change, and its stream waits for it.
            p.add_(0) if p.is_cuda else _torch.autograd.graph.increment_version(p)

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        for p, _ in self._pairs:
            p.grad = None


def patch(model: _torch.nn.Module) -> dict[str, int]:
    """Replaces parts of a model by isograd's ops, in place: norms of rows, gated activations with silu or gelu, and the loss of a causal language
    model of transformers. Returns how many of each kind were replaced."""
    count = {"rms_norm": 0, "layer_norm": 0, "swiglu": 0, "geglu": 0, "cross_entropy": 0}
    if type(model).__name__.endswith("ForCausalLM") and hasattr(model, "loss_function"):
        setattr(model, "loss_function", _causal_loss)
        count["cross_entropy"] += 1
    for module in model.modules():
        kind = type(module).__name__
        if isinstance(module, _torch.nn.LayerNorm) and len(module.normalized_shape) == 1:
            _replace(module, lambda self, x: layer_norm(x, self.weight, self.bias, self.eps))
            count["layer_norm"] += 1
        elif kind.endswith("RMSNorm") and not kind.startswith("Gemma") and getattr(module, "weight", None) is not None:
            _replace(module, _rms_forward)
            count["rms_norm"] += 1
        elif all(hasattr(module, part) for part in ("gate_proj", "up_proj", "down_proj", "act_fn")):
            gate = _gate_of(module.act_fn)
            if gate is not None:
                _replace(module, _gated_forward(gate[1]))
                count[gate[0]] += 1
    return count


def _causal_loss(
    logits: _torch.Tensor,
    labels: _torch.Tensor,
    vocab_size: int,
    num_items_in_batch: Any = None,
    ignore_index: int = -100,
    shift_labels: _torch.Tensor | None = None,
    **_: Any,
) -> _torch.Tensor:
    """The loss of the next tokens, as transformers calls it, without a copy of the logits in f32."""
    if shift_labels is None:
        shift_labels = _torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    target = shift_labels.reshape(-1).to(logits.device)
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = cross_entropy(logits.reshape(-1, vocab_size), target, ignore_index=ignore_index, reduction=reduction)
    return loss if num_items_in_batch is None else loss / num_items_in_batch


def _replace(module: _torch.nn.Module, forward: Callable[..., Any]) -> None:
    setattr(module, "forward", forward.__get__(module, type(module)))


def _rms_forward(self: Any, x: _torch.Tensor) -> _torch.Tensor:
    eps = getattr(self, "variance_epsilon", getattr(self, "eps", None))
    return rms_norm(x, self.weight, _torch.finfo(x.dtype).eps if eps is None else eps)


def _gate_of(act_fn: Any) -> tuple[str, Callable[..., Any]] | None:
    name = type(act_fn).__name__
    if name in ("SiLU", "SiLUActivation"):
        return "swiglu", swiglu
    if name in ("PytorchGELUTanh", "GELUTanh", "NewGELUActivation"):
        return "geglu", geglu
    return None


def _gated_forward(gate: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, x: _torch.Tensor) -> _torch.Tensor:
        return self.down_proj(gate(self.gate_proj(x), self.up_proj(x)))

    return forward


def _derivatives(
    results: list[_torch.Tensor],
    inputs: list[_torch.Tensor],
    given: list[_torch.Tensor],
) -> Sequence[_torch.Tensor | None]:
    return _torch.autograd.grad(results, inputs, given, retain_graph=True, allow_unused=True)


_CHECKED = _Library(_torch.Tensor, to_torch, to_isograd, _torch.Tensor.requires_grad_, _torch.enable_grad, _derivatives)

__all__ = [name for name in dir(sys.modules[__name__]) if not name.startswith("_") and name not in ("annotations", "Any")]
