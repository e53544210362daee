"""Several arithmetic steps as one function of each element."""

import torch

from common import F32, INF, NAN, OPS, f64, i64, integers, label, mask, normal, positive, sweep, u8


def lerp(a, b, weight):
    return torch.lerp(a, b, weight)


def clamp(x, min=None, max=None):
    return torch.clamp(x, min, max)


OPS |= {
    "clamp": ("x min max", clamp),
    "where_cond": ("a b", lambda cond, a, b: torch.where(cond, a, b)),
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
    clamps(out)
    selections(out)


def clamps(out):
    bounds = {"both": {"min": -0.5, "max": 0.5}, "min": {"min": 0.25}, "max": {"max": 0.25}, "crossed": {"min": 1.0, "max": -1.0}}
    for name, attributes in bounds.items():
        sweep(out, "clamp", f"{name}_", shapes=[(), (7,), (2, 1, 3, 2), (2, 0)], **attributes)
    out.case("clamp/inclusive", {"x": f64([-1.0, -0.5, -0.0, 0.5, 1.0, INF, -INF, NAN])}, min=-0.5, max=0.5)
    out.case("clamp/integers", {"x": i64([-5, 0, 5])}, min=-2, max=3)
    low, high = -positive(2, 3), positive(2, 3)
    out.case("clamp/tensors", {"x": 2 * normal(2, 3), "min": low, "max": high})
    out.case("clamp/tensors_broadcast", {"x": 2 * normal(2, 3), "min": low[0], "max": high[:, :1]})
    out.case("clamp/tensor_min", {"x": normal(2, 3), "min": low})
    out.case("clamp/tensor_max", {"x": normal(2, 3), "max": high})
    special = {"x": f64([NAN, 1.0, 2.0, 3.0]), "min": f64([0.0, NAN, 0.0, 5.0]), "max": f64([1.0, 2.0, NAN, 4.0])}
    out.case("clamp/tensors_special", special, grads=[])
    out.error("clamp/no_bounds", "Attr", {"x": normal(3)})
    out.case("clamp/u8", {"x": u8([0, 5, 200, 255])}, min=3, max=250)
    out.error("clamp/u8_range", "Attr", {"x": u8([0, 5])}, min=300, max=400)


def selections(out):
    for c, a, b in [
        ((), (), ()),
        ((7,), (7,), (7,)),
        ((2, 3), (3,), (2, 1)),
        ((3, 1), (1, 2), ()),
        ((2, 1, 1, 2), (3, 1), (2, 1, 3, 2)),
        ((0,), (0,), (1,)),
    ]:
        inputs = {"cond": integers(*c, low=0, high=2).bool(), "a": normal(*a), "b": normal(*b)}
        out.case(f"where_cond/{label(c)}_{label(a)}_{label(b)}", inputs)
    cond = mask([True, False, True, False])
    out.case("where_cond/no_leak", {"cond": cond, "a": f64([1.0, NAN, INF, INF]), "b": f64([NAN, 2.0, NAN, -0.0])})
    out.case("where_cond/integers", {"cond": cond, "a": integers(4), "b": integers(4)})
    out.error("where_cond/cond_dtype", "Dtype", {"cond": i64([1, 0]), "a": normal(2), "b": normal(2)})
    out.error("where_cond/shapes", "Shape", {"cond": mask([True, False]), "a": normal(3), "b": normal(3)})
    out.error("where_cond/mixed_dtypes", "Dtype", {"cond": mask([True, False]), "a": normal(2), "b": integers(2)})
