"""Times a training step in f32 in PyTorch on the CPU, and prints a line of JSON. The networks are those of
crates/isograd/examples/training_step.rs."""

import argparse
import json
import statistics
import time

import torch
from torch import nn


def classes(model, rows, steps, output):
    """Adam's steps for the classes of a model's outputs [rows, 10]."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    y = torch.randint(0, 10, (rows,))

    def step():
        nn.functional.cross_entropy(output(model), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, steps


def classifier(model, shape, steps):
    """`classes` of random inputs."""
    x = torch.rand(shape)
    return classes(compiled(model), shape[0], steps, lambda model: model(x))


def compiled(model):
    return torch.compile(model) if COMPILES else model


def mlp():
    return classifier(nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)), (128, 784), 300)


def cnn():
    first = nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    return classifier(nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64 * 49, 10)), (64, 1, 28, 28), 40)


def unit(i, o, kernel, stride=1):
    return nn.Sequential(nn.Conv2d(i, o, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(o))


class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.body = nn.Sequential(unit(i, o, 3, stride), nn.ReLU(), unit(o, o, 3))
        self.shortcut = nn.Identity() if stride == 1 and i == o else unit(i, o, 1, stride)

    def forward(self, x):
        return (self.body(x) + self.shortcut(x)).relu()


def resnet18():
    layers, i = [unit(3, 64, 3), nn.ReLU()], 64
    for stage in range(4):
        for k in range(2):
            layers.append(Block(i, 64 << stage, 2 if stage > 0 and k == 0 else 1))
            i = 64 << stage
    return classifier(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, 10)), (8, 3, 32, 32), 10)


class InvertedResidual(nn.Module):
    def __init__(self, i, o, stride, expansion):
        super().__init__()
        hidden = i * expansion
        depthwise = nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6()
        expand = (unit(i, hidden, 1), nn.ReLU6()) if expansion > 1 else ()
        self.body, self.is_residual = nn.Sequential(*expand, *depthwise, unit(hidden, o, 1)), stride == 1 and i == o

    def forward(self, x):
        return x + self.body(x) if self.is_residual else self.body(x)


def mobilenet():
    stages = (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)
    layers, i = [unit(3, 32, 3, 2), nn.ReLU6()], 32
    for expansion, o, count, stride in stages:
        for k in range(count):
            layers.append(InvertedResidual(i, o, stride if k == 0 else 1, expansion))
            i = o
    layers += [unit(i, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 10)]
    return classifier(nn.Sequential(*layers), (8, 3, 96, 96), 10)


class GraphLayer(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight, self.bias = nn.Linear(i, o, bias=False), nn.Parameter(torch.zeros(o))

    def forward(self, x, source, target, weight):
        x = self.weight(x)
        return torch.zeros_like(x).index_add(0, target, x.index_select(0, source) * weight) + self.bias


class Gcn(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([GraphLayer(128, 128), GraphLayer(128, 10)])

    def forward(self, x, *graph):
        return self.layers[1](self.layers[0](x, *graph).relu(), *graph)


def gcn():
    nodes, edges = 10_000, 160_000
    x, weight = torch.rand(nodes, 128), torch.rand(edges, 1)
    source, target = (torch.randint(0, nodes, (edges,)) for _ in range(2))
    return classes(compiled(Gcn()), nodes, 20, lambda model: model(x, source, target, weight))


class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(1000, 64) for _ in range(8))
        sizes = 8 + 8 * 64, 256, 128
        hidden = [layer for i, o in zip(sizes, sizes[1:]) for layer in (nn.Linear(i, o), nn.ReLU())]
        self.body = nn.Sequential(*hidden, nn.Linear(128, 10))

    def forward(self, numbers, categories):
        embedded = [embedding(column) for embedding, column in zip(self.embeddings, categories.unbind(1))]
        return self.body(torch.cat([numbers, *embedded], 1))


def table():
    numbers, categories = torch.rand(1024, 8), torch.randint(0, 1000, (1024, 8))
    return classes(compiled(Tabular()), 1024, 100, lambda model: model(numbers, categories))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    def __init__(self, vocab=65, context=64, layers=4, heads=4, width=128):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.Sequential(*(GptBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.norm(self.blocks(self.tokens(tokens) + self.places))
        return x @ self.tokens.weight.T


def gpt():
    model = compiled(Gpt())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 65, (12, 65))

    def step():
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, 40


def recurrent(layer):
    """The gradients of the mean of all results, for the input too."""
    model, x = compiled(layer(256, 256)), torch.rand((64, 32, 256), requires_grad=True)
    return lambda: model(x)[0].mean().backward(), 40


def lstm():
    return recurrent(nn.LSTM)


def gru():
    return recurrent(nn.GRU)


COMPILES = False
NETWORKS = {network.__name__: network for network in (mlp, cnn, resnet18, mobilenet, gpt, lstm, gru, gcn, table)}


def main():
    global COMPILES
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=NETWORKS, nargs="?", default="mlp")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="by torch.compile")
    arguments = parser.parse_args()
    COMPILES = arguments.compile
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    step, steps = NETWORKS[arguments.network]()
    times = []
    for _ in range(steps // 6 + 1 + steps):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    step_ms = 1e3 * statistics.median(times[-steps:])
    framework = "compiled" if COMPILES else "eager"
    line = dict(framework=framework, network=arguments.network, version=torch.__version__, step_ms=step_ms)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
