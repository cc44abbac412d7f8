"""NCCL, called directly, on the same buffers or on its own symmetric memory."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from .... import backends
from ....tokens.memory import address_of as address
from ..cases import Case
from ..memory import array_module
from ..timing import queue_of
from .base import Call, Peer, own_block

# Blocks, each with the rank that it is sent to or received from.
Messages = list[tuple[Any, int]]

UNIQUE_ID_NBYTES = 128
WINDOW_SYMMETRIC = 1  # NCCL_WIN_COLL_SYMMETRIC
WINDOWS_SINCE = 22700

DATATYPES = {"int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5}
DATATYPES |= {"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}


# ---- NCCL's C interface by ctypes: the part that the benchmark calls, from nccl.h of NCCL 2.28 ----------------------


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = (("internal", ctypes.c_byte * UNIQUE_ID_NBYTES),)


_COMM = _STREAM = _WINDOW = _DEVICE = c_void_p
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (POINTER(c_int),),
    "ncclGetUniqueId": (POINTER(UniqueId),),
    "ncclCommInitRank": (POINTER(_COMM), c_int, UniqueId, c_int),
    "ncclCommDestroy": (_COMM,),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclAllReduce": (_DEVICE, _DEVICE, c_size_t, c_int, c_int, _COMM, _STREAM),
    "ncclReduce": (_DEVICE, _DEVICE, c_size_t, c_int, c_int, c_int, _COMM, _STREAM),
    "ncclReduceScatter": (_DEVICE, _DEVICE, c_size_t, c_int, c_int, _COMM, _STREAM),
    "ncclBroadcast": (_DEVICE, _DEVICE, c_size_t, c_int, c_int, _COMM, _STREAM),
    "ncclAllGather": (_DEVICE, _DEVICE, c_size_t, c_int, _COMM, _STREAM),
    "ncclSend": (_DEVICE, c_size_t, c_int, c_int, _COMM, _STREAM),
    "ncclRecv": (_DEVICE, c_size_t, c_int, c_int, _COMM, _STREAM),
}
_WINDOW_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "ncclMemAlloc": (POINTER(c_void_p), c_size_t),
    "ncclMemFree": (c_void_p,),
    "ncclCommWindowRegister": (_COMM, _DEVICE, c_size_t, POINTER(_WINDOW), c_int),
    "ncclCommWindowDeregister": (_COMM, _WINDOW),
}


class NcclError(RuntimeError):
    """Failed call of NCCL."""


class Library:
    """libnccl.so.2: its functions are attributes, which raise `NcclError` on errors."""

    def __init__(self, library: Any = None) -> None:
        self._library = ctypes.CDLL(find()) if library is None else library
        self._declare(_PROTOTYPES)
        self._library.ncclGetErrorString.argtypes = (c_int,)
        self._library.ncclGetErrorString.restype = c_char_p
        number = c_int()
        self.ncclGetVersion(ctypes.byref(number))
        self.version: int = number.value
        if self.version >= WINDOWS_SINCE:
            self._declare(_WINDOW_PROTOTYPES)

    def __str__(self) -> str:
        return f"NCCL {self.version // 10000}.{self.version // 100 % 100}.{self.version % 100}"

    def __getattr__(self, name: str) -> Any:
        raise NcclError(f"{self} has no {name}")

    def _declare(self, prototypes: dict[str, tuple[Any, ...]]) -> None:
        for name, arguments in prototypes.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, c_int
            setattr(self, name, self._checked(name, function))

    def _checked(self, name: str, function: Any) -> Any:
        def call(*arguments: Any) -> None:
            status = function(*arguments)
            if status:
                text = self._library.ncclGetErrorString(status).decode()
                raise NcclError(f"{name}: {text} (status {status}); NCCL_DEBUG=WARN prints more")

        return call


def find() -> str:
    """Return the path of the library that pip installed with PyTorch, or its name.

    The system's search path then finds the library by its name.
    """
    nvidia = importlib.util.find_spec("nvidia")
    for folder in (nvidia.submodule_search_locations or ()) if nvidia else ():
        library = Path(folder) / "nccl" / "lib" / "libnccl.so.2"
        if library.exists():
            return str(library)
    return "libnccl.so.2"


# ---- the peers -------------------------------------------------------------------------------------------------------


class Nccl(Peer):
    """Direct calls of NCCL, which moves bytes.

    Gather, scatter and all-to-all are groups of sends and receives.
    """

    out_of_place_only = frozenset({"alltoall", "alltoallv"})

    def __init__(self, comm: Any, library: Library | None = None) -> None:
        self.comm, self.nccl = comm, library or Library()
        self.about, self.queue = str(self.nccl), queue_of(comm)
        self._device = backends.select()
        unique = UniqueId()
        if comm.rank == 0:
            self.nccl.ncclGetUniqueId(ctypes.byref(unique))
        unique = UniqueId.from_buffer_copy(MPI.Comm.bcast(comm, bytes(unique)))
        self._handle = ctypes.c_void_p()
        self.nccl.ncclCommInitRank(ctypes.byref(self._handle), comm.size, unique, comm.rank)

    def close(self) -> None:
        self._device.synchronize()
        self.nccl.ncclCommDestroy(self._handle)

    def target(self, case: Case, in_place: bool) -> Any:
        return own_block(case, in_place)

    def _bind(self, function: Callable[..., None], *arguments: Any) -> Call:
        """Return a call on the stream that is current at the time of the call."""
        handle, current = self._handle, self._device.current_stream
        return lambda: function(*arguments, handle, getattr(current(), "ptr", None))

    def _reduction(self, name: str, case: Case, send: Any, recv: Any, *root: int) -> Call | None:
        datatype, op = DATATYPES.get(case.elements.name), OPS[case.options.op]
        if datatype is None:
            return None
        count = case.block if name == "ncclReduceScatter" else case.count
        return self._bind(getattr(self.nccl, name), address(send), address(recv), count, datatype, op, *root)

    def _move(self, name: str, send: Any, recv: Any, *root: int) -> Call:
        byte = DATATYPES["uint8"]
        return self._bind(getattr(self.nccl, name), address(send), address(recv), send.nbytes, byte, *root)

    def _group(self, sends: Messages, receives: Messages) -> Call:
        byte = DATATYPES["uint8"]
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

    def __init__(self, comm: Any, library: Library | None = None) -> None:
        super().__init__(comm, library)
        if self.nccl.version < WINDOWS_SINCE:
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
        register(self._handle, memory, room, ctypes.byref(window), WINDOW_SYMMETRIC)
        self._held[place] = memory, window
        if not window.value:
            raise NcclError(f"{self.nccl} does not register symmetric windows on these GPUs")
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
