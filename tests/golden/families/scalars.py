"""Functions of a tensor and a number."""

import torch

from common import OPS, normal, positive, sweep, u8


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
    for op, scalar in [("add_scalar", 200), ("sub_scalar", 2), ("mul_scalar", 3), ("rsub_scalar", 1)]:
        out.case(f"{op}/u8", {"x": u8([0, 1, 7, 128, 255])}, scalar=scalar)
