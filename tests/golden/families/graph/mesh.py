"""Convolutions over meshes: gather and linear."""

import torch
import torch.nn.functional as F

from common import INF, NAN, OPS, f64, i32, i64, normal


def spiral_conv(x, spirals, w, b=None):
    """One row of the output after the other; an absent neighbour has no columns."""
    rows, slots = spirals.shape
    channels = x.shape[-1]
    parts = w.reshape(w.shape[0], slots, channels)
    y = []
    for listed in spirals.tolist():
        there = [s for s, neighbor in enumerate(listed) if neighbor >= 0]
        features = x[..., [listed[s] for s in there], :].flatten(-2)
        y.append(F.linear(features, parts[:, there].flatten(1), b))
    return torch.stack(y, -2) if rows else x.new_zeros(*x.shape[:-1], w.shape[0])


def mesh_conv(x, neighbors, w, b=None):
    own = torch.arange(len(neighbors))[:, None]
    return spiral_conv(x, torch.cat([own, neighbors.long()], 1), w, b)


OPS |= {"mesh_conv": ("x w b", mesh_conv), "spiral_conv": ("x w b", spiral_conv)}


def cases(out):
    # A tetrahedron's edges: 0-1, 0-2, 0-3, 1-2, 1-3, 2-3.
    closed = i64([[1, 3, 2, 4], [0, 3, 2, 5], [0, 4, 1, 5], [0, 1, 4, 5], [0, 2, 3, 5], [1, 2, 3, 4]])
    # Two triangles, whose other edges are boundaries.
    open_ = i64([[1, 2, 3, 4], [2, 0, -1, -1], [0, 1, -1, -1], [4, 0, -1, -1], [0, 3, -1, -1]])
    repeated = i64([[0, 0, 1], [1, 0, 0], [-1, -1, -1]])
    tables = {"closed": closed, "open": open_, "repeated": repeated, "i32": open_.to(torch.int32), "none": i64([[], []])}
    for op, table, own in ("mesh_conv", "neighbors", 1), ("spiral_conv", "spirals", 0):
        for name, given in tables.items():
            rows, listed = given.shape
            own_weight = normal(4, (own + listed) * 3)
            inputs = {"x": normal(rows, 3), table: given, "w": own_weight}
            out.case(f"{op}/{name}", inputs)
            out.case(f"{op}/{name}_bias", inputs | {"b": normal(4)})
            out.case(f"{op}/{name}_samples", inputs | {"x": normal(2, rows, 3), "b": normal(4)})
        out.case(f"{op}/no_rows", {"x": normal(0, 3), table: closed[:0], "w": normal(4, (own + 4) * 3)}, grads=("x",))
        infinite = {"x": normal(5, 2), table: open_, "w": normal(3, (own + 4) * 2)}
        infinite["w"][0, -1], infinite["w"][1, 2 * own], infinite["w"][2, -2] = INF, -INF, NAN
        out.case(f"{op}/infinite_weight", infinite, grads=("x",))
        special = infinite | {"x": f64([[INF, 1.0], [0.5, NAN], [2.0, 3.0], [-INF, 0.0], [1.0, -1.0]])}
        out.case(f"{op}/special", special | {"w": normal(3, (own + 4) * 2)}, grads=())
        errors(out, op, table, own)


def errors(out, op, table, own):
    right = {"x": normal(3, 2), table: i64([[1, -1], [0, 2], [1, 0]]), "w": normal(4, (own + 2) * 2)}
    out.error(f"{op}/too_large", "Index", right | {table: i64([[1, -1], [0, 3], [1, 0]])})
    out.error(f"{op}/negative", "Index", right | {table: i64([[1, -1], [0, 2], [-2, 0]])})
    out.error(f"{op}/negative_i32", "Index", right | {table: i32([[1, -1], [0, 2], [-2, 0]])})
    out.error(f"{op}/table_rows", "Shape", right | {table: i64([[1, -1], [0, 1]])})
    out.error(f"{op}/table_rank", "Shape", right | {table: i64([1, -1, 0])})
    out.error(f"{op}/weight", "Shape", right | {"w": normal(4, (own + 3) * 2)})
    out.error(f"{op}/weight_rank", "Shape", right | {"w": normal(4)})
    out.error(f"{op}/bias", "Shape", right | {"b": normal(3)})
    out.error(f"{op}/rank", "Shape", right | {"x": normal(2)})
    out.error(f"{op}/float_table", "Dtype", right | {table: f64([[1.0, -1.0], [0.0, 2.0], [1.0, 0.0]])})
    out.error(f"{op}/integers", "Dtype", right | {"x": i64([[1, 2], [3, 4], [5, 6]])})
