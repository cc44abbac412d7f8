"""NCCL, called directly, on the same buffers or on its own symmetric memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from .... import backends
from ..cases import Case
from ..memory import array_module
from ..timing import queue_of
from . import libnccl
from .base import Call, Peer, own_block

# Blocks, and the rank that each comes from or goes to.
Messages = list[tuple[Any, int]]


def address(array: Any) -> int:
    """Return the address of an array."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


class Nccl(Peer):
    """Direct calls of NCCL; moves are of bytes.

    Gather, scatter and all-to-all are groups of sends and receives.
    """

    out_of_place_only = frozenset({"alltoall", "alltoallv"})

    def __init__(self, comm: Any, library: libnccl.Library | None = None) -> None:
        self.comm, self.nccl = comm, library or libnccl.Library()
        self.about, self.queue = str(self.nccl), queue_of(comm)
        self._device = backends.select()
        unique = libnccl.UniqueId()
        if comm.rank == 0:
            self.nccl.ncclGetUniqueId(ctypes.byref(unique))
        unique = libnccl.UniqueId.from_buffer_copy(MPI.Comm.bcast(comm, bytes(unique)))
        self._handle = ctypes.c_void_p()
        self.nccl.ncclCommInitRank(ctypes.byref(self._handle), comm.size, unique, comm.rank)

    def close(self) -> None:
        self._device.synchronize()
        self.nccl.ncclCommDestroy(self._handle)

    def target(self, case: Case, in_place: bool) -> Any:
        return own_block(case, in_place)

    def _bind(self, function: Callable[..., None], *arguments: Any) -> Call:
        """Return a call that runs on the stream that is current when it is made."""
        handle, current = self._handle, self._device.current_stream
        return lambda: function(*arguments, handle, getattr(current(), "ptr", None))

    def _reduction(self, name: str, case: Case, send: Any, recv: Any, *root: int) -> Call | None:
        datatype, op = libnccl.DATATYPES.get(case.elements.name), libnccl.OPS[case.options.op]
        if datatype is None:
            return None
        count = case.block if name == "ncclReduceScatter" else case.count
        return self._bind(getattr(self.nccl, name), address(send), address(recv), count, datatype, op, *root)

    def _move(self, name: str, send: Any, recv: Any, *root: int) -> Call:
        byte = libnccl.DATATYPES["uint8"]
        return self._bind(getattr(self.nccl, name), address(send), address(recv), send.nbytes, byte, *root)

    def _group(self, sends: Messages, receives: Messages) -> Call:
        byte = libnccl.DATATYPES["uint8"]
        calls = [self._bind(self.nccl.ncclSend, address(block), block.nbytes, byte, peer) for block, peer in sends]
        calls += [self._bind(self.nccl.ncclRecv, address(block), block.nbytes, byte, peer) for block, peer in receives]

        def group() -> None:
            self.nccl.ncclGroupStart()
            for call in calls:
                call()
            self.nccl.ncclGroupEnd()

        return group

    @staticmethod
    def _blocks(case: Case, array: Any) -> Messages:
        return [(case.part(array, rank), rank) for rank in range(case.size)]

    def allreduce(self, case: Case, in_place: bool) -> Call | None:
        return self._reduction("ncclAllReduce", case, case.source(in_place), case.recv)

    def reduce(self, case: Case, in_place: bool) -> Call | None:
        return self._reduction("ncclReduce", case, case.source(in_place), case.recv, case.root)

    def reduce_scatter(self, case: Case, in_place: bool) -> Call | None:
        return self._reduction("ncclReduceScatter", case, case.send, self.target(case, in_place))

    def bcast(self, case: Case, in_place: bool) -> Call:
        return self._move("ncclBroadcast", case.recv, case.recv, case.root)

    def allgather(self, case: Case, in_place: bool) -> Call:
        return self._move("ncclAllGather", case.source(in_place), case.recv)

    def gather(self, case: Case, in_place: bool) -> Call:
        sends = [(case.source(in_place), case.root)]
        return self._group(sends, self._blocks(case, case.recv) if case.is_root else [])

    def scatter(self, case: Case, in_place: bool) -> Call:
        sends = self._blocks(case, case.send) if case.is_root else []
        return self._group(sends, [(case.target(in_place), case.root)])

    def alltoall(self, case: Case, in_place: bool) -> Call:
        return self._group(self._blocks(case, case.send), self._blocks(case, case.recv))

    alltoallv = alltoall

    def sendrecv(self, case: Any, in_place: bool) -> Call:
        return self._group([(case.send, case.next)], [(case.recv, case.previous)])


class SymmetricNccl(Nccl):
    """Direct calls of NCCL on memory that NCCL allocated (NCCL 2.27 and newer).

    All ranks have registered the memory as a window.
    """

    def __init__(self, comm: Any, library: libnccl.Library | None = None) -> None:
        super().__init__(comm, library)
        if self.nccl.version < libnccl.WINDOWS_SINCE:
            raise SystemExit(f"--against nccl-symmetric needs NCCL 2.27 or newer, here is {self.nccl}")
        self.about += " with symmetric windows"
        self._xp = array_module(comm)
        self._held: dict[int, tuple[ctypes.c_void_p, ctypes.c_void_p]] = {}  # memory and window

    def adopt(self, case: Case) -> Case:
        return case.twin(self)

    def empty(self, place: int, count: int, dtype: Any) -> Any:
        """Allocate and register an array, which replaces the previous one (collective)."""
        self._release(place)
        nbytes = count * np.dtype(dtype).itemsize
        memory, window = ctypes.c_void_p(), ctypes.c_void_p()
        room = -(-nbytes // 4096) * 4096
        self.nccl.ncclMemAlloc(ctypes.byref(memory), room)
        register = self.nccl.ncclCommWindowRegister
        register(self._handle, memory, room, ctypes.byref(window), libnccl.WINDOW_SYMMETRIC)
        self._held[place] = memory, window
        if not window.value:
            raise libnccl.NcclError(f"{self.nccl} does not register symmetric windows on these GPUs")
        return array_over(self._xp, memory.value or 0, count, dtype)

    def _release(self, place: int) -> None:
        if place in self._held:
            memory, window = self._held.pop(place)
            self._device.synchronize()
            MPI.Comm.Barrier(self.comm)
            self.nccl.ncclCommWindowDeregister(self._handle, window)
            self.nccl.ncclMemFree(memory)

    def close(self) -> None:
        for place in list(self._held):
            self._release(place)
        super().close()


def array_over(xp: Any, begin: int, count: int, dtype: Any) -> Any:
    """Return an array over memory that the array does not own."""
    nbytes = count * np.dtype(dtype).itemsize
    if xp is np:
        return np.frombuffer((ctypes.c_char * nbytes).from_address(begin), dtype)
    memory = xp.cuda.UnownedMemory(begin, nbytes, None)
    return xp.ndarray(count, dtype, xp.cuda.MemoryPointer(memory, 0))
