"""Optimizers: `AdamW(parameters, lr=1e-3)`. Options are the attributes of isograd's rows, by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from . import _isograd
from ._isograd import Tensor


class Optimizer(_isograd.Optimizer):
    """Steps parameters by their gradients, and clears these."""

    _name = ""

    def __new__(cls, parameters: Iterable[Tensor], lr: float | None = None, **options: Any) -> Optimizer:
        given = {"lr": lr, **options}
        options = {name: value for name, value in given.items() if value is not None}
        return super().__new__(cls, cls._name, list(parameters), options)  # type: ignore[return-value]

    def __init__(self, parameters: Iterable[Tensor], lr: float | None = None, **options: Any) -> None:
        pass


_CLASSES = {
    "sgd": "Sgd",
    "adam": "Adam",
    "adamw": "AdamW",
    "rmsprop": "RmsProp",
    "adagrad": "Adagrad",
    "adamax": "Adamax",
    "nadam": "Nadam",
    "radam": "Radam",
    "adadelta": "Adadelta",
    "rprop": "Rprop",
    "asgd": "Asgd",
    "lion": "Lion",
    "adafactor": "Adafactor",
    "lars": "Lars",
    "lamb": "Lamb",
    "muon": "Muon",
}

for _row in _isograd.optimizers():
    _class = _CLASSES.get(_row, _row.capitalize())
    globals()[_class] = type(_class, (Optimizer,), {"_name": _row, "__module__": __name__, "__doc__": f"The optimizer `{_row}`."})

__all__ = ["Optimizer", *(_CLASSES.get(row, row.capitalize()) for row in _isograd.optimizers())]
