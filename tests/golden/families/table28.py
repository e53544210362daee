"""Numbers that were written down beforehand, at eight digits, which PyTorch only confirms."""

import torch

from common import F64, OPS, f64, i64
from families.indexing.index import every


FIVE = [-3.0, -1.0, 0.0, 0.5, 3.0]


FIVE_POINTS = [
    (
        "gelu/none",
        {"approximate": "none"},
        [-0.0040496941, -0.15865525, 0, 0.34573123, 2.9959503],
        [-0.011945647, -0.083315471, 0.5, 0.86749512, 1.0119456],
    ),
    (
        "gelu/tanh",
        {"approximate": "tanh"},
        [-0.0036373921, -0.15880801, 0, 0.34571401, 2.9963626],
        [-0.011584167, -0.082964084, 0.5, 0.8673699, 1.0115842],
    ),
    ("silu", {}, [-0.14227762, -0.26894142, 0, 0.31122967, 2.8577224], [-0.088104106, 0.072329488, 0.5, 0.73996119, 1.0881041]),
    ("mish", {}, [-0.14564746, -0.30340146, 0, 0.37524521, 2.986535], [-0.093393115, 0.059216756, 0.6, 0.88642438, 1.0211069]),
    (
        "softplus",
        {"beta": 2.0, "threshold": 5.0},
        [0.0012378426, 0.063464006, 0.34657359, 0.65663084, 3],
        [0.0024726232, 0.11920292, 0.5, 0.73105858, 1],
    ),
    ("hardswish", {}, [-0.0, -0.33333333, 0, 0.29166667, 3], [0, 0.16666667, 0.5, 0.66666667, 1]),
    ("elu", {"alpha": 0.7}, [-0.66514905, -0.44248439, 0, 0.5, 3], [0.034850948, 0.25751561, 0.7, 1, 1]),
    ("celu", {"alpha": 0.7}, [-0.69036535, -0.53224427, 0, 0.5, 3], [0.013763786, 0.23965103, 1, 1, 1]),
    ("selu", {}, [-1.6705687, -1.1113307, 0, 0.52535049, 3.152103], [0.087530612, 0.6467686, 1.7580993, 1.050701, 1.050701]),
]


def cases(out):
    for name, attributes, y, dx in FIVE_POINTS:
        out.literal(name, {"x": f64(FIVE)}, [f64(y)], {"x": f64(dx)}, **attributes)
    first = {0: f64([1.0, 0.0, 0.0])}
    x = {"x": f64([1.0, 2.0, 3.0])}
    out.literal(
        "softmax",
        x,
        [f64([0.090030573, 0.24472847, 0.66524096])],
        {"x": f64([0.081925069, -0.022033045, -0.059892025])},
        cotangents=first,
    )
    out.literal(
        "log_softmax",
        x,
        [f64([-2.407606, -1.407606, -0.40760596])],
        {"x": f64([0.90996943, -0.24472847, -0.66524096])},
        cotangents=first,
    )
    out.literal(
        "silu_and_mul",
        {"x": f64([1.0, -2.0, 3.0, 0.5])},
        [f64([2.1931757, -0.11920292])],
        {"x": f64([2.7830115, -0.045392124, 0.73105858, -0.23840584])},
    )
    table_norms(out)
    table_losses(out)
    table_distances(out)
    table_optimizers(out)
    table_rest(out)


def table_norms(out):
    x, g = f64([1.0, 2.0, 4.0]), {0: f64([1.0, 0.0, -1.0])}
    weight, bias = f64([1.0, 2.0, 3.0]), f64([0.0, 1.0, -1.0])
    gradients = {"x": f64([-0.11453084, 0.17181258, -0.057281741]), "weight": f64([-1.0690415, 0, -1.3363019]), "bias": g[0]}
    y = f64([-1.0690415, 0.46547923, 3.0089057])
    out.literal("layer_norm", {"x": x, "weight": weight, "bias": bias}, [y], gradients, cotangents=g)
    gradients = {"x": f64([0.57594517, 0.39596193, -0.34196874]), "weight": f64([0.3779642, 0, -1.5118568])}
    y = f64([0.3779642, 1.5118568, 4.5355704])
    out.literal("rms_norm", {"x": x, "weight": weight}, [y], gradients, cotangents=g)
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


def table_losses(out):
    inputs = {
        "logits": f64([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]),
        "target": i64([2, -100, 0]),
        "weight": f64([1.0, 2.0, 0.5]),
    }
    dlogits = [[0.011789328, 0.048008534, -0.059797861], [0, 0, 0], [-0.3962963, 0.18148148, 0.21481481]]
    out.literal("cross_entropy/mean", inputs, [f64(0.98748836)], {"logits": f64(dlogits)}, label_smoothing=0.1)
    row = [-0.039250292, -0.11561554, 0.15486583]
    dlogits = [row, row, [0.046851852, -0.084259259, 0.037407407]]
    inputs |= {"target": f64([[0.2, 0.3, 0.5]] * 3)}
    out.literal("cross_entropy/probabilities", inputs, [f64(1.36617)], {"logits": f64(dlogits)}, label_smoothing=0.1)
    inputs = {"p": f64([0.1, 0.9, 0.0, 1.0]), "t": f64([1.0, 1.0, 1.0, 0.5])}
    out.literal(
        "bce_loss", inputs, [f64([2.3025851, 0.10536052, 100, 50])], {"p": f64([-10, -1.1111111, -1e12, 5e11])}, reduction="none"
    )
    inputs = {"a": f64([-2.0, -0.3, 0.0, 0.7, 1.0]), "t": torch.zeros(5, dtype=F64)}
    out.literal(
        "smooth_l1_loss",
        inputs,
        [f64([1.65, 0.064285714, 0, 0.35, 0.65])],
        {"a": f64([-1, -0.42857143, 0, 1, 1])},
        beta=0.7,
        reduction="none",
    )
    inputs = {"x": f64([-2.0, 0.5, 3.0]), "t": f64([1.0, 1.0, 0.0])}
    out.literal(
        "focal_loss",
        inputs,
        [f64([0.41251954, 0.016893373, 2.0747103])],
        {"x": f64([-0.26917843, -0.034484249, 0.84506241])},
        reduction="none",
    )


def table_distances(out):
    inputs = {"a": f64([[1.0, 2.0]]), "p": f64([[1.0, 0.0]]), "n": f64([[1.5, -0.5]])}
    gradients = {"a": f64([[4.9999975e-07, 1]]), "p": f64([[0.70710487, -1.7071082]]), "n": f64([[-0.70710537, 0.7071082]])}
    out.literal("triplet_loss/swap", inputs, [f64(2.2928942)], gradients, swap=True)
    inputs = {"x1": f64([[1.0, 2.0], [0.0, 0.0]]), "x2": f64([[0.0, 0.0], [0.3, 0.4]]), "y": f64([1.0, 0.0])}
    out.literal("contrastive_loss", inputs, [f64(2.625)], {"x1": f64([[1, 2], [0.3, 0.4]])})


def table_optimizers(out):
    inputs = {"p0": f64([1.0, -2.0]), "g0_0": f64([0.5, 1.0]), "g0_1": f64([-0.25, 2.0]), "g0_2": f64([0.1, 0.1])}
    common = {"lr": 0.1, "wd": 0.01}
    for op, p, attributes in [
        ("sgd/momentum", [0.8930849387, -2.610864539], {"momentum": 0.9, "dampening": 0.1}),
        ("sgd/nesterov", [0.8691892082, -2.887078688], {"momentum": 0.9, "nesterov": True}),
        ("adam", [0.8372923664, -2.273154631], {}),
        ("adamw", [0.8390714757, -2.267617763], {}),
        ("lamb", [0.6759461466, -2.607532411], {}),
        ("lars", [0.9996236178, -2.001120873], {"wd": 1e-4}),
    ]:
        out.literal(op, inputs, [f64(p)], {}, **common | attributes)
    u = {"p0": torch.zeros(3, 2, dtype=F64), "g0_0": f64([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])}
    x = f64([[-0.46751858, 0.57347331], [0.072432281, 0.40945262], [0.61238314, 0.24543193]])
    # PyTorch multiplies the step of a tall matrix by the root of its sides' ratio.
    out.literal("muon", u, [-(1.5**0.5) * x], {}, lr=1.0)
    clipped = [f64([0.5999999, 0.7999998]), f64([0]), f64(5)]
    out.literal("clip_grad_norm/clipped", {"g0": f64([3.0, 4.0]), "g1": f64([0.0])}, clipped, {}, max_norm=1.0)
    small = f64([0.3, 0.4])
    out.literal("clip_grad_norm/unchanged", {"g0": small}, [small, f64(0.5)], {}, max_norm=1.0)


def table_rest(out):
    inputs = {"a": f64([0.0, 0.0, 2.0, 2.0]), "b": f64([0.0, 2.0, 0.0, 3.0])}
    gradients = {"a": f64([0, 0, 0, 12]), "b": f64([0, 0, 0.69314718, 5.5451774])}
    out.literal("pow", inputs, [f64([1, 0, 1, 8])], gradients)
    x = {"x": f64([1.0, 3.0, 3.0])}
    out.literal("amax", x, [f64(3)], {"x": f64([0, 0.5, 0.5])})
    out.literal("max", x, [f64(3), i64(1)], {"x": f64([0, 1, 0])}, dim=0)
    x, pair = torch.arange(120, dtype=F64).reshape(2, 3, 4, 5), i64([0, 1])
    apart, adjacent = ["tensor:i0", every(3), "tensor:i1"], [every(2), "tensor:i0", "tensor:i1"]
    for name, indices, shape in [("apart", apart, (2, 3, 5)), ("adjacent", adjacent, (2, 2, 5))]:
        y = OPS["index"][1](x, indices=indices, i0=pair, i1=pair)
        assert y.shape == shape
        out.literal(f"index/{name}", {"x": x, "i0": pair, "i1": pair}, [y], {}, indices=indices)
