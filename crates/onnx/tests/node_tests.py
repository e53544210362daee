"""Runs the node tests of the Python package onnx with the command `isograd onnx run`, and says how many pass and why the others do not.

    pip install onnx==1.19.1 numpy
    cargo build --bin isograd
    python crates/onnx/tests/node_tests.py target/debug/isograd [--device opencl:0] [--filter PART] [--opset 24]

Results are compared with the tolerances that the package gives each test. Tests of types that the library does not have are counted apart.
"""

import argparse
import collections
import concurrent.futures
import pathlib
import subprocess
import tempfile
import warnings

import numpy
import onnx
from onnx.backend.test.loader import load_model_tests

# Types of elements that the library has, or reads as others.
TYPES = {"FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT64", "INT32", "INT16", "INT8", "UINT64", "UINT32", "UINT16", "UINT8", "BOOL"}
OTHERS = {8: "string", 14: "complex", 15: "complex"}


def types(graph):
    """The names of the types of inputs and outputs."""
    found = set()
    for value in list(graph.input) + list(graph.output):
        kind = value.type.WhichOneof("value")
        if kind == "tensor_type":
            found.add(onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type))
        else:
            found.add(kind)
    return found


def array(value):
    """A value of a test as an array that NumPy can save."""
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    value = numpy.asarray(value)
    return value.astype(numpy.float32) if value.dtype.name == "bfloat16" else value


def cases(test):
    """The inputs and outputs of a test, as arrays."""
    if test.data_sets:
        return [([array(v) for v in inputs], [array(v) for v in outputs]) for inputs, outputs in test.data_sets]
    found = []
    for folder in sorted(pathlib.Path(test.model_dir).glob("test_data_set_*")):
        both = []
        for kind in ("input", "output"):
            files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda file: int(file.stem.split("_")[1]))
            tensors = []
            for file in files:
                tensor = onnx.TensorProto()
                tensor.ParseFromString(file.read_bytes())
                tensors.append(array(tensor))
            both.append(tensors)
        found.append(tuple(both))
    return found


def differs(got, expected, test):
    """Why an output is not the expected one; None if it is."""
    if got.shape != expected.shape:
        return f"shape {got.shape}, expected {expected.shape}"
    if expected.dtype == bool or numpy.issubdtype(expected.dtype, numpy.integer):
        # Integers that the library does not have are wider.
        return None if numpy.array_equal(got.astype(expected.dtype), expected) else "other integers"
    wide = [numpy.asarray(v, dtype=numpy.float64) for v in (got, expected)]
    if numpy.allclose(*wide, rtol=test.rtol, atol=test.atol, equal_nan=True):
        return None
    with numpy.errstate(all="ignore"):
        return f"numbers differ by {numpy.nanmax(numpy.abs(wide[0] - wide[1])):.3g}"


def run(command, device, test):
    """Why a test does not pass; None if it does."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = test.model if test.model is not None else onnx.load(pathlib.Path(test.model_dir) / "model.onnx")
        onnx.save(model, folder / "model.onnx")
        for k, (inputs, outputs) in enumerate(cases(test)):
            here, there = folder / f"in{k}", folder / f"out{k}"
            here.mkdir()
            given = [value.name for value in model.graph.input]
            for port, value in zip(given, inputs):
                numpy.save(here / f"{port.replace('/', '_')}.npy", value)
            arguments = [command, "onnx", "run", folder / "model.onnx", "--inputs", here, "--outputs", there, "--device", device]
            done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
            if done.returncode != 0:
                return done.stderr.strip().split("\n")[-1].replace(name, "")
            for value, expected in zip(model.graph.output, outputs):
                why = differs(numpy.load(there / f"{value.name.replace('/', '_')}.npy"), expected, test)
                if why is not None:
                    return f"output {value.name}: {why}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--filter", default="")
    parser.add_argument("--opset", type=int, default=24, help="the last opset of the tests that run")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    tests, apart = [], collections.Counter()
    for test in load_model_tests(kind="node"):
        if arguments.filter not in test.name:
            continue
        model = test.model if test.model is not None else onnx.load(pathlib.Path(test.model_dir) / "model.onnx")
        others = types(model.graph) - TYPES
        opsets = [o for o in model.opset_import if o.domain in ("", "ai.onnx")]
        domains = sorted(o.domain for o in model.opset_import if o.domain not in ("", "ai.onnx", "ai.onnx.ml"))
        if any(o.version > arguments.opset for o in opsets):
            apart["a later opset"] += 1
        elif domains:
            apart[f"the domain {domains[0]}"] += 1
        elif others:
            apart[f"values of {sorted(others)[0].lower()}"] += 1
        else:
            tests.append(test)
    def why(test):
        try:
            return run(arguments.command, arguments.device, test)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        found = list(zip(tests, pool.map(why, tests)))
    for test, why in found:
        if why is not None:
            print(f"{test.name}: {why}")
    passed = sum(why is None for _, why in found)
    print(f"{passed} of {len(found)} pass, {100 * passed / max(1, len(found)):.1f} %")
    for reason, count in apart.most_common():
        print(f"not run: {count} with {reason}")


if __name__ == "__main__":
    main()
