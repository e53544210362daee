"""Several tensors as one."""

import torch

from common import OPS, integers, normal


OPS |= {
    "concat": ("x*", lambda *, dim, **xs: torch.cat(list(xs.values()), dim)),
    "stack": ("x*", lambda *, dim, **xs: torch.stack(list(xs.values()), dim)),
}


def cases(out):
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
    out.error("concat/off_dim", "Shape", {"x0": normal(2, 3), "x1": normal(2, 4)}, dim=0)
    out.error("concat/mixed_dtypes", "Dtype", {"x0": normal(2), "x1": integers(2)}, dim=0)
    for dim in [0, 1, -1]:
        out.case(f"stack/{dim}", {f"x{k}": normal(2, 3) for k in range(3)}, dim=dim)
