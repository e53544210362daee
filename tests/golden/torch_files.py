"""Write small files with torch.save, and what is in them.

    python -m venv venv && venv/bin/pip install torch==2.11.0 safetensors numpy
    venv/bin/python tests/golden/torch_files.py

Each file under `torch_files/` has one kind of content: a state dict, all dtypes, views, a checkpoint, and files that must be refused.
`expected.safetensors` has the tensors of `<file>` as `<file>/<name>`, contiguous; those of dtypes that the library does not have in one
that has all their values. `crates/nn/tests/torch.rs` reads all of it.
"""

import argparse
import pathlib
import shutil

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent / "torch_files"

# The dtypes that are read as another, which has all their values.
WIDER = {
    torch.int8: torch.int32,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
    torch.float8_e4m3fn: torch.float16,
    torch.float8_e5m2: torch.float16,
    torch.float8_e4m3fnuz: torch.float16,
    torch.float8_e5m2fnuz: torch.float16,
    torch.float8_e8m0fnu: torch.float32,
}


def network():
    """A network with parameters and buffers."""
    layers = [torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.Flatten(), torch.nn.Linear(12, 4)]
    model = torch.nn.Sequential(*layers)
    model(torch.randn(5, 2, 4, 4))
    return model


def dtypes():
    x = torch.tensor([[1.5, -0.0, float("inf")], [0.25, -3.0, 2.0]])
    n = torch.tensor([[0, 1, 2], [100, 127, 3]])
    floats = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
    small = [torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu]
    signed = [torch.int64, torch.int32, torch.int16, torch.int8]
    unsigned = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
    named = {str(dtype).removeprefix("torch."): x.to(dtype) for dtype in floats}
    named |= {str(dtype).removeprefix("torch."): x[:, :1].abs().to(dtype) for dtype in small}
    named |= {str(dtype).removeprefix("torch."): -n.to(dtype) for dtype in signed}
    named |= {str(dtype).removeprefix("torch."): n.to(dtype) for dtype in unsigned}
    return named | {"bool": n > 2, "complex64": x.to(torch.complex64)}


def views():
    base = torch.arange(24.0).reshape(4, 6)
    weight = torch.randn(3, 5)
    return {
        "base": base,
        "transposed": base.t(),
        "permuted": torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
        "slice": base[1:3, 2:5],
        "steps": base[::2, 1::3],
        "column": base[:, 4],
        "expanded": torch.tensor([7.0, 8.0])[:, None].expand(2, 3),
        "one_for_all": torch.tensor(0.5).expand(4, 4),
        "windows": torch.arange(6.0).unfold(0, 3, 1),
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "scalar": torch.tensor(-2.5, dtype=torch.float64),
        "element": base[2, 3],
        "empty": torch.zeros(0, 3),
        "tied": weight,
        "tied_too": weight,
    }


def checkpoint(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.125)
    model(torch.randn(5, 2, 4, 4)).sum().backward()
    optimizer.step()
    return {
        "epoch": 3,
        "loss": 0.5,
        "name": "a run",
        "done": False,
        "best": None,
        "steps": 2**40,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }


def flat(value, name=""):
    """Tensors by name, as the library names them."""
    if isinstance(value, torch.Tensor):
        return {name: value.detach()}
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else []
    found = {}
    for key, entry in entries:
        found |= flat(entry, f"{name}.{key}" if name else str(key))
    return found


def main():
    assert torch.__version__.split("+")[0] == "2.11.0", torch.__version__
    torch.manual_seed(0)
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    expected = {}

    def write(name, content, tensors=None, **options):
        torch.save(content, HERE / name, **options)
        for key, t in flat(content if tensors is None else tensors).items():
            if t.dtype != torch.complex64:
                expected[f"{name}/{key}"] = t.to(WIDER.get(t.dtype, t.dtype)).contiguous().clone()

    model = network()
    write("state.pt", model.state_dict())
    write("protocol_5.pt", model.state_dict(), pickle_protocol=5)
    write("parameters.pt", {"weight": model[3].weight, "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False)})
    write("dtypes.pt", dtypes())
    write("views.pt", views())
    saved = checkpoint(model)
    write("checkpoint.pt", saved, saved["model"])
    write("lists.pt", {"layers": [{"w": torch.ones(2)}, {"w": torch.zeros(1)}], "pair": (torch.ones(1), 5), "size": torch.ones(2, 3).shape})
    torch.serialization.set_crc32_options(False)
    write("no_checksum.pt", {"w": torch.arange(3.0)})
    torch.serialization.set_crc32_options(True)

    # Files that are refused.
    torch.save(model, HERE / "module.pt")
    torch.save({"w": torch.ones(1), "args": argparse.Namespace(lr=0.1)}, HERE / "namespace.pt")
    torch.save(torch.ones(2), HERE / "tensor.pt")
    torch.save(model.state_dict(), HERE / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.jit.script(torch.nn.Linear(2, 2)).save(HERE / "script.pt")
    save_file(expected, HERE / "expected.safetensors")
    for file in sorted(HERE.iterdir()):
        print(file.name, file.stat().st_size)


if __name__ == "__main__":
    main()
