#!/usr/bin/env python3
"""Times convolutions with isograd and with PyTorch, one after the other, on the same GPU.

    cargo build --release -p isograd-cli --features parity
    python3 benches/convolution.py [--isograd target/release/isograd] [--device cuda:0] [--others hip:0,opencl:0] [--quick] [--json FILE]

isograd's rows are those of `isograd bench`: medians with cold caches, as it chooses (cuDNN for most rows) and with our own kernels alone
(ISOGRAD_DNN=own). PyTorch's times are taken the same way, with `cudnn.benchmark` and without TF32. `PyTorch` is its time over isograd's:
above 1, isograd is faster. `cuDNN` is isograd's time with cuDNN over that of our own kernels: 1 is as fast as cuDNN. `copy` and `matrix`
are the least times that the copy bandwidth and the matrix rate of isograd's run allow, over the time of our own kernels. The last columns
are the time of our kernels on the device over that on each other one. The kernels that PyTorch ran are named below the table.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile

import torch
import torch.nn.functional as F

ROWS = r"^convolution conv2d"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
RUNS, FLUSHED = 30, 128 << 20


def cold(f, flush=[]):
    """The median of calls with cold caches, in milliseconds."""
    if not flush:
        flush.append(torch.zeros(FLUSHED, device="cuda"))
    for _ in range(3):
        f()
    times = []
    for _ in range(RUNS):
        # Three times, so that the device is still busy when the call has been launched.
        for _ in range(3):
            flush[0].sum()
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        f()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after))
    return statistics.median(times)


def kernels(f):
    """The names of the kernels of a call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        f()
        torch.cuda.synchronize()
    return sorted({event.name[:90] for event in profile.events() if "Mem" not in event.name})


def call_of(row):
    """A convolution, or its gradients, as PyTorch computes it."""
    n, channels, height, width, outputs, size, stride, groups = row["shape"]
    dtype = DTYPES[row["dtype"]]
    x = torch.randn(n, channels, height, width, device="cuda").to(dtype)
    weight = torch.randn(outputs, channels // groups, size, size, device="cuda").to(dtype)
    if "channels last" in row["name"]:
        x, weight = (t.to(memory_format=torch.channels_last) for t in (x, weight))
    call = lambda: F.conv2d(x, weight, None, stride, size // 2, 1, groups)
    if row["pass"] == "fwd":
        return call
    x.requires_grad_()
    weight.requires_grad_()
    y = call()
    dy = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, (x, weight), dy, retain_graph=True)


def measured(options, device, **environment):
    """isograd's rows, by what they are, and its ceilings."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        command = [options.isograd, "bench", "--device", device, "--filter", options.filter, "--json", file.name]
        command += ["--quick"] if options.quick else []
        subprocess.run(command, check=True, env=os.environ | environment, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in open(file.name)]
    ceilings = [row for row in rows if row["group"] == "ceiling"]
    copy = next(row["gbps"] for row in ceilings if row["name"].startswith("copy"))
    rates = {row["dtype"]: row["tflops"] for row in ceilings if row["name"].startswith("matmul")}
    rows = [row for row in rows if row["group"] != "ceiling" and row["milliseconds"]]
    return {(row["name"], *row["shape"], row["dtype"], row["pass"]): row for row in rows}, copy, rates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isograd", default="target/release/isograd", help="the command")
    parser.add_argument("--device", default="cuda:0", help="isograd's name of the device")
    parser.add_argument("--others", default="", help="other names of the same GPU, with commas between them")
    parser.add_argument("--filter", default=ROWS, help="rows of `isograd bench`")
    parser.add_argument("--quick", action="store_true", help="small shapes: whether every row works")
    parser.add_argument("--json", help="write the rows to this file too")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    chosen, *_ = measured(options, options.device)
    own, copy, rates = measured(options, options.device, ISOGRAD_DNN="own")
    others = [name for name in options.others.split(",") if name]
    elsewhere = [measured(options, name, ISOGRAD_DNN="own")[0] for name in others]
    print(f"\n{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; copy {copy:.0f} GB/s, {rates} TFLOP/s\n")
    columns = ["row", "shape", "dtype", "pass", "PyTorch", "cuDNN", "copy", "matrix", *others]
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * 4 + " ---: |" * (len(columns) - 4))
    kept, ran = [], []
    for key, row in own.items():
        with_library, rate = chosen.get(key), rates.get(row["dtype"])
        call = call_of(row)
        theirs = cold(call)
        ran.append((key, kernels(call)))
        time = row["milliseconds"]
        first = with_library["milliseconds"] if with_library else time
        ratios = [theirs / first, first / time, row["gbps"] and row["gbps"] / copy, rate and row["tflops"] and row["tflops"] / rate]
        ratios += [time / found[key]["milliseconds"] if key in found else None for found in elsewhere]
        cells = [row["name"], "x".join(map(str, row["shape"])), row["dtype"], row["pass"]]
        cells += [f"{ratio:.2f}" if ratio else "-" for ratio in ratios]
        print("| " + " | ".join(cells) + " |", flush=True)
        kept.append(row | {"pytorch": theirs, "chosen": first, "others": dict(zip(others, ratios[4:]))})
        del call
        torch.cuda.empty_cache()
    for key, names in ran:
        print(" ".join(map(str, key)), "|", "; ".join(names))
    if options.json:
        with open(options.json, "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in kept)


if __name__ == "__main__":
    main()
