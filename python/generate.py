"""Writes isograd/ops.py: a function for each op of the registry, with its inputs, attributes, defaults and documentation.

    python generate.py            # after `maturin develop`
    python generate.py --check    # fails if the file is not what it would write
"""

from __future__ import annotations

import importlib.util
import keyword
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
TARGET = HERE / "isograd" / "ops.py"
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


def generated() -> str:
    docs, compiled = documentation(), module()
    steps = set(compiled.optimizers())
    ops = [op for op in compiled.operators() if op["name"] not in steps]
    ops += [op for op in compiled.modules() if op["name"][0].islower() and not op["name"].startswith("lr_")]
    methods = [op["name"] for op in ops if op["inputs"] and listed(op["inputs"][0]["name"]) is None]
    parts = [HEADER.rstrip()]
    parts += [function(op, docs) for op in ops]
    names = "\n".join(f'    "{op["name"]}",' for op in sorted(ops, key=lambda op: op["name"]))
    parts.append(f"__all__ = [\n{names}\n]")
    listed_methods = "\n".join(f'    "{name}",' for name in sorted(methods))
    parts.append(f"METHODS = [\n{listed_methods}\n]\n" + '"""The ops that are methods of tensors too."""')
    return "\n\n\n".join(parts) + "\n"


if __name__ == "__main__":
    wanted = generated()
    if "--check" in sys.argv:
        if TARGET.read_text() != wanted:
            sys.exit("isograd/ops.py is not what generate.py writes: run it")
    else:
        TARGET.write_text(wanted)
