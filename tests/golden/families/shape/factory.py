"""Tensors without inputs: one number, and sequences."""

import torch

from common import DTYPES, F64, OPS, label


OPS |= {
    "full": ("", lambda *, shape, value, dtype=None: torch.full(shape, value, dtype=DTYPES[dtype or "f64"])),
    "arange": ("", lambda *, start, end, step, dtype=None: torch.arange(start, end, step, dtype=DTYPES[dtype or "i64"])),
    "linspace": ("", lambda *, start, end, steps, dtype=None: torch.linspace(start, end, steps, dtype=F64).to(DTYPES[dtype or "f32"])),
    "logspace": (
        "",
        lambda *, start, end, steps, base=10.0, dtype=None: (
            torch.logspace(start, end, steps, base, dtype=F64).to(DTYPES[dtype or "f32"])
        ),
    ),
}


def cases(out):
    for shape, value in [((), 1.5), ((2, 3), -0.25), ((0, 2), 1.0)]:
        out.case(f"full/{label(shape)}", {}, shape=list(shape), value=value)
    out.case("full/integers", {}, shape=[3], value=-7, dtype="i64")
    out.error("full/integer_range", "Attr", {}, shape=[2], value=300, dtype="u8")
    sequences(out)


def sequences(out):
    for name, start, end, step in [("up", 2, 9, 3), ("down", 5, -7, -2), ("exact", 0, 6, 3), ("none", 3, 3, 1)]:
        for dtype in "i64", "i32", "f64":
            out.case(f"arange/{name}_{dtype}", {}, start=start, end=end, step=step, dtype=dtype)
    out.case("arange/floats", {}, start=0.5, end=2.0, step=0.25, dtype="f32")
    out.error("arange/step", "Attr", {}, start=0, end=1, step=0, dtype="i64")
    out.error("arange/float_of_integers", "Dtype", {}, start=0.5, end=2, step=1, dtype="i64")
    out.error("arange/range", "Attr", {}, start=0, end=1 << 40, step=1 << 38, dtype="i32")
    for steps in 0, 1, 2, 5, 8:
        out.case(f"linspace/{steps}", {}, start=-1.0, end=2.0, steps=steps, dtype="f64")
    out.case("linspace/equal", {}, start=3.0, end=3.0, steps=3, dtype="f32")
    out.error("linspace/integers", "Dtype", {}, start=0.0, end=1.0, steps=2, dtype="i64")
    out.error("linspace/infinite", "Attr", {}, start=0.0, end="inf", steps=2, dtype="f64")
    out.case("logspace/two", {}, start=-1.0, end=3.0, steps=5, base=2.0, dtype="f64")
    out.case("logspace/ten", {}, start=0.0, end=1.0, steps=4, dtype="f64")
