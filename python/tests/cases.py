"""The ops of the registry, and arguments of their functions."""

import keyword
import re

import isograd
from isograd import _isograd

OPS = {op["name"]: op for op in _isograd.operators() if op["name"] in isograd.ops.__all__}
LISTS = {"": "tensors", "i": "index", "input": "inputs"}


def arguments(op, inputs, attributes):
    """The arguments of an op's function for inputs by the registry's names."""
    found = {}
    for name, t in inputs.items():
        match = re.fullmatch(r"([a-z_]*?)(\d+)", name)
        if match and f"{match[1]}0" in inputs:
            found.setdefault(LISTS.get(match[1], f"{match[1]}s"), []).append(t)
        else:
            found[name] = t
    # Cases may have attributes that an op does not read.
    read = {given["name"] for given in OPS[op]["attributes"]}
    for name, value in attributes.items():
        if name in read:
            found[f"{name}_" if keyword.iskeyword(name) or name in inputs else name] = value
    return found
