"""Several arithmetic steps as one function of each element."""

import torch

from common import F32, OPS, f64, integers, label, normal, positive


def lerp(a, b, weight):
    return torch.lerp(a, b, weight)


OPS |= {
    "addcmul": ("s a b", lambda s, a, b, *, value=1: torch.addcmul(s, a, b, value=value)),
    "addcdiv": ("s a b", lambda s, a, b, *, value=1: torch.addcdiv(s, a, b, value=value)),
    "lerp": ("a b weight", lerp),
}


def cases(out):
    triples = [
        ((), (), ()),
        ((7,), (7,), (7,)),
        ((2, 3), (3,), (2, 1)),
        ((1,), (3, 1, 2), (1, 2)),
        ((2, 1, 3, 1), (2,), ()),
        ((0,), (1,), (0,)),
    ]
    for s, a, b in triples:
        key = f"{label(s)}_{label(a)}_{label(b)}"
        out.case(f"addcmul/{key}", {"s": normal(*s), "a": normal(*a), "b": normal(*b)}, value=0.7)
        out.case(f"addcdiv/{key}", {"s": normal(*s), "a": normal(*a), "b": positive(*b)}, value=-1.3)
        out.case(f"lerp/{key}", {"a": normal(*s), "b": normal(*a), "weight": normal(*b)})
    for op in "addcmul", "addcdiv":
        out.case(f"{op}/plain", {name: normal(2, 3) for name in "sab"})
        out.error(f"{op}/shapes", "Shape", {"s": normal(2), "a": normal(3), "b": normal(3)})
        out.error(f"{op}/mixed_dtypes", "Dtype", {"s": normal(3), "a": normal(3), "b": normal(3).to(F32)})
    integer = {"s": integers(3), "a": integers(3), "b": integers(3)}
    out.case("addcmul/integers", integer, value=2)
    out.error("addcdiv/integers", "Dtype", integer)
    zero = {"s": f64([0.0, 1.0]), "a": f64([1.0, 0.0]), "b": f64([0.0, 0.0])}
    out.case("addcdiv/by_zero", zero, grads=[])
    for weight in 0.0, 0.25, 0.5, 1.0, 1.5, -0.5:
        out.case(f"lerp/weight{weight}", {"a": normal(2, 3), "b": normal(3)}, weight=weight)
    exact = {"a": f64([1e16, 1.0, 0.1]), "b": f64([1.0, 1e16, 0.3]), "weight": f64([1.0, 1.0, 0.0])}
    out.case("lerp/exact_ends", exact)
    out.error("lerp/shapes", "Shape", {"a": normal(2), "b": normal(3)}, weight=0.5)
