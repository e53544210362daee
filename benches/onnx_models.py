"""Times models of ONNX in `isograd onnx bench` and in onnxruntime, on the CPU, in turns; prints the fastest run of each and their quotient.

    pip install torch torchvision transformers onnx onnxruntime
    cargo build --release --bin isograd
    python benches/onnx_models.py target/release/isograd [--threads 2] [--rounds 5] [--filter PART] [--keep DIR]

The models have random weights: ResNet-50 and MobileNetV2 on an image of 224 x 224, BERT-base on 128 tokens, and a network of the kind of YOLOv8n
(SiLU, concatenations, max pools, upsampling) on an image of 320 x 320.
"""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time
import warnings

import numpy
import onnxruntime
import torch


def image(name):
    import torchvision

    return getattr(torchvision.models, name)(), torch.randn(1, 3, 224, 224)


def bert():
    import transformers

    network = transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False)

    class Tokens(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, tokens):
            return self.network(tokens, return_dict=False)[0]

    return Tokens(), torch.randint(0, 30000, (1, 128))


def conv(inputs, outputs, size=1, stride=1):
    norm = torch.nn.BatchNorm2d(outputs)
    return torch.nn.Sequential(torch.nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), norm, torch.nn.SiLU())


class Stage(torch.nn.Module):
    """Halves the image, and adds two convolutions to half of the channels, twice."""

    def __init__(self, inputs, outputs):
        super().__init__()
        half = outputs // 2
        self.down, self.before, self.after = conv(inputs, outputs, 3, 2), conv(outputs, outputs), conv(2 * outputs, outputs)
        self.inner = torch.nn.ModuleList(torch.nn.Sequential(conv(half, half, 3), conv(half, half, 3)) for _ in range(2))

    def forward(self, x):
        parts = list(self.before(self.down(x)).chunk(2, 1))
        for inner in self.inner:
            parts.append(parts[-1] + inner(parts[-1]))
        return self.after(torch.cat(parts, 1))


class Detector(torch.nn.Module):
    """Boxes and scores of 80 classes at two scales."""

    def __init__(self):
        super().__init__()
        widths = [16, 32, 64, 128, 256]
        self.stem = conv(3, widths[0], 3, 2)
        self.stages = torch.nn.ModuleList(Stage(a, b) for a, b in zip(widths, widths[1:]))
        self.before, self.after = conv(256, 128), conv(512, 256)
        self.joined = conv(128 + 256, 128, 3)
        self.heads = torch.nn.ModuleList(torch.nn.Sequential(conv(c, 80, 3), torch.nn.Conv2d(80, 84, 1)) for c in (128, 256))

    def forward(self, x):
        x = self.stem(x)
        for stage in self.stages:
            before, x = x, stage(x)
        pools = [self.before(x)]
        for _ in range(3):
            pools.append(torch.nn.functional.max_pool2d(pools[-1], 5, 1, 2))
        small = self.after(torch.cat(pools, 1))
        large = self.joined(torch.cat([torch.nn.functional.interpolate(small, scale_factor=2.0), before], 1))
        return torch.cat([head(x).flatten(2) for head, x in zip(self.heads, (large, small))], 2)


MODELS = {
    "ResNet-50": lambda: image("resnet50"),
    "MobileNetV2": lambda: image("mobilenet_v2"),
    "BERT-base": bert,
    "YOLO-like": lambda: (Detector(), torch.randn(1, 3, 320, 320)),
}


def export(name, folder):
    """The file of a model, and its input in a folder."""
    torch.manual_seed(0)
    network, x = MODELS[name]()
    path, inputs = folder / f"{name}.onnx", folder / name
    inputs.mkdir(exist_ok=True)
    if not path.exists():
        torch.onnx.export(network.eval(), (x,), str(path), input_names=["x"], dynamo=False)
        numpy.save(inputs / "x.npy", x.numpy())
    return path, inputs


def ours(program, path, inputs, runs, threads):
    """Milliseconds of the fastest run."""
    command = [program, "onnx", "bench", path, "--inputs", inputs, "--runs", str(runs), "--device", "cpu"]
    environment = {**os.environ, "RAYON_NUM_THREADS": str(threads)}
    text = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    return float(re.search(r"fastest +([\d.]+)", text)[1])


def theirs(session, inputs, runs):
    """Milliseconds of the fastest run."""
    x = {"x": numpy.load(inputs / "x.npy")}
    session.run(None, x)
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        session.run(None, x)
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=10, help="runs of a round")
    parser.add_argument("--filter", default="")
    parser.add_argument("--keep", type=pathlib.Path, help="where the models are kept")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    folder = options.keep or pathlib.Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    ratios = []
    print(f"{'model':<12} {'isograd ms':>11} {'onnxruntime ms':>15} {'ratio':>6}")
    for name in (name for name in MODELS if options.filter in name):
        path, inputs = export(name, folder)
        session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
        times = [(ours(options.program, path, inputs, options.runs, options.threads), theirs(session, inputs, options.runs))
                 for _ in range(options.rounds)]
        own, other = (min(column) for column in zip(*times))
        ratios.append(own / other)
        print(f"{name:<12} {own:>11.2f} {other:>15.2f} {own / other:>6.2f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.2f}, onnxruntime {onnxruntime.__version__}, {options.threads} threads")


if __name__ == "__main__":
    main()
