"""Write small GGUF files with the package gguf, and the numbers that it reads from them.

    python -m venv venv && venv/bin/pip install gguf==0.19.0 numpy safetensors
    venv/bin/python tests/golden/gguf_files.py

`gguf_files/types.gguf` has a tensor of each type, by its name: random bytes, and blocks whose scales are zero, subnormal, large, infinite and
NaN. `gguf_files/metadata.gguf` has a value of each kind. `gguf_files/expected.safetensors` has the numbers of a type as `numbers/<type>`, and
blocks that the package makes of `quantise/<case>/numbers` as `quantise/<case>/<type>`.

`gguf_files.py --read FILE EXPECTED` compares a file that the library wrote with the numbers that it reads from it, in a safetensors file.
"""

import argparse
import pathlib
import shutil

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file, save_file

HERE = pathlib.Path(__file__).parent / "gguf_files"

PLAIN = {
    "F32": np.float32,
    "F16": np.float16,
    "F64": np.float64,
    "I8": np.int8,
    "I16": np.int16,
    "I32": np.int32,
    "I64": np.int64,
}
# The places of the scales of 16 bits in a block.
SCALES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "MXFP4": [],
}
# Scales of 16 bits: 0, -0, the smallest, the largest subnormal, the largest, an infinity and a NaN.
ODD = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0x7C00, 0xFE01]
# Exponents of 8 bits.
EXPONENTS = [0, 1, 2, 3, 126, 127, 128, 253, 254, 255]


def of_type(name, rng):
    """The bytes of a tensor with two rows."""
    elements, size = gguf.GGML_QUANT_SIZES[Type[name]]
    if name == "BF16":
        return rng.integers(0, 256, (2, 12), dtype=np.uint8)
    odd = EXPONENTS if name == "MXFP4" else ODD
    # As many ordinary blocks, with scales near 1, and one of random bytes.
    count = 2 * len(odd) if elements == 32 else len(odd) + 1
    count += count % 2
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for i, block in enumerate(blocks[:-1]):
        for at in SCALES[name]:
            scale = odd[i] if i < len(odd) else int(np.float16(rng.normal()).view(np.uint16))
            block[at : at + 2] = np.array([scale], dtype="<u2").view(np.uint8)
        if name == "MXFP4" and i < len(odd):
            block[0] = odd[i]
    # One scale is odd, and the other is not.
    for i, at in enumerate(SCALES[name][1:], 1):
        blocks[i, at : at + 2] = np.array([1.5], dtype="<f2").view(np.uint8)
    return blocks.reshape(2, -1)


def quantised(rng):
    """Numbers by case, whose blocks the package makes."""
    normal = rng.normal(size=(3, 64)).astype(np.float32)
    special = np.zeros((4, 32), dtype=np.float32)
    special[0, 3], special[1, 0] = -0.0, -0.0
    # Halves between two integers, and one number of the largest magnitude in each sign.
    special[2] = np.arange(-16, 16, dtype=np.float32) / 2
    special[3, 5], special[3, 9] = 127, -127
    special[3, 10:20] = np.arange(10, dtype=np.float32) + 0.5
    small = (rng.normal(size=(2, 32)) * 1e-6).astype(np.float32)
    return {"normal": normal, "special": special, "small": small}


def write_types(rng, expected):
    writer = gguf.GGUFWriter(HERE / "types.gguf", "llama")
    for name, dtype in PLAIN.items():
        values = rng.normal(size=(2, 3)) * 100
        values = values.astype(dtype)
        writer.add_tensor(name, values, raw_dtype=Type[name])
        wider = np.int32 if dtype in (np.int8, np.int16) else dtype
        expected[f"numbers/{name}"] = values.astype(wider)
    for name in ["BF16", *SCALES]:
        raw = of_type(name, rng)
        writer.add_tensor(name, raw, raw_dtype=Type[name])
        with np.errstate(all="ignore"):
            expected[f"numbers/{name}"] = gguf.dequantize(raw, Type[name])
    # Types that are not read, and tensors of other ranks.
    writer.add_tensor("IQ2_XXS", np.zeros((1, 66), dtype=np.uint8), raw_dtype=Type.IQ2_XXS)
    for name, shape in {"vector": (5,), "volume": (2, 3, 4), "four": (2, 1, 3, 2)}.items():
        values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        writer.add_tensor(name, values)
        expected[f"numbers/{name}"] = values
    close(writer)


def write_metadata():
    writer = gguf.GGUFWriter(HERE / "metadata.gguf", "llama")
    writer.add_custom_alignment(64)
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -30000)
    writer.add_uint32("u32", 4_000_000_000)
    writer.add_int32("i32", -2_000_000_000)
    writer.add_float32("f32", 0.1)
    writer.add_bool("bool", True)
    writer.add_string("text", "größer")
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float64("f64", 0.1)
    writer.add_array("f32s", [0.5, -1.5])
    writer.add_array("bools", [True, False, True])
    writer.add_array("nested", [[1, 2], [3]])
    writer.add_token_list(["<s>", "</s>", "▁a", "é", ""])
    writer.add_token_scores([0.0, 0.0, -1.5, -2.0, -3.0])
    writer.add_token_types([3, 3, 1, 1, 6])
    writer.add_tensor("w", np.arange(3, dtype=np.float32))
    writer.add_tensor("v", np.arange(2, dtype=np.float32))
    close(writer)


def close(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write():
    rng = np.random.default_rng(0)
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    expected = {}
    write_types(rng, expected)
    write_metadata()
    for case, numbers in quantised(rng).items():
        expected[f"quantise/{case}/numbers"] = numbers
        for name in ["Q4_0", "Q8_0"]:
            expected[f"quantise/{case}/{name}"] = gguf.quantize(numbers, Type[name])
    save_file({name: np.ascontiguousarray(values) for name, values in expected.items()}, HERE / "expected.safetensors")
    for file in sorted(HERE.iterdir()):
        print(file.name, file.stat().st_size)


def compare(file, expected):
    """Every tensor of a file has the numbers that are expected."""
    tensors, expected = gguf.GGUFReader(file).tensors, load_file(expected)
    assert sorted(t.name for t in tensors) == sorted(expected), file
    for t in tensors:
        numbers = t.data if t.tensor_type.name in PLAIN else gguf.dequantize(t.data, t.tensor_type)
        numbers = np.asarray(numbers).reshape(t.shape[::-1])
        np.testing.assert_array_equal(numbers.astype(np.float64), expected[t.name].astype(np.float64), err_msg=t.name)
        print(t.name, t.tensor_type.name, numbers.shape)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--read", nargs=2, metavar=("FILE", "EXPECTED"))
    options = parser.parse_args()
    compare(*options.read) if options.read else write()


if __name__ == "__main__":
    main()
