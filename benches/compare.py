#!/usr/bin/env python3
"""Puts what `isograd bench --json` measured beside PyTorch's times on the same device.

    python3 benches/compare.py bench.json pytorch.jsonl [--markdown]

PyTorch's file has one JSON object a line: name, shape, dtype, impl, pass, and milliseconds: `ms` (the device's, cold caches),
`loop_ms` (one call of many in a row, launches included) and `graph_ms` (one call in a CUDA graph). For each row of isograd that
has counterparts there, the fastest of them counts. The ratio is PyTorch's time over isograd's: above 1, isograd is faster.
"""

import argparse
import json
import re

DTYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "f64": "fp64"}
# Of isograd's names: what PyTorch's rows call the same.
NAMES = {
    "softmax": "softmax", "log_softmax": "log_softmax", "layer_norm": "layer_norm", "rms_norm": "rms_norm",
    "batch_norm": "batch_norm", "group_norm": "group_norm32", "instance_norm": "instance_norm",
    "cross_entropy": "cross_entropy", "relu": "relu", "gelu": "gelu", "add": "add", "mul": "mul", "copy_": "copy",
    "embedding": "embedding", "gather": "gather_d0", "index_select": "gather_rows", "matmul": "gemm",
    "scatter_add": "scatter_add_d0", "scatter_add, any order": "scatter_add_d0",
    "scatter_add_": "scatter_add_d0", "scatter_add_, any order": "scatter_add_d0",
    "index_add_": "scatter_add_rows", "index_add_, any order": "scatter_add_rows",
    "gemm_bias, gelu": "linear_gelu", "gemm_bias, gelu, no grad": "linear_gelu", "gemm_bias, gelu, reduced": "linear_gelu",
    "adamw": "adamw", "sgd, momentum": "sgd_momentum", "clip_grad_norm": "clip_grad_norm", "muon": "muon",
    "mse_loss": "mse_loss", "mlp step": "mnist_mlp", "captured mlp": "mnist_mlp", "captured mlp tf32": "mnist_mlp",
    "max_pool2d, k3s2": "max_pool2d_k3s2", "max_pool2d, k2s2": "max_pool2d_k2s2", "avg_pool2d, k2s2": "avg_pool2d_k2s2",
    "adaptive_avg_pool2d, 1": "adapt_avg_1", "adaptive_avg_pool2d, 7": "adapt_avg_7", "adaptive_max_pool2d, 7": "adapt_max_7",
}
# Of the rows of graphs: the name and the variant of PyTorch's.
GRAPHS = {
    "index_select, graph": ("index_select", "eager"), "index_add, graph": ("index_add", "eager"),
    "scatter_sum": ("scatter_reduce", "sum"), "scatter_mean": ("scatter_reduce", "mean"), "scatter_max": ("scatter_reduce", "amax"),
}
# Rows whose shape is one long dimension.
ELEMENTWISE = {"relu", "gelu", "add", "mul", "copy_", "mse_loss"}


def shape(row):
    """The shape as PyTorch's rows write it."""
    dims, name = row["shape"], row["name"]
    if name in GRAPHS:
        nodes, edges, features = dims
        return f"N{nodes // 1000}k E{edges / 1e6:g}M d{features}"
    if name == "gather" or name.startswith(("scatter", "index_")):
        r, n, c = dims
        return f"({r},{c})/{n}"
    if name == "embedding":
        return f"{dims[1]}x{dims[2]} tok{dims[0]}"
    if name == "matmul":
        return f"{dims[0]}^3"
    if name.startswith("gemm_bias"):
        return f"{dims[0]}x{dims[2]}x{dims[1]}"
    if "mlp" in name:
        return f"784-256-10 B{dims[0]}"
    if name == "muon":
        return "48 mats"
    if row["group"] == "optimizer":
        return "1x100M" if dims[0] == 1 else "300 tensors"
    if name in ELEMENTWISE:
        return "64Mi"
    return "x".join(map(str, dims))


def counterparts(row, torch):
    """PyTorch's rows for one of isograd's."""
    name, of, impl = NAMES.get(row["name"]), shape(row), None
    if row["name"] in GRAPHS:
        name, impl = GRAPHS[row["name"]]
    dtype = DTYPES.get(row["dtype"])
    step = row["group"] in ("optimizer", "training")
    for other in torch:
        if other.get("name") != name or not other.get("ms") or other.get("skipped"):
            continue
        if not (other["shape"] == of or other["shape"].startswith(of + " ")):
            continue
        if other["pass"] != ("step" if step else row["pass"]):
            continue
        if impl and other["impl"] != impl:
            continue
        if row["name"].startswith("scatter_add") and (other["impl"] == "inplace") != row["name"].split(",")[0].endswith("_"):
            continue
        is_graph = "graph" in other["impl"]
        if row["name"].startswith("captured mlp"):
            # The best of all: PyTorch's TF32 too.
            if not is_graph or other["dtype"] not in ("fp32", "tf32"):
                continue
        elif row["name"] == "mlp step":
            if is_graph or "compile" in other["impl"] or other["dtype"] != "fp32":
                continue
        elif other["dtype"] != dtype:
            continue
        yield other


def least(rows, key):
    times = [row[key] for row in rows if row.get(key)]
    return min(times) if times else None


def ratio(theirs, ours):
    return f"{theirs / ours:.2f}" if theirs and ours else "-"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("isograd")
    parser.add_argument("pytorch")
    parser.add_argument("--markdown", action="store_true", help="print a table in Markdown")
    options = parser.parse_args()
    with open(options.isograd) as file:
        ours = [json.loads(line) for line in file]
    with open(options.pytorch) as file:
        torch = [json.loads(line) for line in file]
    copy = {"isograd": [r for r in ours if r["group"] == "ceiling"], "PyTorch": [r for r in torch if r.get("section") == "ceilings"]}
    for who, rows in copy.items():
        rates = [f"{r['name']} {r['dtype']} {r['gbps']:.0f} GB/s" for r in rows if r.get("gbps") and r["name"] in ("copy_", "copy")]
        rates += [f"matmul {r['dtype']} {r['tflops']:.0f} TFLOP/s" for r in rows if r.get("tflops")]
        print(f"{who}: {', '.join(rates)}")
    columns = ["op", "shape", "dtype", "pass", "of the limit", "PyTorch", "ratio", "in a row", "captured"]
    if options.markdown:
        print("\n| " + " | ".join(columns) + " |\n|" + "|".join([" --- "] * 4 + [" ---: "] * 5) + "|")
    else:
        print(f"\n{columns[0]:<31} {columns[1]:<22} {columns[2]:<5} {columns[3]:<5}" + "".join(f"{c:>13}" for c in columns[4:]))
    for row in ours:
        if row["group"] == "ceiling" or not row.get("milliseconds"):
            continue
        others = list(counterparts(row, torch))
        roof = max((other["roof"] for other in others if other.get("roof")), default=None)
        cells = [row["name"], "x".join(map(str, row["shape"])), row["dtype"], row["pass"]]
        fraction = row.get("fraction")
        cells += [f"{fraction:.2f}" if fraction else "-", f"{roof:.2f}" if roof else "-"]
        cells += [ratio(least(others, "ms"), row["milliseconds"])]
        cells += [ratio(least(others, "loop_ms"), row.get("milliseconds_in_a_row"))]
        cells += [ratio(least(others, "graph_ms"), row.get("milliseconds_captured"))]
        if options.markdown:
            print("| " + " | ".join(cells) + " |")
        else:
            print(f"{cells[0]:<31} {cells[1]:<22} {cells[2]:<5} {cells[3]:<5}" + "".join(f"{c:>13}" for c in cells[4:]))


if __name__ == "__main__":
    main()
