"""Times a training step in f32 with Adam in PyTorch on the CPU, and prints a line of JSON. The networks are those of
crates/isograd/examples/training_step.rs."""

import argparse
import json
import statistics
import time

import torch
from torch import nn


def mlp():
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)), (128, 784), 300


def cnn():
    first = nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64 * 49, 10)), (64, 1, 28, 28), 40


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
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(i, 10)), (8, 3, 32, 32), 10


NETWORKS = {network.__name__: network for network in (mlp, cnn, resnet18)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=NETWORKS, nargs="?", default="mlp")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model, shape, steps = NETWORKS[arguments.network]()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.rand(shape), torch.randint(0, 10, (shape[0],))
    times = []
    for step in range(steps // 6 + 1 + steps):
        started = time.perf_counter()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - started)
    step_ms = 1e3 * statistics.median(times[-steps:])
    line = dict(framework="pytorch", network=arguments.network, version=torch.__version__, step_ms=step_ms)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
