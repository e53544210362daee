"""The ops of the registry, and arguments of their functions."""

import re

import isograd
from isograd import _isograd

OPS = {op["name"]: op for op in _isograd.operators() if op["name"] in isograd.ops.__all__}
LISTS = {"": "tensors", "i": "index", "input": "inputs"}


def arguments(inputs, attributes):
    """The arguments of the function of Python for inputs by the registry's names."""
    found = {}
    for name, t in inputs.items():
        match = re.fullmatch(r"([a-z_]*?)(\d+)", name)
        if match:
            found.setdefault(LISTS.get(match[1], f"{match[1]}s"), []).append(t)
        else:
            found[name] = t
    return found | {{"lambda": "lambda_"}.get(name, name): value for name, value in attributes.items()}
