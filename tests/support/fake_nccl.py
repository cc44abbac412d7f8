"""A stand-in for libnccl that moves host memory by mpi4py: C functions for ctypes, with the prototypes of nccl.h."""

import ctypes
import traceback
from ctypes import CFUNCTYPE, c_char_p, c_int, c_size_t, c_void_p
from types import SimpleNamespace

import ml_dtypes
import numpy as np
from mpi4py import MPI

HANDLE = 0x1BADB002
INVALID_ARGUMENT, INTERNAL_ERROR = 4, 3
DTYPES = ["i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ml_dtypes.bfloat16]
OPS = [np.add, np.multiply, np.maximum, np.minimum, np.add]


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * 128),)


def at(address: int, count: int, dtype: object = "u1") -> np.ndarray:
    nbytes = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype)


class Fake:
    """The functions' work. `made` is what a test may look at: communicators, memory, windows that are there."""

    def __init__(self, comm: MPI.Intracomm, version: int) -> None:
        self.comm, self.version = comm, version
        self.unique = bytes(range(128))
        self.made: dict[str, set[int]] = {"comm": set(), "memory": set(), "window": set()}
        self._kept: dict[int, object] = {}
        self._group: list[tuple[str, int, int, int]] | None = None

    def version_(self, out: int) -> None:
        at(out, 1, "i4")[0] = self.version

    def unique_id(self, out: int) -> None:
        at(out, 128)[:] = np.frombuffer(self.unique, "u1")

    def init(self, out: int, size: int, unique: UniqueId, rank: int) -> None:
        assert (size, rank) == (self.comm.size, self.comm.rank)
        assert bytes(unique) == self.unique
        at(out, 1, "u8")[0] = HANDLE
        self.made["comm"].add(HANDLE)

    def destroy(self, handle: int) -> None:
        self.made["comm"].remove(handle)

    def allocate(self, out: int, nbytes: int) -> None:
        memory = np.full(nbytes, 0xEE, "u1")
        self._kept[memory.ctypes.data] = memory
        self.made["memory"].add(memory.ctypes.data)
        at(out, 1, "u8")[0] = memory.ctypes.data

    def free(self, address: int) -> None:
        self.made["memory"].remove(address)

    def register(self, handle: int, address: int, nbytes: int, out: int, flags: int) -> None:
        assert handle == HANDLE
        assert flags == 1
        assert address in self.made["memory"]
        assert len(set(self.comm.allgather(nbytes))) == 1
        self.made["window"].add(address)
        at(out, 1, "u8")[0] = address

    def deregister(self, handle: int, window: int) -> None:
        self.made["window"].remove(window)

    def folded(self, send: int, count: int, dtype: int, op: int) -> np.ndarray:
        every = np.stack(self.comm.allgather(at(send, count, DTYPES[dtype]).copy()))
        result = OPS[op].reduce(every[::-1], axis=0)  # another order than ours
        return (result / self.comm.size if op == 4 else result).astype(DTYPES[dtype])

    def all_reduce(self, send: int, recv: int, count: int, dtype: int, op: int, handle: int, stream: int) -> None:
        assert handle == HANDLE
        result = self.folded(send, count, dtype, op)
        at(recv, count, DTYPES[dtype])[:] = result

    def reduce(
        self, send: int, recv: int, count: int, dtype: int, op: int, root: int, handle: int, stream: int
    ) -> None:
        result = self.folded(send, count, dtype, op)
        if self.comm.rank == root:
            at(recv, count, DTYPES[dtype])[:] = result

    def reduce_scatter(self, send: int, recv: int, count: int, dtype: int, op: int, handle: int, stream: int) -> None:
        result = self.folded(send, count * self.comm.size, dtype, op)
        at(recv, count, DTYPES[dtype])[:] = result[self.comm.rank * count :][:count]

    def broadcast(self, send: int, recv: int, count: int, dtype: int, root: int, handle: int, stream: int) -> None:
        data = self.comm.bcast(at(send, count, DTYPES[dtype]).copy(), root)
        at(recv, count, DTYPES[dtype])[:] = data

    def all_gather(self, send: int, recv: int, count: int, dtype: int, handle: int, stream: int) -> None:
        data = np.concatenate(self.comm.allgather(at(send, count, DTYPES[dtype]).copy()))
        at(recv, count * self.comm.size, DTYPES[dtype])[:] = data

    def group_start(self) -> None:
        assert self._group is None
        self._group = []

    def send(self, address: int, count: int, dtype: int, peer: int, handle: int, stream: int) -> None:
        self._group.append(("send", address, count * np.dtype(DTYPES[dtype]).itemsize, peer))

    def recv(self, address: int, count: int, dtype: int, peer: int, handle: int, stream: int) -> None:
        self._group.append(("recv", address, count * np.dtype(DTYPES[dtype]).itemsize, peer))

    def group_end(self) -> None:
        group, self._group = self._group, None
        start = {"send": self.comm.Isend, "recv": self.comm.Irecv}
        MPI.Request.Waitall([start[kind](at(address, nbytes), peer) for kind, address, nbytes, peer in group])


def library(comm: MPI.Intracomm, version: int = 22809) -> tuple[SimpleNamespace, Fake]:
    """The library, and what is behind it. Collective."""
    fake = Fake(comm, version)
    p, n, i = c_void_p, c_size_t, c_int
    functions = {
        "ncclGetVersion": (fake.version_, p),
        "ncclGetUniqueId": (fake.unique_id, p),
        "ncclCommInitRank": (fake.init, p, i, UniqueId, i),
        "ncclCommDestroy": (fake.destroy, p),
        "ncclMemAlloc": (fake.allocate, p, n),
        "ncclMemFree": (fake.free, p),
        "ncclCommWindowRegister": (fake.register, p, p, n, p, i),
        "ncclCommWindowDeregister": (fake.deregister, p, p),
        "ncclGroupStart": (fake.group_start,),
        "ncclGroupEnd": (fake.group_end,),
        "ncclAllReduce": (fake.all_reduce, p, p, n, i, i, p, p),
        "ncclReduce": (fake.reduce, p, p, n, i, i, i, p, p),
        "ncclReduceScatter": (fake.reduce_scatter, p, p, n, i, i, p, p),
        "ncclBroadcast": (fake.broadcast, p, p, n, i, i, p, p),
        "ncclAllGather": (fake.all_gather, p, p, n, i, p, p),
        "ncclSend": (fake.send, p, n, i, i, p, p),
        "ncclRecv": (fake.recv, p, n, i, i, p, p),
    }
    made = {name: CFUNCTYPE(c_int, *arguments)(_status(work)) for name, (work, *arguments) in functions.items()}
    made["ncclGetErrorString"] = CFUNCTYPE(c_char_p, c_int)(lambda status: b"invalid argument")
    if version < 22700:
        made = {name: function for name, function in made.items() if "Window" not in name and "Mem" not in name}
    return SimpleNamespace(**made), fake


def _status(work: object) -> object:
    """A function of Python's as one of C's: an exception is a status."""

    def call(*arguments: object) -> int:
        try:
            work(*arguments)
        except Exception:
            traceback.print_exc()
            return INTERNAL_ERROR
        return 0

    return call
