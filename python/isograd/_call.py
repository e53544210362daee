"""Calls of ops by name, and what Python's tensors have beside the ops."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from . import _isograd
from ._isograd import Tensor


def call(
    name: str,
    inputs: Sequence[tuple[str, Any]],
    attributes: dict[str, Any],
    device: str | None = None,
) -> Any:
    """The result of an op, or a tuple of several. Inputs and attributes that are None are absent; a list of tensors becomes numbered inputs.
    What may be a tensor or a number is an input and an attribute of one name."""
    given = []
    for key, value in inputs:
        if value is None:
            continue
        if isinstance(value, Tensor):
            given.append((key, value))
        elif attributes.get(key) is value:
            continue
        elif isinstance(value, (list, tuple)):
            given.extend((f"{key}{i}", t) for i, t in enumerate(value))
        else:
            raise TypeError(f"{name}: `{key}` is a {type(value).__name__}, expected a Tensor")
    absent = {key for key, value in attributes.items() if value is None or isinstance(value, Tensor)}
    found = _isograd.call(name, given, {key: attributes[key] for key in attributes.keys() - absent}, device)
    return found[0] if len(found) == 1 else tuple(found)


def tensor(
    data: Any,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor with a copy of numbers: of a number, lists of numbers, or an array of another library."""
    if isinstance(data, Tensor):
        found = data.detach().copy()
    elif hasattr(data, "__dlpack__"):
        found = _of_array(data)
    elif hasattr(data, "__array__"):
        found = _of_array(data.__array__())
    else:
        found = _isograd.tensor(data, dtype, device)
    if dtype is not None:
        found = found.to(dtype=dtype)
    if device is not None:
        found = found.to(device=device)
    return found.require_grad() if requires_grad else found


def _of_array(array: Any) -> Tensor:
    """A copy of an array. NumPy lends no memory that it lets nobody write, nor with steps backwards."""
    try:
        return _isograd.from_dlpack(array, copy=True)
    except (BufferError, ValueError):
        if not hasattr(array, "copy"):
            raise
        return _isograd.from_dlpack(array.copy(), copy=True)


def grad(
    results: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    gradients: Tensor | Sequence[Tensor] | None = None,
    retain_graph: bool = False,
    create_graph: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of results with respect to inputs: None for an input on which no result depends.

    `gradients` are those of the results, by default 1. With `create_graph` the gradients are on the tape, for higher derivatives."""
    several = [results] if isinstance(results, Tensor) else list(results)
    targets = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    if gradients is None:
        given = [y.detach() * 0 + 1 for y in several]
    else:
        given = [gradients] if isinstance(gradients, Tensor) else list(gradients)
    pairs = list(zip(several, given, strict=True))
    return tuple(_isograd.gradients(pairs, targets, retain_graph, create_graph))


@contextlib.contextmanager
def no_grad() -> Iterator[None]:
    """Within this, ops of the thread are not recorded. It is a decorator too."""
    before = _isograd.set_grad_enabled(False)
    try:
        yield
    finally:
        _isograd.set_grad_enabled(before)


@contextlib.contextmanager
def enable_grad() -> Iterator[None]:
    """Within this, ops of the thread are recorded, also inside of `no_grad`."""
    before = _isograd.set_grad_enabled(True)
    try:
        yield
    finally:
        _isograd.set_grad_enabled(before)


class Captured:
    """A step that is recorded in its second call and replayed in later ones, where the device can record."""

    def __init__(self, function: Callable[..., Any], device: str) -> None:
        self._is_single = False

        def several(*inputs: Tensor) -> list[Tensor]:
            found = function(*inputs)
            self._is_single = isinstance(found, Tensor)
            return [found] if self._is_single else list(found)

        self._step = _isograd.Step(several, device)

    def __call__(self, *inputs: Tensor) -> Any:
        found = self._step.run(list(inputs))
        return found[0] if self._is_single else tuple(found)

    def explain(self) -> str | None:
        """The recording in words: its calls, and which of them are one kernel."""
        return self._step.explain()


def capture(function: Callable[..., Any], device: str = "cpu") -> Captured:
    """A function of tensors as a captured step. Inputs keep their shapes; parameters change in place."""
    return Captured(function, device)


def _arithmetic(op: str, scalar: str, ops: Any) -> Callable[[Tensor, Any], Any]:
    of_tensors, of_scalar = getattr(ops, op), getattr(ops, scalar)

    def method(self: Tensor, other: Any) -> Any:
        if isinstance(other, Tensor):
            return of_tensors(self, other)
        if isinstance(other, (bool, int, float)):
            return of_scalar(self, other)
        return NotImplemented

    return method


def _compared(op: str, ops: Any) -> Callable[[Tensor, Any], Any]:
    compare = getattr(ops, op)

    def method(self: Tensor, other: Any) -> Any:
        if isinstance(other, (bool, int, float)):
            other = _isograd.tensor(other, self.dtype, self.device)
        return compare(self, other) if isinstance(other, Tensor) else NotImplemented

    return method


def _power(self: Tensor, exponent: Any) -> Any:
    from . import ops

    if isinstance(exponent, (int, float)):
        if exponent == 2:
            return ops.square(self)
        exponent = _isograd.tensor(exponent, self.dtype, self.device)
    return ops.pow(self, exponent)


def _item(self: Tensor, index: Any) -> Tensor:
    """Integers, slices with positive steps, `None`, `...`, and tensors of indices or flags."""
    from . import ops

    parts = list(index) if isinstance(index, tuple) else [index]
    parts = [_isograd.tensor(part) if isinstance(part, list) else part for part in parts]
    used = sum(part is not None and part is not Ellipsis for part in parts)
    if used > self.ndim:
        raise IndexError(f"{used} indices were given, the tensor has {self.ndim} dimensions")
    if sum(part is Ellipsis for part in parts) > 1:
        raise IndexError("an index has at most one ellipsis")
    if Ellipsis in [part for part in parts if not isinstance(part, Tensor)]:
        at = next(i for i, part in enumerate(parts) if part is Ellipsis)
        parts[at : at + 1] = [slice(None)] * (self.ndim - used)
    found, dim, tensors = self, 0, []
    for part in parts:
        if part is None:
            found, dim = ops.unsqueeze(found, dim=dim), dim + 1
        elif isinstance(part, slice):
            start, stop, step = part.indices(found.shape[dim])
            if step < 1:
                raise ValueError("the step of a slice must be positive")
            if (start, stop, step) != (0, found.shape[dim], 1):
                found = ops.slice(found, dim=dim, start=start, stop=max(stop, start), step=step)
            dim += 1
        elif isinstance(part, Tensor):
            tensors.append((dim, part))
            dim += 1
        else:
            found = ops.select(found, dim=dim, index=int(part))
    if tensors:
        entries: list[Any] = [{"slice": [0]}] * found.ndim
        for number, (at, _) in enumerate(tensors):
            entries[at] = f"tensor:i{number}"
        found = ops.index(x=found, index=[t for _, t in tensors], indices=entries)
    return found


def _rows(self: Tensor) -> Iterator[Tensor]:
    return (self[i] for i in range(len(self)))


def _array(self: Tensor, dtype: Any = None, copy: bool | None = None) -> Any:
    import numpy

    t = self.detach()
    t = t.to("cpu") if t.device != "cpu" else t
    found = numpy.from_dlpack(t.to("f32") if t.dtype == "bf16" else t)
    if dtype is not None:
        found = found.astype(dtype, copy=False)
    return found.copy() if copy else found


def attach(tensor_class: Any, ops: Any) -> None:
    """Makes methods of the ops, and defines the operators."""
    for name in ops.METHODS:
        if not hasattr(tensor_class, name):
            setattr(tensor_class, name, getattr(ops, name))
    for symbol, op in [("add", "add"), ("sub", "sub"), ("mul", "mul"), ("truediv", "div")]:
        setattr(tensor_class, f"__{symbol}__", _arithmetic(op, f"{op}_scalar", ops))
    setattr(tensor_class, "__radd__", lambda self, other: ops.add_scalar(self, other))
    setattr(tensor_class, "__rmul__", lambda self, other: ops.mul_scalar(self, other))
    setattr(tensor_class, "__rsub__", lambda self, other: ops.rsub_scalar(self, other))
    setattr(tensor_class, "__rtruediv__", lambda self, other: ops.rdiv_scalar(self, other))
    for symbol in ["eq", "ne", "lt", "le", "gt", "ge"]:
        setattr(tensor_class, f"__{symbol}__", _compared(symbol, ops))
    tensor_class.__neg__ = lambda self: ops.neg(self)
    tensor_class.__abs__ = lambda self: ops.abs(self)
    tensor_class.__matmul__ = lambda self, other: ops.matmul(self, other)
    tensor_class.__pow__ = _power
    tensor_class.__getitem__ = _item
    tensor_class.__iter__ = _rows
    tensor_class.__array__ = _array
    tensor_class.numpy = _array
    tensor_class.T = property(lambda self: ops.t(self))
