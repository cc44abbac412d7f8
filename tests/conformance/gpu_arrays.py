"""The arrays on GPUs of mpi4py's tests, made, read and written as a whole: element by element they take minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

_Copy = Callable[[Any], Any]


class Flat:
    """The elements of an array one behind the other."""

    def __init__(self, array: Any, to_host: _Copy, write: Callable[[Any, Any], None]) -> None:
        self._array, self._to_host, self._write = array, to_host, write

    def __iter__(self) -> Iterator[Any]:
        return iter(self._to_host(self._array).ravel())

    def __len__(self) -> int:
        return int(self._array.size)

    def __getitem__(self, index: Any) -> Any:
        return self._to_host(self._array).ravel()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        host = self._to_host(self._array)
        host.reshape(-1)[index] = list(value) if isinstance(value, Flat) else value
        self._write(self._array, host)


def copy_at_once(kind: Any, to_device: _Copy, to_host: _Copy, write: Callable[[Any, Any], None]) -> None:
    """Let the arrays of a class be made of an array of NumPy's, and read as one.

    So unsigned integers may be made of -1, as tests do: CuPy follows NumPy 2 and refuses it.
    """

    def made(self: Any, arg: Any, typecode: str, shape: Any = None, readonly: bool = False) -> None:
        host = np.asarray(arg).astype(typecode)
        self.array = to_device(np.array(np.broadcast_to(host, host.shape if shape is None else shape), order="C"))

    def item(self: Any, index: Any) -> Any:
        return to_host(self.array)[index]

    kind.__init__, kind.__getitem__ = made, item
    kind.flat = property(lambda self: Flat(self.array, to_host, write))


def _to_numba(host: Any) -> Any:
    """An array of Numba's; it cannot iterate over empty ones with the strides that NumPy gives them."""
    from numba import cuda  # noqa: PLC0415  only where it is tested

    return cuda.to_device(host) if host.size else cuda.device_array(host.shape, host.dtype)


def copy_all_at_once(arrayimpl: Any) -> None:
    """Do so for the classes that mpi4py's `arrayimpl` has on GPUs."""
    if hasattr(arrayimpl, "GPUArrayCuPy"):
        cupy = arrayimpl.cupy
        copy_at_once(arrayimpl.GPUArrayCuPy, cupy.asarray, cupy.asnumpy, lambda array, host: array.set(host))
    if hasattr(arrayimpl, "GPUArrayNumba"):
        to_host, write = lambda array: array.copy_to_host(), lambda array, host: array.copy_to_device(host)
        copy_at_once(arrayimpl.GPUArrayNumba, _to_numba, to_host, write)
