"""Pinned host memory, and synchronous copies between it and the GPU."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from ..errors import NotSupported

Bytes = npt.NDArray[np.uint8]


def allocate(nbytes: int) -> Bytes:
    """Return host memory from CuPy's pinned pool, for copies at full speed."""
    return np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes) if nbytes else np.empty(0, np.uint8)


def download(address: int, host: Bytes, stream: Any) -> None:
    """Copy from the GPU, after the work on `stream`."""
    if stream.is_capturing():
        raise NotSupported("an operation that MPI does on host memory cannot be captured in a graph; call it outside")
    cupy.cuda.runtime.memcpyAsync(
        MPI.Get_address(host), address, host.nbytes, cupy.cuda.runtime.memcpyDeviceToHost, stream.ptr
    )
    stream.synchronize()


def upload(address: int, host: Bytes, stream: Any) -> None:
    """Copy to the GPU, after the work on `stream`."""
    cupy.cuda.runtime.memcpyAsync(
        address, MPI.Get_address(host), host.nbytes, cupy.cuda.runtime.memcpyHostToDevice, stream.ptr
    )
    stream.synchronize()


def upload_where(address: int, host: Bytes, mask: npt.NDArray[np.bool_], stream: Any) -> None:
    """Copy the bytes to the GPU where `mask` is true, after the work on `stream`."""
    memory = cupy.cuda.UnownedMemory(address, host.nbytes, None, cupy.cuda.Device().id)
    with stream:
        target = cupy.ndarray(host.shape, np.uint8, cupy.cuda.MemoryPointer(memory, 0))
        cupy.copyto(target, cupy.asarray(host), where=cupy.asarray(mask))
    stream.synchronize()
