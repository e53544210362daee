"""Elements in another order, or several times; diagonals and triangles."""

import torch
import torch.nn.functional as F

from common import OPS, f64, i32, i64, label, mask, normal


OPS |= {
    "flip": ("x", lambda x, *, dims: torch.flip(x, dims)),
    "roll": ("x", lambda x, *, shift, dim: torch.roll(x, shift, dim)),
    "rot90": ("x", lambda x, *, turns=1, dims=(0, 1): torch.rot90(x, turns, dims)),
    "repeat": ("x", lambda x, *, counts: x.repeat(counts)),
    "repeat_interleave": ("x", lambda x, *, count, dim: torch.repeat_interleave(x, count, dim)),
    "movedim": ("x", lambda x, *, to, **source: torch.movedim(x, source["from"], to)),
    "chunk": ("x", lambda x, *, count, dim=0: torch.chunk(x, count, dim)),
    "windows": ("x", lambda x, *, dim, size, step: x.unfold(dim, size, step)),
    "split_with_sizes": ("x", lambda x, *, sizes, dim=0: torch.split(x, sizes, dim)),
    "tensor_split": ("x", lambda x, *, count, dim=0: torch.tensor_split(x, count, dim)),
    "unbind": ("x", lambda x, *, dim=0: torch.unbind(x, dim)),
    "masked_fill": ("x", lambda x, mask, *, value: x.masked_fill(mask, value)),
    "meshgrid": ("a b", lambda a, b: torch.meshgrid(a, b, indexing="ij")),
    "one_hot": ("", lambda x, *, classes: F.one_hot(x.long(), classes)),
    "diff": ("x", lambda x, *, dim=-1: torch.diff(x, dim=dim)),
    "diagonal": ("x", lambda x, *, offset=0: torch.diagonal(x, offset, -2, -1)),
    "diag_embed": ("x", lambda x, *, offset=0: torch.diag_embed(x, offset)),
    "diag": ("x", lambda x, *, offset=0: torch.diag(x, offset)),
    "trace": ("x", lambda x: torch.diagonal(x, 0, -2, -1).sum(-1)),
    "tril": ("x", lambda x, *, offset=0: torch.tril(x, offset)),
    "triu": ("x", lambda x, *, offset=0: torch.triu(x, offset)),
}


def cases(out):
    x = {"x": normal(2, 3, 4)}
    orders(out, x)
    copies(out, x)
    parts(out, x)
    matrices(out, x)
    overlapping(out)
    sizes(out, x)


def orders(out, x):
    for dims in [[0], [-1], [0, 2], [1, 0, 2], []]:
        out.case(f"flip/{label(dims)}", x, dims=dims)
    out.case("flip/integers", {"x": i64([1, 2, 3])}, dims=[0])
    out.case("flip/empty", {"x": normal(2, 0)}, dims=[0, 1])
    out.error("flip/twice", "Attr", x, dims=[0, -3])
    out.error("flip/out_of_range", "Attr", x, dims=[3])
    for shift, dim in [(1, 0), (-1, 2), (5, 1), (0, 1), (-9, -1)]:
        out.case(f"roll/{shift}_{dim}", x, shift=shift, dim=dim)
    out.case("roll/empty", {"x": normal(2, 0)}, shift=1, dim=1)
    out.error("roll/out_of_range", "Attr", x, shift=1, dim=3)
    for turns, dims in [(1, [0, 1]), (2, [0, 1]), (3, [1, 2]), (-1, [2, 0]), (4, [0, 1])]:
        out.case(f"rot90/{turns}_{label(dims)}", x, turns=turns, dims=dims)
    for source, to in [(0, 2), (2, 0), (-1, 1), (1, 1)]:
        out.case(f"movedim/{source}_{to}", x, **{"from": source, "to": to})


def copies(out, x):
    for counts in [[1, 1, 1], [2, 1, 3], [2, 2, 1, 1], [0, 1, 1]]:
        out.case(f"repeat/{label(counts)}", x, counts=counts)
    out.case("repeat/scalar", {"x": normal()}, counts=[3])
    out.error("repeat/few", "Attr", x, counts=[2, 2])
    for count, dim in [(2, 0), (3, -1), (1, 1), (0, 2)]:
        out.case(f"repeat_interleave/{count}_{dim}", x, count=count, dim=dim)
    out.case("masked_fill/broadcast", {"x": normal(2, 3), "mask": mask([True, False, True])}, value=-2.5)
    out.case("masked_fill/integers", {"x": i32([[1, 2], [3, 4]]), "mask": mask([[True], [False]])}, value=7)
    out.error("masked_fill/shape", "Shape", {"x": normal(2, 3), "mask": mask([True, False])}, value=0.0)
    out.error("masked_fill/dtype", "Dtype", {"x": normal(3), "mask": i64([1, 0, 1])}, value=0.0)
    out.case("meshgrid/pair", {"a": normal(3), "b": normal(2)})
    out.error("meshgrid/matrix", "Shape", {"a": normal(3, 1), "b": normal(2)})
    out.case("one_hot/matrix", {"x": i64([[0, 2], [1, 4]])}, classes=5)
    out.case("one_hot/i32", {"x": i32([3, 0])}, classes=4)
    out.error("one_hot/range", "Index", {"x": i64([0, 5])}, classes=5)
    out.error("one_hot/floats", "Dtype", {"x": normal(2)}, classes=5)


def parts(out, x):
    for count, dim in [(2, 2), (2, 1), (5, 2), (1, 0)]:
        out.case(f"chunk/{count}_{dim}", x, count=count, dim=dim)
    out.error("chunk/none", "Attr", x, count=0, dim=0)
    for dim in [0, 1, -1]:
        out.case(f"unbind/{dim}", x, dim=dim)
    out.error("unbind/scalar", "Shape", {"x": normal()}, dim=0)
    for dim in [0, 1, -1]:
        out.case(f"diff/{dim}", x, dim=dim)
    out.case("diff/one", {"x": normal(3, 1)}, dim=1)
    out.error("diff/scalar", "Shape", {"x": normal()}, dim=0)


def matrices(out, x):
    for offset in [0, 1, -1, 2, -4, 7]:
        out.case(f"diagonal/{offset}", x, offset=offset)
        out.case(f"tril/{offset}", x, offset=offset)
        out.case(f"triu/{offset}", x, offset=offset)
    for op in "diagonal", "tril", "triu", "trace":
        out.error(f"{op}/vector", "Shape", {"x": normal(3)})
    for offset in [0, 2, -1]:
        out.case(f"diag_embed/{offset}", {"x": normal(2, 3)}, offset=offset)
        out.case(f"diag/vector_{offset}", {"x": normal(3)}, offset=offset)
        out.case(f"diag/matrix_{offset}", {"x": normal(3, 4)}, offset=offset)
    out.error("diag/volume", "Shape", x)
    out.error("diag_embed/scalar", "Shape", {"x": normal()})
    for shape in [(3, 3), (2, 4), (2, 3, 2), (0, 0)]:
        out.case(f"trace/{label(shape)}", {"x": normal(*shape)})
    out.case("triu/nan_below", {"x": f64([[1.0, 2.0], [float("nan"), 3.0]])}, grads=[])


def overlapping(out):
    for extent, size, step in [(7, 3, 1), (7, 3, 2), (7, 3, 3), (7, 2, 4), (7, 7, 1), (7, 6, 1), (7, 5, 2), (9, 4, 2), (1, 1, 5)]:
        out.case(f"windows/{extent}_{size}_{step}", {"x": normal(extent)}, dim=0, size=size, step=step)
    x = {"x": normal(2, 5, 3)}
    for dim, size, step in [(0, 2, 1), (1, 3, 1), (1, 4, 1), (-2, 2, 2), (2, 2, 1), (-1, 1, 2)]:
        out.case(f"windows/volume_{dim}_{size}_{step}", x, dim=dim, size=size, step=step)
    out.case("windows/integers", {"x": i64([1, 2, 3, 4])}, dim=0, size=2, step=1)
    out.case("windows/bools", {"x": mask([True, False, False, True])}, dim=0, size=3, step=1)
    out.case("windows/empty", {"x": normal(0, 4)}, dim=1, size=2, step=1)
    out.error("windows/size_0", "Attr", x, dim=1, size=0, step=1)
    out.error("windows/step_0", "Attr", x, dim=1, size=2, step=0)
    out.error("windows/size_beyond", "Shape", x, dim=1, size=6, step=1)
    out.error("windows/dim_out_of_range", "Attr", x, dim=3, size=1, step=1)
    out.error("windows/scalar", "Shape", {"x": normal()}, dim=0, size=1, step=1)


def sizes(out, x):
    for of, dim in [([1, 3], 2), ([2, 0, 1], 1), ([2], 0), ([1, 1, 1, 1], -1)]:
        out.case(f"split_with_sizes/{label(of)}_{dim}", x, sizes=of, dim=dim)
    out.error("split_with_sizes/few", "Shape", x, sizes=[1, 2], dim=2)
    out.error("split_with_sizes/scalar", "Shape", {"x": normal()}, sizes=[1], dim=0)
    out.error("split_with_sizes/dim_out_of_range", "Attr", x, sizes=[2], dim=3)
    for count, dim in [(2, 2), (3, 2), (2, 1), (5, -2), (1, 0)]:
        out.case(f"tensor_split/{count}_{dim}", x, count=count, dim=dim)
    out.error("tensor_split/none", "Attr", x, count=0, dim=0)
    out.error("tensor_split/scalar", "Attr", {"x": normal()}, count=1, dim=0)
