"""Median time of one training step of an MLP in PyTorch on the CPU, as one line of JSON.

784-256-10 with ReLU, cross entropy, Adam at 1e-3, batch 128, f32; random images in [0, 1], random labels.

    python benches/mlp_torch.py --threads 2 --steps 300
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn

BATCH, WARM_UP = 128, 50


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300, help="timed steps, after %d that are not" % WARM_UP)
    return parser.parse_args()


def training_step():
    """A closure that trains on one fixed random batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images, labels = torch.rand(BATCH, 784), torch.randint(10, (BATCH,))

    def step():
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def milliseconds(step):
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * 1e3


def main():
    options = arguments()
    torch.set_num_threads(options.threads)
    step = training_step()
    for _ in range(WARM_UP):
        step()
    times = [milliseconds(step) for _ in range(options.steps)]
    result = {"framework": "pytorch", "version": torch.__version__, "step_ms": round(statistics.median(times), 4)}
    print(json.dumps(result | {"threads": options.threads, "steps": options.steps}))


if __name__ == "__main__":
    main()
