"""Interpolation, and other orders of pixels and channels."""

import math

import torch
import torch.nn.functional as F

from common import INF, OPS, f64, integers, normal


def interpolate(x, *, size=None, scale_factor=None, mode="nearest", align_corners=None, antialias=None, policy=None, cubic_a=None, excludes_outside=None):
    if policy or cubic_a or excludes_outside:
        return interpolate_of_onnx(x, size, scale_factor, mode, policy, -0.75 if cubic_a is None else cubic_a, excludes_outside)
    size, scale_factor = [None if v is None else tuple(v) for v in (size, scale_factor)]
    is_sample = x.dim() == len(size or scale_factor) + 1
    x = x.unsqueeze(0) if is_sample else x
    y = F.interpolate(x, size, scale_factor, mode, align_corners, antialias=bool(antialias))
    return y.squeeze(0) if is_sample else y


def interpolate_of_onnx(x, size, scale_factor, mode, policy, a, excludes_outside):
    """What ONNX's Resize has beyond PyTorch, by its description (version 19): a product with a matrix for each dimension."""
    dims = len(size or scale_factor)
    extents = x.shape[-dims:]
    factors = list(scale_factor) if scale_factor else [s / e for s, e in zip(size, extents)]
    if policy in ("not_larger", "not_smaller"):
        factors = [(min if policy == "not_larger" else max)(factors)] * dims
        size = [math.floor(f * e + 0.5) for f, e in zip(factors, extents)]
    size = size or [math.floor(f * e) for f, e in zip(factors, extents)]
    for d in range(dims):
        matrix = torch.zeros(size[d], extents[d], dtype=x.dtype)
        for o in range(size[d]):
            center = (o + 0.5) / factors[d] - 0.5
            below, last = math.floor(center), extents[d] - 1
            taps = {below + i: weight_of(mode, a, abs(center - below - i)) for i in range(-1, 3)}
            if mode == "nearest":
                taps = {min(last, math.floor(o / factors[d])): 1.0}
            if excludes_outside:
                taps = {i: w for i, w in taps.items() if 0 <= i <= last}
                taps = {i: w / sum(taps.values()) for i, w in taps.items()}
            for i, w in taps.items():
                matrix[o, max(0, min(last, i))] += w
        x = torch.tensordot(x, matrix, dims=([x.dim() - dims + d], [1])).movedim(-1, x.dim() - dims + d)
    return x


def weight_of(mode, a, t):
    if mode != "bicubic":
        return max(0.0, 1.0 - t)
    return (a + 2) * t**3 - (a + 3) * t**2 + 1 if t <= 1 else a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0


def grid_sample(x, grid, *, mode="bilinear", padding_mode="zeros", align_corners=False):
    return F.grid_sample(x, grid, mode, padding_mode, align_corners)


def affine_grid(theta, *, size, align_corners=False):
    return F.affine_grid(theta, [theta.shape[0], 1, *size], align_corners)


OPS |= {
    "interpolate": ("x", interpolate),
    "upsample3d_nearest": ("x", interpolate),
    "pixel_shuffle": ("x", lambda x, *, upscale_factor: F.pixel_shuffle(x, upscale_factor)),
    "pixel_unshuffle": ("x", lambda x, *, downscale_factor: F.pixel_unshuffle(x, downscale_factor)),
    "channel_shuffle": ("x", lambda x, *, groups: torch.channel_shuffle(x, groups)),
    "grid_sample": ("x grid", grid_sample),
    "affine_grid": ("theta", affine_grid),
}


def cases(out):
    interpolations(out)
    nearest(out)
    shuffles(out)
    grids(out)
    filters(out)
    of_onnx(out)


LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def interpolations(out):
    for n, shape in [(1, (2, 3, 5)), (2, (1, 2, 4, 3)), (3, (1, 1, 3, 2, 4))]:
        x = {"x": normal(*shape)}
        larger, smaller = [2 * l + 1 for l in shape[-n:]], [max(1, l - 1) for l in shape[-n:]]
        modes = ["nearest", "nearest-exact", LINEAR[n], "area"] + (["bicubic"] if n == 2 else [])
        for mode in modes:
            name = f"interpolate/{mode}_{n}d"
            out.case(f"{name}_larger", x, size=larger, mode=mode)
            out.case(f"{name}_smaller", x, size=smaller, mode=mode)
            out.case(f"{name}_one", x, size=[1] * n, mode=mode)
            out.case(f"{name}_factor", x, scale_factor=[2.0] * (n - 1) + [1.5], mode=mode)
            if mode in (LINEAR[n], "bicubic"):
                out.case(f"{name}_corners", x, size=larger, mode=mode, align_corners=True)
                out.case(f"{name}_corners_one", x, size=[1] * n, mode=mode, align_corners=True)
                out.case(f"{name}_corners_factor", x, scale_factor=[1.5] * n, mode=mode, align_corners=True)
    x = {"x": normal(1, 2, 5, 7)}
    for mode in ["nearest", "nearest-exact", "bilinear", "bicubic"]:
        # The factor is not the ratio of the extents.
        out.case(f"interpolate/{mode}_2d_uneven", x, scale_factor=[1.7, 0.6], mode=mode)
        out.case(f"interpolate/{mode}_2d_same", x, size=[5, 7], mode=mode)
        # PyTorch's gradient of a bicubic interpolation ignores the factor where the extents stay the same; its result does not.
        grads = [] if mode == "bicubic" else None
        out.case(f"interpolate/{mode}_2d_factor_same", x, scale_factor=[1.1, 1.0], mode=mode, grads=grads)
        out.case(f"interpolate/{mode}_2d_single", {"x": normal(1, 2, 1, 1)}, size=[3, 2], mode=mode)
        out.case(f"interpolate/{mode}_2d_sample", {"x": normal(2, 3, 4)}, size=[4, 2], mode=mode)
        out.case(f"interpolate/{mode}_2d_no_batch", {"x": normal(0, 2, 3, 4)}, size=[4, 2], mode=mode, grads=[])
    image = {"x": normal(1, 2, 3, 4)}
    out.error("interpolate/corners_of_nearest", "Attr", image, size=[4, 4], align_corners=True)
    out.error("interpolate/bicubic_1d", "Attr", {"x": normal(1, 2, 3)}, size=[4], mode="bicubic")
    out.error("interpolate/size_0", "Shape", image, size=[4, 0])
    out.error("interpolate/factor_to_0", "Shape", image, scale_factor=[1.0, 0.2])
    out.error("interpolate/factor_0", "Attr", image, scale_factor=[1.0, 0.0])
    out.error("interpolate/of_nothing", "Shape", {"x": normal(1, 2, 0, 4)}, size=[4, 4])
    out.error("interpolate/rank", "Shape", {"x": normal(3, 4)}, size=[4, 4])
    out.error("interpolate/integers", "Dtype", {"x": integers(1, 2, 3, 4)}, size=[4, 4])


def nearest(out):
    x = {"x": normal(2, 2, 2, 3, 2)}
    out.case("upsample3d_nearest/factors", x, scale_factor=[2.0, 1.0, 3.0])
    out.case("upsample3d_nearest/size", x, size=[3, 7, 5])
    out.case("upsample3d_nearest/sample", {"x": normal(2, 2, 3, 2)}, scale_factor=[2.0, 2.0, 2.0])
    counted = torch.arange(3, dtype=torch.float64).reshape(1, 1, 1, 1, 3)
    table = f64([[[[[0.0, 0.0, 1.0, 1.0, 2.0]]]]])
    out.literal("upsample3d_nearest/rounded_down", {"x": counted}, [table], {"x": f64([[[[[2.0, 2.0, 1.0]]]]])}, size=[1, 1, 5])


def shuffles(out):
    out.case("pixel_shuffle/2", {"x": normal(2, 8, 3, 2)}, upscale_factor=2)
    out.case("pixel_shuffle/3_sample", {"x": normal(9, 2, 1)}, upscale_factor=3)
    out.case("pixel_shuffle/more", {"x": normal(2, 1, 4, 2, 2)}, upscale_factor=2)
    out.case("pixel_unshuffle/2", {"x": normal(2, 3, 4, 2)}, downscale_factor=2)
    out.case("pixel_unshuffle/3_sample", {"x": normal(2, 3, 6)}, downscale_factor=3)
    out.case("channel_shuffle/2", {"x": normal(2, 6, 2, 3)}, groups=2)
    out.case("channel_shuffle/3", {"x": normal(1, 6, 2, 1)}, groups=3)
    out.error("pixel_shuffle/channels", "Shape", {"x": normal(1, 6, 2, 2)}, upscale_factor=2)
    out.error("pixel_shuffle/factor_0", "Attr", {"x": normal(1, 4, 2, 2)}, upscale_factor=0)
    out.error("pixel_shuffle/rank", "Shape", {"x": normal(4, 2)}, upscale_factor=2)
    out.error("pixel_unshuffle/extent", "Shape", {"x": normal(1, 4, 2, 3)}, downscale_factor=2)
    out.error("channel_shuffle/channels", "Shape", {"x": normal(1, 5, 2, 3)}, groups=2)
    out.error("channel_shuffle/groups_0", "Attr", {"x": normal(1, 4, 2, 3)}, groups=0)
    out.error("channel_shuffle/rank", "Shape", {"x": normal(4)}, groups=2)


def grids(out):
    image, volume = normal(2, 3, 4, 5), normal(1, 2, 3, 4, 2)
    points, deep = 1.3 * normal(2, 3, 2, 2), 1.3 * normal(1, 2, 2, 3, 3)
    for padding_mode in "zeros", "border", "reflection":
        for align_corners in False, True:
            options = {"padding_mode": padding_mode, "align_corners": align_corners}
            key = f"{padding_mode}_{'corners' if align_corners else 'edges'}"
            for mode in "bilinear", "nearest", "bicubic":
                out.case(f"grid_sample/{mode}_{key}", {"x": image, "grid": points}, mode=mode, **options)
            for mode in "bilinear", "nearest":
                out.case(f"grid_sample/volume_{mode}_{key}", {"x": volume, "grid": deep}, mode=mode, **options)
    one = {"x": normal(1, 1, 1, 1), "grid": f64([[[[0.25, -0.5], [2.0, 0.0]]]])}
    for padding_mode in "zeros", "border", "reflection":
        out.case(f"grid_sample/one_{padding_mode}", one, padding_mode=padding_mode, grads=["x"])
    out.case("grid_sample/no_points", {"x": image, "grid": points[:, :0]})
    out.error("grid_sample/batch", "Shape", {"x": image, "grid": points[:1]})
    out.error("grid_sample/coordinates", "Shape", {"x": image, "grid": points[..., :1]})
    out.error("grid_sample/cubic_volume", "Attr", {"x": volume, "grid": deep}, mode="bicubic")
    for align_corners in False, True:
        key = "corners" if align_corners else "edges"
        out.case(f"affine_grid/image_{key}", {"theta": normal(2, 2, 3)}, size=[3, 4], align_corners=align_corners)
        out.case(f"affine_grid/one_{key}", {"theta": normal(1, 2, 3)}, size=[1, 2], align_corners=align_corners)
        out.case(f"affine_grid/volume_{key}", {"theta": normal(1, 3, 4)}, size=[2, 3, 2], align_corners=align_corners)
    out.error("affine_grid/shape", "Shape", {"theta": normal(2, 2, 2)}, size=[3, 4])


def filters(out):
    x = {"x": normal(1, 2, 7, 9)}
    for mode in "bilinear", "bicubic":
        name = f"interpolate/antialias_{mode}"
        for key, size in ("smaller", [3, 2]), ("larger", [9, 13]), ("one", [1, 1]), ("mixed", [11, 4]), ("same", [7, 9]):
            out.case(f"{name}_{key}", x, size=size, mode=mode, antialias=True)
        out.case(f"{name}_factor", x, scale_factor=[0.4, 1.7], mode=mode, antialias=True)
        # PyTorch's result ignores the factor where the extents stay the same; its gradient does not.
        out.case(f"{name}_factor_same", x, scale_factor=[1.1, 1.0], mode=mode, antialias=True, grads=[])
        out.case(f"{name}_sample", {"x": normal(2, 6, 5)}, size=[2, 3], mode=mode, antialias=True)
        out.case(f"{name}_no_batch", {"x": normal(0, 2, 6, 5)}, size=[2, 3], mode=mode, antialias=True, grads=[])
    infinite = {"x": f64([[[[INF, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -INF]]]])}
    out.case("interpolate/antialias_infinite", infinite, size=[1, 3], mode="bilinear", antialias=True)
    out.error("interpolate/antialias_of_nearest", "Attr", x, size=[3, 2], antialias=True)
    out.error("interpolate/antialias_corners", "Attr", x, size=[3, 2], mode="bilinear", align_corners=True, antialias=True)


def of_onnx(out):
    x = {"x": normal(1, 2, 5, 7)}
    for mode in "nearest", "bilinear", "bicubic":
        for policy in "not_larger", "not_smaller":
            out.case(f"interpolate/{policy}_{mode}", x, size=[8, 9], mode=mode, policy=policy)
            out.case(f"interpolate/{policy}_{mode}_smaller", x, size=[4, 3], mode=mode, policy=policy)
    for key, size in ("larger", [9, 11]), ("smaller", [3, 4]):
        out.case(f"interpolate/cubic_a_{key}", x, size=size, mode="bicubic", cubic_a=-0.5)
        out.case(f"interpolate/inside_{key}", x, size=size, mode="bicubic", excludes_outside=True)
        out.case(f"interpolate/inside_cubic_a_{key}", x, size=size, mode="bicubic", excludes_outside=True, cubic_a=-0.6)
    out.error("interpolate/cubic_a_of_linear", "Attr", x, size=[3, 2], mode="bilinear", cubic_a=-0.5)
    out.error("interpolate/inside_of_linear", "Attr", x, size=[3, 2], mode="bilinear", excludes_outside=True)
    out.error("interpolate/not_larger_than_0", "Shape", x, size=[8, 0], mode="bilinear", policy="not_larger")
