"""Times one training step of the MLP 784-256-10 in PyTorch on the CPU, and prints a line of JSON."""

import argparse
import json
import statistics
import time

import torch


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.rand(128, 784), torch.randint(0, 10, (128,))
    times = []
    for step in range(50 + arguments.steps):
        started = time.perf_counter()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= 50:
            times.append(time.perf_counter() - started)
    line = dict(framework="pytorch", version=torch.__version__, step_ms=1e3 * statistics.median(times))
    print(json.dumps(line))


if __name__ == "__main__":
    main()
