"""Write the golden values: for every op, inputs, results and gradients as PyTorch computes them in f64 on the CPU.

    python -m venv venv && venv/bin/pip install torch==2.11.0 safetensors numpy
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

# The seed of a family is its place.
FAMILIES = """
    elementwise/activation loss indexing/embedding utility elementwise/unary elementwise/binary
    elementwise/fused_pointwise reduction indexing/index matrix/matmul optimizer table28 normalization/norm
    matrix/gemm_bias image/pooling normalization/channel_norm graph/edges sequence scalars shapes elementwise/in_place
    conv image/resampling attention recurrent graph/mesh sparse shape/arrange matrix/products linalg indexing/select
""".split()


def main():
    assert torch.__version__.split("+")[0] == VERSION, f"torch {torch.__version__}, expected {VERSION}"
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    folder = pathlib.Path(__file__).parent
    # Some families have cases of others' ops.
    modules = [importlib.import_module("families." + name.replace("/", ".")) for name in FAMILIES]
    for seed, (name, module) in enumerate(zip(FAMILIES, modules)):
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        torch.manual_seed(seed)
        out = Family(name)
        module.cases(out)
        out.save(folder)
        print(f"{out.name}: {len(out.cases)} cases, {len(out.tensors)} tensors")


if __name__ == "__main__":
    main()
