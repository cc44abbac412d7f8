"""Trials of `doctor`: each makes calls, and returns a sentence or raises an error.

The results are compared with the expected ones.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from ... import backends
from ...communicator.public import Communicator
from ...windows.win import Win

# Numbers of elements, for each way that a message can take.
_COUNTS = (1, 1000, 1 << 18)
_REPEATS = 100


class Job:
    """Communicator, and the library of its arrays: CuPy, or NumPy on the host device."""

    comm: Any
    xp: Any

    def begin(self) -> str:
        """Choose this rank's device, and make the communicator's memory."""
        self.comm = Communicator(MPI.COMM_WORLD)
        self.comm.select_device()
        self.xp = importlib.import_module("numpy" if self.comm.device == "host" else "cupy")
        self.comm.Barrier(device=True)
        places = MPI.COMM_WORLD.allgather(backends.select().name)
        nodes = self.node_count
        where = f", on {nodes} nodes" if nodes > 1 else ""
        return "; ".join(f"{places.count(each)} x {each}" for each in dict.fromkeys(places)) + where

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return int(self.comm.node_topology.node_count)

    def array(self, values: np.ndarray) -> Any:
        """Return a device array of values."""
        return self.xp.asarray(values)

    def empty(self, count: int, dtype: str = "i4") -> Any:
        """Return a device array without a correct element."""
        return self.xp.full(count, -1, dtype)

    def compare(self, what: str, array: Any, expected: np.ndarray) -> None:
        """Raise AssertionError with the first wrong element, if there is any."""
        self.comm.synchronize()
        values = array if isinstance(array, np.ndarray) else array.get()
        wrong = np.flatnonzero(values.ravel() != expected.ravel())
        if wrong.size:
            first = wrong[0]
            text = f"element {first} is {values.ravel()[first]}, not {expected.ravel()[first]}"
            raise AssertionError(f"{what}: {wrong.size} of {values.size} elements are wrong: {text}")


def _labels(rank: int, count: int) -> np.ndarray:
    """Return elements that differ by rank and place."""
    return np.arange(count, dtype="i4") * 64 + rank


def _sum(size: int, count: int) -> np.ndarray:
    """Return the sum of all ranks' labels."""
    return size * np.arange(count, dtype="i4") * 64 + size * (size - 1) // 2


def _allreduce(job: Job) -> str:
    comm = job.comm
    for count in _COUNTS:
        y = job.empty(count)
        comm.Allreduce(job.array(_labels(comm.rank, count)), y)
        job.compare(f"Allreduce of {count}", y, _sum(comm.size, count))
    x = job.array(_labels(comm.rank, 1))
    comm.synchronize()
    MPI.COMM_WORLD.Barrier()
    began = time.perf_counter()
    for _ in range(_REPEATS):
        comm.Allreduce(x, y[:1])
    comm.synchronize()
    return f"{(time.perf_counter() - began) / _REPEATS * 1e6:.1f} µs a call of 4 bytes, one after the other"


def _allgather(job: Job) -> str:
    comm = job.comm
    for count in _COUNTS:
        y = job.empty(count * comm.size)
        comm.Allgather(job.array(_labels(comm.rank, count)), y)
        job.compare(f"Allgather of {count}", y, np.concatenate([_labels(rank, count) for rank in range(comm.size)]))
    return ""


def _alltoall(job: Job) -> str:
    comm = job.comm
    for count in _COUNTS[:2]:
        y = job.empty(count * comm.size)
        comm.Alltoall(job.array(_labels(comm.rank, count * comm.size)), y)
        blocks = [_labels(rank, count * comm.size).reshape(comm.size, -1)[comm.rank] for rank in range(comm.size)]
        job.compare(f"Alltoall of {count}", y, np.concatenate(blocks))
    return ""


def _broadcast(job: Job) -> str:
    comm = job.comm
    for count in _COUNTS:
        y = job.array(_labels(comm.rank, count))
        comm.Bcast(y, root=comm.size - 1)
        job.compare(f"Bcast of {count}", y, _labels(comm.size - 1, count))
    return ""


def _messages(job: Job) -> str:
    comm = job.comm
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for count in _COUNTS:
        y = job.empty(count)
        comm.Sendrecv(job.array(_labels(comm.rank, count)), right, 0, y, left, 0)
        job.compare(f"Sendrecv of {count}", y, _labels(left, count))
    return ""


def _window(job: Job) -> str:
    comm = job.comm
    memory = comm.Alloc(1000, "i4")
    win = Win.Create(memory, 4, comm=comm)
    try:
        win.Fence()
        win.Put(job.array(_labels(comm.rank, 1000)), (comm.rank + 1) % comm.size)
        win.Fence()
        job.compare("Put of 1000", memory, _labels((comm.rank - 1) % comm.size, 1000))
    finally:
        win.Free()
    return ""


def _nonblocking(job: Job) -> str:
    """Run collectives of two communicators, in opposite orders on every other rank."""
    comms = [job.comm.Dup() for _ in range(2)]
    results = [job.empty(100) for _ in comms]
    order = (0, 1) if job.comm.rank % 2 == 0 else (1, 0)
    x = job.array(_labels(job.comm.rank, 100))
    for comm in comms:
        # The call prepares the kernel, on all ranks in one order.
        comm.Allreduce(x, job.empty(100))
    requests = [comms[place].Iallreduce(x, results[place]) for place in order]
    for request in requests:
        request.Wait()
    for comm, result in zip(comms, results, strict=True):
        comm.synchronize()
        job.compare("Iallreduce", result, _sum(comm.size, 100))
        comm.Free()
    return ""


def _shuffle(job: Job) -> str:
    comm = job.comm
    experts, hidden = 2 * comm.size, 64
    tokens = _labels(comm.rank, 8 * hidden).astype("f4").reshape(8, hidden)
    ids = np.arange(8).reshape(8, 1) % experts
    with comm.Create_token_shuffle(experts, 8 * comm.size, hidden, "float32", k=1, max_tokens=8) as shuffle:
        rows, handle = shuffle.dispatch(job.array(tokens), job.array(ids))
        result = shuffle.combine(rows.data, handle)
        job.compare("dispatch and combine", result, tokens)
    return ""


TRIALS: dict[str, Callable[[Job], str]] = {
    "device and communicator": Job.begin,
    "Allreduce": _allreduce,
    "Allgather": _allgather,
    "Alltoall": _alltoall,
    "Bcast": _broadcast,
    "messages": _messages,
    "one-sided": _window,
    "nonblocking": _nonblocking,
    "token shuffle": _shuffle,
}
