"""Pooling."""

import torch
import torch.nn.functional as F

from common import F64, INF, NAN, OPS, f64, i64, integers, label, normal, of_x


def per_dimension(of, n):
    return list(of) if isinstance(of, (list, tuple)) else [of] * n


def padded(x, n, padding, padding_end, value):
    """x with these paddings, for those that PyTorch's pools do not have."""
    ends = [end for pair in reversed(list(zip(per_dimension(padding, n), per_dimension(padding_end, n)))) for end in pair]
    return F.pad(x, ends, value=value)


def max_pool(n):
    pool = getattr(F, f"max_pool{n}d")

    def reference(x, *, kernel_size, stride=None, padding=0, padding_end=None, dilation=1, ceil_mode=False, return_indices=True):
        if padding_end is not None:
            places = padded(torch.arange(torch.Size(x.shape[-n:]).numel()).reshape(x.shape[-n:]).to(F64), n, padding, padding_end, -1)
            y, index = pool(padded(x, n, padding, padding_end, -INF), kernel_size, stride, 0, dilation, ceil_mode, return_indices=True)
            index = places.flatten()[index].long()
            return (y, index) if return_indices else y
        y, index = pool(x, kernel_size, stride, padding, dilation, ceil_mode, return_indices=True)
        return (y, index) if return_indices else y

    return reference


def avg_pool(n):
    pool = getattr(F, f"avg_pool{n}d")

    def reference(
        x, *, kernel_size, stride=None, padding=0, padding_end=None, dilation=1, ceil_mode=False, count_include_pad=True, divisor_override=None
    ):
        if padding_end is not None or dilation != 1:
            assert not ceil_mode and divisor_override is None
            end = padding if padding_end is None else padding_end
            return windowed_average(x, n, kernel_size, stride, padding, end, dilation, count_include_pad)
        # One dimension has no divisor of its own.
        if n == 1:
            two = [[1, k[0] if isinstance(k, list) else k] for k in (kernel_size, kernel_size if stride is None else stride)]
            two.append([0, padding[0] if isinstance(padding, list) else padding])
            y = F.avg_pool2d(x.unsqueeze(-2), *two, ceil_mode, count_include_pad, divisor_override)
            return y.squeeze(-2)
        return pool(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)

    return reference


def windowed_average(x, n, kernel_size, stride, padding, padding_end, dilation, count_include_pad):
    """A depthwise convolution with ones, over the number of elements."""
    kernel, stride = per_dimension(kernel_size, n), per_dimension(kernel_size if stride is None else stride, n)
    conv = getattr(F, f"conv{n}d")
    planes = x.reshape(-1, 1, *x.shape[-n:])
    ones = torch.ones(1, 1, *kernel, dtype=x.dtype)
    sums = conv(padded(planes, n, padding, padding_end, 0), ones, stride=stride, dilation=dilation)
    inside = torch.ones_like(planes)
    counts = conv(padded(inside, n, padding, padding_end, 1.0 if count_include_pad else 0.0), ones, stride=stride, dilation=dilation)
    return (sums / counts).reshape(*x.shape[:-n], *sums.shape[-n:])


def lp_pool(n):
    pool = getattr(F, f"lp_pool{n}d")
    return lambda x, *, norm_type, kernel_size, stride=None, ceil_mode=False: pool(x, norm_type, one(kernel_size, n), one(stride, n), ceil_mode)


def one(of, n):
    """PyTorch's one-dimensional norm takes a number."""
    return of[0] if n == 1 and of is not None else of


def max_unpool(n):
    def reference(x, indices, *, output_size):
        volume = torch.Size(output_size).numel()
        flat = torch.zeros(*x.shape[:-n], volume, dtype=x.dtype)
        y = flat.scatter(-1, indices.reshape(*x.shape[:-n], -1), x.reshape(*x.shape[:-n], -1))
        return y.reshape(*x.shape[:-n], *output_size)

    return reference


def adaptive_max_pool(n):
    pool = getattr(F, f"adaptive_max_pool{n}d")

    def reference(x, *, output_size, return_indices=True):
        y, index = pool(x, output_size, return_indices=True)
        return (y, index) if return_indices else y

    return reference


def adaptive_avg_pool(n):
    pool = getattr(F, f"adaptive_avg_pool{n}d")
    return lambda x, *, output_size: pool(x, output_size)


OPS |= {
    **{f"max_pool{n}d": ("x", max_pool(n)) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": ("x", avg_pool(n)) for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": ("x", adaptive_max_pool(n)) for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": ("x", adaptive_avg_pool(n)) for n in (1, 2, 3)},
    "global_max_pool2d": ("x", lambda x, *, return_indices=True: adaptive_max_pool(2)(x, output_size=[1, 1])),
    "global_avg_pool2d": of_x(lambda x: F.adaptive_avg_pool2d(x, 1)),
    "global_max_pool3d": ("x", lambda x, *, return_indices=True: adaptive_max_pool(3)(x, output_size=[1, 1, 1])),
    "global_avg_pool3d": of_x(lambda x: F.adaptive_avg_pool3d(x, 1)),
    **{f"lp_pool{n}d": ("x", lp_pool(n)) for n in (1, 2, 3)},
    **{f"max_unpool{n}d": ("x", max_unpool(n)) for n in (1, 2, 3)},
}


def cases(out):
    windows = {
        "k2": dict(kernel_size=2),
        "k3s2p1": dict(kernel_size=3, stride=2, padding=1),
        "k3s1p1_ceil": dict(kernel_size=3, stride=1, padding=1, ceil_mode=True),
        "k2s3_ceil": dict(kernel_size=2, stride=3, ceil_mode=True),
        "k3s2_ceil": dict(kernel_size=3, stride=2, ceil_mode=True),
        "k4s1p2": dict(kernel_size=4, stride=1, padding=2),
    }
    for n, shape in [(1, (2, 3, 7)), (2, (2, 3, 5, 7)), (2, (3, 6, 4)), (3, (2, 2, 4, 5, 6)), (3, (2, 4, 4, 5))]:
        x = {"x": normal(*shape)}
        for name, given in windows.items():
            out.case(f"max_pool{n}d/{label(shape)}_{name}", x, **given)
            out.case(f"avg_pool{n}d/{label(shape)}_{name}", x, **given)
            out.case(f"avg_pool{n}d/{label(shape)}_{name}_inside", x, count_include_pad=False, **given)
        out.case(f"max_pool{n}d/{label(shape)}_values", x, kernel_size=3, stride=2, padding=1, return_indices=False)
        out.case(f"max_pool{n}d/{label(shape)}_dilated", x, kernel_size=2, stride=1, padding=1, dilation=2)
        out.case(f"max_pool{n}d/{label(shape)}_dilated_values", x, kernel_size=2, stride=1, dilation=3, return_indices=False)
        out.case(f"avg_pool{n}d/{label(shape)}_divisor", x, kernel_size=3, stride=2, padding=1, divisor_override=5)
        out.case(f"avg_pool{n}d/{label(shape)}_minus", x, kernel_size=2, divisor_override=-2)
        sizes = [[1] * n, [2] * n, [3] * n, shape[-n:], [9] * n, [0] * n, [4] + [None] * (n - 1)]
        for size in sizes[: 6 if n == 1 else 7]:
            name = "x".join("keep" if s is None else str(s) for s in size)
            for op in [f"adaptive_max_pool{n}d", f"adaptive_avg_pool{n}d"]:
                if 0 in size and "max" in op:
                    continue
                # PyTorch has no gradient of nothing.
                out.case(f"{op}/{label(shape)}_{name}", x, grads=[] if 0 in size else None, output_size=list(size))
    uneven = {"x": normal(2, 3, 9, 8)}
    out.case("max_pool2d/uneven", uneven, kernel_size=[3, 2], stride=[1, 3], padding=[1, 0], dilation=[2, 1], ceil_mode=True)
    out.case("avg_pool2d/uneven", uneven, kernel_size=[3, 2], stride=[1, 3], padding=[1, 0], ceil_mode=True)
    empty = {"x": normal(0, 3, 4, 4)}
    ties, nans = {"x": f64([[[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0.0, 1.0]]])}, {"x": f64([[[NAN, 1.0], [2.0, NAN]]])}
    scattered = normal(1, 6, 6)
    scattered[0, 1, 2] = scattered[0, 2, 1] = scattered[0, 5, 5] = NAN
    scattered[0, 3, 3] = scattered[0, 0, 0] = INF
    lowest = {"x": torch.full((1, 5, 5), -INF, dtype=F64)}
    for name, given in [("max_pool2d", dict(kernel_size=2, stride=1)), ("global_max_pool2d", {}), ("adaptive_max_pool2d", dict(output_size=[2, 1]))]:
        out.case(f"{name}/empty", empty, **given)
        out.case(f"{name}/ties", ties, **given)
        out.case(f"{name}/nans", nans, **given)
        out.case(f"{name}/scattered_nans", {"x": scattered}, **given)
        out.case(f"{name}/lowest", lowest, **given)
        out.error(f"{name}/no_channels", "Shape", {"x": normal(2, 0, 4, 4)}, **given)
        out.error(f"{name}/no_rows", "Shape", {"x": normal(2, 3, 0, 4)}, **given)
        out.error(f"{name}/rank", "Shape", {"x": normal(4, 4)}, **given)
        out.error(f"{name}/integers", "Dtype", {"x": integers(1, 4, 4)}, **given)
    out.case("max_pool2d/lowest_padded", lowest, kernel_size=3, stride=2, padding=1)
    out.case("max_pool2d/nans_padded", {"x": scattered}, kernel_size=3, stride=2, padding=1)
    for name, given in [("avg_pool2d", dict(kernel_size=2)), ("global_avg_pool2d", {}), ("adaptive_avg_pool2d", dict(output_size=[2, 1]))]:
        out.case(f"{name}/empty", empty, **given)
        out.case(f"{name}/special", {"x": scattered}, grads=[], **given)
        out.error(f"{name}/no_channels", "Shape", {"x": normal(2, 0, 4, 4)}, **given)
        out.error(f"{name}/rank", "Shape", {"x": normal(4)}, **given)
        out.error(f"{name}/integers", "Dtype", {"x": integers(1, 4, 4)}, **given)
    out.case("global_avg_pool2d/2x3x5x7", {"x": normal(2, 3, 5, 7)})
    out.case("global_max_pool2d/2x3x5x7", {"x": normal(2, 3, 5, 7)})
    out.case("global_max_pool2d/3x4x4", {"x": normal(3, 4, 4)})
    x = {"x": normal(1, 4, 4)}
    for op in ["max_pool2d", "avg_pool2d"]:
        out.error(f"{op}/kernel_0", "Attr", x, kernel_size=[0, 2])
        out.error(f"{op}/stride_0", "Attr", x, kernel_size=2, stride=0)
        out.error(f"{op}/much_padding", "Attr", x, kernel_size=3, padding=2)
        out.error(f"{op}/no_window", "Shape", x, kernel_size=5)
    out.error("max_pool2d/dilation_0", "Attr", x, kernel_size=2, dilation=0)
    out.error("max_pool2d/dilated_padding", "Attr", x, kernel_size=2, dilation=2, padding=2)
    out.error("max_pool2d/hollow", "Shape", {"x": normal(1, 1, 1)}, kernel_size=2, dilation=2, padding=1)
    out.error("avg_pool2d/divisor_0", "Attr", x, kernel_size=2, divisor_override=0)
    table_pools(out)
    # Planes that no single thread looks through.
    large = integers(2, 3, 20, 33, low=0, high=40).to(F64)
    large[1, :, 3::7, 5::11] = NAN
    large[0, 1] = -INF
    for size in [(33,), (32,)]:
        out.case(f"global_max_pool2d/large_{size[0]}", {"x": large[..., : size[0]].clone()})
        out.case(f"global_avg_pool2d/large_{size[0]}", {"x": normal(2, 3, 20, *size)})
    out.case("max_pool2d/wide_window", {"x": large}, kernel_size=[17, 16], stride=2, padding=[8, 3], return_indices=False)
    out.case("adaptive_max_pool3d/large_1", {"x": large}, output_size=1)
    norms_and_places(out)
    uneven_ends(out)
    volumes(out)


def table_pools(out):
    counted = torch.arange(1, 26, dtype=F64).reshape(1, 5, 5)
    given = dict(kernel_size=3, stride=2, padding=1)
    cut = [[1.7777778, 3.6666667, 3.1111111], [7.6666667, 13, 9.6666667], [8.4444444, 13.666667, 9.7777778]]
    inside = [[4, 5.5, 7], [11.5, 13, 14.5], [19, 20.5, 22]]
    ones = [[0.44444444, 0.66666667, 0.33333333], [0.66666667, 1, 0.5], [0.33333333, 0.5, 0.25]]
    out.literal("avg_pool2d/table_ceil", {"x": counted}, [f64([cut])], {}, ceil_mode=True, **given)
    out.literal("avg_pool2d/table_inside", {"x": counted}, [f64([inside])], {}, count_include_pad=False, **given)
    out.literal("avg_pool2d/table_ones", {"x": torch.ones(1, 4, 4, dtype=F64)}, [f64([ones])], {}, ceil_mode=True, **given)
    adapted = [[4.5, 6.5], [12, 14], [19.5, 21.5]]
    out.literal("adaptive_avg_pool2d/table", {"x": counted}, [f64([adapted])], {}, output_size=[3, 2])
    zeros, first = torch.zeros(1, 6, 6, dtype=F64), i64([[[7, 8], [13, 14]]])
    out.literal("max_pool2d/table_dilated", {"x": zeros}, [zeros[:, :2, :2], first], {}, kernel_size=3, padding=1, dilation=2)
    nans = f64([[[NAN, 1.0], [2.0, NAN]]])
    assert OPS["max_pool2d"][1](nans, kernel_size=2)[1].item() == 3
    extents = [(5, 2, 2, 0, 1, 1, 3), (4, 2, 3, 1, 1, 1, 2), (6, 1, 4, 0, 1, 1, 2), (5, 3, 4, 1, 1, 1, 2), (3, 2, 2, 1, 1, 1, 2), (7, 3, 2, 1, 2, 1, 3)]
    for l, k, s, p, d, ceil, n in extents:
        x = normal(1, l)
        assert OPS["max_pool1d"][1](x, kernel_size=k, stride=s, padding=p, dilation=d, ceil_mode=bool(ceil))[0].shape == (1, n)
        out.case(f"max_pool1d/extent_{l}_{k}_{s}_{p}_{d}", {"x": x}, kernel_size=k, stride=s, padding=p, dilation=d, ceil_mode=bool(ceil))


def norms_and_places(out):
    for n, shape in [(1, (2, 2, 7)), (2, (2, 4, 5)), (3, (2, 3, 4, 3))]:
        x = {"x": normal(*shape).abs() + 0.1}
        for norm_type in 1.0, 2.0, 3.5:
            out.case(f"lp_pool{n}d/{norm_type}", x, norm_type=norm_type, kernel_size=[2] * n)
        out.case(f"lp_pool{n}d/strided", x, norm_type=2.0, kernel_size=[3] + [2] * (n - 1), stride=[1] * n)
        out.case(f"lp_pool{n}d/ceil", x, norm_type=2.0, kernel_size=[2] * n, ceil_mode=True)
        out.error(f"lp_pool{n}d/order", "Attr", x, norm_type=0.0, kernel_size=[2] * n)
        size = [2 * extent for extent in shape[-n:]]
        volume, planes = 1, shape[:-n]
        for extent in size:
            volume *= extent
        chosen = [torch.randperm(volume)[: torch.Size(shape[-n:]).numel()] for _ in range(torch.Size(planes).numel())]
        indices = torch.stack(chosen).reshape(shape)
        out.case(f"max_unpool{n}d/plain", {"x": normal(*shape), "indices": indices}, output_size=size)
        out.error(f"max_unpool{n}d/shape", "Shape", {"x": normal(*shape), "indices": indices[..., :1]}, output_size=size)
        out.error(f"max_unpool{n}d/range", "Index", {"x": normal(*shape), "indices": indices + volume}, output_size=size)


def uneven_ends(out):
    """Paddings that differ at the two ends, and averages with gaps: PyTorch pads first."""
    for n, shape in [(1, (2, 2, 7)), (2, (2, 5, 6)), (3, (1, 4, 5, 4))]:
        x = {"x": normal(*shape)}
        for name, options in {
            "end": dict(kernel_size=[3] * n, stride=[2] * n, padding=[0] * n, padding_end=[1] * n),
            "start": dict(kernel_size=[3] * n, stride=[1] * n, padding=[1] * n, padding_end=[0] * n),
            "gaps": dict(kernel_size=[2] * n, stride=[1] * n, padding=[1] * n, dilation=[2] * n),
        }.items():
            out.case(f"avg_pool{n}d/{name}", x, **options)
            out.case(f"avg_pool{n}d/{name}_inside", x, **options, count_include_pad=False)
            out.case(f"max_pool{n}d/{name}", x, **options, return_indices=True)
        out.error(f"avg_pool{n}d/wide_end", "Attr", x, kernel_size=[2] * n, padding_end=[2] * n)


def volumes(out):
    for shape in [(2, 3, 2, 3, 4), (3, 1, 1, 5)]:
        out.case(f"global_max_pool3d/{label(shape)}", {"x": normal(*shape)})
        out.case(f"global_avg_pool3d/{label(shape)}", {"x": normal(*shape)})
