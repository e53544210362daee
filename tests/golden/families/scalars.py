"""Functions of a tensor and a number."""

import torch

from common import OPS, normal, positive, sweep


# name: the reference, how the inputs of its sweep are drawn, and the number
SCALARS = {
    "add_scalar": (lambda x, *, scalar: x + scalar, normal, -1.75),
    "sub_scalar": (lambda x, *, scalar: x - scalar, normal, -1.75),
    "mul_scalar": (lambda x, *, scalar: x * scalar, normal, -1.75),
    "div_scalar": (lambda x, *, scalar: x / scalar, normal, -1.75),
    "rsub_scalar": (lambda x, *, scalar: scalar - x, normal, -1.75),
    "rdiv_scalar": (lambda x, *, scalar: scalar / x, positive, -1.75),
    "rpow_scalar": (lambda x, *, scalar: torch.pow(scalar, x), normal, 1.75),
}

OPS |= {name: ("x", reference) for name, (reference, *_) in SCALARS.items()}


def cases(out):
    for op, (_, make, scalar) in SCALARS.items():
        sweep(out, op, make=make, scalar=scalar)
