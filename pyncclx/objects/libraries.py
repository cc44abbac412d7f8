"""Array libraries: find out which arrays kernels can move, and make new arrays."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple

from numpy import ndarray

from .. import backends
from ..arrays.places import host_arrays
from ..backends.compilers import numba_cuda
from ..system import driver
from ..system.process import PerProcess

_INTEGERS = frozenset("iu")  # kinds of NumPy's types
_NUMBERS = _INTEGERS | frozenset("fc")


class Form(NamedTuple):
    """Properties that a rank needs to make an array like another rank's.

    Attributes
    ----------
    library : str
    dtype : dtype of the library
    shape : tuple of int
    order : {"C", "F"}
    differentiated : bool
        Whether PyTorch records operations on it for autograd.
    """

    library: str
    dtype: Any
    shape: tuple[int, ...]
    order: str
    differentiated: bool = False


class Library:
    """NumPy (on the host device) or CuPy; base class of the other libraries."""

    def __init__(self, name: str) -> None:
        self.name = name

    def moves(self, array: Any) -> bool:
        """Return whether kernels can move an array; otherwise its library pickles it."""
        if self.name == "cupy":
            return _is_own_gpu(array.data.device_id)
        return bool(array.ndim and array.flags.writeable and not array.dtype.hasobject)

    def order(self, array: Any) -> str | None:
        """Return the order of elements, "C" or "F"; None if there are gaps between them."""
        flags = array.flags
        return "C" if flags.c_contiguous else "F" if flags.f_contiguous else None

    def packed(self, array: Any) -> Any:
        """Return a copy in C order."""
        return array.copy(order="C")

    def is_number(self, array: Any) -> tuple[bool, bool]:
        """Return whether kernels can reduce the elements, and whether these are integers."""
        kind = array.dtype.kind if array.dtype.isnative else ""
        return kind in _NUMBERS, kind in _INTEGERS

    def empty(self, form: Form) -> Any:
        """Return a new array on this process's device."""
        return importlib.import_module(self.name).empty(form.shape, form.dtype, form.order)


class _PyTorch(Library):
    def moves(self, array: Any) -> bool:
        ours = array.device.type == "cpu" if host_arrays() else array.is_cuda
        if not ours or (array.is_cuda and not _is_own_gpu(array.device.index)):
            return False
        torch = sys.modules["torch"]
        plain = array.layout is torch.strided and not (array.is_quantized or array.is_conj() or array.is_neg())
        return plain and array.is_leaf and not array.__dict__ and not array._backward_hooks

    def order(self, array: Any) -> str | None:
        if array.is_contiguous():
            return "C"
        return "F" if array.permute(*reversed(range(array.ndim))).is_contiguous() else None

    def packed(self, array: Any) -> Any:
        return array.contiguous()

    def is_number(self, array: Any) -> tuple[bool, bool]:
        is_bool = array.dtype is sys.modules["torch"].bool
        is_integer = not (is_bool or array.is_floating_point() or array.is_complex())
        return not is_bool, is_integer

    def empty(self, form: Form) -> Any:
        torch = importlib.import_module("torch")
        device = "cpu" if host_arrays() else f"cuda:{backends.select().ordinal}"
        if form.order == "C":
            return torch.empty(form.shape, dtype=form.dtype, device=device)
        axes = tuple(reversed(range(len(form.shape))))
        return torch.empty(form.shape[::-1], dtype=form.dtype, device=device).permute(*axes)


class _Numba(Library):
    def moves(self, array: Any) -> bool:
        # Arrays with gaps are excluded, so arrays of Numba are never packed.
        return bool(not host_arrays() and (array.flags["C_CONTIGUOUS"] or array.flags["F_CONTIGUOUS"]))

    def order(self, array: Any) -> str | None:
        return "C" if array.flags["C_CONTIGUOUS"] else "F"

    def is_number(self, array: Any) -> tuple[bool, bool]:
        # Numba arrays have no operators.
        return False, False

    def empty(self, form: Form) -> Any:
        return numba_cuda.target().device_array(form.shape, form.dtype, order=form.order)


def _is_own_gpu(ordinal: int) -> bool:
    if driver.chosen_gpu() is None:
        driver.choose_gpu(ordinal)
    return bool(ordinal == backends.select().ordinal)


_LIBRARIES: dict[str, Library] = {
    "numpy": Library("numpy"),
    "cupy": Library("cupy"),
    "torch": _PyTorch("torch"),
    "numba": _Numba("numba"),
}
_CLASSES = (  # module, class, library
    ("cupy", "ndarray", "cupy"),
    ("torch", "Tensor", "torch"),
    ("numba.cuda.cudadrv.devicearray", "DeviceNDArray", "numba"),
    ("numba_cuda_mlir.numba_cuda.cudadrv.devicearray", "DeviceNDArray", "numba"),
)


class _Known:
    """Array classes that the process has loaded so far."""

    # Number of loaded modules when the classes were looked up.
    modules = 0

    def __init__(self) -> None:
        self.classes: dict[type, Library] = {ndarray: _LIBRARIES["numpy"]} if host_arrays() else {}


_KNOWN = PerProcess(_Known)


def library(name: str) -> Library:
    """Return a library by its name."""
    return _LIBRARIES[name]


def array_classes() -> dict[type, Library]:
    """Return the loaded classes of device arrays, and their libraries."""
    known = _KNOWN.get()
    if known.modules != len(sys.modules):
        known.modules = len(sys.modules)
        for module, name, which in _CLASSES:
            kind = getattr(sys.modules.get(module), name, None)
            # While its module is being imported, the class may not exist yet.
            if kind is not None:
                known.classes[kind] = _LIBRARIES[which]
    return known.classes
