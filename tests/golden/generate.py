"""Write the golden values: for every op, inputs, results and gradients as PyTorch computes them in f64 on the CPU.

    python -m venv venv && venv/bin/pip install torch==2.11.0 torchvision==0.26.0 safetensors numpy
    venv/bin/python tests/golden/generate.py

The files land beside this script; README.md describes them. What an op means, and its cases, stand in the module of its
family. Two runs give the same bytes.
"""

import importlib
import pathlib
import sys
import warnings

import torch

from common import VERSION, Family

# The families, and the seeds of their random numbers. A new one takes the next number.
FAMILIES = {
    "attention": 23,
    "conv": 21,
    "elementwise/activation": 0,
    "elementwise/binary": 5,
    "elementwise/copy": 31,
    "elementwise/fused_pointwise": 6,
    "elementwise/in_place": 20,
    "elementwise/unary": 4,
    "graph/edges": 36,
    "graph/mesh": 25,
    "graph/messages": 38,
    "image/pooling": 14,
    "image/resampling": 22,
    "indexing/embedding": 2,
    "indexing/index": 8,
    "indexing/segment": 16,
    "indexing/select": 30,
    "linalg": 29,
    "loss": 1,
    "matrix/gemm_bias": 13,
    "matrix/matmul": 9,
    "matrix/products": 28,
    "normalization/channel_norm": 15,
    "normalization/norm": 12,
    "normalization/softmax": 37,
    "optimizer": 10,
    "random": 32,
    "recurrent": 24,
    "reduction": 7,
    "sequence": 17,
    "shape/arrange": 27,
    "shape/concat": 33,
    "shape/factory": 34,
    "shape/pad": 39,
    "shape/view": 35,
    "sparse": 26,
}


def load():
    """The modules of the families, which fill `OPS`. Some have cases of others' ops."""
    return {name: importlib.import_module("families." + name.replace("/", ".")) for name in FAMILIES}


def main():
    assert torch.__version__.split("+")[0] == VERSION, f"torch {torch.__version__}, expected {VERSION}"
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    folder = pathlib.Path(__file__).parent
    for name, module in load().items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        torch.manual_seed(FAMILIES[name])
        out = Family(name)
        module.cases(out)
        out.save(folder)
        print(f"{out.name}: {len(out.cases)} cases, {len(out.tensors)} tensors")


if __name__ == "__main__":
    main()
