"""Layouts, casts, joins, clamps, selections, positions of extrema, dropout."""

import math

import torch

from common import F64, I32, INF, NAN, OPS, f64, i64, integers, label, mask, normal, of_x, positive, sweep, u8
from families.attention import kept


DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "u8": torch.uint8,
    "bool": torch.bool,
}


def cast(x, *, dtype):
    target = DTYPES[dtype]
    if not x.is_floating_point() or target.is_floating_point or target == torch.bool:
        return x.to(target)
    info = torch.iinfo(target)
    return torch.tensor([saturate(v, info) for v in x.flatten().tolist()], dtype=target).reshape(x.shape)


def saturate(value, info):
    if math.isnan(value):
        return 0
    if value >= info.max:
        return info.max
    return int(value) if value > info.min else info.min


def clamp(x, min=None, max=None):
    return torch.clamp(x, min, max)


def position(of, x, dim, keepdim, last):
    """The last of equal elements is the first from the end."""
    if x.dtype == torch.bool:
        x = x.to(torch.uint8)
    if not last:
        return of(x, dim, keepdim)
    if dim is None:
        return x.numel() - 1 - of(x.flip(tuple(range(x.dim()))), None, keepdim)
    return (x.shape[dim] if x.dim() else 1) - 1 - of(x.flip(dim) if x.dim() else x, dim, keepdim)


def argmax(x, *, dim=None, keepdim=False, last=None):
    return position(torch.argmax, x, dim, keepdim, last)


def argmin(x, *, dim=None, keepdim=False, last=None):
    return position(torch.argmin, x, dim, keepdim, last)


def dropout(x, *, p=0.5, training=True):
    """Only where no random number decides."""
    assert not training or p in (0.0, 1.0)
    return x * 0.0 if training and p == 1.0 else x * 1.0


def bias_dropout(x, bias, *, p=0.5, seed=0):
    y = x + bias
    return y * kept(y.shape, p, seed) / (1 - p) if 0.0 < p < 1.0 else y * (1 - p)


OPS |= {
    "t": of_x(lambda x: x.mT),
    "permute": ("x", lambda x, *, perm: x.permute(perm)),
    "copy": of_x(torch.clone),
    "contiguous": of_x(torch.clone),
    "full": ("", lambda *, shape, value, dtype=None: torch.full(shape, value, dtype=DTYPES[dtype or "f64"])),
    "arange": ("", lambda *, start, end, step, dtype=None: torch.arange(start, end, step, dtype=DTYPES[dtype or "i64"])),
    "linspace": ("", lambda *, start, end, steps, dtype=None: torch.linspace(start, end, steps, dtype=F64).to(DTYPES[dtype or "f32"])),
    "logspace": (
        "",
        lambda *, start, end, steps, base=10.0, dtype=None: (
            torch.logspace(start, end, steps, base, dtype=F64).to(DTYPES[dtype or "f32"])
        ),
    ),
    "cast": ("x", cast),
    "concat": ("x*", lambda *, dim, **xs: torch.cat(list(xs.values()), dim)),
    "broadcast_to": ("x", lambda x, *, shape: x.broadcast_to(shape)),
    "sum_to_size": ("x", lambda x, *, shape: x.sum_to_size(shape)),
    "clamp": ("x min max", clamp),
    "where_cond": ("a b", lambda cond, a, b: torch.where(cond, a, b)),
    "argmax": ("", argmax),
    "argmin": ("", argmin),
    "reshape": ("x", lambda x, *, shape: x.reshape(shape)),
    "transpose": ("x", lambda x, *, dim0, dim1: x.transpose(dim0, dim1)),
    "narrow": ("x", lambda x, *, dim, start, length: x.narrow(dim, start, length)),
    "dropout": ("x", dropout),
    "bias_dropout": ("x bias", bias_dropout),
}


def cases(out):
    layouts(out)
    casts(out)
    joins(out)
    clamps(out)
    selections(out)
    extremum_positions(out)
    dropouts(out)
    sequences(out)
    last_positions(out)


def layouts(out):
    sweep(out, "t", shapes=[(2, 3), (1, 5), (7, 1), (0, 3)])
    sweep(out, "t", shapes=[(2, 3, 4), (1, 1, 5), (2, 0, 3)])
    for shape, perm in [
        ((3,), [0]),
        ((2, 3), [1, 0]),
        ((2, 3, 4), [2, 0, 1]),
        ((2, 1, 3, 2), [3, 1, 0, 2]),
        ((2, 0, 3), [1, 2, 0]),
    ]:
        out.case(f"permute/{label(shape)}", {"x": normal(*shape)}, perm=perm)
    for op in "copy", "contiguous":
        sweep(out, op)
        out.case(f"{op}/special", {"x": f64([-0.0, NAN, INF, -INF, 5e-324])})
        out.case(f"{op}/integers", {"x": integers(2, 3, dtype=I32)})
        out.case(f"{op}/bools", {"x": mask([True, False])})
    for shape, to in [((2, 3), [3, 2]), ((6,), [2, -1]), ((2, 3, 2), [-1]), ((), [1, 1]), ((1, 1), []), ((2, 0), [0, 5])]:
        out.case(f"reshape/{label(shape)}_to_{label(to)}", {"x": normal(*shape)}, shape=to)
    for shape, a, b in [((2, 3), 0, 1), ((2, 3, 4), -1, 0), ((2, 1, 3, 2), 1, 2), ((3,), 0, 0), ((2, 0), 0, 1)]:
        out.case(f"transpose/{label(shape)}", {"x": normal(*shape)}, dim0=a, dim1=b)
    for shape, dim, start, length in [((7,), 0, 2, 3), ((2, 5), -1, 4, 1), ((3, 2, 2), 0, 0, 3), ((3, 2), 0, 3, 0)]:
        out.case(f"narrow/{label(shape)}_{start}_{length}", {"x": normal(*shape)}, dim=dim, start=start, length=length)
    out.error("permute/repeated", "Attr", {"x": normal(2, 3)}, perm=[0, 0])
    out.error("permute/short", "Attr", {"x": normal(2, 3)}, perm=[0])
    out.error("reshape/numel", "Shape", {"x": normal(2, 3)}, shape=[4])
    out.error("t/rank", "Shape", {"x": normal(3)})


def casts(out):
    reals = f64([0.0, -0.0, 0.1, -1.5, 2.5, 1 / 3, 2049.0, 65519.0, 65520.0, 6e-8, 1e-40, 3e38, 1e39, INF, -INF, NAN])
    for dtype in "f64", "f32", "f16", "bf16", "i32", "i64", "u8", "bool":
        out.case(f"cast/f64_to_{dtype}", {"x": reals}, grads=[], dtype=dtype)
        out.case(f"cast/i64_to_{dtype}", {"x": i64([0, 1, 2, 7, 100])}, dtype=dtype)
        out.case(f"cast/bool_to_{dtype}", {"x": mask([True, False])}, dtype=dtype)
    out.case("cast/f64_saturates_i32", {"x": f64([1e10, -1e10, 2147483647.9, -2147483648.9])}, dtype="i32")
    out.case("cast/f64_saturates_i64", {"x": f64([1e30, -1e30, 9.3e18])}, dtype="i64")
    for dtype in "f32", "f64":
        out.case(f"cast/gradient_{dtype}", {"x": normal(2, 3)}, dtype=dtype)
    for dtype in "f32", "f16", "bf16":
        out.case(f"cast/{dtype}_to_f64", {"x": cast_to(f64([1 / 3, -2.7, 1e-7, 60000.0, INF]), dtype)}, grads=[], dtype="f64")


def cast_to(x, dtype):
    return OPS["cast"][1](x, dtype=dtype)


def joins(out):
    for name, shapes, dim in [
        ("vectors", [(2,), (3,)], 0),
        ("rows", [(1, 3), (2, 3), (1, 3)], 0),
        ("columns", [(2, 3), (2, 1)], -1),
        ("rank4", [(2, 1, 3, 2), (2, 2, 3, 2)], 1),
        ("empty_member", [(2, 3), (0, 3)], 0),
        ("one", [(2, 3)], 1),
    ]:
        out.case(f"concat/{name}", {f"x{k}": normal(*shape) for k, shape in enumerate(shapes)}, dim=dim)
    out.case("concat/integers", {"x0": integers(2), "x1": integers(3)}, dim=0)
    broadcasts = [((), (2, 3)), ((3,), (2, 3)), ((2, 1), (2, 3)), ((1, 3, 1), (2, 2, 3, 4)), ((2, 3), (2, 3)), ((1,), (0,))]
    for small, big in broadcasts:
        for key in "", "expand_":
            out.case(f"broadcast_to/{key}{label(small)}_to_{label(big)}", {"x": normal(*small)}, shape=list(big))
        out.case(f"sum_to_size/{label(big)}_to_{label(small)}", {"x": normal(*big)}, shape=list(small))
    for shape, value in [((), 1.5), ((2, 3), -0.25), ((0, 2), 1.0)]:
        out.case(f"full/{label(shape)}", {}, shape=list(shape), value=value)
    out.case("full/integers", {}, shape=[3], value=-7, dtype="i64")
    out.error("concat/off_dim", "Shape", {"x0": normal(2, 3), "x1": normal(2, 4)}, dim=0)
    out.error("concat/mixed_dtypes", "Dtype", {"x0": normal(2), "x1": integers(2)}, dim=0)
    out.error("broadcast_to/mismatch", "Shape", {"x": normal(3)}, shape=[2, 4])
    out.error("sum_to_size/mismatch", "Shape", {"x": normal(2, 3)}, shape=[2])
    out.error("full/integer_range", "Attr", {}, shape=[2], value=300, dtype="u8")


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


def extremum_positions(out):
    for op in "argmax", "argmin":
        for shape, dim in [
            ((), None),
            ((), 0),
            ((7,), 0),
            ((2, 3), None),
            ((2, 3), 0),
            ((3, 1, 2), 1),
            ((2, 1, 3, 2), -2),
            ((0, 3), 1),
        ]:
            out.case(f"{op}/{label(shape)}_dim{'' if dim is None else dim}", {"x": normal(*shape)}, dim=dim)
        out.case(f"{op}/keepdim", {"x": normal(2, 3)}, dim=1, keepdim=True)
        ties = [[2.0, 3.0, 3.0, 1.0, 1.0], [4.0, 4.0, 4.0, 4.0, 4.0], [-INF, -INF, -INF, -INF, -INF], [1.0, NAN, 5.0, NAN, -INF]]
        out.case(f"{op}/ties", {"x": f64(ties)}, dim=1)
        out.case(f"{op}/ties_columns", {"x": f64(ties).t()}, dim=0)
        out.case(f"{op}/integers", {"x": i64([[3, 1, 3], [1, 1, 2]])}, dim=1)
        out.case(f"{op}/bools", {"x": mask([[True, False, True], [False, False, True]])}, dim=1)
        out.error(f"{op}/empty", "Value", {"x": normal(2, 0)}, dim=1)
        out.error(f"{op}/dim_out_of_range", "Attr", {"x": normal(2, 3)}, dim=2)


def dropouts(out):
    x = f64([[1.0, -2.0, 0.0], [3.5, 1e300, -0.25]])
    out.case("dropout/p0", {"x": x}, p=0.0)
    out.case("dropout/p1", {"x": x}, p=1.0)
    out.case("dropout/p1_special", {"x": f64([INF, NAN, 1.0])}, p=1.0)
    out.case("dropout/eval", {"x": x}, p=0.5, training=False)
    out.case("dropout/empty", {"x": normal(0, 3)}, p=0.0)
    out.error("dropout/above_1", "Attr", {"x": x}, p=1.5)
    out.error("dropout/below_0", "Attr", {"x": x}, p=-0.1)
    for shape in (3, 5), (2, 3, 8), (7,), (0, 3):
        inputs = {"x": normal(*shape), "bias": normal(shape[-1])}
        for p in 0.0, 0.25, 1.0:
            out.case(f"bias_dropout/{label(shape)}_p{p}", inputs, p=p, seed=0x0123456789ABCDEF)
    wrong = {"x": x, "bias": normal(2)}
    out.error("bias_dropout/bias", "Shape", wrong, p=0.5)
    out.error("bias_dropout/scalar", "Shape", {"x": normal(), "bias": normal()}, p=0.5)
    out.error("bias_dropout/above_1", "Attr", {"x": x, "bias": normal(3)}, p=1.5)
    out.error("bias_dropout/mixed_dtypes", "Dtype", {"x": x, "bias": normal(3).float()}, p=0.5)


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


def last_positions(out):
    ties = f64([[2.0, 3.0, 3.0, 1.0, 1.0], [4.0, 4.0, 4.0, 4.0, 4.0], [-INF, -INF, -INF, -INF, -INF], [1.0, NAN, 5.0, NAN, -INF]])
    for op in "argmax", "argmin":
        for dim in None, 0, 1, -2:
            out.case(f"{op}/last_{'all' if dim is None else dim}", {"x": ties}, dim=dim, last=True)
        out.case(f"{op}/last_integers", {"x": i64([[3, 1, 3], [1, 1, 2]])}, dim=1, keepdim=True, last=True)
        out.case(f"{op}/last_bools", {"x": mask([[True, False, True], [False, False, False]])}, dim=1, last=True)
        out.case(f"{op}/last_scalar", {"x": f64(2.0)}, last=True)
        out.error(f"{op}/last_empty", "Value", {"x": normal(2, 0)}, dim=1, last=True)
        out.case(f"{op}/u8", {"x": u8([[0, 255, 255], [7, 7, 1]])}, dim=1)
    out.case("clamp/u8", {"x": u8([0, 5, 200, 255])}, min=3, max=250)
    out.error("clamp/u8_range", "Attr", {"x": u8([0, 5])}, min=300, max=400)
