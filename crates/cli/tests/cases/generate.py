"""The cases of this folder, from PyTorch 2.11.0: optimizers with all of their options, modules and schedules.

    python -m venv venv && venv/bin/pip install torch==2.11.0 safetensors numpy
    venv/bin/python crates/cli/tests/cases/generate.py
"""

import pathlib
import sys

import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parents[3] / "docs"))

from dump_cases import Cases  # noqa: E402


def draw(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype)


def trained(inputs, make, returns, *, rates=None, clip=None, scaler=None):
    """Steps of an optimizer over `p0, p1, ..`, from states among the inputs, with a clipped norm or a scaler."""

    def reference(**inputs):
        parameters = [inputs[f"p{i}"].clone() for i in range(sum(name[0] == "p" for name in inputs))]
        optimizer = make(parameters)
        for name, state in inputs.items():
            if "." in name:
                i, name = name.split(".")
                optimizer.state[parameters[int(i)]][name] = state.float() if name == "step" else state.clone()
        results = {}
        for k in range(1 + max(int(name.split("_")[1]) for name in inputs if name[0] == "g")):
            for i, p in enumerate(parameters):
                g = inputs.get(f"g{i}_{k}")
                p.grad = None if g is None else g.clone()
            if rates:
                optimizer.param_groups[0]["lr"] = rates[k]
            if clip:
                results["grad_norm"] = torch.nn.utils.clip_grad_norm_(parameters, clip)
            if scaler:
                scaled_step(optimizer, parameters, scaler)
            else:
                optimizer.step()
        results |= {f"p{i}": p for i, p in enumerate(parameters)}
        for i, p in enumerate(parameters):
            results |= {f"{i}.{name}": x for name, x in optimizer.state[p].items()}
        if scaler:
            results["scale"] = torch.tensor(scaler["scale"])
        return [results[name].double() for name in returns]

    return reference


def scaled_step(optimizer, parameters, scaler):
    bad = any(not p.grad.isfinite().all() for p in parameters)
    if not bad:
        for p in parameters:
            p.grad /= scaler["scale"]
        optimizer.step()
    scaler["good"] = 0 if bad else scaler["good"] + 1
    if bad:
        scaler["scale"] *= 0.5
    elif scaler["good"] == scaler["interval"]:
        scaler["scale"] *= 2
        scaler["good"] = 0


def optimizers(cases):
    inputs = {name: draw(3, 2) for name in ["p0", "p1", "g0_0", "g1_0", "g0_1", "g1_1", "g0_2", "g1_2"]}
    sgd, adam = torch.optim.SGD, torch.optim.Adam
    buffers = ["p0", "p1", "0.momentum_buffer"]

    def add(name, op, make, returns, given=inputs, rates=None, clip=None, scaler=None, **attributes):
        reference = trained(given, make, returns, rates=rates, clip=clip, scaler=scaler)
        cases.add(name, op, reference, given, returns=returns, **attributes)

    add("momentum", "sgd", lambda p: sgd(p, lr=0.1, momentum=0.9, dampening=0.2, weight_decay=0.1), buffers,
        lr=0.1, momentum=0.9, dampening=0.2, wd=0.1)
    add("nesterov_up", "sgd", lambda p: sgd(p, lr=0.1, momentum=0.9, nesterov=True, maximize=True), buffers,
        lr=0.1, momentum=0.9, nesterov=True, maximize=True)
    rates = [0.1, 0.05, 0.2]
    add("rate_of_each_step", "sgd", lambda p: sgd(p, lr=0.1), ["p0", "p1"], rates=rates, lr=rates)
    add("clipped", "sgd", lambda p: sgd(p, lr=0.1), ["p0", "grad_norm"], clip=0.5, lr=0.1, clip_norm=0.5)
    add("groups", "adam",
        lambda p: adam([{"params": p[:1]}, {"params": p[1:], "lr": 0.02, "weight_decay": 0.3}], lr=0.1), ["p0", "p1"],
        lr=0.1, groups=[[1]], group0_lr=0.02, group0_wd=0.3)
    add("amsgrad", "adamw", lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True, betas=(0.5, 0.6), eps=1e-3),
        ["p0", "0.max_exp_avg_sq"], lr=0.1, amsgrad=True, beta1=0.5, beta2=0.6, eps=1e-3)
    without = {name: x for name, x in inputs.items() if name != "g1_1"}
    add("a_missing_gradient", "adam", lambda p: adam(p, lr=0.1), ["p0", "p1", "0.step", "1.step"], without, lr=0.1)
    states = {"0.step": torch.tensor(5.0), "0.exp_avg": draw(3, 2), "0.exp_avg_sq": draw(3, 2).square()}
    first = {"p0": inputs["p0"], "g0_0": inputs["g0_0"]} | states
    add("resumed", "adam", lambda p: adam(p, lr=0.1), ["p0", "0.exp_avg", "0.step"], first, lr=0.1)
    scaled = {name: x * 8 if name[0] == "g" else x for name, x in inputs.items()}
    scaled["g1_1"] = scaled["g1_1"].clone()
    scaled["g1_1"][1, 1] = torch.inf
    add("scaler", "adam", lambda p: adam(p, lr=0.1), ["p0", "0.step", "scale"], scaled,
        scaler={"scale": 8.0, "good": 0, "interval": 1}, lr=0.1, init_scale=8.0, interval=1)


def modules(cases):
    x, w, b = draw(2, 3), draw(4, 3), draw(4)
    index = torch.tensor([[0, 2], [2, 1]])
    cases.add("embedding", "Embedding", lambda x, weight: F.embedding(x, weight, padding_idx=1, scale_grad_by_freq=True),
              {"x": index, "weight": w}, ["weight"], padding_idx=1, scale_grad_by_freq=True)
    inputs = {"x": x, "0.weight": w, "0.bias": b, "3.0.weight": draw(2, 4)}
    cases.add("sequential", "Sequential",
              lambda x, **s: F.linear(F.gelu(F.linear(x, s["0.weight"], s["0.bias"]), approximate="tanh"), s["3.0.weight"]),
              inputs, list(inputs), layers=["Linear", "Gelu", "Dropout", "Sequential"], training=False,
              **{"1.approximate": "tanh", "2.p": 0.5, "3.layers": ["Linear"]})
    cases.add("fused", "Linear", lambda x, weight, bias: F.silu(F.linear(x, weight, bias)),
              {"x": x, "weight": w, "bias": b}, ["x", "weight", "bias"], activation="silu")
    cases.add("leaky", "LeakyRelu", lambda x: F.leaky_relu(x, 0.3), {"x": x}, ["x"], slope=0.3)
    cases.add("layer_norm", "layer_norm", lambda x, weight: F.layer_norm(x, [3], weight), {"x": x, "weight": draw(3)},
              ["x", "weight"], normalized_shape=[3], eps=1e-5)


def schedules(cases):
    schedule = torch.optim.lr_scheduler
    for name, make, attributes in [
        ("Step", lambda o: schedule.StepLR(o, 2, 0.5), {"every": 2, "gamma": 0.5}),
        ("Cosine", lambda o: schedule.CosineAnnealingLR(o, 6, 0.01), {"steps": 6, "min": 0.01}),
    ]:
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
        rule, rates = make(optimizer), []
        for _ in range(6):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            rule.step()
        rates = torch.tensor(rates, dtype=torch.float64)
        cases.record(name, name, attributes | {"lr": 0.1, "count": 6}, {"in": {}, "out": {0: rates}}, outputs=1)


torch.manual_seed(7)
all_cases = Cases()
for family in (optimizers, modules, schedules):
    family(all_cases)
all_cases.error("outer_sizes", "matmul", "Shape", {"a": torch.ones(2, 3), "b": torch.ones(2, 3)})
all_cases.save(HERE)
