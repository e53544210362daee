"""Tensors of GPUs: exchange, streams, captured steps, and checks of functions. The emulator of GPUs runs them too."""

import isograd
import pytest


@pytest.fixture(params=["cuda:0", "hip:0"])
def device(request):
    try:
        isograd.tensor([0.0], device=request.param)
    except isograd.DeviceError as error:
        pytest.skip(str(error))
    return request.param


def test_exchange_in_one_place(device):
    x = isograd.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    assert x.__dlpack_device__() == ({"cuda:0": 2, "hip:0": 10}[device], 0)
    y = isograd.from_dlpack(x.T)
    assert y.data_ptr() == x.data_ptr() and y.device == device
    assert y.softmax(-1).tolist()[0] == pytest.approx([0.119203, 0.880797], abs=1e-6)
    # The handle of a stream that is there: the default one, which CUDA calls 1 and ROCm 0.
    for stream in [None, -1, 1 if device == "cuda:0" else 0]:
        again = isograd.from_dlpack(x.__dlpack__(stream=stream, max_version=(1, 0)))
        assert again.data_ptr() == x.data_ptr()
    assert isograd.from_dlpack(x.__dlpack__(dl_device=(1, 0))).device == "cpu"
    with pytest.raises(BufferError):
        x.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match="cpu"):
        memoryview(x)
    del x, again
    assert y.tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_results_of_captured_steps_are_copied(device):
    w = isograd.tensor([2.0, 3.0], device=device, requires_grad=True)
    step = isograd.capture(lambda t: (w * t).sum(), device)
    results = [step(isograd.tensor([1.0, float(i)], device=device)) for i in range(4)]
    with pytest.raises(isograd.DataError, match="moves"):
        results[3].data_ptr()
    lent = isograd.from_dlpack(results[3])
    step(isograd.tensor([0.0, 0.0], device=device))
    assert [lent.item(), *(y.item() for y in results)] == [11.0, 2.0, 5.0, 8.0, 11.0]


def test_checks(device):
    assert isograd.check(isograd.silu, "silu", device, library="isograd").passed
    assert not isograd.check(lambda x: isograd.silu(x) * 1.001, "silu", device, library="isograd").passed
