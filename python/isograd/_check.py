"""The checks of an op for a function of one's own: written in Triton, CUDA, ROCm, PyTorch, or in anything that speaks DLPack."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from . import _isograd
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
        from .torch import _as_checked as adapt
    elif library == "isograd":
        adapt = _as_checked
    else:
        raise ValueError(f"the library is {library!r}, expected 'torch' or 'isograd'")
    passed, text, html = _isograd.check(adapt(function), op, device, (list(dtypes), list(without)), quick, seed)
    return Report(passed, text, html)


def _as_checked(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(inputs: dict[str, Tensor], attributes: dict[str, Any]) -> Any:
        before = _isograd.set_grad_enabled(True)
        try:
            floats = {name for name, t in inputs.items() if t.dtype in ("f32", "f16", "bf16", "f64")}
            leaves = {name: t.require_grad() if name in floats else t for name, t in inputs.items()}
            found = function(*leaves.values(), **attributes)
        finally:
            _isograd.set_grad_enabled(before)
        results = [found] if isinstance(found, Tensor) else list(found)
        if not any(y.requires_grad for y in results):
            return results, None

        def rule(gradients: list[Tensor | None]) -> list[Tensor | None]:
            pairs = [(y, g) for y, g in zip(results, gradients, strict=True) if g is not None and y.requires_grad]
            targets = [name for name in leaves if name in floats]
            found = _isograd.gradients(pairs, [leaves[name] for name in targets], True, False)
            by_name = dict(zip(targets, found, strict=True))
            return [by_name.get(name) for name in leaves]

        return [y.detach() for y in results], rule

    return run
