#!/usr/bin/env python3
"""Times graphs, meshes and fused rows with isograd and with PyTorch, one after the other, on the same GPU.

    cargo build --release -p isograd-cli --features parity
    python3 benches/graph.py [--isograd target/release/isograd] [--device cuda:0] [--quick] [--json FILE]

isograd's rows are those of `isograd bench`: medians with cold caches, or of steps in a row. PyTorch's times are taken the same way; of
several ways (CSR with i32 or i64, a CUDA graph) the fastest counts. `ratio` is PyTorch's time over isograd's: above 1, isograd is faster.
`copy` is the least time that the copy bandwidth of isograd's run allows, over the time; `matrix` is the same for the matrix rate.
"""

import argparse
import json
import statistics
import subprocess
import tempfile

import torch
import torch.nn.functional as F
from torch import nn

ROWS = (
    r"^(training (captured )?gcn|sparse sparse_mm|graph edge_softmax|mesh (mesh|spiral)_conv"
    r"|normalization (layer_norm_activation|residual_layer_norm)|random bias_dropout)"
)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
RUNS, STEPS, FLUSHED = 30, 50, 128 << 20


def cold(f, flush=[]):
    """The median of calls with cold caches, in milliseconds."""
    if not flush:
        flush.append(torch.zeros(FLUSHED, device="cuda"))
    for _ in range(3):
        f()
    times = []
    for _ in range(RUNS):
        flush[0].sum()
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        f()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after))
    return statistics.median(times)


def in_a_row(f):
    """The median of calls in a row, in milliseconds."""
    for _ in range(5):
        f()
    times = []
    for _ in range(9):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for _ in range(STEPS):
            f()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after) / STEPS)
    return statistics.median(times)


def captured(f):
    """A call in a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            f()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        f()
    return graph.replay


class Random:
    """A random matrix of a graph and its transpose, as CSR."""

    def __init__(self, nodes, edges, dtype, index):
        src, dst = (torch.randint(nodes, (edges,), device="cuda") for _ in range(2))
        values = torch.rand(edges, device="cuda").to(dtype)

        def csr(rows, columns):
            key, order = torch.sort(rows * nodes + columns)
            counts = torch.bincount(torch.div(key, nodes, rounding_mode="floor"), minlength=nodes)
            starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(index)
            return torch.sparse_csr_tensor(starts, (key % nodes).to(index), values[order], (nodes, nodes))

        self.a, self.at = csr(dst, src), csr(src, dst)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, graph):
        ctx.graph = graph
        return torch.sparse.mm(graph.a, x)

    @staticmethod
    def backward(ctx, dy):
        return torch.sparse.mm(ctx.graph.at, dy), None


def gcn(shape, tf32, is_captured):
    nodes, edges, features = shape
    torch.backends.cuda.matmul.allow_tf32 = tf32
    graph = Random(nodes, edges, torch.float32, torch.int32)
    layers = nn.ModuleList([nn.Linear(features, 128), nn.Linear(128, 40)]).cuda()
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3, fused=True, capturable=True)
    x, y = torch.randn(nodes, features, device="cuda"), torch.randint(40, (nodes,), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        hidden = F.relu(Product.apply(layers[0](x), graph))
        F.cross_entropy(Product.apply(layers[1](hidden), graph), y).backward()
        optimizer.step()

    return in_a_row(captured(step) if is_captured else step)


def sparse_mm(shape, dtype, index, with_gradients):
    nodes, edges, features = shape
    graph = Random(nodes, edges, dtype, index)
    x, dy = (torch.randn(nodes, features, device="cuda").to(dtype) for _ in range(2))
    zeros = torch.sparse_csr_tensor(
        graph.a.crow_indices(), graph.a.col_indices(), torch.zeros_like(graph.a.values()), graph.a.shape
    )

    def call():
        torch.sparse.mm(graph.a, x)
        if with_gradients:
            torch.sparse.mm(graph.at, dy)
            # The gradient of the values: products of rows at the entries (cuSPARSE's SDDMM).
            torch.sparse.sampled_addmm(zeros, dy, x.t(), beta=0.0)

    return cold(call)


def edge_softmax(shape, dtype, is_sorted, is_backward):
    """PyTorch Geometric's `softmax`, of PyTorch's scatters."""
    nodes, edges, heads = shape
    index = torch.randint(nodes, (edges,), device="cuda")
    index = torch.sort(index)[0] if is_sorted else index
    x, dy = (torch.randn(edges, heads, device="cuda").to(dtype) for _ in range(2))
    to = index[:, None].expand(edges, heads)

    def call(x):
        most = x.new_zeros(nodes, heads).scatter_reduce(0, to, x.detach(), "amax", include_self=False)
        powers = (x - most.index_select(0, index)).exp()
        sums = x.new_zeros(nodes, heads).scatter_add(0, to, powers) + 1e-16
        return powers / sums.index_select(0, index)

    if not is_backward:
        return cold(lambda: call(x))
    x.requires_grad_()
    y = call(x)
    return cold(lambda: torch.autograd.grad(y, x, dy, retain_graph=True))


def convolution(row, dtype):
    """Gathered features times a weight."""
    rows, listed, channels, outputs = row["shape"]
    if "anywhere" in row["name"]:
        table = torch.randint(rows, (rows, listed), device="cuda")
    else:
        steps = torch.tensor([0, 1, 1024, 1023, -1, -1024, -1023, 2, 2048][:listed], device="cuda")
        table = (torch.arange(rows, device="cuda")[:, None] + steps).clamp(0, rows - 1)
    if row["name"].startswith("mesh_conv"):
        table = torch.cat([torch.arange(rows, device="cuda")[:, None], table], 1)
    x = torch.randn(rows, channels, device="cuda").to(dtype)
    weight = torch.randn(outputs, table.shape[1] * channels, device="cuda").to(dtype)

    def call():
        return F.linear(x.index_select(0, table.flatten()).view(rows, -1), weight)

    if "gradients" not in row["name"]:
        return cold(call)
    x.requires_grad_()
    weight.requires_grad_()
    y = call()
    dy = torch.randn_like(y)
    return cold(lambda: torch.autograd.grad(y, (x, weight), dy, retain_graph=True))


def of_rows(row, dtype):
    dims, (op, _, variant) = row["shape"], row["name"].partition(", ")
    activation = F.relu if variant == "relu" else F.gelu
    x, other = (torch.randn(dims, device="cuda").to(dtype) for _ in range(2))
    weight, bias = (torch.randn(dims[1:], device="cuda").to(dtype) for _ in range(2))
    inputs, call = {
        "layer_norm_activation": ((x, weight, bias), lambda x, w, b: activation(F.layer_norm(x, dims[1:], w, b))),
        "residual_layer_norm": ((x, other, weight, bias), lambda x, r, w, b: F.layer_norm(x + r, dims[1:], w, b)),
        "bias_dropout": ((x, bias), lambda x, b: F.dropout(x + b, 0.1)),
    }[op]
    call = torch.compile(call)
    if row["pass"] == "fwd":
        return cold(lambda: call(*inputs))
    inputs = [t.requires_grad_() for t in inputs]
    y = call(*inputs)
    dy = torch.randn_like(y)
    return cold(lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True))


def theirs(row):
    """The functions that time PyTorch's ways to compute a row of isograd's."""
    name, shape, dtype = row["name"], row["shape"], DTYPES[row["dtype"]]
    if "gcn" in name:
        for tf32 in (False, True) if "tf32" in name else (False,):
            for is_captured in (False, True) if "captured" in name else (False,):
                yield lambda tf32=tf32, is_captured=is_captured: gcn(shape, tf32, is_captured)
    elif name.startswith("sparse_mm"):
        for index in torch.int32, torch.int64:
            yield lambda index=index: sparse_mm(shape, dtype, index, "gradients" in name)
    elif name.startswith("edge_softmax"):
        yield lambda: edge_softmax(shape, dtype, "sorted" in name, "gradient" in name)
    elif row["group"] == "mesh":
        yield lambda: convolution(row, dtype)
    else:
        yield lambda: of_rows(row, dtype)


def fastest(row):
    times = []
    for timed in theirs(row):
        try:
            times.append(timed())
        except Exception as error:  # what PyTorch does not have in a dtype
            print(f"{row['name']} {row['dtype']}: {str(error).partition(chr(10))[0][:120]}")
        torch.cuda.empty_cache()
    return min(times, default=None)


def measured(options):
    """isograd's rows, and its ceilings."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        command = [options.isograd, "bench", "--device", options.device, "--filter", options.filter, "--json", file.name]
        subprocess.run(command + (["--quick"] if options.quick else []), check=True)
        rows = [json.loads(line) for line in open(file.name)]
    ceilings = [row for row in rows if row["group"] == "ceiling"]
    copy = next(row["gbps"] for row in ceilings if row["name"].startswith("copy"))
    rates = {row["dtype"]: row["tflops"] for row in ceilings if row["name"].startswith("matmul")}
    return [row for row in rows if row["group"] != "ceiling" and row["milliseconds"]], copy, rates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isograd", default="target/release/isograd", help="the command")
    parser.add_argument("--device", default="cuda:0", help="isograd's name of the device")
    parser.add_argument("--filter", default=ROWS, help="rows of `isograd bench`")
    parser.add_argument("--quick", action="store_true", help="small shapes: whether every row works")
    parser.add_argument("--json", help="write the rows to this file too")
    options = parser.parse_args()
    rows, copy, rates = measured(options)
    print(f"\n{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; copy {copy:.0f} GB/s, {rates} TFLOP/s\n")
    print("| row | shape | dtype | pass | ms | PyTorch | ratio | copy | matrix |\n|" + " --- |" * 4 + " ---: |" * 5)
    kept = []
    for row in rows:
        other, rate = fastest(row), rates.get(row["dtype"])
        row |= {"pytorch": other, "ratio": other / row["milliseconds"] if other else None}
        row["of_copy"] = row["gbps"] / copy if row["gbps"] else None
        row["of_matrix"] = row["tflops"] / rate if rate and row["tflops"] else None
        kept.append(row)
        number = lambda value, digits=2: f"{value:.{digits}f}" if value else "-"
        cells = [row["name"], "x".join(map(str, row["shape"])), row["dtype"], row["pass"], number(row["milliseconds"], 4)]
        cells += [number(other, 4), *(number(row[key]) for key in ("ratio", "of_copy", "of_matrix"))]
        print("| " + " | ".join(cells) + " |", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in kept)


if __name__ == "__main__":
    main()
