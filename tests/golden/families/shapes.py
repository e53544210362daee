"""Changes of shape, logic, global pools of volumes."""

import torch
import torch.nn.functional as F

from common import INF, NAN, OPS, f64, label, mask, normal, of_a_b, of_x
from families.image.pooling import adaptive_max_pool


OPS |= {
    "flatten": ("x", lambda x, *, first=0, last=-1: torch.flatten(x, first, last)),
    "slice": ("x", lambda x, *, dim, start, stop, step: x[(slice(None),) * (dim % x.dim()) + (slice(start, stop, step),)]),
    "split": ("x", lambda x, *, size, dim: torch.split(x, size, dim)),
    "squeeze": ("x", lambda x, *, dim: torch.squeeze(x, dim)),
    "unsqueeze": ("x", lambda x, *, dim: torch.unsqueeze(x, dim)),
    "stack": ("x*", lambda *, dim, **xs: torch.stack(list(xs.values()), dim)),
    "logical_not": ("", lambda x: torch.logical_not(x)),
    "logical_and": of_a_b(torch.logical_and, ""),
    "logical_or": of_a_b(torch.logical_or, ""),
    "nonzero": ("", lambda x: torch.nonzero(x, as_tuple=True)),
    "not_finite": ("", lambda x: ~torch.isfinite(x)),
    "global_max_pool3d": ("x", lambda x, *, return_indices=True: adaptive_max_pool(3)(x, output_size=[1, 1, 1])),
    "global_avg_pool3d": of_x(lambda x: F.adaptive_avg_pool3d(x, 1)),
}


def cases(out):
    x = {"x": normal(2, 3, 1, 4)}
    for first, last in [(0, -1), (1, 2), (-2, -1), (2, 2)]:
        out.case(f"flatten/{first}_{last}", x, first=first, last=last)
    for dim, start, stop, step in [(0, 0, 2, 1), (1, 1, 3, 1), (3, 0, 4, 3), (-1, 1, 4, 2), (1, 2, 2, 1)]:
        out.case(f"slice/{dim}_{start}_{stop}_{step}", x, dim=dim, start=start, stop=stop, step=step)
    for size, dim in [(2, 1), (1, 0), (3, -1), (9, 3)]:
        out.case(f"split/{size}_{dim}", x, size=size, dim=dim)
    for dim in [2, -2]:
        out.case(f"squeeze/{dim}", x, dim=dim)
    out.error("squeeze/0", "Shape", x, dim=0)
    for dim in [0, 2, -1, 4]:
        out.case(f"unsqueeze/{dim}", x, dim=dim)
    for dim in [0, 1, -1]:
        out.case(f"stack/{dim}", {f"x{k}": normal(2, 3) for k in range(3)}, dim=dim)
    a, b = mask([[True, False, True], [False, False, True]]), mask([[True], [False]])
    out.case("logical_not/mask", {"x": a})
    out.case("logical_and/broadcast", {"a": a, "b": b})
    out.case("logical_or/broadcast", {"a": a, "b": b})
    out.case("nonzero/mask", {"x": a})
    out.case("nonzero/none", {"x": mask([False, False])})
    out.case("not_finite/special", {"x": f64([0.0, -0.0, 1e308, -1e308, INF, -INF, NAN, 5e-324])})
    for shape in [(2, 3, 2, 3, 4), (3, 1, 1, 5)]:
        out.case(f"global_max_pool3d/{label(shape)}", {"x": normal(*shape)})
        out.case(f"global_avg_pool3d/{label(shape)}", {"x": normal(*shape)})
