"""NCCL's collectives by nccl4py, or mpi4py's on the host device."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from mpi4py import MPI

Array = Any  # NumPy's or CuPy's
BYTE, TYPES, SUM = 1, {"float16": 6, "float32": 7}, 0  # ncclDataType_t, ncclRedOp_t


class Mpi:
    """mpi4py's collectives on NumPy arrays, in place of NCCL's."""

    name = "mpi4py for NCCL"

    def __init__(self, comm: Any) -> None:
        self._comm = MPI.Intracomm(comm)  # mpi4py's own methods, not those of pyncclx
        self.size = comm.size

    def all_gather(self, *arrays: Array) -> list[Array]:
        """Return for each array the arrays of all ranks, one after the other."""
        gathered = [np.empty((self.size * len(array), *array.shape[1:]), array.dtype) for array in arrays]
        for pair in zip(arrays, gathered, strict=True):
            self._comm.Allgather(*pair)
        return gathered

    def reduce_scatter(self, array: Array) -> Array:
        """Return this rank's part of the sum of all ranks' arrays."""
        part = np.empty((len(array) // self.size, *array.shape[1:]), array.dtype)
        self._comm.Reduce_scatter_block(array, part)
        return part

    def all_to_all(self, array: Array) -> Array:
        """Send part r of the array to rank r; return the parts received, in rank order."""
        received = np.empty_like(array)
        self._comm.Alltoall(array, received)
        return received

    def free(self) -> None:
        """Close the connections. Collective."""


class Nccl:
    """NCCL's collectives on CuPy's current stream, with the methods of `Mpi`."""

    name = "NCCL"

    def __init__(self, comm: Any) -> None:
        from nccl.bindings import nccl  # noqa: PLC0415  nccl4py, which only this class needs

        self._cupy, self._nccl = importlib.import_module("cupy"), nccl
        self.size, mpi = comm.size, MPI.Intracomm(comm)
        identifier = mpi.bcast(bytes(self._nccl.get_unique_id()) if comm.rank == 0 else None)
        config = self._nccl.Config()
        self._comm = self._nccl.comm_init_rank_scalable(comm.size, comm.rank, 1, bytearray(identifier), config.ptr)

    @property
    def _stream(self) -> int:
        return int(self._cupy.cuda.get_current_stream().ptr)

    def all_gather(self, *arrays: Array) -> list[Array]:
        gathered = [self._cupy.empty((self.size * len(array), *array.shape[1:]), array.dtype) for array in arrays]
        self._nccl.group_start()
        for array, to in zip(arrays, gathered, strict=True):
            self._nccl.all_gather(array.data.ptr, to.data.ptr, array.nbytes, BYTE, self._comm, self._stream)
        self._nccl.group_end()
        return gathered

    def reduce_scatter(self, array: Array) -> Array:
        part = self._cupy.empty((len(array) // self.size, *array.shape[1:]), array.dtype)
        how = part.size, TYPES[array.dtype.name], SUM
        self._nccl.reduce_scatter(array.data.ptr, part.data.ptr, *how, self._comm, self._stream)
        return part

    def all_to_all(self, array: Array) -> Array:
        received, nbytes = self._cupy.empty_like(array), array.nbytes // self.size
        self._nccl.group_start()
        for peer in range(self.size):
            place, how = peer * nbytes, (nbytes, BYTE, peer, self._comm, self._stream)
            self._nccl.send(array.data.ptr + place, *how)
            self._nccl.recv(received.data.ptr + place, *how)
        self._nccl.group_end()
        return received

    def free(self) -> None:
        self._cupy.cuda.Device().synchronize()
        self._nccl.comm_destroy(self._comm)


def collectives_of(comm: Any) -> Mpi | Nccl:
    """Return NCCL's collectives on GPUs, mpi4py's on the host device."""
    return Mpi(comm) if comm.device == "host" else Nccl(comm)
