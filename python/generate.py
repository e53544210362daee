"""Writes isograd/ops.py, a function for each op of the registry, with its inputs, attributes, defaults and documentation; and isograd/_isograd.pyi, the
types of the compiled module, whose tensors have the ops as methods.

    python generate.py            # after `maturin develop`
    python generate.py --check    # fails if a file is not what it would write
"""

from __future__ import annotations

import importlib.util
import keyword
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
OPS, STUB = HERE / "isograd" / "ops.py", HERE / "isograd" / "_isograd.pyi"
SOURCES = HERE.parent / "crates" / "core" / "src" / "ops"
LINE = 120

TYPES = {
    "a number": "float",
    "an integer": "int",
    "a size": "int",
    "a bool": "bool",
    "a list of integers": "Sequence[int]",
    "a list of names": "Sequence[str]",
    "a dtype": "str",
}

HEADER = '''"""The ops of isograd's registry. Written by generate.py: do not edit."""

# ruff: noqa: A001, A002, E501
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._call import call as _call
from ._isograd import Tensor

'''


STUB_HEADER = '''# Written by generate.py: do not edit.
# ruff: noqa: A001, A002, E501
from collections.abc import Callable, Iterator, Sequence
from typing import Any

__version__: str

class Error(Exception): ...
class ShapeError(Error, ValueError): ...
class DtypeError(Error, TypeError): ...
class DeviceError(Error, ValueError): ...
class AttributeValueError(Error, ValueError): ...
class IndexOutOfRange(Error, IndexError): ...
class DataError(Error, ValueError): ...
class UnsupportedError(Error, NotImplementedError): ...
class OutOfMemory(Error, MemoryError): ...
class BackendError(Error, RuntimeError): ...
class FileError(Error, OSError): ...
class FormatError(Error, ValueError): ...

def call(name: str, inputs: Sequence[tuple[str, Tensor]], attributes: dict[str, Any] | None = None, device: str | None = None) -> list[Tensor]: ...
def check(
    function: Callable[..., Any],
    op: str,
    device: str,
    selection: tuple[list[Any], list[str]],
    is_quick: bool,
    seed: int = 0,
) -> tuple[bool, str, str]: ...
def examples(name: str) -> list[tuple[dict[str, Tensor], dict[str, Any]]]: ...
def from_dlpack(x: Any, /, *, copy: bool | None = None, stream: int | None = None) -> Tensor: ...
def gradients(
    results: Sequence[tuple[Tensor, Tensor]],
    inputs: Sequence[Tensor],
    retain_graph: bool = False,
    create_graph: bool = False,
) -> list[Tensor | None]: ...
def is_grad_enabled() -> bool: ...
def modules() -> list[dict[str, Any]]: ...
def operators() -> list[dict[str, Any]]: ...
def optimizers() -> list[str]: ...
def set_grad_enabled(is_enabled: bool) -> bool: ...
def tensor(data: Any, dtype: Any = None, device: str | None = None) -> Tensor: ...

class Optimizer:
    lr: float
    def __new__(cls, name: str, parameters: Sequence[Tensor], attributes: dict[str, Any] | None = None) -> Optimizer: ...
    def step(self) -> None: ...
    def zero_grad(self) -> None: ...
    def state_dict(self) -> dict[str, Tensor]: ...
    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...

class Step:
    def __new__(cls, function: Callable[..., list[Tensor]], device: str) -> Step: ...
    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]: ...
    def explain(self) -> str | None: ...

class Tensor:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def requires_grad(self) -> bool: ...
    @property
    def is_leaf(self) -> bool: ...
    @property
    def grad(self) -> Tensor | None: ...
    @property
    def T(self) -> Tensor: ...
    def data_ptr(self) -> int: ...
    def is_contiguous(self) -> bool: ...
    def set_grad(self, gradient: Tensor | None) -> None: ...
    def require_grad(self) -> Tensor: ...
    def detach(self) -> Tensor: ...
    def backward(self, gradient: Tensor | None = None, retain_graph: bool = False, create_graph: bool = False) -> None: ...
    def to(self, target: Any = None, *, device: str | None = None, dtype: Any = None) -> Tensor: ...
    def item(self) -> Any: ...
    def tolist(self) -> Any: ...
    def numpy(self, dtype: Any = None, copy: bool | None = None) -> Any: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any: ...
    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __float__(self) -> float: ...
    def __int__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __len__(self) -> int: ...
    def __hash__(self) -> int: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __getitem__(self, index: Any) -> Tensor: ...
    def __add__(self, other: Tensor | float) -> Tensor: ...
    def __radd__(self, other: float) -> Tensor: ...
    def __sub__(self, other: Tensor | float) -> Tensor: ...
    def __rsub__(self, other: float) -> Tensor: ...
    def __mul__(self, other: Tensor | float) -> Tensor: ...
    def __rmul__(self, other: float) -> Tensor: ...
    def __truediv__(self, other: Tensor | float) -> Tensor: ...
    def __rtruediv__(self, other: float) -> Tensor: ...
    def __matmul__(self, other: Tensor) -> Tensor: ...
    def __pow__(self, exponent: Tensor | float) -> Tensor: ...
    def __neg__(self) -> Tensor: ...
    def __abs__(self) -> Tensor: ...
    def __eq__(self, other: Tensor | float) -> Tensor: ...  # type: ignore[override]
    def __ne__(self, other: Tensor | float) -> Tensor: ...  # type: ignore[override]
    def __lt__(self, other: Tensor | float) -> Tensor: ...
    def __le__(self, other: Tensor | float) -> Tensor: ...
    def __gt__(self, other: Tensor | float) -> Tensor: ...
    def __ge__(self, other: Tensor | float) -> Tensor: ...
'''


def documentation() -> dict[str, str]:
    """The documentation of the library's functions by their names."""
    found: dict[str, str] = {}
    for path in sorted([*SOURCES.rglob("*.rs"), *(HERE.parent / "crates" / "linalg" / "src").rglob("*.rs")]):
        lines: list[str] = []
        for line in path.read_text().splitlines():
            line = line.strip()
            if line.startswith("///"):
                lines.append(line.removeprefix("///").strip())
                continue
            name = re.match(r"pub fn (\w+)", line) or re.match(r"(\w+) \w+ \w+ ?\w*;", line)
            if name and lines:
                found.setdefault(name[1], text(lines))
            if not line.startswith("#["):
                lines = []
    return found


def text(lines: list[str]) -> str:
    """Rust's documentation without examples, links and errors' kinds."""
    whole = "\n".join(lines).split("```")[0].strip()
    whole = re.sub(r"\[(`[^`]+`|[^\]]+)\]\([^)]*\)", r"\1", whole)
    whole = re.sub(r"\[(`[^`\]]+`)\]", r"\1", whole)
    return re.sub(r"\s*\n\s*", " ", whole).replace("\\", "")


def identifier(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


def listed(name: str) -> str | None:
    """The key of a list of inputs, of which the first has this name."""
    match = re.fullmatch(r"([a-z_]*?)0", name)
    return match[1] if match else None


def plural(key: str) -> str:
    return {"": "tensors", "i": "index", "input": "inputs"}.get(key, f"{key}s")


def function(op: dict, docs: dict[str, str]) -> str:
    parameters: list[tuple[bool, str, str]] = []
    inputs, attributes, rows = [], [], []
    of_inputs = {given["name"]: given["optional"] for given in op["inputs"]}
    # What may be a tensor or a number is one argument. Where an op has both, the number's name gets a line behind it.
    either = {given["name"] for given in op["attributes"] if given["optional"] and of_inputs.get(given["name"])}
    for given in op["inputs"]:
        key = listed(given["name"])
        name = identifier(plural(key) if key is not None else given["name"])
        kind = "Sequence[Tensor]" if key is not None else "Tensor | float" if given["name"] in either else "Tensor"
        parameters.append((given["optional"], name, f"{name}: {kind}{' | None = None' if given['optional'] else ''}"))
        inputs.append(f'("{key if key is not None else given["name"]}", {name})')
        expected = f": {given['expected']}" if given["expected"] else ""
        rows.append(f"{name}: {'tensors' if key is not None else 'tensor'}{expected}")
    for given in op["attributes"]:
        name = identifier(given["name"])
        if given["name"] in of_inputs and given["name"] not in either:
            name += "_"
        attributes.append(f'"{given["name"]}": {name}')
        if given["name"] in either:
            continue
        kind, default = TYPES.get(given["expected"], "Any"), given["default"]
        shown = f"{name}: {kind}"
        if given["optional"]:
            shown += f"{'' if kind == 'Any' or default is not None else ' | None'} = {default!r}"
        parameters.append((given["optional"], name, shown))
        rows.append(f"{name}: {given['expected'] or 'any value'}")
    names = [name for _, name, _ in parameters]
    if len(set(names)) != len(names):
        raise ValueError(f"{op['name']} has two parameters of one name: {names}")
    shown = [part for _, _, part in sorted(parameters, key=lambda part: part[0])]
    call = f'"{op["name"]}", [{", ".join(inputs)}], {{{", ".join(attributes)}}}'
    if not op["inputs"]:
        shown.append("device: str | None = None")
        call += ", device"
    about = docs.get(op["name"], f"The op `{op['name']}`.")
    quoted = about.replace('"""', "'''")
    body = [f'    """{quoted}', "", *[f"    {row}" for row in rows], '    """', f"    return _call({call})"]
    return "\n".join([f"def {op['name']}({', '.join(shown)}) -> Any:", *body])


def module() -> str:
    """The compiled module, without the package around it, which needs the file."""
    sys.path.insert(0, str(HERE))
    spec = importlib.util.find_spec("isograd")
    path = next(pathlib.Path(spec.submodule_search_locations[0]).glob("_isograd*.so"))
    loader = importlib.util.spec_from_file_location("isograd._isograd", path)
    found = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(found)
    return found


def method(text: str) -> str:
    """The stub of a method, from the text of the op's function."""
    head = text.splitlines()[0]
    return "    " + re.sub(r"\((\w+): [^,)]*", "(self", head, count=1) + " ..."


def generated() -> dict[pathlib.Path, str]:
    docs, compiled = documentation(), module()
    steps = set(compiled.optimizers())
    ops = [op for op in compiled.operators() if op["name"] not in steps]
    ops += [op for op in compiled.modules() if op["name"][0].islower() and not op["name"].startswith("lr_")]
    functions = {op["name"]: function(op, docs) for op in ops}
    methods = sorted(op["name"] for op in ops if op["inputs"] and listed(op["inputs"][0]["name"]) is None)
    names = "\n".join(f'    "{name}",' for name in sorted(functions))
    listed_methods = "\n".join(f'    "{name}",' for name in methods)
    ends = [f"__all__ = [\n{names}\n]", f"METHODS = [\n{listed_methods}\n]\n" + '"""The ops that are methods of tensors too."""']
    stub = STUB_HEADER + "\n".join(method(functions[name]) for name in methods) + "\n"
    return {OPS: "\n\n\n".join([HEADER.rstrip(), *functions.values(), *ends]) + "\n", STUB: stub}


if __name__ == "__main__":
    for path, wanted in generated().items():
        if "--check" not in sys.argv:
            path.write_text(wanted)
        elif not path.exists() or path.read_text() != wanted:
            sys.exit(f"{path.name} is not what generate.py writes: run it")
