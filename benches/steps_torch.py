"""Times a training step in f32 in PyTorch on the CPU, and prints a line of JSON. The networks are those of
crates/isograd/examples/training_step.rs."""

import argparse
import json
import statistics
import time

import torch
from torch import nn


def classifier(model, shape, steps):
    """Adam's steps for the classes of random inputs."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.rand(shape), torch.randint(0, 10, (shape[0],))

    def step():
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, steps


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
    model = Gpt()
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
    model, x = layer(256, 256), torch.rand((64, 32, 256), requires_grad=True)
    return lambda: model(x)[0].mean().backward(), 40


def lstm():
    return recurrent(nn.LSTM)


def gru():
    return recurrent(nn.GRU)


NETWORKS = {network.__name__: network for network in (mlp, cnn, resnet18, gpt, lstm, gru)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=NETWORKS, nargs="?", default="mlp")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    step, steps = NETWORKS[arguments.network]()
    times = []
    for _ in range(steps // 6 + 1 + steps):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    step_ms = 1e3 * statistics.median(times[-steps:])
    line = dict(framework="pytorch", network=arguments.network, version=torch.__version__, step_ms=step_ms)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
