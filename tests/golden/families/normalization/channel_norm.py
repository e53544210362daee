"""Norms of channels and groups."""

import torch
import torch.nn.functional as F

from common import F64, INF, NAN, OPS, f64, i64, normal, positive


def average_factor(momentum, num_batches):
    """The weight of a batch: without a momentum, all batches weigh the same."""
    if momentum is not None:
        return momentum
    return 1.0 if num_batches is None else 1.0 / (num_batches.item() + 1)


def batch_norm(
    x, weight=None, bias=None, running_mean=None, running_var=None, num_batches=None, *, training=True, momentum=0.1, eps=1e-5
):
    kept = [t if t is None else t.clone() for t in (running_mean, running_var)]
    return F.batch_norm(x, *kept, weight, bias, training, average_factor(momentum, num_batches), eps)


def batch_norm_relu(
    x, weight=None, bias=None, running_mean=None, running_var=None, num_batches=None, residual=None,
    *, training=True, momentum=0.1, eps=1e-5
):
    statistics = (running_mean, running_var, num_batches)
    y = batch_norm(x, weight, bias, *statistics, training=training, momentum=momentum, eps=eps)
    return F.relu(y if residual is None else y + residual)


def batch_norm_relu6(x, weight=None, bias=None, running_mean=None, running_var=None, num_batches=None, *, training=True, momentum=0.1, eps=1e-5):
    y = batch_norm(x, weight, bias, running_mean, running_var, num_batches, training=training, momentum=momentum, eps=eps)
    return F.relu6(y)


def group_norm(x, weight=None, bias=None, *, num_groups, eps=1e-5):
    if weight is None and bias is not None:  # of which PyTorch has no gradient
        weight = torch.ones_like(bias)
    return F.group_norm(x, num_groups, weight, bias, eps)


def instance_norm(
    x,
    weight=None,
    bias=None,
    running_mean=None,
    running_var=None,
    num_batches=None,
    *,
    use_input_stats=True,
    momentum=0.1,
    eps=1e-5,
):
    kept = [t if t is None else t.clone() for t in (running_mean, running_var)]
    return F.instance_norm(x, *kept, weight, bias, use_input_stats, average_factor(momentum, num_batches), eps)


def running(norm):
    """The statistics that a call leaves, and the number of batches."""

    def after(x, running_mean, running_var, num_batches=None, *, momentum=0.1, eps=1e-5):
        mean, var = running_mean.clone(), running_var.clone()
        norm(x, mean, var, average_factor(momentum, num_batches), eps)
        return (mean, var) if num_batches is None else (mean, var, num_batches + 1)

    return after


OPS |= {
    "batch_norm": ("x weight bias", batch_norm),
    "batch_norm_relu": ("x weight bias residual", batch_norm_relu),
    "batch_norm_relu6": ("x weight bias", batch_norm_relu6),
    "group_norm": ("x weight bias", group_norm),
    "instance_norm": ("x weight bias", instance_norm),
    "batch_norm_running": ("", running(lambda x, mean, var, m, eps: F.batch_norm(x, mean, var, None, None, True, m, eps))),
    "instance_norm_running": ("", running(lambda x, mean, var, m, eps: F.instance_norm(x, mean, var, None, None, True, m, eps))),
}


def cases(out):
    shapes = {"3x4": (3, 4), "2x6x5": (2, 6, 5), "2x4x3x2": (2, 4, 3, 2), "1x2x2x1x3": (1, 2, 2, 1, 3), "2x1x7": (2, 1, 7)}
    statistics = lambda c: {"running_mean": normal(c), "running_var": positive(c)}
    for name, shape in shapes.items():
        x, channels = {"x": 3 * normal(*shape) + 1}, shape[1]
        weight, bias, kept = {"weight": normal(channels)}, {"bias": normal(channels)}, statistics(channels)
        for key, inputs in {"": x, "_weight": x | weight, "_bias": x | bias, "_affine": x | weight | bias}.items():
            out.case(f"batch_norm/{name}{key}", inputs)
            out.case(f"batch_norm/{name}{key}_eval", inputs | kept, training=False)
            for groups in sorted(g for g in {1, 2, channels} if channels % g == 0):
                out.case(f"group_norm/{name}{key}_{groups}", inputs, num_groups=groups)
            if len(shape) > 2:
                out.case(f"instance_norm/{name}{key}", inputs)
                out.case(f"instance_norm/{name}{key}_eval", inputs | kept, use_input_stats=False)
        out.case(f"batch_norm/{name}_kept", x | weight | bias | kept, eps=0.1, momentum=0.3)
        for op in ["batch_norm_running", "instance_norm_running"][: 2 if len(shape) > 2 else 1]:
            counted = {"num_batches": torch.tensor(3)}
            out.case(f"{op}/{name}", x | kept)
            out.case(f"{op}/{name}_counted", x | kept | counted, momentum=0.5)
            out.case(f"{op}/{name}_average", x | kept | counted, momentum=None)
    # PyTorch has no gradient of an empty batch.
    empty = {"x": normal(0, 4, 2), "weight": normal(4), "bias": normal(4)}
    out.case("batch_norm/empty", empty, grads=[])
    out.case("group_norm/empty", empty, num_groups=2)
    equal = {"x": torch.full((2, 2, 3), 2.0, dtype=F64)}
    special = {"x": f64([[[NAN, 1.0]], [[2.0, 1.0]]]).expand(2, 3, 2).clone()}
    special["x"][0, 1, 0], special["x"][0, 2, 0] = INF, -3.0
    one = {"x": normal(1, 3, 1)}
    for op, attributes in {"batch_norm": {}, "group_norm": {"num_groups": 1}, "instance_norm": {}}.items():
        out.case(f"{op}/equal", equal, **attributes)
        out.case(f"{op}/special", special, grads=[], **attributes)
        out.error(f"{op}/weight_shape", "Shape", equal | {"weight": normal(3)}, **attributes)
        out.error(f"{op}/rank", "Shape", {"x": normal(3)}, **attributes)
        out.error(f"{op}/integers", "Dtype", {"x": i64([[[1, 2]]])}, **attributes)
        out.error(f"{op}/eps", "Attr", equal, **attributes | {"eps": -1.0})
    out.error("batch_norm/one_value", "Value", one)
    out.error("batch_norm/no_statistics", "Value", equal, training=False)
    out.error("batch_norm/statistics_shape", "Shape", equal | statistics(3), training=False)
    out.error("group_norm/one_value", "Value", {"x": normal(1, 3, 1)}, num_groups=3)
    out.error("group_norm/groups", "Attr", equal, num_groups=3)
    out.error("group_norm/no_groups", "Attr", equal, num_groups=0)
    out.error("instance_norm/one_value", "Value", one)
    out.error("batch_norm_running/not_counted", "Attr", equal | statistics(2), momentum=None)
    for name, shape in {"37x16": (37, 16), "2x6x5": (2, 6, 5)}.items():
        x, channels = {"x": 3 * normal(*shape) + 1, "residual": normal(*shape)}, shape[1]
        affine = x | {"weight": normal(channels), "bias": normal(channels)}
        out.case(f"batch_norm_relu/{name}", {"x": x["x"]})
        out.case(f"batch_norm_relu/{name}_residual", x)
        out.case(f"batch_norm_relu/{name}_affine", affine)
        out.case(f"batch_norm_relu/{name}_eval", affine | statistics(channels), training=False)
        out.case(f"batch_norm/{name}_words", {key: affine[key] for key in ("x", "weight", "bias")})
    out.error("batch_norm_relu/residual_shape", "Shape", {"x": normal(2, 3), "residual": normal(2, 1)})
    for name, shape in {"37x16": (37, 16), "2x6x5": (2, 6, 5)}.items():
        x, channels = {"x": 3 * normal(*shape) + 1}, shape[1]
        affine = x | {"weight": 6 * normal(channels), "bias": normal(channels)}
        out.case(f"batch_norm_relu6/{name}", x)
        out.case(f"batch_norm_relu6/{name}_affine", affine)
        out.case(f"batch_norm_relu6/{name}_eval", affine | statistics(channels), training=False)
    literals(out)


def literals(out):
    """Numbers that were written down beforehand, at eight digits, which PyTorch confirms."""
    x, g = f64([[1.0, 2.0], [3.0, 6.0], [5.0, 4.0]]), {0: f64([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])}
    y = f64([[-1.2247426, -1.2247426], [0, 1.2247426], [1.2247426, 0]])
    gradients = {"x": f64([[0.10206303, 0.10206073], [-0.20412376, 0.10206303], [0.10206073, -0.20412376]])}
    out.literal("batch_norm", {"x": x}, [y], gradients, cotangents=g)
    statistics = {"running_mean": f64([0.0, 0.0]), "running_var": f64([1.0, 1.0])}
    out.literal("batch_norm_running", {"x": x} | statistics, [f64([0.3, 0.4]), f64([1.3, 1.3])], {})
    x, g = torch.arange(8, dtype=F64).square().reshape(1, 4, 2), {0: torch.eye(8, dtype=F64)[3].reshape(1, 4, 2)}
    y = [-0.99999959, -0.71428542, 0.14285708, 1.5714279, -1.2561834, -0.52678657, 0.36469839, 1.4182715]
    gradients = {"x": f64([0.040816218, 0.0087462867, -0.087463508, 0.037901003, 0, 0, 0, 0]).reshape(1, 4, 2)}
    out.literal("group_norm", {"x": x}, [f64(y).reshape(1, 4, 2)], gradients, cotangents=g, num_groups=2)
