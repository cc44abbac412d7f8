"""Device arrays for tests: NumPy's on the host device, CuPy's on GPUs, so that the same bodies run on both."""

import contextlib
import ctypes
import os
from typing import Any

import numpy as np
import pytest

import pyncclx

HOST = os.environ.get("PYNCCLX_DEVICE") == "host"
if HOST:
    xp = np
else:
    import cupy as xp

    pyncclx.Communicator().select_device()  # before the first array; every rank imports this

gpu_only = pytest.mark.skipif(HOST, reason="needs GPUs: streams of CuPy, or graphs")
host_only = pytest.mark.skipif(not HOST, reason="shows how the host device treats NumPy arrays")

POISON = 0xA5  # every byte of memory that an operation has not written
GUARD = 16  # elements on both sides of an output that must stay as they are


def put(values: Any, offset: int = 0) -> Any:
    """Copy a NumPy array to the device, `offset` elements after an aligned address."""
    values = np.ascontiguousarray(values)
    if offset == 0:
        return xp.array(values)
    whole = xp.empty(offset + values.size, values.dtype)
    whole[offset:] = xp.array(values.reshape(-1))
    return whole[offset:].reshape(values.shape)


def get(array: Any) -> np.ndarray:
    """Copy a device array to a NumPy array, after all that was launched."""
    synchronize()
    return np.array(array) if HOST else xp.asnumpy(array)


def get_in_order(array: Any) -> np.ndarray:
    """Copy a device array to a NumPy array after the current stream's work; do not wait for other streams."""
    return np.array(array) if HOST else array.get()


def synchronize() -> None:
    """Wait until the device has nothing left to do."""
    if not HOST:
        xp.cuda.Device().synchronize()


def own_gpu() -> Any:
    """This thread's GPU, as a context for threads that it starts: they begin with GPU 0."""
    return contextlib.nullcontext() if HOST else xp.cuda.Device()


def own_stream() -> Any:
    """A new stream, as a context. On the default stream, sends of several threads would wait for each other."""
    return contextlib.nullcontext() if HOST else xp.cuda.Stream(non_blocking=True)


def memory_at(address: int, nbytes: int) -> Any:
    """Device memory that other code owns, as an array of bytes."""
    if HOST:
        return np.frombuffer((ctypes.c_char * nbytes).from_address(address), np.uint8)
    memory = xp.cuda.UnownedMemory(address, nbytes, None, xp.cuda.Device().id)
    return xp.ndarray((nbytes,), np.uint8, xp.cuda.MemoryPointer(memory, 0))


class Output:
    """A device array for an operation to write: poisoned, between guards that must stay as they are.

    `array` has `shape`; it begins `offset` elements after an address that is a multiple of 16. It is new, or at the
    beginning of `memory`, an array of bytes.
    """

    def __init__(self, shape: int | tuple[int, ...], dtype: Any, offset: int = 0, memory: Any = None) -> None:
        self.dtype = np.dtype(dtype)
        self._begin = GUARD + offset
        self._end = self._begin + int(np.prod(shape, dtype=np.int64))
        nbytes = (self._end + GUARD) * self.dtype.itemsize
        self._bytes = xp.empty(nbytes, np.uint8) if memory is None else memory[:nbytes]
        self.poison()
        self.array = self._bytes.view(self.dtype)[self._begin : self._end].reshape(shape)

    def fill(self, values: Any) -> "Output":
        """Give the array its contents, for operations in place."""
        self.array[...] = xp.array(values)
        return self

    def poison(self) -> None:
        """Forget what was written."""
        self._bytes[...] = POISON

    def read(self) -> np.ndarray:
        """What the array holds now."""
        return get(self.array)

    def damage(self) -> str:
        """Say which guard elements were overwritten; empty if none was."""
        touched = np.flatnonzero((get(self._bytes) != POISON).reshape(-1, self.dtype.itemsize).any(axis=1))
        outside = touched[(touched < self._begin) | (touched >= self._end)] - self._begin
        return f"elements {outside.tolist()} outside of the output were written" if outside.size else ""


class Interface:
    """An array of a library that is not known here, by the CUDA array interface alone."""

    def __init__(self, array: Any, *, readonly: bool = False, **changes: Any) -> None:
        self.array = array  # keeps the memory
        described = array.__array_interface__ if HOST else array.__cuda_array_interface__
        kept = {key: described[key] for key in ("shape", "typestr", "strides")}
        data = (described["data"][0], readonly)
        self.__cuda_array_interface__ = {**kept, "data": data, "version": 3, **changes}


class Dlpack:
    """An array of a library that is not known here, by DLPack alone."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()
