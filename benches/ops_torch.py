#!/usr/bin/env python3
"""Puts PyTorch's times beside those of every op that `isograd parity --json` measured, on the same device.

    isograd parity --device cuda:0 --json parity.json
    python3 benches/ops_torch.py parity.json [--device cuda:0] [--filter RE] [--jobs N] [--json FILE]

Each call is repeated with the attributes and shapes that the file has, by the reference of tests/golden, or by PyTorch's own
function where the reference is a formula; where that is slow, torch.compile too, and the fastest counts. Medians of calls with
cold caches, as isograd measures them. `ratio` is PyTorch's time over isograd's: above 1, isograd is faster. With `--jobs`, so many
processes compile first, into Inductor's cache on disk, and then one process times, alone.
"""

import argparse
import contextlib
import json
import multiprocessing
import re
import signal
import statistics
import sys
from pathlib import Path

import torch
import torch._inductor.config as inductor
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "golden"))
import generate  # noqa: E402
from common import OPS  # noqa: E402

generate.load()

# Configurations are chosen by the process that times: others compile while the device is used.
inductor.autotune_local_cache = False


def updating(norm):
    """Returns what is normalised as well as the statistics, so that compiled code has to write it."""

    def call(x, running_mean, running_var, num_batches=None, *, momentum=0.1, eps=1e-5):
        share = ops.average_factor(momentum, num_batches)
        y = norm(x, running_mean, running_var, None, None, True, share, eps)
        return (y, running_mean, running_var) if num_batches is None else (y, running_mean, running_var, num_batches.add_(1))

    return call


# Where the reference is a formula, checks what costs time, or returns less than the function that a user would call: that.
OWN = {
    "elu": lambda x, *, alpha=1.0: F.elu(x, alpha),
    "selu": lambda x: F.selu(x),
    "celu": lambda x, *, alpha=1.0: F.celu(x, alpha),
    "relu6": lambda x: F.relu6(x),
    "hardtanh": lambda x, *, min=-1.0, max=1.0: F.hardtanh(x, min, max),
    "hardsigmoid": lambda x: F.hardsigmoid(x),
    "batch_norm_running": updating(F.batch_norm),
    "instance_norm_running": updating(F.instance_norm),
    "topk": lambda x, *, k, dim=-1, largest=True: torch.topk(x, k, dim, largest),
    "accumulate_grad": lambda y, x: y.add_(x),
    "cast": lambda x, *, dtype: x.to(ops.DTYPES[dtype]),
    "dropout": lambda x, *, p=0.5, training=True: F.dropout(x, p, training),
    "index_put": lambda self, values, *, indices, accumulate=False, **t: self.index_put(
        ops.subscript(indices, t), values, accumulate
    ),
    "scatter_max": lambda src, index, *, size=None, ties="even": src.new_zeros([size, *src.shape[1:]]).scatter_reduce(
        0, index.long().view(-1, *[1] * (src.dim() - 1)).expand_as(src), src, "amax", include_self=False
    ),
}
RUNS = 5
# Reads between calls: caches hold nothing after them, and they take longer than what the host does for a call of PyTorch.
READS = 8
# Of the limit: what reaches this is not compiled.
SLOW = 0.95


def inputs_of(entry, device):
    """Numbers that are probabilities, positive, and indices in range, whatever the op."""
    tensors = {}
    for given in entry["inputs"]:
        dtype, shape = ops.DTYPES[given["dtype"]], given["shape"]
        if dtype.is_floating_point:
            tensors[given["name"]] = (0.05 + 0.9 * torch.rand(shape, device=device)).to(dtype)
        elif dtype == torch.bool:
            tensors[given["name"]] = torch.rand(shape, device=device) < 0.5
        else:
            tensors[given["name"]] = torch.randint(0, max(given["below"] or 1, 1), shape, device=device, dtype=dtype)
    return tensors


def reference(entry, tensors):
    """The call, and the inputs that have a gradient."""
    call = OWN.get(entry["op"], OPS[entry["op"]][1])
    # Of what changes a copy, without that.
    call = getattr(call, "__wrapped__", call)
    attributes = {ops.ATTRIBUTE_NAMES.get(k, k) if k in tensors else k: v for k, v in (entry["attributes"] or {}).items()}
    attributes = {k: v for k, v in attributes.items() if v is not None}
    return lambda t: call(**t, **attributes), [given["name"] for given in entry["inputs"] if given["gradient"]]


class Clock:
    def __init__(self, device):
        self.is_gpu = device.type == "cuda"
        self.flushed = torch.zeros(64 << 20 if self.is_gpu else 8 << 20, device=device)

    def __call__(self, f):
        for _ in range(2):
            f()
        times = []
        for _ in range(RUNS):
            for _ in range(READS):
                self.flushed.sum()
            if self.is_gpu:
                before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                before.record()
                f()
                after.record()
                torch.cuda.synchronize()
                times.append(before.elapsed_time(after) * 1e-3)
            else:
                import time

                started = time.perf_counter()
                f()
                times.append(time.perf_counter() - started)
        return statistics.median(times)


def passes(call, tensors, wanted, clock, has_backward):
    """Seconds of the result, and of all gradients, with what the result takes longer if they are wanted: code compiled for a
    gradient may compute a part of it beforehand."""
    with torch.no_grad():
        forward = clock(lambda: call(tensors))
    if not (has_backward and wanted):
        return forward, None
    leaves = {n: t.requires_grad_() if n in wanted else t for n, t in tensors.items()}
    y = call(leaves)
    y = y[0] if isinstance(y, tuple) else y
    g = torch.ones_like(y)
    targets = [leaves[n] for n in wanted]
    backward = clock(lambda: torch.autograd.grad(y, targets, g, retain_graph=True, allow_unused=True))
    return forward, backward + max(0.0, clock(lambda: call(leaves)) - forward)


def least(a, b):
    found = [t for t in (a, b) if t is not None]
    return min(found) if found else None


def measure(entry, device, clock, bandwidth, compiles):
    tensors = inputs_of(entry, device)
    call, wanted = reference(entry, tensors)
    backward = entry["backward"]
    times = passes(call, tensors, wanted, clock, backward is not None)
    limits = entry["bytes"] / bandwidth, backward and backward["bytes"] / bandwidth
    is_slow = any(t is not None and limit and limit / t < SLOW for t, limit in zip(times, limits))
    compiled = None, None
    if compiles and is_slow:
        with contextlib.suppress(Exception):
            torch._dynamo.reset()
            compiled = passes(torch.compile(call), inputs_of(entry, device), wanted, clock, backward is not None)
    return times, compiled


def stopped(seconds):
    """Ends what takes longer with an error."""

    def stop(number, frame):
        raise TimeoutError(f"stopped after {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)


def compile_all(entries, device, bandwidth, seconds):
    """Compiles what one process will time. Its own times are of a device that others use too."""
    inductor.compile_threads = 1
    clock = Clock(device)
    for entry in entries:
        with contextlib.suppress(Exception):
            stopped(seconds)
            measure(entry, device, clock, bandwidth, True)
        signal.alarm(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parity", help="what `isograd parity --json` wrote")
    parser.add_argument("--device", default="cuda:0", help="isograd's name of the device [default: cuda:0]")
    parser.add_argument("--filter", default="", help="only ops whose name this finds")
    parser.add_argument("--dtype", action="append", help="only these dtypes [default: f32 and bf16]")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--jobs", type=int, default=0, help="so many processes compile first [default: none]")
    parser.add_argument("--seconds", type=int, default=30, help="for each op; what takes longer is left out [default: 30]")
    parser.add_argument("--threads", type=int, help="of the processor [default: all]")
    parser.add_argument("--json", help="write the rows to this file too")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    report = json.loads(Path(args.parity).read_text())
    device = torch.device("cpu" if args.device == "cpu" else "cuda")
    bandwidth = next(d["bandwidth"] for d in report["devices"] if d["name"] == args.device)

    def is_wanted(entry):
        is_chosen = entry["device"] == args.device and re.search(args.filter, entry["op"])
        return is_chosen and entry["dtype"] in (args.dtype or ["f32", "bf16"])

    wanted = [entry for entry in report["speeds"] if is_wanted(entry)]
    for op in {entry["op"]: None for entry in wanted if entry["op"] not in OPS}:
        print(f"{op}: no reference", file=sys.stderr)
    wanted = [entry for entry in wanted if entry["op"] in OPS]
    if args.jobs and not args.no_compile:
        spawn = multiprocessing.get_context("spawn").Process
        shares = [(wanted[k :: args.jobs], device, bandwidth, args.seconds) for k in range(args.jobs)]
        jobs = [spawn(target=compile_all, args=share) for share in shares]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
    clock, rows = Clock(device), []
    for entry in wanted:
        try:
            stopped(args.seconds)
            eager, compiled = measure(entry, device, clock, bandwidth, not args.no_compile)
        except Exception as error:  # what PyTorch does not have in a dtype
            print(f"{entry['op']} {entry['dtype']}: {str(error).partition(chr(10))[0][:120]}", file=sys.stderr)
            continue
        finally:
            signal.alarm(0)
        for k, (name, ours) in enumerate({"fwd": entry, "bwd": entry["backward"]}.items()):
            if ours is not None and eager[k] is not None:
                theirs = least(eager[k], compiled[k])
                row = {"op": entry["op"], "dtype": entry["dtype"], "pass": name, "limit": ours["bytes"] / bandwidth}
                row |= {"ours": ours["seconds"], "eager": eager[k], "compiled": compiled[k], "torch": theirs}
                rows.append({**row, "ratio": theirs / ours["seconds"]})
        if args.json:
            Path(args.json).write_text(json.dumps(rows))
    print("| op | dtype | pass | of the limit | PyTorch | ratio |\n| --- | --- | --- | ---: | ---: | ---: |")
    for row in sorted(rows, key=lambda row: row["ratio"]):
        ours, theirs = (row["limit"] / row[k] for k in ("ours", "torch"))
        print(f"| {row['op']} | {row['dtype']} | {row['pass']} | {ours:.2f} | {theirs:.2f} | {row['ratio']:.2f} |")


if __name__ == "__main__":
    main()
