"""Arrays of JAX, without a copy."""

import isograd
import numpy as np
import pytest

jax = pytest.importorskip("jax")


def test_jax_and_back_in_one_place():
    x = jax.numpy.arange(12.0).reshape(3, 4)
    t = isograd.from_dlpack(x)
    assert t.data_ptr() == x.unsafe_buffer_pointer()
    assert np.allclose(jax.numpy.from_dlpack(isograd.softmax(t, -1)), jax.nn.softmax(x, -1))
