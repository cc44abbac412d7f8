"""The engine on GPUs: NCCL's sends and receives, on the stream of the call.

NCCL connects two ranks at the first step between them, and the host waits in it until both have come. They may come to
the first steps of two communicators in another order. So ranks are connected when the engine is made; among very many
NCCL does it later.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

import mpi_bootstrap

from ..backends import Device
from ..errors import StepTimeout
from ..system import settings, threads
from ..system.process import held
from .engine import EngineError, Failed, Transfer
from .nccl_library import bindings, version_text
from .nccl_reductions import NcclReduction

# Blocks of NCCL's kernels: they wait on the same multiprocessors as ours. Not measured.
MOST_BLOCKS = 16
MOST_CONNECTED = 64  # ranks, each to all others when the engine is made. Not measured
_FOR_END_S = 1.0  # NCCL waits until the last graph ends that holds a step: not in the way of `Free`
_BYTES = 1  # ncclUint8
_SUCCESS, _IN_PROGRESS = 0, 7  # ncclResult_t


class NcclEngine:
    """Moves bytes by a communicator of NCCL's; see `Engine`. Collective to make.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks that it joins, mpi4py's; not kept.
    ranks : sequence of int
        Their ranks in the communicator that transfers name ranks of, in order.
    failed : callable
    device : Device
    """

    name = "nccl"
    follows_streams = True

    def __init__(self, comm: MPI.Intracomm, ranks: Sequence[int], failed: Failed, device: Device) -> None:
        while _abandoned:
            _abandoned.pop().close()
        self._nccl = nccl = bindings()
        self._failed = failed
        self._ranks = ranks
        uid = unique_id(comm, nccl)
        config = nccl.Config()
        config.max_ctas = MOST_BLOCKS
        self._comm = mpi_bootstrap.agree(
            comm,
            lambda: nccl.comm_init_rank_scalable(comm.size, comm.rank, 1, uid, config.ptr),
            undo=nccl.comm_abort,
        )
        self._failure: Exception | None = None
        self._aborting = threading.Lock()  # the watchdog may find an error as well
        if 1 < comm.size <= MOST_CONNECTED:
            try:
                mpi_bootstrap.agree(comm, lambda: self._connect(ranks[comm.rank], device))
            except BaseException:
                nccl.comm_abort(self._comm)
                raise

    def _connect(self, rank: int, device: Device) -> None:
        """Exchange a byte with all others, on a stream of its own."""
        stream, peers = device.new_stream(), [each for each in self._ranks if each != rank]
        memory = device.allocate_temporary(2 * len(peers), stream)
        sends = [Transfer(peer, memory.address + place, 1) for place, peer in enumerate(peers)]
        receives = [Transfer(peer, memory.address + len(peers) + place, 1) for place, peer in enumerate(peers)]
        self._send_and_receive(sends, receives, stream.ptr)
        end, deadline = device.event(), time.monotonic() + settings.TIMEOUT.get()
        end.record_eager(stream)
        while not end.is_over():
            if time.monotonic() > deadline:
                raise StepTimeout("the first step between nodes", rank, tuple(peers))
            os.sched_yield()

    def exchange(
        self, step: str, sends: Sequence[Transfer], receives: Sequence[Transfer], stream: Any, call: int
    ) -> None:
        """As `Engine.exchange`; errors of earlier steps raise in `check`."""
        self._call(step, self._send_and_receive, sends, receives, stream.ptr)

    def _send_and_receive(self, sends: Sequence[Transfer], receives: Sequence[Transfer], stream: int) -> None:
        nccl, comm = self._nccl, self._comm
        nccl.group_start()
        try:
            for peer, address, nbytes in sends:
                nccl.send(address, nbytes, _BYTES, self._index(peer), comm, stream)
            for peer, address, nbytes in receives:
                nccl.recv(address, nbytes, _BYTES, self._index(peer), comm, stream)
        finally:
            nccl.group_end()

    def broadcast(self, address: int, nbytes: int, root: int, stream: Any) -> None:
        """Give all ranks the bytes of one of them, by NCCL's collective; raise as `exchange`."""
        numbers = nbytes, _BYTES, self._index(root)
        self._call("NCCL's broadcast", self._nccl.broadcast, address, address, *numbers, self._comm, stream.ptr)

    def allgather(self, own: int, everything: int, nbytes: int, stream: Any) -> None:
        """Give all ranks the bytes of each, which are as many, by NCCL's collective; raise as `exchange`."""
        arguments = own, everything, nbytes, _BYTES, self._comm, stream.ptr
        self._call("NCCL's allgather", self._nccl.all_gather, *arguments)

    def alltoall(self, send: int, recv: int, nbytes: int, stream: Any) -> None:
        """Give each rank its block of so many bytes, by NCCL's collective; raise as `exchange`."""
        self._call("NCCL's alltoall", self._nccl.allto_all, send, recv, nbytes, _BYTES, self._comm, stream.ptr)

    def allreduce(self, send: int, recv: int, nbytes: int, reduction: NcclReduction, stream: Any) -> None:
        """Reduce the vectors of all ranks to each of them, by NCCL's collective; raise as `exchange`."""
        count = reduction.count(nbytes)
        arguments = send, recv, count, *reduction, self._comm, stream.ptr
        self._call("NCCL's allreduce", self._nccl.all_reduce, *arguments)

    def reduce(self, send: int, recv: int, nbytes: int, reduction: NcclReduction, root: int, stream: Any) -> None:
        """Reduce the vectors of all ranks to one of them, by NCCL's collective; raise as `exchange`."""
        count, number = reduction.count(nbytes), self._index(root)
        self._call("NCCL's reduce", self._nccl.reduce, send, recv, count, *reduction, number, self._comm, stream.ptr)

    def reduce_scatter(self, send: int, recv: int, nbytes: int, reduction: NcclReduction, stream: Any) -> None:
        """Reduce a block of so many bytes to each rank, by NCCL's collective; raise as `exchange`."""
        count = reduction.count(nbytes)
        arguments = send, recv, count, *reduction, self._comm, stream.ptr
        self._call("NCCL's reduce-scatter", self._nccl.reduce_scatter, *arguments)

    def _call(self, step: str, function: Callable[..., object], *arguments: Any) -> None:
        """Call NCCL, unless this engine was aborted; raise why it was in the place of NCCL's error."""
        self._raise_failure()
        try:
            function(*arguments)
        except Exception as error:  # it may have waited for other ranks, and been aborted meanwhile
            self._end(step, str(error))
            self._raise_failure()

    @property
    def has_failed(self) -> bool:
        """As `Engine.has_failed`; what NCCL reports of itself is for `check`."""
        return self._failure is not None

    def _index(self, peer: int) -> int:
        return bisect_left(self._ranks, peer)

    def check(self, step: str = "a step between nodes") -> None:
        """As `Engine.check`."""
        if self._failure is None:
            result = int(self._nccl.comm_get_async_error(self._comm))
            if result in (_SUCCESS, _IN_PROGRESS):
                return
            self._end(step, self._nccl.get_error_string(result))
        self._raise_failure()

    def _end(self, step: str, error: str) -> None:
        text = f"{step}: NCCL {version_text()} between nodes: {error}; see whether ranks on other nodes died"
        self.abort(step, EngineError(MPI.ERR_OTHER, f"{text}; free the communicator"))

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def abort(self, step: str, reason: Exception) -> None:
        """As `Engine.abort`."""
        with self._aborting:
            if self._failure is not None:
                return
            self._failure = reason
        # It frees memory, for which the driver waits until the device is idle: perhaps for another communicator's
        # kernel, which waits until it is aborted in its turn. Before anything that may wait for NCCL's kernel.
        threads.start("pyncclx abort", self._nccl.comm_abort, self._comm)
        self._failed(step, reason)

    def close(self) -> None:
        """As `Engine.close`."""
        if self._failure is None:
            end = threads.start("pyncclx end", self._nccl.comm_destroy, self._comm)
            if end is not None:  # else the interpreter ends, and the process with it
                end.join(_FOR_END_S)

    def abandon(self) -> None:
        """As `Engine.abandon`: the next engine's ranks close it, since NCCL lets the device come to rest for that."""
        _abandoned.append(self)


_abandoned: list[NcclEngine] = held([])


def unique_id(comm: MPI.Intracomm, nccl: Any) -> bytearray:
    """Return the identifier of a communicator of NCCL's, which rank 0 makes. Collective."""
    made = mpi_bootstrap.agree(comm, lambda: bytes(nccl.get_unique_id()) if comm.rank == 0 else b"")
    first = mpi_bootstrap.first_bytes(comm, made)
    assert first is not None
    return bytearray(first[1])
