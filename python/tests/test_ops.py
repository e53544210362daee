"""Every op of the registry has a function in Python, with documentation, and a signature that takes what the registry takes."""

import inspect

import isograd
import numpy as np
import pytest
from cases import OPS, arguments
from isograd import _isograd


@pytest.mark.parametrize("name", OPS)
def test_op(name):
    function = getattr(isograd, name)
    assert function.__doc__
    for inputs, attributes in _isograd.examples(name)[:2]:
        given = arguments(name, inputs, attributes)
        assert set(given) <= set(inspect.signature(function).parameters)
        expected = _isograd.call(name, list(inputs.items()), attributes)
        found = function(**given)
        found = found if isinstance(found, tuple) else (found,)
        for y, z in zip(found, expected, strict=True):
            assert (y.shape, y.dtype) == (z.shape, z.dtype)
            assert OPS[name]["in_place"] or np.array_equal(np.asarray(y), np.asarray(z), equal_nan=y.dtype[0] in "fb")


def test_values_are_numpys():
    x = np.random.default_rng(1).standard_normal((3, 4))
    t = isograd.tensor(x)
    e = np.exp(x - x.max(-1, keepdims=True))
    assert np.allclose(np.asarray(isograd.softmax(t, -1)), e / e.sum(-1, keepdims=True))
    assert np.allclose(np.asarray(t.sum([0])), x.sum(0))
    assert np.allclose(np.asarray(isograd.concat([t, t], 1)), np.concatenate([x, x], 1))
    assert np.array_equal(np.asarray(t.transpose(0, 1)), x.T)
    assert np.allclose(np.asarray(isograd.einsum([t, t], equation="ij,kj->ik")), x @ x.T)


def test_checks_find_what_is_wrong():
    def check(function, op, **options):
        return isograd.check(function, op, library="isograd", **options)

    assert check(lambda x, dim: isograd.softmax(x, dim), "softmax").passed
    assert check(isograd.tanh, "tanh", dtypes=["f32", "bf16"]).passed
    report = check(lambda x, dim: isograd.softmax(x, dim) * 1.0001, "softmax")
    assert not report.passed and "FAILED softmax forward f32 on cpu" in report.text
    # The gradient of a result that is outside of the tape is missing.
    assert not check(lambda x: isograd.tanh(x).detach(), "tanh").passed
    assert not check(lambda x: isograd.tanh(x[..., :0]), "tanh").passed
    assert not check(lambda x: 1 / 0, "tanh").passed
    with pytest.raises(ValueError, match="f64"):
        check(isograd.tanh, "tanh", dtypes=["f64"])
    with pytest.raises(ValueError, match="no check"):
        check(isograd.tanh, "tanh", without=["speed"])
