"""The notebooks run."""

import pathlib
import runpy

import pytest

NOTEBOOKS = sorted((pathlib.Path(__file__).parent.parent / "notebooks").glob("*.py"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path):
    if path.stem == "pytorch":
        pytest.importorskip("torch")
    runpy.run_path(str(path))
