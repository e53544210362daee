"""Modules: parts that have parameters, with PyTorch's names of layers and of entries in state dictionaries."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from . import ops
from ._isograd import Tensor

_seeds = itertools.count()


def seed(value: int) -> None:
    """The parameters of modules that are made from now on are drawn from this seed."""
    global _seeds
    _seeds = itertools.count(value << 20)


def _uniform(shape: Sequence[int], bound: float, dtype: str, device: str) -> Tensor:
    drawn = ops.rand(hi=bound, lo=-bound, shape=list(shape), dtype=dtype, seed=next(_seeds), device=device)
    return drawn.require_grad()


class Module:
    """A part with parameters, buffers and parts of its own, which are its attributes."""

    training = True

    def forward(self, *inputs: Any, **options: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return self.forward(*inputs, **options)

    def _parts(self) -> Iterator[tuple[str, Module]]:
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value
            elif isinstance(value, (list, tuple)):
                yield from ((f"{name}.{i}", part) for i, part in enumerate(value) if isinstance(part, Module))

    def named_tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """All parameters and buffers by their dotted names."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                yield f"{prefix}{name}", value
        for name, part in self._parts():
            yield from part.named_tensors(f"{prefix}{name}.")

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors that are trained."""
        return ((name, t) for name, t in self.named_tensors() if t.requires_grad)

    def parameters(self) -> list[Tensor]:
        """The tensors that are trained."""
        return [t for _, t in self.named_parameters()]

    def state_dict(self) -> dict[str, Tensor]:
        """The parameters and buffers, which share memory with the module."""
        return {name: t.detach() for name, t in self.named_tensors()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copies values, tensors of this or of another library, into the parameters and buffers. Names that are missing or left over are errors."""
        from ._call import no_grad, tensor

        own = dict(self.named_tensors())
        missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        if missing or extra:
            raise KeyError(f"missing are {missing}, and the module has no {extra}")
        with no_grad():
            for name, t in own.items():
                ops.copy_(x=t.detach(), src=tensor(state[name], dtype=t.dtype, device=t.device))

    def train(self, mode: bool = True) -> Module:
        """Sets whether this and all parts train."""
        self.training = mode
        for _, part in self._parts():
            part.train(mode)
        return self

    def eval(self) -> Module:
        """Sets that this and all parts do not train."""
        return self.train(False)


class Linear(Module):
    """`x @ weight.T + bias`; weights are uniform up to 1 / sqrt(inputs)."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        dtype: str = "f32",
        device: str = "cpu",
    ) -> None:
        bound = 1 / math.sqrt(max(in_features, 1))
        self.weight = _uniform([out_features, in_features], bound, dtype, device)
        self.bias = _uniform([out_features], bound, dtype, device) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, w=self.weight, b=self.bias)


class Embedding(Module):
    """Rows of a table, which are drawn from a normal distribution."""

    def __init__(self, num_embeddings: int, embedding_dim: int, *, dtype: str = "f32", device: str = "cpu") -> None:
        drawn = ops.randn(
            mean=0.0, std=1.0, shape=[num_embeddings, embedding_dim], dtype=dtype, seed=next(_seeds), device=device
        )
        self.weight = drawn.require_grad()

    def forward(self, index: Tensor) -> Tensor:
        return ops.embedding(idx=index, w=self.weight)


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last dimension, then a scale and a shift."""

    def __init__(self, size: int, eps: float = 1e-5, *, dtype: str = "f32", device: str = "cpu") -> None:
        self.eps = eps
        self.weight = ops.full(shape=[size], value=1.0, dtype=dtype, device=device).require_grad()
        self.bias = ops.full(shape=[size], value=0.0, dtype=dtype, device=device).require_grad()

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x=x, weight=self.weight, bias=self.bias, dims=1, eps=self.eps)


class RmsNorm(Module):
    """A mean square of 1 over the last dimension, then a scale."""

    def __init__(self, size: int, eps: float = 1e-6, *, dtype: str = "f32", device: str = "cpu") -> None:
        self.eps = eps
        self.weight = ops.full(shape=[size], value=1.0, dtype=dtype, device=device).require_grad()

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x=x, weight=self.weight, dims=1, eps=self.eps)


class Conv2d(Module):
    """A convolution of images `[N, C, H, W]`."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        groups: int = 1,
        bias: bool = True,
        *,
        dtype: str = "f32",
        device: str = "cpu",
    ) -> None:
        kernel = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
        bound = 1 / math.sqrt(in_channels // groups * kernel[0] * kernel[1])
        self.stride, self.groups = stride, groups
        self.padding = [padding, padding] if isinstance(padding, int) else list(padding)
        self.weight = _uniform([out_channels, in_channels // groups, *kernel], bound, dtype, device)
        self.bias = _uniform([out_channels], bound, dtype, device) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return ops.conv2d(
            x=x, w=self.weight, b=self.bias, stride=self.stride, padding=self.padding, groups=self.groups
        )


class Dropout(Module):
    """Elements become 0 with probability p in training; each call draws anew."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = p
        self._stream, self._calls = next(_seeds), itertools.count()

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        # Each call has as many draws as there are elements, four a block.
        offset = next(self._calls) * ((x.size + 3) // 4)
        return ops.dropout(x, p=self.p, seed=self._stream, offset=offset)


class Sequential(Module):
    """Parts one after the other: modules, and functions of a tensor."""

    def __init__(self, *parts: Any) -> None:
        self._list = list(parts)

    def _parts(self) -> Iterator[tuple[str, Module]]:
        return ((str(i), part) for i, part in enumerate(self._list) if isinstance(part, Module))

    def forward(self, x: Tensor) -> Tensor:
        for part in self._list:
            x = part(x)
        return x


__all__ = ["Conv2d", "Dropout", "Embedding", "LayerNorm", "Linear", "Module", "RmsNorm", "Sequential", "seed"]
