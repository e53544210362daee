#!/usr/bin/env python3
"""Times in PyTorch the networks of crates/isograd/examples/models.rs, and writes a table of both.

    cargo run --release -p isograd --example models cuda:0 > isograd.jsonl
    python3 benches/models.py [--only NAME,..] [--modes MODE,..] [--seconds N] [--done torch.jsonl] >> torch.jsonl
    python3 benches/models.py table isograd.jsonl torch.jsonl > table.md

The networks are those of torchvision, transformers and torch-geometric, or plain modules. A line has the keys of isograd's lines, and a
time for each mode: `plain` (eager), `captured` (the whole step in one CUDA graph), `compiled` (torch.compile) and `compiled_captured` (the
compiled step in one CUDA graph, which is faster than a graph for each of its parts). `reduce_overhead` (torch.compile's own graphs) runs
where `compiled_captured` fails, or if it is named. Each network runs in a process of its own. A second call with `--done` runs what the
first one had no time for.
"""

import argparse
import contextlib
import gc
import json
import math
import statistics
import subprocess
import sys
import time
import warnings

MODES = ("plain", "captured", "compiled", "compiled_captured", "reduce_overhead")
KINDS = ("train", "infer", "infer1")
DTYPES = ("f32", "tf32", "bf16")
KEYS = ("model", "kind", "size", "dtype")


class Entry:
    """A network, its optimizer, its two sizes and a small one, and the ways in which it is written."""

    def __init__(self, optimizer, sizes, small, build, has_batch=True, ways=("",)):
        self.optimizer, self.sizes, self.small, self.build = optimizer, sizes, small, build
        self.has_batch, self.ways = has_batch, ways


IMAGES = (64, 224), (16, 160)
TEXTS = (64, 128, 650), (20, 35, 200)
GRAPHS = (169343, 1166243, 128, 40), (2708, 10556, 1433, 7)
GRAPH_WAYS = "edges", "csr"


def entries():
    """All networks by name. Importing the libraries takes seconds, so that this is done where they are run."""
    torchvision = lambda name: lambda at: classifier(vision(name), 3, 1000, at)
    return {
        "mobilenet_v2": Entry("sgd", IMAGES, (2, 32), torchvision("mobilenet_v2")),
        "resnet50": Entry("sgd", IMAGES, (2, 32), torchvision("resnet50")),
        "resnet34": Entry("sgd", IMAGES, (2, 32), torchvision("resnet34")),
        "resnet18": Entry("sgd", IMAGES, (2, 32), torchvision("resnet18")),
        "vit_b16": Entry("adamw", IMAGES, (2, 32), vit),
        "unet": Entry("sgd", ((8, 256), (2, 384)), (2, 32), unet),
        "dcgan_generator": Entry("adam", ((128, 64), (16, 64)), (2, 64), generator),
        "dcgan_discriminator": Entry("adam", ((128, 64), (16, 64)), (2, 64), discriminator),
        "lenet": Entry("sgd", ((1024, 28), (64, 28)), (2, 28), lenet),
        "gpt2": Entry("adamw", ((8, 1024), (4, 256)), (2, 8), gpt2),
        "bert_base": Entry("adamw", ((32, 512), (8, 128)), (2, 8), bert),
        "lstm": Entry("adam", TEXTS, (2, 5, 12), lambda at: recurrent("LSTM", at)),
        "gru": Entry("adam", TEXTS, (2, 5, 12), lambda at: recurrent("GRU", at)),
        "gcn": Entry("adam", GRAPHS, (20, 50, 9, 3), lambda at: graph("gcn", at), False, GRAPH_WAYS),
        "sage": Entry("adam", GRAPHS, (20, 50, 9, 3), lambda at: graph("sage", at), False, GRAPH_WAYS),
        "gat": Entry("adam", GRAPHS, (20, 50, 9, 3), lambda at: graph("gat", at), False),
        "conv_lstm": Entry("adam", ((16, 64), (4, 32)), (2, 8), conv_lstm),
        "mesh": Entry("adam", ((16, 2250), (1, 7500)), (2, 30), lambda at: mesh(at, 4, True, (5, 32, 64, 128, 128))),
        "spiral": Entry("adam", ((16, 5023), (1, 2562)), (2, 30), lambda at: mesh(at, 9, False, (3, 16, 32, 64, 64))),
        "llama_1b": Entry("adamw", ((4, 1024), (1, 512)), (2, 8), llama),
    }


class At:
    """Where a network is built: at extents whose first is the batch, on a device, in a dtype."""

    def __init__(self, size, small, device, dtype, way):
        self.size, self.small, self.device, self.dtype, self.way = size, small, device, dtype, way

    def either(self, full, small):
        return small if self.small else full

    def normal(self, *shape):
        return torch.randn(*shape, device=self.device).to(self.dtype)

    def images(self, channels):
        x = self.normal(self.size[0], channels, self.size[1], self.size[1])
        return x.to(memory_format=torch.channels_last)

    def numbers(self, n, *shape):
        return torch.randint(n, shape, device=self.device)

    def placed(self, network, last=False):
        network = network.to(self.device, self.dtype)
        return network.to(memory_format=torch.channels_last) if last else network


# A network's builder returns the network, a function of its output, and the loss of an output.


def classes(network, output, n, at, *shape):
    """Outputs `[.., classes]`, and random classes of this shape."""
    targets = at.numbers(n, math.prod(shape))
    return network, output, lambda y: F.cross_entropy(y.reshape(-1, n), targets)


def zeros(network, output):
    """Outputs that should be 0."""
    return network, output, lambda y: y.float().square().mean()


def classifier(network, channels, n, at):
    network, x = at.placed(network, last=True), at.images(channels)
    return classes(network, lambda network: network(x), n, at, at.size[0])


def vision(name):
    import torchvision

    return getattr(torchvision.models, name)()


def vit(at):
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(num_labels=1000, image_size=at.size[1], num_hidden_layers=at.either(12, 2))
    network, x = at.placed(ViTForImageClassification(config), last=True), at.images(3)
    return classes(network, lambda network: network(x).logits, 1000, at, at.size[0])


def conv_norm(i, o):
    return nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)


def pair(i, o):
    return nn.Sequential(*conv_norm(i, o), *conv_norm(o, o))


def unet(at):
    class UNet(nn.Module):
        def __init__(self, width):
            super().__init__()
            widths = [width << level for level in range(5)]
            self.down = nn.ModuleList(pair(i, o) for i, o in zip([1, *widths], widths[:-1]))
            self.bottom = pair(*widths[-2:])
            ups = list(zip(widths[:0:-1], widths[-2::-1]))
            self.larger = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, 2) for i, o in ups)
            self.up = nn.ModuleList(pair(i, o) for i, o in ups)
            self.last = nn.Conv2d(width, 2, 1)

        def forward(self, x):
            levels = []
            for down in self.down:
                levels.append(down(x))
                x = F.max_pool2d(levels[-1], 2)
            x = self.bottom(x)
            for larger, up in zip(self.larger, self.up):
                x = up(torch.cat([levels.pop(), larger(x)], 1))
            return self.last(x)

    network, x = at.placed(UNet(at.either(64, 8)), last=True), at.images(1)
    targets = at.numbers(2, at.size[0], at.size[1], at.size[1])
    return network, lambda network: network(x), lambda y: F.cross_entropy(y, targets)


def generator(at):
    layers, widths = [], (100, 512, 256, 128, 64)
    for i, (a, b) in enumerate(zip(widths, widths[1:])):
        larger = nn.ConvTranspose2d(a, b, 4, 2 if i else 1, 1 if i else 0, bias=False)
        layers += [larger, nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
    layers += [nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh()]
    network, x = at.placed(nn.Sequential(*layers), last=True), at.normal(at.size[0], 100, 1, 1)
    return zeros(network, lambda network: network(x))


def discriminator(at):
    leaky = lambda: nn.LeakyReLU(0.2, inplace=True)
    layers, widths = [nn.Conv2d(3, 64, 4, 2, 1, bias=False), leaky()], (64, 128, 256, 512)
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), leaky()]
    layers += [nn.Conv2d(512, 1, 4, bias=False), nn.Sigmoid(), nn.Flatten(0)]
    network, x = at.placed(nn.Sequential(*layers), last=True), at.images(3)
    return zeros(network, lambda network: network(x))


def lenet(at):
    first = nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    last = nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
    return classifier(nn.Sequential(*first, *second, *last), 1, 10, at)


def language(network, vocab, at):
    x = at.numbers(vocab, *at.size[:2])
    return classes(at.placed(network), lambda network: network(x).logits, vocab, at, *at.size[:2])


def gpt2(at):
    from transformers import GPT2Config, GPT2LMHeadModel

    vocab, dropout = at.either(50257, 99), dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    special = dict(bos_token_id=0, eos_token_id=0)
    config = GPT2Config(vocab_size=vocab, n_layer=at.either(12, 2), use_cache=False, **dropout, **special)
    return language(GPT2LMHeadModel(config), vocab, at)


def llama(at):
    from transformers import LlamaConfig, LlamaForCausalLM

    vocab = at.either(128256, 99)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=at.either(2048, 64),
        intermediate_size=at.either(8192, 96),
        num_hidden_layers=at.either(16, 2),
        num_attention_heads=at.either(32, 4),
        num_key_value_heads=at.either(8, 2),
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        rope_parameters=dict(rope_type="default", rope_theta=5e5),
        tie_word_embeddings=True,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    # Drawn on the device: a processor needs minutes for the parameters.
    with torch.device(at.device):
        network = LlamaForCausalLM(config)
    return language(network, vocab, at)


def bert(at):
    from transformers import BertConfig, BertModel

    vocab, dropout = at.either(30522, 99), dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config = BertConfig(vocab_size=vocab, num_hidden_layers=at.either(12, 2), **dropout)
    network, x = at.placed(BertModel(config, add_pooling_layer=False)), at.numbers(vocab, *at.size)
    return zeros(network, lambda network: network(x).last_hidden_state)


def recurrent(kind, at):
    class Model(nn.Module):
        def __init__(self, vocab, width):
            super().__init__()
            self.drop, self.encoder = nn.Dropout(0.2), nn.Embedding(vocab, width)
            self.rnn = getattr(nn, kind)(width, width, 2, batch_first=True, dropout=0.2)
            self.decoder = nn.Linear(width, vocab)

        def forward(self, x):
            return self.decoder(self.drop(self.rnn(self.drop(self.encoder(x)))[0]))

    vocab = at.either(33278, 99)
    network, x = at.placed(Model(vocab, at.size[2])), at.numbers(vocab, *at.size[:2])
    return classes(network, lambda network: network(x), vocab, at, *at.size[:2])


def graph(kind, at):
    """Two layers over a random graph: torch-geometric's, by a list of edges, or products with matrices in CSR."""
    n, edges, features, n_classes = at.size
    ends, hidden = at.numbers(n, 2, edges), 128
    if kind != "sage":
        loops = torch.arange(n, device=at.device).expand(2, n)
        ends = torch.cat([ends[:, ends[0] != ends[1]], loops], 1)
    if at.way == "csr":
        network = InCsr(kind, ends, features, hidden, n_classes, n)
    else:
        network = OfEdges(kind, ends, features, hidden, n_classes)
    network, x = at.placed(network), at.normal(n, features)
    return classes(network, lambda network: network(x), n_classes, at, n)


def OfEdges(kind, ends, features, hidden, n_classes):
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            # The graph has its loops, and its norms are kept, as isograd keeps them.
            if kind == "gat":
                layers = (
                    GATConv(features, hidden // 8, heads=8, add_self_loops=False),
                    GATConv(hidden, n_classes, add_self_loops=False),
                )
            elif kind == "gcn":
                layers = (
                    GCNConv(features, hidden, cached=True, add_self_loops=False),
                    GCNConv(hidden, n_classes, cached=True, add_self_loops=False),
                )
            else:
                layers = SAGEConv(features, hidden), SAGEConv(hidden, n_classes)
            self.layers = nn.ModuleList(layers)

        def forward(self, x):
            return self.layers[1](self.layers[0](x, ends).relu(), ends)

    return Network()


def InCsr(kind, ends, features, hidden, n_classes, n):
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, a, at):
            ctx.at = at
            return torch.sparse.mm(a, x)

        @staticmethod
        def backward(ctx, dy):
            return torch.sparse.mm(ctx.at, dy), None, None

    src, dst = ends
    degrees = torch.bincount(dst, minlength=n).clamp(min=1).float()
    values = degrees[dst].reciprocal() if kind == "sage" else (degrees[dst] * degrees[src]).rsqrt()

    def csr(rows, columns, dtype):
        order = torch.argsort(rows * n + columns)
        starts = torch.bincount(rows, minlength=n).cumsum(0)
        starts, columns = torch.cat([starts.new_zeros(1), starts]).int(), columns[order].int()
        return torch.sparse_csr_tensor(starts, columns, values[order].to(dtype), (n, n))

    both = {dtype: (csr(dst, src, dtype), csr(src, dst, dtype)) for dtype in (torch.float32, torch.bfloat16)}

    @torch.compiler.disable
    def product(x):
        return Product.apply(x, *both[x.dtype])

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            widths = [(features, hidden), (hidden, n_classes)]
            self.layers = nn.ModuleList(nn.Linear(*width) for width in widths)
            self.own = nn.ModuleList(nn.Linear(*width, bias=False) for width in widths if kind == "sage")

        def layer(self, i, x):
            if kind == "sage":
                if torch.is_autocast_enabled(x.device.type):
                    x = x.to(torch.get_autocast_dtype(x.device.type))
                return self.layers[i](product(x)) + self.own[i](x)
            y = F.linear(x, self.layers[i].weight)
            return product(y) + self.layers[i].bias.to(y.dtype)

        def forward(self, x):
            return self.layer(1, self.layer(0, x).relu())

    return Network()


def conv_lstm(at):
    class ConvLstm(nn.Module):
        def __init__(self, hidden):
            super().__init__()
            self.input = nn.Conv2d(1, 4 * hidden, 5, padding=2)
            self.hidden = nn.Conv2d(hidden, 4 * hidden, 5, padding=2, bias=False)
            self.image = nn.Conv2d(hidden, 1, 1)

        def forward(self, x):
            inputs, states, h, c = self.input(x.flatten(0, 1)).unflatten(0, x.shape[:2]), [], None, None
            for gates in inputs:
                if h is not None:
                    gates = gates + self.hidden(h)
                i, f, g, o = gates.chunk(4, 1)
                new = i.sigmoid() * g.tanh()
                c = new if c is None else f.sigmoid() * c + new
                h = o.sigmoid() * c.tanh()
                states.append(h)
            return self.image(torch.cat(states))

    b, size = at.size
    network, x = at.placed(ConvLstm(at.either(64, 4))), at.normal(at.either(10, 2), b, 1, size, size)
    return zeros(network, lambda network: network(x))


def mesh(at, neighbors, with_itself, widths):
    class Mesh(nn.Module):
        def __init__(self):
            super().__init__()
            k = neighbors + with_itself
            self.layers = nn.ModuleList(nn.Linear(k * i, o) for i, o in zip(widths, widths[1:]))

        def forward(self, x):
            for layer in self.layers:
                around = x.index_select(1, table).view(*x.shape[:2], -1)
                x = layer(torch.cat([x, around], -1) if with_itself else around).relu()
            return x

    b, rows = at.size
    table = at.numbers(rows, rows * neighbors)
    network, x = at.placed(Mesh()), at.normal(b, rows, widths[0])
    return zeros(network, lambda network: network(x))


def optimizer(name, parameters, device):
    """The one of fewest kernels."""
    on_gpu = dict(fused=True) if device == "cuda" else {}
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **on_gpu)
    adam, lr = (torch.optim.Adam, 1e-3) if name == "adam" else (torch.optim.AdamW, 1e-4)
    return adam(parameters, lr=lr, **on_gpu, capturable=device == "cuda")


class Run:
    """A line of the output: a network, a kind, a size and a dtype."""

    def __init__(self, name, entry, kind, size, dtype, options):
        self.name, self.entry, self.kind, self.size, self.dtype = name, entry, kind, size, dtype
        self.options, self.on_gpu = options, options.device == "cuda"
        self.line = dict(zip(KEYS, (name, kind, "x".join(map(str, size)), dtype)))
        self.first_steps, self.peaks, self.errors = {}, {}, {}

    def synchronize(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def step(self, way, mode):
        """A function that runs a step and returns its loss or its output."""
        torch.manual_seed(1)
        training, bf16 = self.kind == "train", self.dtype == "bf16"
        for backend in torch.backends.cuda.matmul, torch.backends.cudnn:
            backend.allow_tf32 = self.dtype == "tf32"
        dtype = torch.bfloat16 if bf16 and not training else torch.float32
        at = At(self.size, self.options.small, self.options.device, dtype, way)
        network, output, loss = self.entry.build(at)
        network.train(training)
        compiled = lambda f: f
        if mode in ("compiled", "reduce_overhead"):
            how = dict(mode="reduce-overhead") if mode == "reduce_overhead" else {}
            compiled = lambda f: torch.compile(f, dynamic=False, **how)
        if not training:
            infer = compiled(output)

            def inference():
                with torch.no_grad():
                    return infer(network)

            return inference
        forward = compiled(lambda network: loss(output(network)))
        update = optimizer(self.entry.optimizer, network.parameters(), self.options.device)

        def training_step():
            with torch.autocast(self.options.device, torch.bfloat16, enabled=bf16):
                found = forward(network)
            found.backward()
            update.step()
            update.zero_grad(set_to_none=True)
            return found.detach()

        return training_step

    def least(self, step):
        """The mean time of a step in the best of three rounds, in milliseconds."""

        def mean(times):
            started = time.perf_counter()
            for _ in range(times):
                step()
            self.synchronize()
            return (time.perf_counter() - started) / times

        mean(3)
        times = 1 if self.options.small else min(max(int(0.3 / mean(1)), 1), 300)
        return 1e3 * min(mean(times) for _ in range(3))

    def keep(self, mode, measure):
        """Keeps the least time of a mode over the ways to write a network. Returns whether the mode works."""
        try:
            ms, peak = self.least(measure), torch.cuda.max_memory_allocated() if self.on_gpu else None
        except Exception as error:
            self.fail(mode, error)
            return False
        if ms < self.line.get(f"{mode}_ms", math.inf):
            self.line[f"{mode}_ms"], self.peaks[mode] = ms, peak
        return True

    def fail(self, mode, error):
        self.errors[mode] = f"{type(error).__name__}: {error}".partition("\n")[0][:200]

    def captured(self, step):
        """A step in one CUDA graph."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = step()
        # The result lies in the memory of the graph, which must live as long.
        return lambda kept=kept: graph.replay()

    def clear(self):
        torch._dynamo.reset()
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def with_graph(self, way, mode, modes):
        """A mode, and the same step in one CUDA graph."""
        captured = {"plain": "captured", "compiled": "compiled_captured"}.get(mode)
        try:
            self.clear()
            started = time.perf_counter()
            step = self.step(way, mode)
            result = step().float().flatten()[0].item()
            first = time.perf_counter() - started
            self.first_steps[mode] = min(first, self.first_steps.get(mode, math.inf))
            self.line.setdefault("result", result)
            if mode in modes:
                self.keep(mode, step)
            if captured in modes and self.on_gpu:
                try:
                    if torch.cuda.is_available():
                        torch.cuda.reset_peak_memory_stats()
                    self.keep(captured, self.captured(step))
                    self.first_steps[captured] = self.first_steps[mode]
                except Exception as error:
                    self.fail(captured, error)
        except Exception as error:
            self.fail(mode, error)

    def measure(self, is_late):
        modes = [mode for mode in self.options.modes if f"{mode}_ms" not in self.options.known.get(self.key(), {})]
        for mode, others in (("plain", {"captured"}), ("compiled", {"compiled_captured"}), ("reduce_overhead", set())):
            if mode == "reduce_overhead" and "compiled_captured" in self.errors and "compiled_captured" in modes:
                modes.append(mode)
            if not ({mode} | others) & set(modes):
                continue
            for way in self.entry.ways:
                if is_late():
                    break
                self.with_graph(way, mode, modes)
        times = {mode: self.line[f"{mode}_ms"] for mode in MODES if f"{mode}_ms" in self.line}
        if times:
            best = min(times, key=times.get)
            self.line |= dict(best_mode=best, best_ms=times[best])
            self.line |= dict(first_step_s=self.first_steps.get(best), peak_bytes=self.peaks.get(best))
            self.line |= dict(first_steps_s=self.first_steps, peaks_bytes=self.peaks)
        if self.errors:
            self.line["errors"] = self.errors
        if times or self.errors:
            print(json.dumps(self.line), flush=True)
        self.clear()

    def key(self):
        return tuple(self.line[key] for key in KEYS)

    def is_done(self):
        known = self.options.known.get(self.key(), {})
        failed = known.get("errors", {})
        needed = [mode for mode in self.options.modes if mode != "reduce_overhead" or "compiled_captured" in failed]
        return all(f"{mode}_ms" in known or mode in failed for mode in needed)


def merged(paths):
    """The lines of files by their keys. What later lines add is joined to earlier ones, and of two times the least counts."""
    lines = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError), open(path) as file:
            for line in map(json.loads, filter(lambda text: text.startswith("{"), file)):
                if "kind" not in line:
                    line |= dict.fromkeys(("kind", "size", "dtype"), "")
                known = lines.setdefault(tuple(line[key] for key in KEYS), {})
                for part in "first_steps_s", "peaks_bytes", "errors":
                    if part in known:
                        line[part] = known[part] | line.get(part, {})
                if line.get("best_ms", math.inf) > known.get("best_ms", math.inf):
                    best = "best_ms", "best_mode", "first_step_s", "peak_bytes"
                    line |= {key: known[key] for key in best}
                known |= line
    return lines


def runs(options):
    for name, entry in entries().items():
        if options.only and name not in options.only:
            continue
        known = set()
        for dtype in options.dtype:
            for size in [entry.small] if options.small else entry.sizes[: options.sizes]:
                for kind in options.kinds:
                    if kind == "infer1" and not entry.has_batch:
                        continue
                    run = Run(name, entry, kind, (1, *size[1:]) if kind == "infer1" else size, dtype, options)
                    if run.key() not in known and not run.is_done():
                        known.add(run.key())
                        yield run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    several = lambda choices: lambda text: [word for word in text.split(",") if word in choices or parser.error(word)]
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--only", type=several(entries()), default=[], help="networks")
    parser.add_argument("--modes", type=several(MODES), default=MODES[:4], help=", ".join(MODES))
    parser.add_argument("--kinds", type=several(KINDS), default=KINDS, help=", ".join(KINDS))
    parser.add_argument("--dtype", type=several(DTYPES), default=["bf16"], help=", ".join(DTYPES))
    parser.add_argument("--sizes", type=int, default=2, help="how many of the two sizes of a network are run")
    parser.add_argument("--small", action="store_true", help="networks of a few elements: whether everything works")
    parser.add_argument("--seconds", type=float, default=math.inf, help="starts nothing after so many seconds")
    parser.add_argument("--done", action="append", default=[], help="a file of earlier lines, which are not run again")
    parser.add_argument("--alone", action="store_true", help="runs in this process")
    options = parser.parse_args()
    options.known, started = merged(options.done), time.monotonic()
    left = lambda: options.seconds - (time.monotonic() - started)
    names = list(dict.fromkeys(run.name for run in runs(options)))
    if options.alone:
        global torch, nn, F
        import torch
        import torch.nn.functional as F
        from torch import nn

        warnings.filterwarnings("ignore", "Sparse")
        torch.backends.cudnn.benchmark = True
        torch._dynamo.config.cache_size_limit = 64
        for run in runs(options):
            if left() > 0:
                run.measure(lambda: left() <= 0)
        return
    for name in names:
        if left() <= 0:
            break
        command = [sys.executable, __file__, *sys.argv[1:], "--alone", "--only", name]
        # A compilation that hangs must not take the time of all others.
        limit = {} if math.isinf(options.seconds) else dict(timeout=left() + 60)
        command += [] if math.isinf(options.seconds) else ["--seconds", str(left())]
        try:
            code = subprocess.run(command, **limit).returncode
            error = code and f"the process ended with {code}"
        except subprocess.TimeoutExpired:
            error = "the process took too long"
        if error:
            print(json.dumps(dict(model=name, error=error)), flush=True)


def table(ours, theirs):
    """Markdown: PyTorch's time over isograd's, so that above 1 isograd is faster."""
    ours, theirs = merged([ours]), merged([theirs])
    mib = lambda value: f"{value / 2**20:.0f}" if value else "-"
    number = lambda value, digits: f"{value:.{digits}f}" if value is not None else "-"
    rows, failed = [], []
    for key, line in ours.items():
        other = theirs.get(key, {})
        ms = line.get("captured_ms") or line.get("plain_ms")
        if ms is None:
            failed.append((key, "isograd", line.get("error")))
        elif "best_ms" not in other:
            failed.append((key, "PyTorch", other.get("errors") or "not run"))
        else:
            rows.append((other["best_ms"] / ms, key, ms, line, other))
    failed += [(key, "isograd", "not run") for key, line in theirs.items() if key not in ours and "best_ms" in line]
    print("| network | kind | size | dtype | isograd ms | PyTorch ms | its mode | speed | MiB | PyTorch MiB | first step s | PyTorch s |")
    print("|" + " --- |" * 4 + " ---: |" * 2 + " --- |" + " ---: |" * 5)
    for ratio, key, ms, line, other in sorted(rows, key=lambda row: row[0]):
        cells = [*key, number(ms, 3), number(other["best_ms"], 3), other["best_mode"], f"{ratio:.2f}"]
        cells += [mib(line.get("peak_bytes")), mib(other.get("peak_bytes"))]
        cells += [number(line.get("first_step_s"), 1), number(other.get("first_step_s"), 1)]
        print("| " + " | ".join(cells) + " |")
    if rows:
        ratios = [row[0] for row in rows]
        below = sum(ratio < 0.9 for ratio in ratios)
        print(f"\n{len(rows)} rows: the median speed is {statistics.median(ratios):.2f}, {below} are below 0.9.")
    for key, whose, why in failed:
        print(f"\n{whose}, {' '.join(key)}: {why}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["table"]:
        table(*sys.argv[2:])
    else:
        main()
