"""The engine on GPUs: NCCL's sends and receives, on the stream of the call.

By default, NCCL connects two ranks at the first step between them, in a call that blocks the host until both ranks have
made it. If two ranks made the first steps of two communicators in different orders, they would deadlock. So an engine
of up to `MOST_CONNECTED` ranks connects all of them when it is made. Larger ones leave this to NCCL.
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
from mpi_bootstrap.own_errors import own_error

from ..backends import Device
from ..errors import StepTimeout
from ..memory.retired import RETIRED
from ..system import settings, threads
from ..system.process import held
from .engine import Engine, EngineError, Failed, Transfer
from .nccl_library import NcclReduction, bindings, version_text

# Most blocks of NCCL's kernels, which wait on the same multiprocessors as pyncclx's kernels. Not measured.
MOST_BLOCKS = 16
MOST_CONNECTED = 64  # ranks, each connected to all others when the engine is made; not measured
_FOR_END_S = 1.0  # seconds to wait for ncclCommDestroy, which waits until no graph with a step exists
_BYTES = 1  # ncclUint8
_SUCCESS, _IN_PROGRESS = 0, 7  # ncclResult_t


class NcclEngine(Engine):
    """An engine that moves bytes with an NCCL communicator. Creation is collective.

    Parameters
    ----------
    comm : MPI.Intracomm
        An mpi4py communicator of the engine's ranks; the engine does not keep it.
    ranks : sequence of int
        The same ranks, numbered as in the communicator over nodes, in order. Transfers name these numbers.
    failed : callable
    device : Device
    """

    name = "nccl"
    follows_streams = True

    def __init__(self, comm: MPI.Intracomm, ranks: Sequence[int], failed: Failed, device: Device) -> None:
        while _abandoned:
            _abandoned.pop().close()
        self._nccl = nccl = bindings()
        super().__init__(failed)
        self._ranks = ranks
        uid = unique_id(comm, nccl)
        config = nccl.Config()
        config.max_ctas = MOST_BLOCKS
        self._comm = mpi_bootstrap.agree(
            comm,
            lambda: nccl.comm_init_rank_scalable(comm.size, comm.rank, 1, uid, config.ptr),
            undo=nccl.comm_abort,
        )
        # The monitor's thread may abort the engine at the same time.
        self._aborting = threading.Lock()
        if 1 < comm.size <= MOST_CONNECTED:
            try:
                mpi_bootstrap.agree(comm, lambda: self._connect(ranks[comm.rank], device))
            except BaseException:
                nccl.comm_abort(self._comm)
                raise

    def _connect(self, rank: int, device: Device) -> None:
        """Exchange a byte with all other ranks, on a new stream."""
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
        """Enqueue the sends and receives; `check` raises errors of earlier steps."""
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
        """Broadcast the bytes of `root` with NCCL; raises what `exchange` raises."""
        numbers = nbytes, _BYTES, self._index(root)
        self._call("NCCL's broadcast", self._nccl.broadcast, address, address, *numbers, self._comm, stream.ptr)

    def allgather(self, own: int, everything: int, nbytes: int, stream: Any) -> None:
        """Gather `nbytes` bytes of each rank with NCCL; raises what `exchange` raises."""
        arguments = own, everything, nbytes, _BYTES, self._comm, stream.ptr
        self._call("NCCL's allgather", self._nccl.all_gather, *arguments)

    def alltoall(self, send: int, recv: int, nbytes: int, stream: Any) -> None:
        """Exchange blocks of `nbytes` bytes with NCCL; raises what `exchange` raises."""
        self._call("NCCL's alltoall", self._nccl.allto_all, send, recv, nbytes, _BYTES, self._comm, stream.ptr)

    def allreduce(self, send: int, recv: int, nbytes: int, reduction: NcclReduction, stream: Any) -> None:
        """Reduce vectors to all ranks with NCCL; raises what `exchange` raises."""
        count = reduction.count(nbytes)
        arguments = send, recv, count, *reduction, self._comm, stream.ptr
        self._call("NCCL's allreduce", self._nccl.all_reduce, *arguments)

    def reduce(self, send: int, recv: int, nbytes: int, reduction: NcclReduction, root: int, stream: Any) -> None:
        """Reduce the ranks' vectors to `root` with NCCL; raises what `exchange` raises."""
        count, number = reduction.count(nbytes), self._index(root)
        self._call("NCCL's reduce", self._nccl.reduce, send, recv, count, *reduction, number, self._comm, stream.ptr)

    def reduce_scatter(self, send: int, recv: int, nbytes: int, reduction: NcclReduction, stream: Any) -> None:
        """Reduce blocks of `nbytes` to each rank with NCCL; raises what `exchange` raises."""
        count = reduction.count(nbytes)
        arguments = send, recv, count, *reduction, self._comm, stream.ptr
        self._call("NCCL's reduce-scatter", self._nccl.reduce_scatter, *arguments)

    def _call(self, step: str, function: Callable[..., object], *arguments: Any) -> None:
        """Call NCCL; after an abort, raise its reason in place of NCCL's error."""
        self._raise_failure()
        try:
            function(*arguments)
        # The call may have waited for other ranks and been aborted meanwhile.
        except BaseException as error:
            if own_error(error) is None:
                raise
            self._end(step, str(error))
            self._raise_failure()

    def _index(self, peer: int) -> int:
        return bisect_left(self._ranks, peer)

    def check(self, step: str = "a step between nodes") -> None:
        """Raise the reason of an abort, or an error that NCCL reports."""
        if self._failure is None:
            result = int(self._nccl.comm_get_async_error(self._comm))
            if result in (_SUCCESS, _IN_PROGRESS):
                return
            self._end(step, self._nccl.get_error_string(result))
        self._raise_failure()

    def _end(self, step: str, error: str) -> None:
        text = f"{step}: NCCL {version_text()} between nodes: {error}; see whether ranks on other nodes died"
        self.abort(step, EngineError(MPI.ERR_OTHER, f"{text}; free the communicator"))

    def abort(self, step: str, reason: Exception) -> None:
        """End all steps by ncclCommAbort; `check` raises the reason from then on."""
        with self._aborting:
            if self._failure is not None:
                return
            self._failure = reason
        # ncclCommAbort frees memory, for which the driver waits until the device is idle. The device may run another
        # communicator's kernel that waits until it is aborted, too. So call it in a thread, before anything that may
        # wait.
        threads.start("pyncclx abort", self._nccl.comm_abort, self._comm)
        self._failed(step, reason)

    def close(self) -> None:
        """Destroy NCCL's communicator once no kernel may wait for a peer. Collective.

        NCCL frees memory. For this the driver waits until the device is idle, and calls of the driver in other threads
        wait as well. A kernel of another communicator could be waiting for a peer that makes its call only after this
        call. So the communicator is destroyed only when there is no such kernel.
        """
        if self._failure is None:
            RETIRED.get().add(self._destroy)
            RETIRED.get().free()

    def _destroy(self) -> None:
        """Destroy NCCL's communicator; wait at most `_FOR_END_S`."""
        end = threads.start("pyncclx end", self._nccl.comm_destroy, self._comm)
        # None: the interpreter is ending, and the process with it.
        if end is not None:
            end.join(_FOR_END_S)

    def abandon(self) -> None:
        """Let the next engine of this process close NCCL's communicator."""
        _abandoned.append(self)


_abandoned: list[NcclEngine] = held([])


def unique_id(comm: MPI.Intracomm, nccl: Any) -> bytearray:
    """Return the identifier that rank 0 made for a communicator of NCCL. Collective."""
    made = mpi_bootstrap.agree(comm, lambda: bytes(nccl.get_unique_id()) if comm.rank == 0 else b"")
    first = mpi_bootstrap.first_bytes(comm, made)
    assert first is not None
    return bytearray(first[1])
