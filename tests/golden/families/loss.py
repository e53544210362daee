"""Losses."""

import itertools

import torch
import torch.nn.functional as F

from common import DTYPES, F32, F64, INF, NAN, OPS, f64, i32, i64, inner, integers, label, normal, positive


def reduced(loss, reduction):
    return {"none": lambda: loss, "mean": loss.mean, "sum": loss.sum}[reduction]()


def cross_entropy(logits, target, weight=None, token_bytes=None, *, ignore_index=None, label_smoothing=0.0, reduction="mean"):
    if not target.is_floating_point():
        target = target.long()
    options = {"weight": weight, "label_smoothing": label_smoothing}
    options["ignore_index"] = -100 if ignore_index is None else ignore_index
    if reduction != "byte_mean":
        return F.cross_entropy(logits, target, reduction=reduction, **options)
    loss = F.cross_entropy(logits, target, reduction="none", **options)
    valid = target != options["ignore_index"]
    bytes_ = torch.where(valid, token_bytes[target.where(valid, 0)], 0.0)
    return (loss * bytes_).sum() / bytes_.sum() if bytes_.sum() != 0 else (loss * 0).sum()


def nll_loss(logp, target, weight=None, *, ignore_index=-100, reduction="mean"):
    return F.nll_loss(logp, target.long(), weight, ignore_index=ignore_index, reduction=reduction)


def bce_loss(p, t, weight=None, *, reduction="mean"):
    return F.binary_cross_entropy(p, t, weight, reduction=reduction)


def bce_with_logits(x, t, weight=None, pos_weight=None, *, reduction="mean"):
    return F.binary_cross_entropy_with_logits(x, t, weight, pos_weight=pos_weight, reduction=reduction)


def focal_loss(x, t, *, alpha=0.25, gamma=2.0, from_logits=True, reduction="mean"):
    if from_logits:
        p = x.sigmoid()
        ce = F.binary_cross_entropy_with_logits(x, t, reduction="none")
    else:
        p = x.clamp(1e-7, 1 - 1e-7)
        ce = -(t * p.log() + (1 - t) * torch.log1p(-p))
    loss = ce * (p * (1 - t) + (1 - p) * t) ** gamma
    if alpha >= 0:
        loss = loss * (alpha * t + (1 - alpha) * (1 - t))
    return reduced(loss, reduction)


def triplet_loss(a, p, n, *, margin=1.0, norm=2.0, eps=1e-6, swap=False, reduction="mean"):
    return F.triplet_margin_loss(a, p, n, margin=margin, p=float(norm), eps=eps, swap=swap, reduction=reduction)


def contrastive_loss(x1, x2, y, *, margin=1.0, reduction="mean"):
    squared = (x1 - x2).square().sum(-1)
    apart = squared > 0
    distance = torch.where(apart, squared, 1.0).sqrt().where(apart, 0.0)  # gradient 0, not NaN, at distance 0
    return reduced(y * squared + (1 - y) * (margin - distance).clamp(min=0).square(), reduction)


def ctc_loss(x, targets, input_lengths, target_lengths, *, blank=0, reduction="mean", zero_infinity=False):
    """The sum over alignments, and its own gradient: PyTorch's contains that of a log_softmax before it."""
    losses = []
    for n in range(x.shape[1]):
        labels = targets[n, : target_lengths[n]].long()
        states = torch.full((2 * len(labels) + 1,), blank)
        states[1::2] = labels
        skip = torch.zeros(len(states), dtype=torch.bool)
        skip[2:] = (states[2:] != states[:-2]) & (states[2:] != blank)
        row = torch.full((len(states),), -1e30, dtype=F64)
        for t in range(int(input_lengths[n])):
            own = x[t, n, states]
            if t == 0:
                row = torch.where(torch.arange(len(states)) <= 1, own, row)
                continue
            by = [F.pad(row, (k, 0), value=-1e30)[: len(states)] for k in range(3)]
            by[2] = torch.where(skip, by[2], torch.tensor(-1e30, dtype=F64))
            row = torch.logsumexp(torch.stack(by), 0) + own
        losses.append(-torch.logsumexp(row[-2:], 0))
    losses = torch.stack(losses)
    losses = torch.where(losses > 1e29, torch.tensor(0.0 if zero_infinity else INF, dtype=F64), losses)
    theirs = F.ctc_loss(x.detach(), targets, input_lengths, target_lengths, blank, "none", zero_infinity)
    torch.testing.assert_close(losses.detach(), theirs)
    if reduction == "mean":
        losses = losses / target_lengths.clamp(min=1)
    return {"none": lambda v: v, "mean": torch.mean, "sum": torch.sum}[reduction](losses)


OPS |= {
    "mse_loss": ("a t", lambda a, t, *, reduction="mean": F.mse_loss(a, t, reduction=reduction)),
    "cross_entropy": ("logits", cross_entropy),
    "nll_loss": ("logp", nll_loss),
    "bce_loss": ("p", bce_loss),
    "smooth_l1_loss": ("a", lambda a, t, *, beta=1.0, reduction="mean": F.smooth_l1_loss(a, t, beta=beta, reduction=reduction)),
    "focal_loss": ("x", focal_loss),
    "triplet_loss": ("a p n", triplet_loss),
    "contrastive_loss": ("x1 x2", contrastive_loss),
    "bce_with_logits": ("x t", bce_with_logits),
    "l1_loss": ("a", lambda a, t, *, reduction="mean": F.l1_loss(a, t, reduction=reduction)),
    "huber_loss": ("a", lambda a, t, *, delta=1.0, reduction="mean": F.huber_loss(a, t, delta=delta, reduction=reduction)),
    "kl_div": (
        "input target",
        lambda input, target, *, log_target=False, reduction="mean": F.kl_div(
            input, target, log_target=log_target, reduction=reduction
        ),
    ),
}


OPS |= {
    "cosine_embedding_loss": (
        "x1 x2",
        lambda x1, x2, y, *, margin=0.0, reduction="mean": F.cosine_embedding_loss(x1, x2, y, margin, reduction=reduction),
    ),
    "margin_ranking_loss": (
        "x1 x2 y",
        lambda x1, x2, y, *, margin=0.0, reduction="mean": F.margin_ranking_loss(x1, x2, y, margin, reduction=reduction),
    ),
    "hinge_embedding_loss": (
        "x",
        lambda x, y, *, margin=1.0, reduction="mean": F.hinge_embedding_loss(x, y, margin, reduction=reduction),
    ),
    "soft_margin_loss": ("x", lambda x, y, *, reduction="mean": F.soft_margin_loss(x, y, reduction=reduction)),
    "ctc_loss": ("x", ctc_loss),
    "multi_margin_loss": (
        "x",
        lambda x, target, weight=None, *, p=1, margin=1.0, reduction="mean": F.multi_margin_loss(
            x, target, p, margin, weight, reduction=reduction
        ),
    ),
    "multilabel_margin_loss": (
        "x",
        lambda x, target, *, reduction="mean": F.multilabel_margin_loss(x, target, reduction=reduction),
    ),
    "multilabel_soft_margin_loss": (
        "x y",
        lambda x, y, weight=None, *, reduction="mean": F.multilabel_soft_margin_loss(x, y, weight, reduction=reduction),
    ),
    "poisson_nll_loss": (
        "x target",
        lambda x, target, *, log_input=True, full=False, eps=1e-8, reduction="mean": F.poisson_nll_loss(
            x, target, log_input, full, eps=eps, reduction=reduction
        ),
    ),
    "gaussian_nll_loss": (
        "x target var",
        lambda x, target, var, *, full=False, eps=1e-6, reduction="mean": F.gaussian_nll_loss(
            x, target, var, full, eps, reduction
        ),
    ),
}


REDUCTIONS = ["none", "mean", "sum"]


def cases(out):
    elementwise_losses(out)
    classification(out)
    binary_losses(out)
    distance_losses(out)
    margin_losses(out)
    likelihood_losses(out)
    alignments(out)
    literals(out)
    infinite_norms(out)
    integer_weights(out)


def infinite_norms(out):
    rows = {"a": f64([[0.0, 0.0]]), "p": f64([[3.0, 1.0]]), "n": f64([[0.5, 2.0]])}
    out.case("triplet_loss/infinite_norm", rows, norm="inf", eps=0.0)
    out.case("triplet_loss/infinite_norm_swap", rows, norm="inf", eps=0.0, swap=True)
    same = {name: torch.zeros(2, 3, dtype=F64) for name in "apn"}
    out.case("triplet_loss/infinite_norm_of_zeros", same, grads=[], norm="inf", eps=0.0)


def integer_weights(out):
    target = i64([0, 2])
    for dtype in "i64", "i32", "u8", "bool":
        weight = {"weight": torch.ones(3, dtype=DTYPES[dtype])}
        out.error(f"cross_entropy/weight_{dtype}", "Dtype", {"logits": normal(2, 3), "target": target} | weight)
        probabilities = torch.softmax(normal(2, 3), 1)
        out.error(f"cross_entropy/weight_{dtype}_probabilities", "Dtype", {"logits": normal(2, 3), "target": probabilities} | weight)
        out.error(f"nll_loss/weight_{dtype}", "Dtype", {"logp": normal(2, 3), "target": target} | weight)


def elementwise_losses(out):
    variants = {
        "mse_loss": [{}],
        "l1_loss": [{}],
        "smooth_l1_loss": [{}, {"beta": 0.7}, {"beta": 0.0}],
        "huber_loss": [{}, {"delta": 0.7}],
    }
    for op, options in variants.items():
        for option, reduction in itertools.product(options, REDUCTIONS):
            suffix = "_".join([reduction, *(f"{k}{v}" for k, v in option.items())])
            for shape in [(), (5,), (2, 1, 3), (0, 3)]:
                out.case(
                    f"{op}/{suffix}_{label(shape)}", {"a": normal(*shape), "t": normal(*shape)}, reduction=reduction, **option
                )
        out.error(f"{op}/no_broadcast", "Shape", {"a": normal(2, 3), "t": normal(3)[:2]})
        out.error(f"{op}/mixed_dtypes", "Dtype", {"a": normal(3), "t": normal(3).to(F32)})
    kinks = {"a": f64([-2.0, -0.5, 0.0, 0.5, 2.0]), "t": torch.zeros(5, dtype=F64)}
    out.case("smooth_l1_loss/kinks", kinks, beta=0.5, reduction="none")
    out.case("smooth_l1_loss/kinks_beta0", kinks, beta=0.0, reduction="none")
    out.case("huber_loss/kinks", kinks, delta=0.5, reduction="none")
    for op in variants:
        out.case(f"{op}/special", {"a": f64([NAN, INF, 1.0]), "t": f64([0.0, 1.0, NAN])}, grads=[], reduction="none")
    out.error("smooth_l1_loss/negative_beta", "Attr", {"a": normal(3), "t": normal(3)}, beta=-1.0)
    kl_divergence(out)


def kl_divergence(out):
    for reduction, log_target in itertools.product([*REDUCTIONS, "batchmean"], [False, True]):
        target = torch.softmax(normal(3, 4), 1)
        inputs = {"input": torch.log_softmax(normal(3, 4), 1), "target": target.log() if log_target else target}
        suffix = "log" if log_target else "plain"
        out.case(f"kl_div/{reduction}_{suffix}", inputs, log_target=log_target, reduction=reduction)
    # PyTorch's gradient of a target of 0 is NaN.
    zero = {"input": f64([-1.0, -2.0]), "target": f64([0.0, 1.0])}
    out.case("kl_div/zero_target", zero, grads=["input"], reduction="none")


def classification(out):
    for reduction in REDUCTIONS:
        for name, logits, target in class_targets():
            key = f"{reduction}_{name}"
            out.case(f"cross_entropy/{key}", {"logits": logits, "target": target}, reduction=reduction)
            logp = torch.log_softmax(logits, 1 if logits.dim() > 1 else 0)
            out.case(f"nll_loss/{key}", {"logp": logp, "target": target}, reduction=reduction)
        weighted_classes(out, reduction)
        probability_targets(out, reduction)
    cross_entropy_edges(out)
    byte_mean(out)
    classification_errors(out)


def class_targets():
    return [
        ("1d", normal(5), i64(3)),
        ("2d", normal(4, 5), i64([0, 4, 2, 2])),
        ("i32", normal(3, 4), i32([3, 0, 1])),
        ("4d", normal(2, 3, 2, 2), integers(2, 2, 2, low=0, high=3)),
        ("one_class", normal(3, 1), i64([0, 0, 0])),
        ("ignored", normal(4, 3), i64([0, -100, 2, -100])),
        ("empty", normal(0, 3), i64([])),
    ]


def weighted_classes(out, reduction):
    target, weight = i64([0, 1, 3, 1]), positive(4)
    common = {"target": target, "weight": weight}
    out.case(
        f"nll_loss/{reduction}_weight",
        {"logp": torch.log_softmax(normal(4, 4), 1), **common},
        ignore_index=1,
        reduction=reduction,
    )
    for smoothing in 0.0, 0.1, 1.0:
        inputs = {"logits": normal(4, 4), **common}
        out.case(
            f"cross_entropy/{reduction}_weight_smooth{smoothing}",
            inputs,
            ignore_index=1,
            label_smoothing=smoothing,
            reduction=reduction,
        )
        inputs = {"logits": normal(2, 3, 2), "target": integers(2, 2, low=0, high=3)}
        out.case(
            f"cross_entropy/{reduction}_spatial_smooth{smoothing}", inputs, label_smoothing=smoothing, reduction=reduction
        )


def probability_targets(out, reduction):
    for smoothing in 0.0, 0.2:
        inputs = {"logits": normal(3, 4), "target": torch.softmax(normal(3, 4), 1), "weight": positive(4)}
        out.case(
            f"cross_entropy/{reduction}_probabilities_smooth{smoothing}",
            inputs,
            label_smoothing=smoothing,
            reduction=reduction,
        )
    inputs = {"logits": normal(2, 3, 2), "target": torch.softmax(normal(2, 3, 2), 1)}
    out.case(f"cross_entropy/{reduction}_probabilities_spatial", inputs, reduction=reduction)


def cross_entropy_edges(out):
    ignored = i64([-100, -100])
    for reduction in "mean", "sum", "none":
        out.case(f"cross_entropy/{reduction}_all_ignored", {"logits": normal(2, 3), "target": ignored}, reduction=reduction)
        logp = torch.log_softmax(normal(2, 3), 1)
        out.case(f"nll_loss/{reduction}_all_ignored", {"logp": logp, "target": ignored}, reduction=reduction)
    target = i64([0, 1])
    out.case("cross_entropy/minus_inf_at_target", {"logits": f64([[-INF, 1.0, 0.5], [0.0, 1.0, 2.0]]), "target": target})
    out.case("cross_entropy/minus_inf_elsewhere", {"logits": f64([[1.0, -INF, 0.5], [0.0, 1.0, -INF]]), "target": target})
    out.case("cross_entropy/large", {"logits": f64([[1e4, -1e4, 0.0], [1e4, 1e4, 1e4]]), "target": target})


def byte_mean(out):
    token_bytes = f64([1.0, 3.0, 0.0, 5.0])
    for name, target in {"plain": i64([0, 1, 3, 2]), "ignored": i64([-100, 1, 3, -100]), "zero": i64([2, -100, 2, 2])}.items():
        inputs = {"logits": normal(4, 4), "target": target, "token_bytes": token_bytes}
        out.case(f"cross_entropy/byte_mean_{name}", inputs, reduction="byte_mean")


def classification_errors(out):
    logits, target = normal(2, 3), i64([0, 2])
    for op, name in ("cross_entropy", "logits"), ("nll_loss", "logp"):
        out.error(f"{op}/class_too_large", "Index", {name: logits, "target": i64([0, 3])})
        out.error(f"{op}/class_negative", "Index", {name: logits, "target": i64([-1, 0])})
        out.error(f"{op}/target_length", "Shape", {name: logits, "target": i64([0, 1, 2])})
        out.error(f"{op}/weight_length", "Shape", {name: logits, "target": target, "weight": positive(2)})
    out.error("cross_entropy/smoothing_above_1", "Attr", {"logits": logits, "target": target}, label_smoothing=1.5)
    probabilities = {"logits": logits, "target": torch.softmax(normal(2, 3), 1)}
    out.error("cross_entropy/probabilities_ignore_index", "Attr", probabilities, ignore_index=1)


def binary_losses(out):
    for reduction in REDUCTIONS:
        for shape in [(), (5,), (2, 1, 3), (0, 3)]:
            key = f"{reduction}_{label(shape)}"
            out.case(f"bce_loss/{key}", {"p": inner(*shape), "t": inner(*shape)}, reduction=reduction)
            out.case(f"bce_with_logits/{key}", {"x": normal(*shape), "t": inner(*shape)}, reduction=reduction)
            out.case(f"focal_loss/{key}", {"x": normal(*shape), "t": inner(*shape)}, reduction=reduction)
        weighted = {"t": inner(2, 3), "weight": positive(2, 3)}
        out.case(f"bce_loss/{reduction}_weight", {"p": inner(2, 3), **weighted}, reduction=reduction)
        out.case(f"bce_with_logits/{reduction}_weight", {"x": normal(2, 3), **weighted}, reduction=reduction)
        out.case(
            f"bce_with_logits/{reduction}_pos_weight",
            {"x": normal(2, 3), "t": inner(2, 3), "pos_weight": positive(3)},
            reduction=reduction,
        )
    edges = {"p": f64([0.0, 0.0, 1.0, 1.0, 1e-20, 0.5]), "t": f64([0.0, 1.0, 0.0, 1.0, 1.0, 0.25])}
    # PyTorch keeps the least divisor, 1e-12, in f32.
    out.case("bce_loss/edges", edges, reduction="none", tolerance=1e-8)
    edges = {"x": f64([-800.0, -50.0, 0.0, 50.0, 800.0]), "t": f64([1.0, 0.0, 0.5, 0.0, 1.0])}
    out.case("bce_with_logits/edges", edges, reduction="none")
    focal_variants(out)
    out.error("bce_loss/above_1", "Value", {"p": f64([0.5, 1.5]), "t": f64([0.0, 1.0])})
    out.error("bce_loss/below_0", "Value", {"p": f64([-0.25, 0.5]), "t": f64([0.0, 1.0])})
    out.error("bce_loss/no_broadcast", "Shape", {"p": inner(2, 3), "t": inner(3)})


def focal_variants(out):
    t = f64([[0.0, 1.0, 1.0], [0.0, 0.3, 1.0]])
    for name, options in {
        "alpha_off": {"alpha": -1.0},
        "gamma0": {"gamma": 0.0},
        "gamma1": {"gamma": 1.0},
        "gamma2.5": {"gamma": 2.5},
    }.items():
        out.case(f"focal_loss/{name}", {"x": 2 * normal(2, 3), "t": t}, reduction="none", **options)
        out.case(f"focal_loss/probability_{name}", {"x": inner(2, 3), "t": t}, from_logits=False, reduction="none", **options)
    clamped = {"x": f64([0.0, 1.0, 0.25]), "t": f64([0.0, 1.0, 1.0])}
    out.case("focal_loss/probability_clamped", clamped, from_logits=False, reduction="none")
    out.error("focal_loss/negative_gamma", "Attr", {"x": normal(2), "t": inner(2)}, gamma=-1.0)


def distance_losses(out):
    for reduction in REDUCTIONS:
        for swap, norm in itertools.product([False, True], [2.0, 1.0, 3.0]):
            inputs = {"a": normal(5, 3), "p": normal(5, 3), "n": normal(5, 3)}
            key = f"{reduction}_p{norm}" + ("_swap" if swap else "")
            out.case(f"triplet_loss/{key}", inputs, margin=1.5, norm=norm, swap=swap, reduction=reduction)
        inputs = {"x1": normal(4, 3), "x2": normal(4, 3), "y": f64([1.0, 0.0, 0.0, 1.0])}
        out.case(f"contrastive_loss/{reduction}_4x3", inputs, margin=3.0, reduction=reduction)
        empty = {"x1": normal(0, 3), "x2": normal(0, 3), "y": f64([])}
        out.case(f"contrastive_loss/{reduction}_0x3", empty, reduction=reduction)
    out.case("triplet_loss/inactive", {"a": f64([[0.0, 0.0]]), "p": f64([[0.1, 0.0]]), "n": f64([[9.0, 9.0]])}, reduction="none")
    same = {
        "x1": f64([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]]),
        "x2": f64([[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]]),
        "y": f64([1.0, 0.0, 0.0]),
    }
    out.case("contrastive_loss/zero_distance", same, reduction="none")
    out.error("triplet_loss/margin_zero", "Attr", {name: normal(2, 3) for name in "apn"}, margin=0.0)
    out.error("triplet_loss/shapes", "Shape", {"a": normal(2, 3), "p": normal(2, 3), "n": normal(1, 3)})
    out.error("contrastive_loss/label_length", "Shape", {"x1": normal(2, 3), "x2": normal(2, 3), "y": f64([1.0])})


def signs(*shape):
    return torch.randint(0, 2, shape, dtype=F64) * 2 - 1


def margin_losses(out):
    for reduction in REDUCTIONS:
        pair = {"x1": normal(4, 3), "x2": normal(4, 3)}
        out.case(f"cosine_embedding_loss/{reduction}", pair | {"y": f64([1.0, -1.0, -1.0, 1.0])}, margin=0.1, reduction=reduction)
        out.case(f"margin_ranking_loss/{reduction}", pair | {"y": signs(4, 3)}, margin=0.3, reduction=reduction)
        out.case(f"hinge_embedding_loss/{reduction}", {"x": normal(2, 3), "y": signs(2, 3)}, reduction=reduction)
        out.case(f"soft_margin_loss/{reduction}", {"x": 9 * normal(2, 3), "y": signs(2, 3)}, reduction=reduction)
        scores = {"x": normal(3, 4), "target": i64([0, 3, 1])}
        out.case(f"multi_margin_loss/{reduction}", scores, reduction=reduction)
        labels = i64([[2, 0, -1, 1], [-1, 1, 2, 3], [0, 1, 2, 3]])
        out.case(f"multilabel_margin_loss/{reduction}", {"x": normal(3, 4), "target": labels}, reduction=reduction)
        out.case(f"multilabel_soft_margin_loss/{reduction}", {"x": normal(3, 4), "y": inner(3, 4)}, reduction=reduction)
    out.case("cosine_embedding_loss/vectors", {"x1": normal(3), "x2": normal(3), "y": f64(-1.0)})
    out.case("margin_ranking_loss/broadcast", {"x1": normal(2, 1), "x2": normal(1, 3), "y": f64([[1.0]])})
    out.case("hinge_embedding_loss/others", {"x": normal(3), "y": f64([0.0, 2.0, -1.0])}, margin=0.5, reduction="none")
    out.case("multi_margin_loss/squared", scores | {"weight": positive(4)}, p=2, margin=0.5)
    out.case("multi_margin_loss/vector", {"x": normal(4), "target": i64(2)})
    out.case("multilabel_margin_loss/vector", {"x": normal(4), "target": i64([3, 3, -1, 0])})
    weighted = {"x": normal(3, 4), "y": inner(3, 4), "weight": positive(4)}
    out.case("multilabel_soft_margin_loss/weight", weighted)
    out.error("cosine_embedding_loss/labels", "Shape", {"x1": normal(2, 3), "x2": normal(2, 3), "y": f64([[1.0]])})
    out.error("margin_ranking_loss/shapes", "Shape", {"x1": normal(2), "x2": normal(3), "y": f64([1.0])})
    out.error("multi_margin_loss/class", "Index", {"x": normal(2, 3), "target": i64([0, 3])})
    out.error("multi_margin_loss/cubed", "Attr", {"x": normal(2, 3), "target": i64([0, 2])}, p=3)
    out.error("multi_margin_loss/rows", "Shape", {"x": normal(2, 3), "target": i64([0])})
    out.error("multilabel_margin_loss/class", "Index", {"x": normal(3), "target": i64([3, -1, 0])})
    out.error("multilabel_soft_margin_loss/shapes", "Shape", {"x": normal(2, 3), "y": inner(3)})


def likelihood_losses(out):
    for reduction in REDUCTIONS:
        counts = {"x": normal(2, 3), "target": f64([[0.0, 1.0, 2.5], [4.0, 0.5, 1.0]])}
        out.case(f"poisson_nll_loss/{reduction}", counts, reduction=reduction)
        out.case(f"gaussian_nll_loss/{reduction}", {"x": normal(2, 3), "target": normal(2, 3), "var": positive(2, 3)}, reduction=reduction)
    # PyTorch's gradient of a target of 0 is NaN.
    out.case("poisson_nll_loss/full", counts, grads=["x"], full=True)
    rates = {"x": positive(2, 3), "target": 3 * positive(2, 3)}
    out.case("poisson_nll_loss/rates", rates, log_input=False, full=True, eps=0.1, reduction="none")
    for name, var in {"row": positive(2, 1), "short": positive(2), "small": f64([[1e-9, 0.0, 2.0]] * 2)}.items():
        out.case(f"gaussian_nll_loss/{name}", {"x": normal(2, 3), "target": normal(2, 3), "var": var}, full=True)
    out.error("poisson_nll_loss/eps", "Attr", counts, eps=-1.0)
    out.error("gaussian_nll_loss/eps", "Attr", {"x": normal(3), "target": normal(3), "var": positive(3)}, eps=0.0)
    out.error("gaussian_nll_loss/var", "Shape", {"x": normal(2, 3), "target": normal(2, 3), "var": positive(3, 3)})
    for op in "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss":
        out.case(f"{op}/broadcast", {"a": normal(2, 1), "t": normal(3)}, reduction="mean")


def alignments(out):
    def of(steps, classes, targets, frames, labels):
        x = torch.log_softmax(normal(steps, len(targets), classes), -1)
        return {"x": x, "targets": i64(targets), "input_lengths": i64(frames), "target_lengths": i64(labels)}

    repeated = of(7, 4, [[1, 1, 2], [3, 2, 1], [2, 0, 0]], [7, 5, 6], [3, 3, 1])
    for reduction in REDUCTIONS:
        out.case(f"ctc_loss/{reduction}", repeated, reduction=reduction)
    out.case("ctc_loss/last_blank", of(5, 3, [[0, 1], [1, 1]], [5, 4], [2, 2]), blank=2)
    out.case("ctc_loss/no_labels", of(4, 3, [[1, 2], [2, 2]], [4, 3], [0, 2]), reduction="none")
    out.case("ctc_loss/one_frame", of(1, 3, [[1], [2]], [1, 1], [1, 0]), reduction="none")
    too_long = of(3, 3, [[1, 1, 1], [1, 2, 1]], [3, 3], [3, 3])
    out.case("ctc_loss/impossible", too_long, reduction="none", grads=[])
    out.case("ctc_loss/impossible_zero", too_long, reduction="none", zero_infinity=True)
    out.case("ctc_loss/empty_targets", {**of(3, 3, [[1]], [3], [0]), "targets": torch.zeros(1, 0, dtype=torch.int64)}, reduction="sum")
    out.error("ctc_loss/blank", "Attr", repeated, blank=4)
    out.error("ctc_loss/shape", "Shape", repeated | {"input_lengths": i64([7, 5])})
    out.error("ctc_loss/class", "Index", repeated | {"targets": i64([[1, 1, 4]] * 3)})
    out.error("ctc_loss/frames", "Index", repeated | {"input_lengths": i64([7, 8, 6])})
    out.error("ctc_loss/dtype", "Dtype", repeated | {"targets": normal(3, 3)})


def literals(out):
    """Numbers that were written down beforehand, at eight digits, which PyTorch confirms."""
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
    inputs = {"a": f64([[1.0, 2.0]]), "p": f64([[1.0, 0.0]]), "n": f64([[1.5, -0.5]])}
    gradients = {"a": f64([[4.9999975e-07, 1]]), "p": f64([[0.70710487, -1.7071082]]), "n": f64([[-0.70710537, 0.7071082]])}
    out.literal("triplet_loss/swap", inputs, [f64(2.2928942)], gradients, swap=True)
    inputs = {"x1": f64([[1.0, 2.0], [0.0, 0.0]]), "x2": f64([[0.0, 0.0], [0.3, 0.4]]), "y": f64([1.0, 0.0])}
    out.literal("contrastive_loss", inputs, [f64(2.625)], {"x1": f64([[1, 2], [0.3, 0.4]])})
