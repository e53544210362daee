"""Training on the GPUs of one host with PyTorch's DistributedDataParallel: the networks and batches of
crates/isograd/examples/several_devices.rs, with bf16 autocast, without and with torch.compile. Started by torchrun or by
several_devices.sh. For 1, 2, 4 .. ranks, and all of them, rank 0 prints milliseconds of a step and samples a second."""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(nn.Module):
    """GPT-2 of 124 million parameters, whose last product shares the table of tokens."""

    def __init__(self, vocab, context, layers, heads, width):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        return functional.linear(self.ln_f(self.blocks(x)), self.wte.weight).flatten(0, 1)


def convolution(inputs, outputs, kernel, stride):
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(convolution(inputs, outputs, 3, stride), nn.ReLU(inplace=True), convolution(outputs, outputs, 3, 1))
        self.shortcut = nn.Identity() if stride == 1 and inputs == outputs else convolution(inputs, outputs, 1, stride)

    def forward(self, x):
        return functional.relu(self.body(x) + self.shortcut(x), inplace=True)


def resnet18():
    layers, width = [convolution(3, 64, 3, 1), nn.ReLU(inplace=True)], 64
    for stage, outputs in enumerate((64, 128, 256, 512)):
        layers += [Residual(width, outputs, 1 if stage == 0 else 2), Residual(outputs, outputs, 1)]
        width = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def gpt2_case(device, small):
    vocab, rows, length = (61, 2, 32) if small else (50_304, 16, 1024)
    sizes = (32, 2, 4, 64) if small else (1024, 12, 12, 768)
    model = Gpt2(vocab, *sizes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    batch = [torch.randint(0, vocab, (rows, length), device=device) for _ in range(2)]
    return model, optimizer, batch[0], batch[1].flatten(), rows * length, "tokens/s"


def resnet_case(device, small):
    rows = 2 if small else 256
    model = resnet18().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=device.type == "cuda")
    x = torch.randn(rows, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
    return model, optimizer, x, torch.randint(0, 10, (rows,), device=device), rows, "images/s"


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(case, group, ranks, device, arguments, is_compiled):
    """The median seconds of a step in three rounds, of the slowest rank; samples of a rank; the unit."""
    torch.manual_seed(0)
    model, optimizer, x, y, samples, unit = case(device, arguments.small)
    if ranks > 1:
        ids = [device.index] if device.type == "cuda" else None
        model = DistributedDataParallel(model, device_ids=ids, process_group=group, gradient_as_bucket_view=True)
    if is_compiled:
        model = torch.compile(model)

    def step():
        with torch.autocast(device.type, torch.bfloat16):
            loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    rounds = []
    for number in range(4):
        steps = 8 if number == 0 else arguments.steps
        dist.barrier(group)
        synchronize(device)
        started = time.perf_counter()
        for _ in range(steps):
            step()
        synchronize(device)
        if number > 0:
            rounds.append((time.perf_counter() - started) / steps)
    found = torch.tensor(statistics.median(rounds), dtype=torch.float64, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    return found.item(), samples, unit


def bandwidth(device, ranks, small):
    for mib in (1,) if small else (1, 4, 16, 25, 64, 256, 1024):
        x = torch.ones(mib << 18, device=device)
        best, times = float("inf"), 20 if mib < 64 else 8
        for number in range(3):
            dist.barrier()
            synchronize(device)
            started = time.perf_counter()
            for _ in range(times):
                dist.all_reduce(x)
            synchronize(device)
            if number > 0:
                best = min(best, (time.perf_counter() - started) / times)
        if dist.get_rank() == 0:
            rate = 2 * (ranks - 1) / ranks * 4 * x.numel() / best * 1e-9
            print(f"  {mib:>5} MiB  all_reduce {best * 1e6:>9.1f} {rate:>7.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="bandwidth,gpt2,resnet", help="parts, of bandwidth, gpt2, resnet")
    parser.add_argument("--modes", default="eager,compile")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if arguments.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    sizes = [1 << i for i in range(10) if 1 << i < ranks] + [ranks]
    groups = {size: dist.new_group(list(range(size))) for size in sizes}
    only = arguments.only.split(",")
    if rank == 0:
        print(f"PyTorch {torch.__version__}", flush=True)
    if "bandwidth" in only and ranks > 1:
        bandwidth(device, ranks, arguments.small)
    for name, case in (("gpt2", gpt2_case), ("resnet", resnet_case)):
        for mode in arguments.modes.split(",") if name in only else ():
            alone = float("nan")
            # Compiling takes long, and is not needed for the sizes in between.
            for size in sizes if mode == "eager" else sorted({1, ranks}):
                if rank < size:
                    seconds, samples, unit = measure(case, groups[size], size, device, arguments, mode == "compile")
                    rate = size * samples / seconds
                    alone = rate if size == 1 else alone
                    if rank == 0:
                        share = 100 * rate / size / alone
                        line = f"{seconds * 1e3:>7.2f} ms, {rate:>10.0f} {unit}, {share:.1f} % of {size} times one rank"
                        print(f"  {name} {mode}, {size} ranks: {line}", flush=True)
                dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
