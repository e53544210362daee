"""Exports models with random weights from torchvision, transformers and scikit-learn, runs each with `isograd onnx run` and with onnxruntime, and
prints the largest difference between their outputs, relative to the largest element. Then trains two of them with `isograd onnx train` and with
PyTorch, and prints the largest difference of losses.

    pip install torch torchvision transformers onnx onnxruntime onnxscript scikit-learn skl2onnx
    cargo build --release --bin isograd
    python crates/onnx/tests/other_libraries.py target/release/isograd [--filter PART] [--keep DIR]
"""

import argparse
import pathlib
import subprocess
import tempfile
import warnings

import numpy
import onnxruntime
import torch

# The largest differences that are right: of outputs, and of losses.
BOUND = 1e-4
BOUND_OF_LOSSES = 1e-3
STEPS, BATCH, RATE, DECAY = 20, 8, 1e-4, 0.01


def images(name, size=64):
    """A model of torchvision, and images."""
    import torchvision

    return getattr(torchvision.models, name)(num_classes=10), (torch.randn(2, 3, size, size),)


def texts(kind, **extents):
    """A model of transformers, and tokens."""
    import transformers

    options = getattr(transformers, f"{kind.removesuffix('Encoder')}Config")(vocab_size=99, **extents)
    network = getattr(transformers, f"{kind}Model")(options)

    class Tokens(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, tokens):
            return self.network(tokens, return_dict=False)[0]

    return Tokens(), (torch.randint(0, 99, (2, 12)),)


SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)


def recurrent(kind):
    """A recurrent layer, and sequences."""
    layer = getattr(torch.nn, kind)(8, 16, num_layers=2, bidirectional=True)

    class First(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x)[0]

    return First(), (torch.randn(7, 3, 8),)


MODELS = {
    "resnet18": lambda: images("resnet18"),
    "resnet50": lambda: images("resnet50"),
    "mobilenet_v2": lambda: images("mobilenet_v2"),
    "mobilenet_v3_small": lambda: images("mobilenet_v3_small"),
    "efficientnet_b0": lambda: images("efficientnet_b0"),
    "densenet121": lambda: images("densenet121"),
    "squeezenet1_1": lambda: images("squeezenet1_1"),
    "shufflenet_v2_x0_5": lambda: images("shufflenet_v2_x0_5"),
    "vgg11_bn": lambda: images("vgg11_bn"),
    "googlenet": lambda: images("googlenet"),
    "convnext_tiny": lambda: images("convnext_tiny"),
    "swin_t": lambda: images("swin_t"),
    "vit_b_16": lambda: images("vit_b_16", 224),
    "lstm": lambda: recurrent("LSTM"),
    "gru": lambda: recurrent("GRU"),
    "bert": lambda: texts("Bert", **SMALL),
    "distilbert": lambda: texts("DistilBert", dim=32, n_layers=2, n_heads=4, hidden_dim=64),
    "roberta": lambda: texts("Roberta", **SMALL),
    "gpt2": lambda: texts("GPT2", n_embd=32, n_layer=2, n_head=4),
    "llama": lambda: texts("Llama", **SMALL, num_key_value_heads=2),
    "qwen2": lambda: texts("Qwen2", **SMALL, num_key_value_heads=2),
    "t5_encoder": lambda: texts("T5Encoder", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4),
}
ESTIMATORS = "LogisticRegression", "MLPClassifier", "LinearRegression", "MLPRegressor", "StandardScaler", "KMeans", "PCA"
ESTIMATORS += "RandomForestClassifier", "GradientBoostingClassifier", "ExtraTreesClassifier", "DecisionTreeClassifier"
ESTIMATORS += "RandomForestRegressor", "GradientBoostingRegressor"


def from_torch(name, path, dynamo):
    """Exports a model in evaluation; its inputs by name."""
    torch.manual_seed(0)
    network, inputs = MODELS[name]()
    # Some layers begin with zeros.
    for parameter in filter(lambda p: not p.any(), network.parameters()):
        torch.nn.init.normal_(parameter.data, std=0.02)
    names = [f"x{i}" for i in range(len(inputs))]
    torch.onnx.export(network.eval(), inputs, str(path), input_names=names, dynamo=dynamo)
    return {name: x.numpy() for name, x in zip(names, inputs)}


def from_sklearn(name, path):
    """Exports an estimator of four features; its input by name."""
    import sklearn.cluster, sklearn.datasets, sklearn.decomposition, sklearn.ensemble, sklearn.linear_model, sklearn.neural_network
    import sklearn.preprocessing, sklearn.tree
    from skl2onnx import to_onnx

    x, y = sklearn.datasets.load_iris(return_X_y=True)
    x = x.astype(numpy.float32)
    places = sklearn.linear_model, sklearn.neural_network, sklearn.preprocessing, sklearn.cluster, sklearn.decomposition
    places += sklearn.ensemble, sklearn.tree
    estimator = next(getattr(place, name) for place in places if hasattr(place, name))()
    model = to_onnx(estimator.fit(x, y), x[:1], options={"zipmap": False} if name.endswith("Classifier") or name == "LogisticRegression" else None)
    path.write_bytes(model.SerializeToString())
    return {model.graph.input[0].name: x[::30]}


def difference(program, path, inputs, folder):
    """The largest relative difference of outputs between onnxruntime and isograd."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    expected = session.run(None, inputs)
    given, made = folder / "in", folder / "out"
    given.mkdir()
    for name, x in inputs.items():
        numpy.save(given / f"{name.replace('/', '_')}.npy", x)
    command = [program, "onnx", "run", path, "--inputs", given, "--outputs", made, "--device", "cpu"]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(ran.stderr.strip().splitlines()[-1] if ran.stderr else f"it ended with {ran.returncode}")
    worst = 0.0
    for output, right in zip(session.get_outputs(), expected):
        found = numpy.load(made / f"{output.name.replace('/', '_')}.npy")
        if found.shape != right.shape:
            raise RuntimeError(f"{output.name} has shape {found.shape}, expected {right.shape}")
        largest = float(numpy.abs(right.astype(numpy.float64)).max(initial=0.0)) or 1.0
        worst = max(worst, float(numpy.abs(found.astype(numpy.float64) - right).max(initial=0.0)) / largest)
    return worst


def classifier(name):
    """A model with ten classes, and samples."""
    if name == "resnet18":
        return images(name)[0], torch.randn(4 * BATCH, 3, 64, 64)
    tokens, _ = texts("Bert", **SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

    class Classes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.head = tokens, torch.nn.Linear(SMALL["hidden_size"], 10)

        def forward(self, x):
            return self.head(self.tokens(x)[:, 0])

    return Classes(), torch.randint(0, 99, (4 * BATCH, 12))


def losses(program, name, folder):
    """The losses of a training by isograd and by PyTorch."""
    torch.manual_seed(0)
    network, x = classifier(name)
    targets = torch.randint(0, 10, (len(x),))
    path, given = folder / "model.onnx", folder / "in"
    kept = dict(training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False, dynamo=False)
    torch.onnx.export(network.eval(), (x[:BATCH],), str(path), input_names=["x"], **kept)
    given.mkdir()
    numpy.save(given / "x.npy", x.numpy())
    numpy.save(folder / "y.npy", targets.numpy())
    command = [program, "onnx", "train", path, "--inputs", given, "--targets", folder / "y.npy", "--device", "cpu"]
    command += ["--steps", str(STEPS), "--batch", str(BATCH), "--lr", str(RATE), "--out", folder / "tuned.safetensors"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    ours = [float(line.split("loss")[1]) for line in text.splitlines()]
    optimizer = torch.optim.AdamW(network.train().parameters(), lr=RATE, weight_decay=DECAY)
    theirs = []
    for step in range(STEPS):
        at = step % (len(x) // BATCH) * BATCH
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(x[at : at + BATCH]), targets[at : at + BATCH])
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    return ours, theirs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--filter", default="")
    parser.add_argument("--keep", type=pathlib.Path, help="where the models are kept")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    exports = [(f"{name} ({how})", lambda path, name=name, dynamo=how == "dynamo": from_torch(name, path, dynamo))
               for name in MODELS for how in ("script", "dynamo")]
    exports += [(f"{name} (scikit-learn)", lambda path, name=name: from_sklearn(name, path)) for name in ESTIMATORS]
    counts = {"right": 0, "wrong": 0, "not exported": 0}
    for name, export in exports:
        if options.filter not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            path = (options.keep or folder) / f"{name.replace(' ', '_')}.onnx"
            try:
                inputs = export(path)
            except Exception as error:
                counts["not exported"] += 1
                print(f"{name}: not exported: {str(error).splitlines()[0] if str(error) else type(error).__name__}", flush=True)
                continue
            try:
                found = difference(options.program, path, inputs, folder)
                is_right, text = found <= BOUND, f"{found:.1e}"
            except Exception as error:
                is_right, text = False, str(error)
            counts["right" if is_right else "wrong"] += 1
            print(f"{name}: {'' if is_right else 'WRONG: '}{text}", flush=True)
    for name in ("resnet18", "bert"):
        if options.filter in f"{name} (training)":
            with tempfile.TemporaryDirectory() as folder:
                ours, theirs = losses(options.program, name, pathlib.Path(folder))
            found = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
            counts["right" if found <= BOUND_OF_LOSSES else "wrong"] += 1
            print(f"{name} (training): losses {theirs[0]:.4f} to {theirs[-1]:.4f}, {found:.1e} apart", flush=True)
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    return counts["wrong"] > 0


if __name__ == "__main__":
    raise SystemExit(main())
