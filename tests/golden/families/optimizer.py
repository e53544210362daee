"""Optimizers: parameters p0, p1, .., the gradient of parameter i at step s is g<i>_<s>. Clipping."""

import contextlib

import torch

from common import F64, INF, NAN, OPS, f64, normal


def optimize(optimizer, tensors, **options):
    params = [tensors[name].detach().clone().requires_grad_() for name in sorted(tensors) if name.startswith("p")]
    steps = sum(name.startswith("g0_") for name in tensors)
    groups = tensors.get("groups", [])
    groups = [{"params": [params[i] for i in members], **own(i, tensors, options)} for i, members in enumerate(groups)]
    grouped = {id(p) for group in groups for p in group["params"]}
    rule = optimizer([{"params": [p for p in params if id(p) not in grouped]}, *groups], **options)
    for step in range(steps):
        for i, param in enumerate(params):
            param.grad = tensors[f"g{i}_{step}"].detach().clone()
        if "clip_value" in tensors:
            torch.nn.utils.clip_grad_value_(params, tensors["clip_value"])
        rule.step()
    return tuple(param.detach() for param in params)


@contextlib.contextmanager
def numbers_in_f64():
    """The numbers that PyTorch's optimizers keep beside parameters have the default dtype."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def own(i, attributes, options):
    """The options of a group: `group0_lr`, `group0_beta2`."""
    found = {name.split("_", 1)[1]: value for name, value in attributes.items() if name.startswith(f"group{i}_")}
    if "weight_decay" in options and "wd" in found:
        found["weight_decay"] = found.pop("wd")
    if "lambda" in found:
        found["lambd"] = found.pop("lambda")
    if "beta1" in found or "beta2" in found:
        found["betas"] = tuple(found.pop(f"beta{k + 1}", beta) for k, beta in enumerate(options["betas"]))
    return found


def sgd(*, lr, momentum=0.0, dampening=0.0, nesterov=False, wd=0.0, maximize=False, **tensors):
    options = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov, "weight_decay": wd, "maximize": maximize}
    return optimize(torch.optim.SGD, tensors, lr=lr, **options)


class UncorrectedAdam(torch.optim.Optimizer):
    """Adam whose means start with 0, as they are."""

    def __init__(self, params, **options):
        super().__init__(params, options)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                g = (-p.grad if group["maximize"] else p.grad) + group["weight_decay"] * p
                state = self.state[p]
                m = state["m"] = beta1 * state.get("m", torch.zeros_like(p)) + (1 - beta1) * g
                v = state["v"] = beta2 * state.get("v", torch.zeros_like(p)) + (1 - beta2) * g.square()
                p -= group["lr"] * m / (v.sqrt() + group["eps"])


def adam(*, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, wd=0.0, amsgrad=False, maximize=False, bias_correction=None, **tensors):
    if bias_correction is False:
        options = {"eps": eps, "weight_decay": wd, "maximize": maximize}
        return optimize(UncorrectedAdam, tensors, lr=lr, betas=(beta1, beta2), **options)
    options = {"eps": eps, "weight_decay": wd, "amsgrad": amsgrad, "maximize": maximize}
    return optimize(torch.optim.Adam, tensors, lr=lr, betas=(beta1, beta2), **options)


def adamw(*, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, wd=0.01, amsgrad=False, maximize=False, **tensors):
    options = {"eps": eps, "weight_decay": wd, "amsgrad": amsgrad, "maximize": maximize}
    return optimize(torch.optim.AdamW, tensors, lr=lr, betas=(beta1, beta2), **options)


def rmsprop(*, lr=1e-2, alpha=0.99, eps=1e-8, wd=0.0, momentum=0.0, centered=False, maximize=False, **tensors):
    options = {"eps": eps, "weight_decay": wd, "momentum": momentum, "centered": centered, "maximize": maximize}
    return optimize(torch.optim.RMSprop, tensors, lr=lr, alpha=alpha, **options)


def adagrad(*, lr=1e-2, lr_decay=0.0, wd=0.0, initial_accumulator=0.0, eps=1e-10, maximize=False, **tensors):
    options = {"weight_decay": wd, "initial_accumulator_value": initial_accumulator, "eps": eps, "maximize": maximize}
    return optimize(torch.optim.Adagrad, tensors, lr=lr, lr_decay=lr_decay, **options)


def adamax(*, lr=2e-3, beta1=0.9, beta2=0.999, eps=1e-8, wd=0.0, maximize=False, **tensors):
    options = {"eps": eps, "weight_decay": wd, "maximize": maximize}
    return optimize(torch.optim.Adamax, tensors, lr=lr, betas=(beta1, beta2), **options)


def nadam(*, lr=2e-3, beta1=0.9, beta2=0.999, eps=1e-8, wd=0.0, momentum_decay=4e-3, maximize=False, **tensors):
    options = {"eps": eps, "weight_decay": wd, "momentum_decay": momentum_decay, "maximize": maximize}
    with numbers_in_f64():
        return optimize(torch.optim.NAdam, tensors, lr=lr, betas=(beta1, beta2), **options)


def radam(*, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, wd=0.0, maximize=False, **tensors):
    options = {"eps": eps, "weight_decay": wd, "maximize": maximize}
    return optimize(torch.optim.RAdam, tensors, lr=lr, betas=(beta1, beta2), **options)


def adadelta(*, lr=1.0, rho=0.9, eps=1e-6, wd=0.0, maximize=False, **tensors):
    return optimize(torch.optim.Adadelta, tensors, lr=lr, rho=rho, eps=eps, weight_decay=wd, maximize=maximize)


class WithEtas(torch.optim.Rprop):
    """Rprop whose groups have options of their own under our names."""

    def __init__(self, params, eta_minus, eta_plus, step_min, step_max, **options):
        pairs = {"etas": ("eta_minus", "eta_plus"), "step_sizes": ("step_min", "step_max")}
        own = {"eta_minus": eta_minus, "eta_plus": eta_plus, "step_min": step_min, "step_max": step_max}
        groups = []
        for group in params:
            mine = own | {name: group.pop(name) for name in own if name in group}
            groups.append(group | {name: (mine[a], mine[b]) for name, (a, b) in pairs.items()})
        super().__init__(groups, **options)


def rprop(*, lr=1e-2, eta_minus=0.5, eta_plus=1.2, step_min=1e-6, step_max=50.0, maximize=False, **tensors):
    options = {"eta_minus": eta_minus, "eta_plus": eta_plus, "step_min": step_min, "step_max": step_max}
    return optimize(WithEtas, tensors, lr=lr, maximize=maximize, **options)


def asgd(*, lr=1e-2, alpha=0.75, t0=1e6, wd=0.0, maximize=False, **tensors):
    options = {"lambd": tensors.pop("lambda", 1e-4), "alpha": alpha, "t0": t0, "weight_decay": wd, "maximize": maximize}
    with numbers_in_f64():
        return optimize(torch.optim.ASGD, tensors, lr=lr, **options)


def adafactor(*, lr=1e-2, beta2_decay=-0.8, eps1=None, eps2=1e-3, clip_threshold=1.0, wd=0.0, maximize=False, **tensors):
    options = {"beta2_decay": beta2_decay, "eps": (eps1, eps2), "d": clip_threshold, "maximize": maximize}
    return optimize(torch.optim.Adafactor, tensors, lr=lr, weight_decay=wd, **options)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, **options):
        super().__init__(params, options)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                g = -p.grad if group["maximize"] else p.grad
                m = self.state[p].get("m", torch.zeros_like(p))
                p *= 1 - group["lr"] * group["wd"]
                p -= group["lr"] * (beta1 * m + (1 - beta1) * g).sign()
                self.state[p]["m"] = beta2 * m + (1 - beta2) * g


def lion(*, lr=1e-4, beta1=0.9, beta2=0.99, wd=0.0, maximize=False, **tensors):
    return optimize(Lion, tensors, lr=lr, betas=(beta1, beta2), wd=wd, maximize=maximize)


class Lars(torch.optim.Optimizer):
    def __init__(self, params, **options):
        super().__init__(params, options)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, momentum, wd = group["lr"], group["momentum"], group["wd"]
            for p in group["params"]:
                g = -p.grad if group["maximize"] else p.grad
                w, n = p.norm(), g.norm()
                is_plain = group["skip"] or w == 0 or n == 0
                ratio = 1.0 if is_plain else group["trust"] * w / (n + wd * w + group["eps"])
                u = ratio * lr * (g + wd * p)
                b = self.state[p]["b"] = momentum * self.state[p].get("b", torch.zeros_like(p)) + u
                p -= momentum * b + u if group["nesterov"] else b


class Lamb(torch.optim.Optimizer):
    def __init__(self, params, **options):
        super().__init__(params, options)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                g = -p.grad if group["maximize"] else p.grad
                state = self.state[p]
                t = state["t"] = state.get("t", 0) + 1
                m = state["m"] = beta1 * state.get("m", torch.zeros_like(p)) + (1 - beta1) * g
                v = state["v"] = beta2 * state.get("v", torch.zeros_like(p)) + (1 - beta2) * g.square()
                if group["bias_correction"]:
                    m, v = m / (1 - beta1**t), v / (1 - beta2**t)
                r = m / (v.sqrt() + group["eps"]) + group["wd"] * p
                w, n = p.norm(), r.norm()
                is_plain = group["skip"] or w == 0 or n == 0
                p -= group["lr"] * (1.0 if is_plain else min(w / n, group["max_trust"])) * r


def lars(*, lr=1e-3, momentum=0.9, wd=1e-4, trust=1e-3, eps=1e-8, nesterov=False, skip=False, maximize=False, **tensors):
    options = {"momentum": momentum, "wd": wd, "trust": trust, "eps": eps, "nesterov": nesterov, "skip": skip}
    return optimize(Lars, tensors, lr=lr, maximize=maximize, **options)


def lamb(*, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-6, wd=0.01, bias_correction=True, max_trust=10.0, skip=False,
         maximize=False, **tensors):
    options = {"betas": (beta1, beta2), "eps": eps, "wd": wd, "bias_correction": bias_correction, "skip": skip}
    return optimize(Lamb, tensors, lr=lr, max_trust=float(max_trust), maximize=maximize, **options)


def muon(*, lr=1e-3, wd=0.1, momentum=0.95, nesterov=True, ns_steps=5, a=3.4445, b=-4.7750, c=2.0315, eps=1e-7,
         adjust="original", **tensors):
    """PyTorch's, without its rounding to bf16. It takes matrices only."""
    shapes = {name: x.shape for name, x in tensors.items() if name.startswith("p")}
    is_tensor = lambda x: isinstance(x, torch.Tensor)
    matrices = {name: x.reshape(x.shape[0], -1) if is_tensor(x) else x for name, x in tensors.items()}
    options = {"momentum": momentum, "nesterov": nesterov, "ns_coefficients": (a, b, c), "eps": eps, "ns_steps": ns_steps}
    rounded, torch.Tensor.bfloat16 = torch.Tensor.bfloat16, torch.Tensor.clone
    try:
        found = optimize(torch.optim.Muon, matrices, lr=lr, weight_decay=wd, adjust_lr_fn=adjust, **options)
    finally:
        torch.Tensor.bfloat16 = rounded
    return tuple(p.reshape(shapes[f"p{i}"]) for i, p in enumerate(found))


def with_grads(tensors):
    params = [torch.zeros_like(g).requires_grad_() for g in tensors.values()]
    for param, grad in zip(params, tensors.values()):
        param.grad = grad.detach().clone()
    return params


def clip_norm(*, max_norm, norm_type=2.0, error_if_nonfinite=False, **tensors):
    params = with_grads(tensors)
    norm = torch.nn.utils.clip_grad_norm_(params, max_norm, float(norm_type), error_if_nonfinite)
    return *(param.grad for param in params), norm


def clip_value(*, clip, **tensors):
    params = with_grads(tensors)
    torch.nn.utils.clip_grad_value_(params, clip)
    return tuple(param.grad for param in params)


OPS |= {
    "sgd": ("", sgd),
    "adam": ("", adam),
    "adamw": ("", adamw),
    "rmsprop": ("", rmsprop),
    "adagrad": ("", adagrad),
    "adamax": ("", adamax),
    "nadam": ("", nadam),
    "radam": ("", radam),
    "adadelta": ("", adadelta),
    "rprop": ("", rprop),
    "asgd": ("", asgd),
    "adafactor": ("", adafactor),
    "lion": ("", lion),
    "lars": ("", lars),
    "lamb": ("", lamb),
    "muon": ("", muon),
    "clip_grad_norm": ("", clip_norm),
    "clip_grad_value": ("", clip_value),
}


def cases(out):
    lr = {"lr": 0.1}
    for (op, key), variants in {
        ("sgd", ""): {"plain": lr, "decay": lr | {"wd": 0.1}, "maximize": lr | {"maximize": True}},
        ("sgd", "momentum_"): {
            "plain": lr | {"momentum": 0.9},
            "dampening": lr | {"momentum": 0.8, "dampening": 0.2, "wd": 0.05},
            "maximize": lr | {"momentum": 0.9, "wd": 0.05, "maximize": True},
        },
        ("sgd", "nesterov_"): {
            "plain": lr | {"momentum": 0.9, "nesterov": True},
            "decay": lr | {"momentum": 0.8, "wd": 0.05, "nesterov": True},
        },
        ("adam", ""): adam_variants(),
        ("adamw", ""): adam_variants() | {"no_decay": lr | {"wd": 0.0}},
    }.items():
        for name, attributes in variants.items():
            out.case(f"{op}/{key}{name}", training(), **attributes)
        optimizer_errors(out, f"{op}/{key}", variants["plain"])
    clipping(out)
    for op, variants in {
        "rmsprop": {
            "plain": lr,
            "decay": lr | {"wd": 0.1, "alpha": 0.9, "eps": 1e-3},
            "momentum": lr | {"momentum": 0.9},
            "centered": lr | {"centered": True, "alpha": 0.8},
            "centered_momentum": lr | {"centered": True, "momentum": 0.5, "wd": 0.1},
            "maximize": lr | {"maximize": True},
        },
        "adagrad": {
            "plain": lr,
            "decay": lr | {"wd": 0.1, "lr_decay": 0.2},
            "start": lr | {"initial_accumulator": 0.5, "eps": 1e-3},
            "maximize": lr | {"maximize": True},
        },
    }.items():
        for name, attributes in variants.items():
            out.case(f"{op}/{name}", training(), **attributes)
        optimizer_errors(out, f"{op}/", variants["plain"])
    step = {"p0": normal(2), "g0_0": normal(2)}
    for option, value in ("alpha", 1.0), ("alpha", -0.1), ("eps", -1e-8), ("momentum", -0.1):
        out.error(f"rmsprop/{option}_{value}", "Attr", step, **lr | {option: value})
    for option in "lr_decay", "initial_accumulator", "eps":
        out.error(f"adagrad/negative_{option}", "Attr", step, **lr | {option: -0.1})
    layerwise(out)
    muon_cases(out)
    for (op, key), plain in clipped_and_grouped().items():
        inputs = matrices([(3, 4), (5, 2)]) if op == "muon" else training()
        out.case(f"{op}/{key}clip_value", inputs, **plain[0], clip_value=0.4)
        groups = {f"group0_{option}": value for option, value in plain[1].items()}
        out.case(f"{op}/{key}group", inputs, **plain[0], groups=[[1]], **groups)
        out.error(f"{op}/{key}negative_clip_value", "Attr", inputs, **plain[0], clip_value=-1.0)
        out.error(f"{op}/{key}group_out_of_range", "Attr", inputs, **plain[0], groups=[[1]], group0_wd=-1.0)


    more(out)
    literals(out)


def more(out):
    lr = {"lr": 0.1}
    betas = {"beta1": 0.5, "beta2": 0.9, "eps": 1e-3}
    for op, (variants, group) in {
        "adamax": ({"plain": lr, "decay": lr | betas | {"wd": 0.1}}, betas | {"wd": 0.1}),
        "nadam": ({"plain": lr, "decay": lr | betas | {"wd": 0.1, "momentum_decay": 0.3}}, betas | {"momentum_decay": 0.1}),
        "radam": ({"plain": lr, "decay": lr | betas | {"wd": 0.1}, "long": lr | {"beta2": 0.99}}, betas | {"wd": 0.1}),
        "adadelta": ({"plain": {}, "decay": lr | {"rho": 0.5, "eps": 1e-3, "wd": 0.1}}, {"rho": 0.5, "eps": 1e-2}),
        "rprop": (
            {"plain": lr, "sizes": lr | {"eta_minus": 0.3, "eta_plus": 1.5, "step_min": 0.08, "step_max": 0.13}},
            {"eta_plus": 2.0},
        ),
        "asgd": ({"plain": lr, "decay": lr | {"lambda": 0.1, "alpha": 0.5, "wd": 0.1}}, {"lambda": 0.2, "alpha": 1.0}),
        "adafactor": (
            {"plain": lr, "decay": {"lr": 0.5, "beta2_decay": -0.5, "eps1": 0.1, "eps2": 0.5, "clip_threshold": 1.5, "wd": 0.1}},
            {"lr": 0.02, "wd": 0.1},
        ),
        "lion": ({"plain": lr, "decay": lr | {"beta1": 0.5, "beta2": 0.6, "wd": 0.1}}, {"beta1": 0.2, "wd": 0.5}),
    }.items():
        variants["maximize"] = variants["plain"] | {"maximize": True}
        for name, attributes in variants.items():
            out.case(f"{op}/{name}", training(), **attributes)
        optimizer_errors(out, f"{op}/", lr)
        out.case(f"{op}/clip_value", training(3), **lr, clip_value=0.4)
        groups = {f"group0_{option}": value for option, value in group.items()}
        out.case(f"{op}/group", training(3), **lr, groups=[[1]], **groups)
    out.case("adam/uncorrected", training(), **lr, bias_correction=False, wd=0.1)
    out.case("adafactor/volume", {"p0": normal(2, 3, 4), "g0_0": normal(2, 3, 4), "g0_1": normal(2, 3, 4)}, **lr)
    out.case("adafactor/number", {"p0": normal(), "g0_0": normal(), "g0_1": normal()}, **lr)
    step = {"p0": normal(2), "g0_0": normal(2)}
    for op, option, value in [
        ("nadam", "momentum_decay", -0.1), ("radam", "beta2", 0.0), ("adadelta", "rho", 1.0),
        ("rprop", "eta_minus", 1.0), ("rprop", "eta_plus", 1.0), ("rprop", "step_max", 1e-9), ("asgd", "t0", -1.0),
        ("adafactor", "beta2_decay", 0.1), ("adafactor", "clip_threshold", 0.0), ("lion", "beta2", 1.0),
    ]:  # fmt: skip
        out.error(f"{op}/{option}", "Attr", step, **lr | {option: value})


def clipped_and_grouped():
    """By optimizer: its options, and those of a group."""
    lr = {"lr": 0.1}
    return {
        ("sgd", ""): (lr | {"wd": 0.1}, {"lr": 0.05, "wd": 0.0, "maximize": True}),
        ("sgd", "momentum_"): (lr | {"momentum": 0.9}, {"momentum": 0.5, "dampening": 0.2, "wd": 0.1}),
        ("sgd", "nesterov_"): (lr | {"momentum": 0.9, "nesterov": True}, {"momentum": 0.5, "wd": 0.1}),
        ("adam", ""): (lr, {"lr": 0.05, "beta1": 0.5, "beta2": 0.6, "eps": 1e-3, "wd": 0.1, "amsgrad": True}),
        ("adamw", ""): (lr | {"amsgrad": True}, {"beta2": 0.6, "eps": 1e-3, "wd": 0.5, "maximize": True}),
        ("rmsprop", ""): (lr, {"alpha": 0.5, "eps": 1e-3, "momentum": 0.9, "centered": True, "wd": 0.1}),
        ("adagrad", ""): (lr, {"lr_decay": 0.2, "eps": 1e-3, "wd": 0.1}),
        ("lars", ""): ({"lr": 5.0}, {"momentum": 0.5, "trust": 0.02, "eps": 1e-3, "wd": 0.1, "nesterov": True}),
        ("lamb", ""): (lr, {"beta1": 0.5, "beta2": 0.6, "eps": 1e-3, "wd": 0.1, "skip": True}),
        ("muon", ""): (lr, {"lr": 0.05, "momentum": 0.5, "wd": 0.5, "nesterov": False}),
    }


def layerwise(out):
    # A rate at which the trust ratio of 1e-3 moves something.
    lr = {"lr": 5.0}
    for op, variants in {
        "lars": {
            "plain": lr,
            "decay": lr | {"momentum": 0.8, "wd": 0.1, "trust": 0.02, "eps": 1e-3},
            "nesterov": lr | {"nesterov": True, "wd": 0.0},
            "skip": {"lr": 0.1, "skip": True},
            "maximize": lr | {"maximize": True, "momentum": 0.0},
        },
        "lamb": {
            "plain": {"lr": 0.1},
            "decay": {"lr": 0.05, "wd": 0.5, "beta1": 0.5, "beta2": 0.9, "eps": 1e-3},
            "bound": {"lr": 0.1, "max_trust": 0.3},
            "unbound": {"lr": 0.1, "max_trust": "inf", "wd": 0.0},
            "uncorrected": {"lr": 0.1, "bias_correction": False},
            "skip": {"lr": 0.1, "skip": True},
            "maximize": {"lr": 0.1, "maximize": True},
        },
    }.items():
        for name, attributes in variants.items():
            out.case(f"{op}/{name}", training(), **attributes)
        zeros = {name: torch.zeros_like(x) if name[1] == "0" else x for name, x in training(3).items()}
        out.case(f"{op}/zero_gradient", training(3) | {"g0_0": torch.zeros(3, 2, dtype=F64)}, lr=0.1)
        out.case(f"{op}/zeros", zeros, lr=0.1)
        out.case(f"{op}/empty", {"p0": normal(0, 2), "g0_0": normal(0, 2)}, lr=0.1)
        optimizer_errors(out, f"{op}/", variants["plain"])
    step = {"p0": normal(2), "g0_0": normal(2)}
    for option in "momentum", "trust", "eps":
        out.error(f"lars/{option}", "Attr", step, **lr | {option: -0.1})
    for option, value in ("beta1", 1.0), ("beta2", -0.1), ("eps", -1e-6), ("max_trust", 0.0):
        out.error(f"lamb/{option}", "Attr", step, **lr | {option: value})


def muon_cases(out):
    lr = {"lr": 0.1}
    shapes = {"wide": [(3, 5), (3, 5)], "tall": [(6, 2)], "square": [(4, 4)], "several": [(3, 5), (5, 3), (2, 2), (3, 5)]}
    for name, dims in shapes.items():
        out.case(f"muon/{name}", matrices(dims), **lr)
    for name, attributes in {
        "decay": {"wd": 0.5},
        "momentum": {"momentum": 0.5, "nesterov": False},
        "iteration": {"ns_steps": 3, "a": 2.0, "b": -1.5, "c": 0.5},
        "eps": {"eps": 10.0},
        "adjusted": {"adjust": "match_rms_adamw"},
    }.items():
        out.case(f"muon/{name}", matrices([(3, 4), (5, 2)]), **lr | attributes)
    out.case("muon/rank3", matrices([(3, 2, 4), (6, 1, 2)]), **lr)
    step = matrices([(3, 4)], 1)
    out.case("muon/zero_gradient", step | {"g0_0": torch.zeros(3, 4, dtype=F64)}, **lr)
    optimizer_errors(out, "muon/", lr)
    out.error("muon/rank1", "Shape", {"p0": normal(3), "g0_0": normal(3)}, **lr)
    out.error("muon/rank0", "Shape", {"p0": normal(), "g0_0": normal()}, **lr)
    for option, value in ("momentum", 1.0), ("eps", -1e-7), ("ns_steps", 0), ("ns_steps", 100):
        out.error(f"muon/{option}_{value}", "Attr", step, **lr | {option: value})


def matrices(dims, steps=10):
    params = {f"p{i}": normal(*shape) for i, shape in enumerate(dims)}
    return params | {f"g{i}_{s}": normal(*shape) for s in range(steps) for i, shape in enumerate(dims)}


def adam_variants():
    return {
        "plain": {"lr": 0.1},
        "decay": {"lr": 0.05, "wd": 0.1},
        "betas": {"lr": 0.1, "beta1": 0.5, "beta2": 0.9, "eps": 1e-3},
        "amsgrad": {"lr": 0.1, "beta2": 0.6, "amsgrad": True},
        "maximize": {"lr": 0.1, "wd": 0.1, "maximize": True},
    }


def training(steps=10):
    params = {"p0": normal(3, 2), "p1": normal(4)}
    return params | {f"g{i}_{s}": normal(*params[f"p{i}"].shape) for s in range(steps) for i in range(2)}


def optimizer_errors(out, start, attributes):
    """Cases of refused options; their names begin with `start`."""
    step = {"p0": normal(2), "g0_0": normal(2)}
    out.error(f"{start}negative_lr", "Attr", step, **attributes | {"lr": -0.1})
    out.error(f"{start}negative_decay", "Attr", step, **attributes | {"wd": -0.1})
    out.error(f"{start}gradient_shape", "Shape", step | {"g0_0": normal(3)}, **attributes)
    if "momentum" in attributes:
        out.error(f"{start}negative_momentum", "Attr", step, **attributes | {"momentum": -0.1})
    if start.startswith("adam"):
        out.error(f"{start}beta1", "Attr", step, **attributes | {"beta1": 1.0})
        out.error(f"{start}beta2", "Attr", step, **attributes | {"beta2": -0.1})
        out.error(f"{start}negative_eps", "Attr", step, **attributes | {"eps": -1e-8})


def clipping(out):
    gradients = {"g0": 2 * normal(2, 3), "g1": normal(4)}
    for norm_type in 1.0, 2.0, "inf":
        for max_norm in 0.5, 100.0:
            out.case(f"clip_grad_norm/p{norm_type}_max{max_norm}", gradients, max_norm=max_norm, norm_type=norm_type)
    out.case("clip_grad_norm/zero", {"g0": torch.zeros(3, dtype=F64)}, max_norm=1.0)
    out.case("clip_grad_norm/nan", {"g0": f64([1.0, NAN]), "g1": f64([2.0])}, max_norm=1.0)
    out.case("clip_grad_norm/inf", {"g0": f64([1.0, INF]), "g1": f64([2.0])}, max_norm=1.0)
    out.error("clip_grad_norm/nonfinite", "Value", {"g0": f64([1.0, NAN])}, max_norm=1.0, error_if_nonfinite=True)
    out.case("clip_grad_value/0.5", gradients | {"g2": f64([-INF, -0.5, 0.5, INF, NAN])}, clip=0.5)
    out.case("clip_grad_value/zero", gradients, clip=0.0)
    out.error("clip_grad_value/negative", "Attr", gradients, clip=-1.0)


def literals(out):
    """Numbers that were written down beforehand, at eight digits, which PyTorch confirms."""
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
