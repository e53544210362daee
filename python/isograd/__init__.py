"""Tensors, ops with gradients on every GPU, and isograd's kernels in PyTorch.

`isograd.softmax(x, -1)` is an op of isograd's registry, and so is `x.softmax(-1)`. `isograd.from_dlpack` takes tensors of other libraries without a copy;
`isograd.torch` has ops, modules and patches for PyTorch, and `isograd.check` runs the checks of an op against a function of your own.
"""

from . import ops
from ._call import (
    attach,
    capture,
    enable_grad,
    grad,
    no_grad,
    tensor,
)
from ._isograd import (
    AttributeValueError,
    BackendError,
    DataError,
    DeviceError,
    DtypeError,
    Error,
    FileError,
    FormatError,
    IndexOutOfRange,
    OutOfMemory,
    ShapeError,
    Tensor,
    UnsupportedError,
    __version__,
    from_dlpack,
    is_grad_enabled,
)
from .ops import *  # noqa: F403

attach(Tensor, ops)

from . import nn, optim  # noqa: E402
from ._check import check  # noqa: E402

__all__ = [
    *ops.__all__,
    "AttributeValueError",
    "BackendError",
    "DataError",
    "DeviceError",
    "DtypeError",
    "Error",
    "FileError",
    "FormatError",
    "IndexOutOfRange",
    "OutOfMemory",
    "ShapeError",
    "Tensor",
    "UnsupportedError",
    "__version__",
    "capture",
    "check",
    "enable_grad",
    "from_dlpack",
    "grad",
    "is_grad_enabled",
    "nn",
    "no_grad",
    "ops",
    "optim",
    "tensor",
]
