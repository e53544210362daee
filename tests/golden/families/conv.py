"""Convolution, and windows as columns."""

import torch
import torch.nn.functional as F
import torchvision

from common import OPS, f64, integers, label, normal


def conv(n):
    function = getattr(F, f"conv{n}d")

    def reference(x, w, b=None, *, stride=1, padding=0, dilation=1, groups=1):
        if isinstance(padding, list) and isinstance(padding[0], list):
            # PyTorch pads the last dimension first.
            x, padding = F.pad(x, [p for ends in reversed(padding) for p in ends]), 0
        return function(x, w, b, stride, padding, dilation, groups)

    return reference


def conv_transpose(n):
    function = getattr(F, f"conv_transpose{n}d")

    def reference(x, w, b=None, *, stride=1, padding=0, output_padding=0, dilation=1, groups=1):
        return function(x, w, b, stride, padding, output_padding, groups, dilation)

    return reference


def deform_conv2d(x, offset, w, mask=None, b=None, *, stride=1, padding=0, dilation=1, groups=1):
    is_sample = x.dim() == 3
    x, offset, mask = [t.unsqueeze(0) if is_sample and t is not None else t for t in (x, offset, mask)]
    y = torchvision.ops.deform_conv2d(x, offset, w, b, stride, padding, dilation, mask)
    return y.squeeze(0) if is_sample else y


OPS |= {
    "deform_conv2d": ("x offset w mask b", deform_conv2d),
    **{f"conv{n}d": ("x w b", conv(n)) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": ("x w b", conv_transpose(n)) for n in (1, 2, 3)},
    "unfold": ("x", lambda x, *, kernel_size, dilation=1, padding=0, stride=1: F.unfold(x, kernel_size, dilation, padding, stride)),
    "fold": (
        "x",
        lambda x, *, output_size, kernel_size, dilation=1, padding=0, stride=1: F.fold(
            x, output_size, kernel_size, dilation, padding, stride
        ),
    ),
}


def operands(x, w, bias=None):
    given = {"x": normal(*x), "w": normal(*w)}
    return given if bias is None else given | {"b": normal(bias)}


def cases(out):
    plain = {
        "plain": {},
        "stride": dict(stride=2),
        "padding": dict(padding=1),
        "dilation": dict(dilation=2, padding=2),
        "all": dict(stride=2, padding=1, dilation=2),
    }
    for n, last, kernel in [(1, (9,), (3,)), (2, (7, 6), (3, 2)), (3, (5, 4, 6), (2, 3, 1))]:
        for name, given in plain.items():
            out.case(f"conv{n}d/{name}", operands((2, 3, *last), (4, 3, *kernel), 4), **given)
            out.case(f"conv_transpose{n}d/{name}", operands((2, 3, *last), (3, 4, *kernel), 4), **given)
        out.case(f"conv{n}d/no_bias", operands((2, 3, *last), (4, 3, *kernel)))
        out.case(f"conv{n}d/sample", operands((3, *last), (4, 3, *kernel), 4))
        out.case(f"conv{n}d/groups", operands((2, 4, *last), (6, 2, *kernel), 6), groups=2)
        out.case(f"conv{n}d/depthwise", operands((2, 3, *last), (6, 1, *kernel), 6), groups=3, padding=1)
        out.case(f"conv{n}d/same", operands((2, 3, *last), (4, 3, *[k + 1 for k in kernel])), padding="same", dilation=2)
        out.case(f"conv{n}d/valid", operands((2, 3, *last), (4, 3, *kernel)), padding="valid")
        out.case(f"conv{n}d/ends", operands((2, 3, *last), (4, 3, *kernel)), padding=[[2, 1]] * n, stride=2)
        out.case(f"conv{n}d/pointwise", operands((2, 3, *last), (4, 3, *[1] * n), 4))
        out.case(f"conv{n}d/sparse", operands((2, 3, *last), (4, 3, *[1] * n), 4), stride=3)
        out.case(f"conv_transpose{n}d/no_bias", operands((2, 3, *last), (3, 4, *kernel)))
        out.case(f"conv_transpose{n}d/sample", operands((3, *last), (3, 4, *kernel), 4))
        out.case(f"conv_transpose{n}d/groups", operands((2, 4, *last), (4, 3, *kernel), 6), groups=2, stride=2)
        out.case(f"conv_transpose{n}d/depthwise", operands((2, 3, *last), (3, 2, *kernel), 6), groups=3)
        out.case(f"conv_transpose{n}d/output_padding", operands((2, 3, *last), (3, 4, *kernel), 4), stride=3, padding=1, output_padding=2)
        # As much as the plain convolution would have another window for.
        out.case(f"conv_transpose{n}d/dilated_padding", operands((2, 3, *last), (3, 4, *kernel), 4), dilation=3, output_padding=2)
    # Windows larger than the image, and farther apart than they are long.
    out.case("conv2d/larger", operands((1, 2, 3, 2), (3, 2, 5, 4), 3), padding=[2, 1])
    out.case("conv2d/apart", operands((2, 2, 11, 13), (3, 2, 2, 3), 3), stride=[5, 4], padding=[1, 0])
    out.case("conv2d/uneven", operands((2, 2, 11, 8), (3, 2, 3, 2), 3), stride=[1, 3], padding=[2, 1], dilation=[3, 1])
    out.case("conv2d/single", operands((1, 1, 1, 1), (1, 1, 1, 1), 1))
    out.case("conv2d/empty", operands((0, 3, 5, 4), (4, 3, 3, 2), 4))
    out.case("conv_transpose2d/empty", operands((0, 3, 5, 4), (3, 4, 3, 2), 4))
    x, w = {"x": normal(1, 4, 5, 5)}, {"w": normal(4, 2, 3, 3)}
    out.error("conv2d/channels", "Shape", x | w)
    out.error("conv2d/groups_no_divisor", "Shape", x | {"w": normal(3, 2, 3, 3)}, groups=2)
    out.error("conv2d/groups_0", "Attr", x | w, groups=0)
    out.error("conv2d/stride_0", "Attr", x | w, groups=2, stride=0)
    out.error("conv2d/dilation_0", "Attr", x | w, groups=2, dilation=[1, 0])
    out.error("conv2d/kernel_0", "Attr", x | {"w": normal(4, 4, 0, 3)})
    out.error("conv2d/same_stride", "Attr", x | {"w": normal(4, 4, 3, 3)}, padding="same", stride=2)
    out.error("conv2d/no_window", "Shape", x | {"w": normal(4, 4, 6, 3)})
    out.error("conv2d/bias", "Shape", x | {"w": normal(5, 4, 3, 3), "b": normal(4)})
    out.error("conv2d/weight_rank", "Shape", x | {"w": normal(4, 4, 3)})
    out.error("conv2d/rank", "Shape", {"x": normal(5, 5)} | w)
    out.error("conv2d/integers", "Dtype", {"x": integers(1, 4, 5, 5), "w": integers(4, 4, 3, 3)})
    out.error("conv_transpose2d/channels", "Shape", x | {"w": normal(3, 4, 3, 3)})
    out.error("conv_transpose2d/output_padding_2", "Attr", x | w, stride=2, output_padding=2)
    out.error("conv_transpose2d/nothing_left", "Shape", {"x": normal(1, 4, 1, 1)} | w, padding=2)
    columns(out)
    deformed(out)


def columns(out):
    windows = {
        "plain": dict(kernel_size=[3, 2]),
        "all": dict(kernel_size=[2, 3], stride=[2, 1], padding=[1, 2], dilation=[2, 1]),
        "apart": dict(kernel_size=2, stride=3),
        "single": dict(kernel_size=1),
    }
    for name, given in windows.items():
        x = normal(2, 3, 6, 5)
        out.case(f"unfold/{name}", {"x": x}, **given)
        shape = OPS["unfold"][1](x, **given).shape
        out.case(f"fold/{name}", {"x": normal(*shape)}, output_size=[6, 5], **given)
    out.case(f"unfold/sample_{label((3, 4, 5))}", {"x": normal(3, 4, 5)}, kernel_size=2)
    out.case("fold/sample", {"x": normal(12, 12)}, output_size=[4, 5], kernel_size=2)
    out.literal(
        "fold/ones", {"x": f64([[[1.0, 1.0]] * 4])}, [f64([[[[1.0, 2.0, 1.0], [1.0, 2.0, 1.0]]]])], {}, output_size=[2, 3], kernel_size=2
    )
    out.error("unfold/no_window", "Shape", {"x": normal(1, 2, 3, 3)}, kernel_size=4)
    out.error("unfold/kernel_0", "Attr", {"x": normal(1, 2, 3, 3)}, kernel_size=[0, 1])
    out.error("unfold/rank", "Shape", {"x": normal(3, 3)}, kernel_size=2)
    out.error("fold/windows", "Shape", {"x": normal(1, 4, 5)}, output_size=[3, 3], kernel_size=2)
    out.error("fold/rows", "Shape", {"x": normal(1, 5, 4)}, output_size=[3, 3], kernel_size=2)


def deformed(out):
    def given(x, w, groups, extents, mask=False, bias=False):
        rows, batch, size = groups * w[2] * w[3], list(x[:-3]), list(extents)
        found = {"x": normal(*x), "offset": 1.5 * normal(*batch, 2 * rows, *size), "w": normal(*w)}
        found |= {"mask": normal(*batch, rows, *size)} if mask else {}
        return found | ({"b": normal(w[0])} if bias else {})

    out.case("deform_conv2d/plain", given((2, 3, 6, 5), (4, 3, 3, 2), 1, (4, 4)))
    out.case("deform_conv2d/mask", given((2, 3, 6, 5), (4, 3, 3, 2), 1, (4, 4), mask=True, bias=True))
    out.case("deform_conv2d/all", given((2, 4, 7, 6), (6, 2, 3, 3), 2, (4, 2), mask=True, bias=True), stride=[2, 3], padding=[2, 1], dilation=[2, 1], groups=2)
    out.case("deform_conv2d/offsets_of_channels", given((1, 4, 4, 4), (2, 4, 2, 2), 4, (3, 3), bias=True))
    out.case("deform_conv2d/groups", given((1, 4, 4, 4), (4, 1, 2, 2), 1, (3, 3), mask=True), groups=4)
    out.case("deform_conv2d/sample", given((3, 5, 4), (2, 3, 2, 2), 1, (4, 3), mask=True, bias=True))
    out.case("deform_conv2d/single", given((1, 1, 1, 1), (1, 1, 1, 1), 1, (1, 1)))
    far = given((1, 2, 4, 4), (2, 2, 2, 2), 1, (3, 3))
    out.case("deform_conv2d/far", far | {"offset": 40.0 * far["offset"]})
    # Without offsets it is the plain convolution; PyTorch's slope of an offset at an element is that above it.
    out.case("deform_conv2d/zeros", far | {"offset": torch.zeros(1, 8, 3, 3, dtype=torch.float64)}, grads=["x", "w"])
    operands = given((1, 4, 5, 5), (4, 4, 3, 3), 2, (3, 3), mask=True)
    out.error("deform_conv2d/offset_extents", "Shape", operands | {"offset": normal(1, 36, 3, 4)})
    out.error("deform_conv2d/offset_rows", "Shape", operands | {"offset": normal(1, 35, 3, 3)})
    out.error("deform_conv2d/offset_groups", "Shape", operands | {"offset": normal(1, 54, 3, 3), "mask": normal(1, 27, 3, 3)})
    out.error("deform_conv2d/mask_rows", "Shape", operands | {"mask": normal(1, 9, 3, 3)})
    out.error("deform_conv2d/no_channels", "Shape", operands | {"x": normal(1, 0, 5, 5), "w": normal(4, 0, 3, 3)})
    out.error("deform_conv2d/bias", "Shape", operands | {"b": normal(3)})
    out.error("deform_conv2d/stride_0", "Attr", operands, stride=0)
