"""The checks of an op for a function of one's own: written in Triton, CUDA, ROCm, PyTorch, or in anything that speaks DLPack."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

from . import _isograd
from ._call import enable_grad
from ._isograd import Tensor



@dataclass(frozen=True)
class Report:
    """The findings of checks."""

    passed: bool
    """Whether all checks have passed."""
    text: str
    """The errors of each check in units of its bound, with the commands that repeat the failures on isograd's own kernels."""
    html: str
    """The same as a page."""

    def save(self, path: str | pathlib.Path) -> None:
        """Writes the page."""
        pathlib.Path(path).write_text(self.html)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Library:
    """The tensors of functions that are checked."""

    tensor: Any
    enter: Callable[[Tensor], Any]
    """A tensor of the library, of the same memory."""
    leave: Callable[[Any], Tensor]
    """The way back."""
    leaf: Callable[[Any], Any]
    """The tensor as a leaf of the library's autograd."""
    recording: Callable[[], AbstractContextManager[Any]]
    """The scope in which autograd records."""
    gradients: Callable[[list[Any], list[Any], list[Any]], Sequence[Any]]
    """The gradients of inputs, of results whose own are given; None for an input on which no result depends."""


def check(
    function: Callable[..., Any],
    op: str,
    device: str = "cpu",
    *,
    dtypes: Sequence[str] = ("f32",),
    library: Literal["torch", "isograd"] = "torch",
    without: Sequence[str] = (),
    quick: bool = True,
    seed: int = 0,
) -> Report:
    """Runs the checks of an op of the registry for `function`: results and gradients against f64, strided and empty inputs, NaN and infinities, writes beyond the
    ends of buffers, and equal bits of two runs.

    `function` gets the op's inputs by position, as tensors of `library`, and its attributes by name; it returns a tensor, or a tuple of tensors. Gradients
    are checked if the library's autograd has recorded the result. `without` names checks that are left out, such as `special`, in which NaN and infinities
    are among the inputs, and gradients have conventions of their own. Dtypes are those of float inputs, without f64, in which the op itself is the reference."""
    if "f64" in dtypes or not dtypes:
        raise ValueError("dtypes are some of f32, f16, bf16, i64, i32 and u8: the reference is in f64")
    if library == "torch":
        from .torch import _CHECKED as of
    elif library == "isograd":
        of = _OWN
    else:
        raise ValueError(f"the library is {library!r}, expected 'torch' or 'isograd'")
    passed, text, html = _isograd.check(_adapted(function, of), op, device, (list(dtypes), list(without)), quick, seed)
    return Report(passed, text, html)


def _adapted(function: Callable[..., Any], library: Library) -> Callable[..., Any]:
    """A function of tensors of a library, as the checks call it."""

    def run(inputs: dict[str, Tensor], attributes: dict[str, Any]) -> Any:
        is_float = {name: t.dtype in ("f32", "f16", "bf16", "f64") for name, t in inputs.items()}
        with library.recording():
            own = {name: library.enter(t) for name, t in inputs.items()}
            own = {name: library.leaf(t) if is_float[name] else t for name, t in own.items()}
            found = function(*own.values(), **attributes)
        results = [found] if isinstance(found, library.tensor) else list(found)

        def rule(given: list[Tensor | None]) -> list[Tensor | None]:
            pairs = [(y, library.enter(g)) for y, g in zip(results, given, strict=True) if g is not None and y.requires_grad]
            leaves = [t for t in own.values() if t.requires_grad]
            found = iter(library.gradients([y for y, _ in pairs], leaves, [g for _, g in pairs]))
            each = [next(found) if t.requires_grad else None for t in own.values()]
            return [library.leave(g) if g is not None else None for g in each]

        is_recorded = any(y.requires_grad for y in results)
        return [library.leave(y.detach()) for y in results], rule if is_recorded else None

    return run


def _derivatives(results: list[Tensor], inputs: list[Tensor], given: list[Tensor]) -> Sequence[Tensor | None]:
    return _isograd.gradients(list(zip(results, given, strict=True)), inputs, True, False)


_OWN = Library(Tensor, lambda t: t, lambda t: t, Tensor.require_grad, enable_grad, _derivatives)
