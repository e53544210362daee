"""Cases for `isograd parity --cases DIR`, as PyTorch computes them. Put your own calls below.

    python -m venv venv && venv/bin/pip install torch safetensors numpy
    venv/bin/python docs/dump_cases.py DIR
"""

import json
import pathlib
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file


class Cases:
    def __init__(self):
        self.cases, self.tensors = [], {}

    def add(self, name, op, reference, inputs, grads=(), **attributes):
        """What `reference` gives in f64 for inputs of any dtype, and the gradients of those that `grads` names."""
        wide = {k: x.double() if x.is_floating_point() else x for k, x in inputs.items()}
        leaves = {k: x.clone().requires_grad_(k in grads) for k, x in wide.items()}
        outputs = reference(**leaves)
        outputs = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
        dtype = next(x.dtype for x in inputs.values() if x.is_floating_point())
        cotangents = {k: (2 * torch.rand(y.shape) - 1).to(dtype) for k, y in enumerate(outputs) if y.requires_grad}
        if grads:
            used = [outputs[k] for k in cotangents]
            found = torch.autograd.grad(used, [leaves[k] for k in grads], [g.double() for g in cotangents.values()])
        parts = {"in": inputs, "out": dict(enumerate(outputs)), "cotangent": cotangents}
        parts["grad"] = dict(zip(grads, found)) if grads else {}
        self.record(name, op, attributes, parts, outputs=len(outputs), grads=list(grads), exact=True)

    def error(self, name, op, kind, inputs, **attributes):
        """A call that must be refused with this kind of error."""
        self.record(name, op, attributes, {"in": inputs}, error=kind)

    def chain(self, name, calls, inputs, outputs, **fields):
        """Several calls, and what some of their results must be, in f64 or in the dtype of the inputs."""
        exact = all(y.dtype == torch.float64 for y in outputs.values() if y.is_floating_point())
        case = {"name": name, "calls": calls, "inputs": list(inputs), "outputs": list(outputs), "exact": exact}
        self.keep(case | fields, {"in": inputs, "out": outputs})

    def record(self, name, op, attributes, parts, **fields):
        case = {"name": name, "op": op, "attributes": attributes, "inputs": list(parts["in"])}
        self.keep(case | fields, parts)

    def keep(self, case, parts):
        name = case["name"]
        self.cases.append(case)
        for part, tensors in parts.items():
            for key, x in tensors.items():
                self.tensors[f"{name}/{part}/{key}"] = x.detach().clone(memory_format=torch.contiguous_format)

    def save(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(json.dumps(case) for case in self.cases)
        (folder / "cases.json").write_text(f'{{"torch": "{torch.__version__}", "cases": [\n{lines}\n]}}\n')
        save_file(self.tensors, folder / "pytorch.safetensors")


def steps(make, returns):
    """Parameters and states, as `returns` lists them, after a step with each of the gradients."""

    def reference(p0, **gradients):
        p = p0.clone()
        optimizer = make([p])
        for gradient in gradients.values():
            p.grad = gradient
            optimizer.step()
        results = {"p0": p} | {f"0.{name}": x for name, x in optimizer.state[p].items()}
        return [results[name].double() for name in returns]

    return reference


def batch_norm(x, **state):
    """The result of a layer in training, and the statistics that it leaves, averaged over all batches alike."""
    norm = torch.nn.BatchNorm1d(x.shape[1], momentum=None, affine=False).double()
    norm.load_state_dict(state)
    return norm(x), *norm.state_dict().values()


def chains(cases):
    """Gradients of gradients, and a module that is trained and then evaluated."""
    x, v = torch.randn(5), torch.rand(5)
    leaf = x.double().requires_grad_()
    (dx,) = torch.autograd.grad(torch.logsumexp(leaf, 0), leaf, create_graph=True)
    (hv,) = torch.autograd.grad(dx, leaf, v.double())
    calls = [
        {"leaves": ["x"]},
        {"op": "logsumexp", "inputs": ["x"], "outputs": ["y"]},
        {"grad": ["y"], "for": ["x"], "create_graph": True, "outputs": ["dx"]},
        {"grad": ["dx"], "cotangents": ["v"], "for": ["x"], "outputs": ["hv"]},
    ]
    cases.chain("curvature", calls, {"x": x, "v": v}, {"dx": dx, "hv": hv})
    norm = torch.nn.BatchNorm1d(3, affine=False).double()
    inputs = {f"x{k}": torch.randn(4, 3) for k in range(3)} | {"running_mean": torch.zeros(3), "running_var": torch.ones(3)}
    norm(inputs["x0"].double())
    results = {"y1": norm(inputs["x1"].double()), "mean": norm.running_mean}
    results["y2"] = norm.eval()(inputs["x2"].double())
    state = {"running_mean": "running_mean", "running_var": "running_var"}
    calls = [
        {"op": "BatchNorm1d", "module": "norm", "inputs": {"x": "x0"} | state},
        {"module": "norm", "attributes": {"returns": ["y", "running_mean"]}, "inputs": {"x": "x1"}, "outputs": ["y1", "mean"]},
        {"module": "norm", "attributes": {"training": False}, "inputs": {"x": "x2"}, "outputs": ["y2"]},
    ]
    cases.chain("norm", calls, inputs, results)


def main(folder):
    torch.manual_seed(7)
    cases, returns = Cases(), ["p0", "0.exp_avg", "0.exp_avg_sq", "0.step"]
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        draw = lambda *shape: torch.randn(shape).to(dtype)
        name = str(dtype).removeprefix("torch.")
        # An op by the name of its method, with its attributes by the names of the golden files.
        cases.add(f"gelu_{name}", "gelu", lambda x: F.gelu(x), {"x": draw(3, 5)}, ["x"], approximate="none")
        cases.add(f"softmax_{name}", "softmax", lambda x: x.softmax(0), {"x": draw(3, 5)}, ["x"], dim=0)
        # A module, with its parameters by the names of its dictionary of states.
        inputs = {"x": draw(3, 5), "weight": draw(4, 5), "bias": draw(4)}
        cases.add(f"linear_{name}", "Linear", lambda x, weight, bias: F.linear(x, weight, bias), inputs, list(inputs))
    # A module with buffers, and what becomes of them.
    state = {"running_mean": torch.randn(3), "running_var": torch.rand(3), "num_batches_tracked": torch.tensor(4)}
    inputs, attributes = {"x": torch.randn(5, 3)} | state, {"momentum": None, "returns": ["y", *state]}
    cases.add("batch_norm", "BatchNorm1d", batch_norm, inputs, ["x"], **attributes)
    # Steps of an optimizer, and its states after them.
    inputs = {name: torch.randn(3, 2) for name in ["p0", "g0_0", "g0_1", "g0_2"]}
    adam = steps(lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.05), returns)
    cases.add("adamw", "adamw", adam, inputs, lr=0.1, wd=0.05, returns=returns)
    chains(cases)
    cases.error("rows_and_columns", "matmul", "Shape", {"a": torch.ones(2, 3), "b": torch.ones(2, 3)})
    cases.save(folder)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
