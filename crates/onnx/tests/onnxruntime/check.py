"""Runs the models of a folder in onnxruntime, and prints for each case why its outputs are wrong, or nothing, as JSON."""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

TYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "i64": np.int64, "i32": np.int32, "u8": np.uint8, "bool": np.bool_}


def read(folder, tensor):
    values = np.fromfile(folder / tensor["file"], dtype=TYPES[tensor["dtype"]])
    return values.reshape(tensor["shape"])


def difference(got, expected):
    """Why an output is wrong: floats may differ by 1e-5 of the element, or of the largest one of the output."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"is {got.dtype} {got.shape}, expected {expected.dtype} {expected.shape}"
    if not np.issubdtype(got.dtype, np.floating):
        return None if np.array_equal(got, expected) else f"is {got.ravel()[:8]}, expected {expected.ravel()[:8]}"
    finite = np.abs(expected[np.isfinite(expected)])
    bound = 1e-5 * max(1.0, finite.max(initial=0.0))
    if np.allclose(got, expected, rtol=1e-5, atol=bound, equal_nan=True):
        return None
    worst = np.nanargmax(np.abs(got - expected))
    return f"is {got.ravel()[worst]} at {worst}, expected {expected.ravel()[worst]}"


def check(folder, case):
    path = folder / case["model"]
    onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for run in case["runs"]:
        # A tensor on which no output depends is no input.
        feeds = {name: read(folder, tensor) for name, tensor in run["inputs"].items()}
        found = session.run(None, feeds)
        for value, got, expected in zip(session.get_outputs(), found, run["outputs"], strict=True):
            wrong = difference(np.asarray(got), read(folder, expected))
            if wrong:
                shapes = {name: list(feed.shape) for name, feed in feeds.items()}
                return f"{value.name} for {shapes} {wrong}"
    return None


def main():
    folder = Path(sys.argv[1])
    failures = {}
    for case in json.loads((folder / "cases.json").read_text()):
        try:
            wrong = check(folder, case)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            failures[case["name"]] = wrong
    print(json.dumps(failures))


main()
