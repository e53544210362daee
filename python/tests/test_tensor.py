"""Tensors: numbers, indices, exchange with NumPy, gradients, errors."""

import gc
import threading

import isograd
import numpy as np
import pytest

DTYPES = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "i64": np.int64,
    "i32": np.int32,
    "u8": np.uint8,
    "bool": np.bool_,
}


def test_numbers_of_python():
    t = isograd.tensor([[1, 2, 3], [4, 5, 6]])
    assert (t.shape, t.dtype, t.device, t.tolist()) == ((2, 3), "i64", "cpu", [[1, 2, 3], [4, 5, 6]])
    assert isograd.tensor([True, False]).dtype == "bool"
    assert isograd.tensor(2.5).item() == 2.5
    assert isograd.tensor([1, 2], dtype="bf16").tolist() == [1.0, 2.0]
    assert isograd.tensor([1.5, 2], dtype=np.float16).dtype == "f16"
    assert isograd.tensor([[], []]).shape == (2, 0)
    with pytest.raises(ValueError, match="different lengths"):
        isograd.tensor([[1, 2], [3]])
    with pytest.raises(ValueError, match="different depths"):
        isograd.tensor([[1], 2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_and_back_in_one_place(dtype):
    array = (np.arange(24).reshape(2, 3, 4) % 2).astype(DTYPES[dtype])
    for view in [array, array.transpose(2, 0, 1), array[:, 1:, ::2], array[1, 2, 3:4], array[:, :0]]:
        t = isograd.from_dlpack(view)
        assert (t.shape, t.dtype) == (view.shape, dtype)
        assert view.size == 0 or t.data_ptr() == view.ctypes.data
        assert np.array_equal(np.asarray(t), view)
        back = np.from_dlpack(t)
        assert view.size == 0 or back.ctypes.data == view.ctypes.data
        assert np.array_equal(np.array(memoryview(t)), view)
        copy = isograd.from_dlpack(view, copy=True)
        assert view.size == 0 or copy.data_ptr() != view.ctypes.data


def test_memory_lives_as_long_as_either_side_needs_it():
    t = isograd.from_dlpack(np.arange(1000.0))
    gc.collect()
    junk = [np.full(1000, -1.0) for _ in range(50)]
    assert t.sum(None).item() == 499500.0 and len(junk) == 50
    view = np.from_dlpack(isograd.tensor([1.0, 2.0, 3.0]))
    gc.collect()
    assert view.tolist() == [1.0, 2.0, 3.0]
    buffer = memoryview(isograd.tensor([1.0, 2.0]))
    gc.collect()
    assert buffer.tolist() == [1.0, 2.0]


def test_ten_thousand_exchanges_keep_nothing():
    class Owner(np.ndarray):
        alive = 0

        def __del__(self):
            Owner.alive -= 1

    for _ in range(10_000):
        array = np.zeros(16, np.float32).view(Owner)
        Owner.alive += 1
        back = np.from_dlpack(isograd.from_dlpack(isograd.from_dlpack(array)))
        assert back.ctypes.data == array.ctypes.data
    del array, back
    gc.collect()
    # Views that NumPy makes on the way count themselves down too.
    assert Owner.alive <= 0


def test_memory_is_freed_while_another_thread_computes():
    x = isograd.tensor(np.random.default_rng(1).standard_normal((300, 300)))
    results = []

    def work():
        for _ in range(20):
            results.append((x @ x).sum(None).item())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        t = isograd.from_dlpack(np.ones(10_000))
        assert t.sum(None).item() == 10_000
        del t
    for thread in threads:
        thread.join()
    assert len(set(results)) == 1 and len(results) == 60


def test_errors_are_exceptions_of_their_kinds():
    x = isograd.tensor([[1.0, 2.0]])
    with pytest.raises(isograd.ShapeError, match="matmul") as caught:
        x @ x
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, isograd.Error)
    with pytest.raises(isograd.DtypeError):
        isograd.softmax(isograd.tensor([1, 2]), 0)
    with pytest.raises(isograd.Error):
        isograd.softmax(x, 5)
    with pytest.raises(isograd.IndexOutOfRange):
        isograd.index_select(x=x, index=isograd.tensor([7]), dim=1)
    with pytest.raises(isograd.DeviceError):
        x.to("cuda:99")
    with pytest.raises(isograd.UnsupportedError):
        isograd.from_dlpack(np.zeros(3, np.int8))
    with pytest.raises(isograd.DataError, match="negative"):
        isograd.from_dlpack(np.arange(4.0)[::-1])
    with pytest.raises(BufferError):
        np.from_dlpack(x.require_grad())
    with pytest.raises(BufferError):
        memoryview(isograd.tensor([1.0], dtype="bf16"))
    with pytest.raises(TypeError):
        isograd.softmax(np.zeros(3), 0)
    with pytest.raises(AttributeError):
        isograd.ops.no_such_op  # noqa: B018
    assert isograd.tensor(np.arange(4.0)[::-1]).tolist() == [3.0, 2.0, 1.0, 0.0]


def test_read_only_memory_is_not_written():
    array = np.arange(4.0)
    array.flags.writeable = False
    assert isograd.tensor(array).tolist() == [0.0, 1.0, 2.0, 3.0]
    t = isograd.from_dlpack(array)
    with pytest.raises(isograd.DataError, match="another library"):
        isograd.fill_(t, value=1.0)
    with pytest.raises(BufferError):
        (memoryview(t).cast("B"))[0] = 1 if not memoryview(t).readonly else _raise()
    assert array.tolist() == [0.0, 1.0, 2.0, 3.0]


def _raise():
    raise BufferError("read-only")


def test_indices_are_numpys():
    array = np.arange(60.0).reshape(3, 4, 5)
    t = isograd.tensor(array)
    for index in [
        0,
        -1,
        (1, 2),
        (1, 2, 3),
        slice(1, 3),
        (slice(None), slice(0, 4, 2)),
        (..., 1),
        (0, ..., slice(2, None)),
        (None, 1),
        (slice(2, 1),),
    ]:
        assert np.array_equal(np.asarray(t[index]), array[index]), index
    assert np.array_equal(np.asarray(t[[2, 0]]), array[[2, 0]])
    assert np.array_equal(np.asarray(t[isograd.tensor([2, 0]), isograd.tensor([1, 3])]), array[[2, 0], [1, 3]])
    assert [row.tolist() for row in t] == array.tolist()
    with pytest.raises(IndexError):
        t[0, 0, 0, 0]


def test_arithmetic_is_numpys():
    a, b = np.array([[1.0, -2.0], [3.0, 4.0]]), np.array([[0.5, 2.0], [-1.0, 8.0]])
    x, y = isograd.tensor(a), isograd.tensor(b)
    for found, expected in [
        (x + y, a + b),
        (x - 2, a - 2),
        (2 - x, 2 - a),
        (x * y * 3, a * b * 3),
        (x / y, a / b),
        (1 / x, 1 / a),
        (x @ y, a @ b),
        (x**2, a**2),
        (-x, -a),
        (abs(x), abs(a)),
        (x > y, a > b),
        (x <= 1, a <= 1),
        (x.T, a.T),
    ]:
        assert np.array_equal(np.asarray(found), expected)
    with pytest.raises(TypeError):
        x + "1"


def test_first_and_second_derivatives():
    x = isograd.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = (x * x * x).sum(None)
    y.backward(retain_graph=True)
    assert x.grad.tolist() == [3.0, 12.0, 27.0]
    (g,) = isograd.grad(y, x, create_graph=True)
    (h,) = isograd.grad(g.sum(None), x)
    assert h.tolist() == [6.0, 12.0, 18.0]
    with isograd.no_grad():
        assert not (x * 2).requires_grad
        with isograd.enable_grad():
            assert (x * 2).requires_grad
    unused = isograd.tensor([1.0], requires_grad=True)
    assert isograd.grad((x * 2).sum(None), [x, unused])[1] is None


def test_captured_steps():
    w = isograd.tensor([1.0, 2.0], requires_grad=True)
    optimizer = isograd.optim.Sgd([w], lr=0.5)

    def step(x):
        loss = ((w - x) ** 2).sum(None)
        loss.backward()
        optimizer.step()
        return loss

    captured = isograd.capture(step)
    losses = [captured(isograd.tensor([0.0, 4.0])).item() for _ in range(4)]
    assert losses == [5.0, 0.0, 0.0, 0.0] and w.tolist() == [0.0, 4.0]

    def fails(x):
        raise KeyError("of the step")

    with pytest.raises(KeyError, match="of the step"):
        isograd.capture(fails)(w.detach())
