"""The common part of both ends of partitioned messages (device/partitions.cuh).

The two ends exchange addresses once (`handshakes.py`). After that, rounds are counted on the device: a start only
launches a kernel and does not wait. So a graph can capture rounds.
"""

from __future__ import annotations

import operator
import os
import struct
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from mpi4py import MPI

from ...arrays.buffers import resolve
from ...arrays.readers import places_of
from ...backends import Event
from ...errors import MPIError, PeerTimeout
from ...requests.work import Startable, Wait
from ...team.streams import current_stream, stream_for
from ..base import MessageBase
from ..memory.arena import Piece, Pieces
from ..pending import StreamWait
from .starts import FUNCTIONS, start_several

WORD = struct.Struct("=I")
# Setting a word this many rounds ahead releases all kernels that wait for it.
FAR = 1 << 30


class PartitionedMessage(Startable):
    """One end of a partitioned message: the work of a partitioned request.

    It is active from its start to `finish`.

    Attributes
    ----------
    endpoint : Endpoint
    peer, tag : int
    partitions : int
        Number of partitions at this end.
    buffer : Buffer
        Buffer whose count and size are those of one partition.
    """

    starter = staticmethod(start_several)
    # The `Partitions` that the program's kernels use.
    _struct: Piece | None = None
    # Recorded after the launch that began the round; None in a graph.
    _began: Event | None = None

    def __init__(
        self, comm: MessageBase, operation: str, buf: Any, rank: int, tag: int, partitions: int, *, receives: bool
    ) -> None:
        self.comm, self.name, self.endpoint, self._state = comm, operation, comm.endpoint, comm.state
        self.partitions = operator.index(partitions)
        if self.partitions < 1:
            raise MPIError(MPI.ERR_ARG, f"{operation}: partitions is {partitions}; there is at least one")
        self.peer, self.tag = self._check(rank, tag)
        name, device = f"{operation}: buf", self.endpoint.device
        self.buffer = resolve(buf, name, writable=receives, device=device, blocks=self.partitions)
        self.places = places_of((self.buffer.owner,))
        self.pieces = Pieces(self.endpoint.context.arena)
        weakref.finalize(self, self.pieces.give_back).atexit = False
        ends = self.endpoint.partitioned
        ends.add(self)
        FUNCTIONS.get()
        self._key = None if self.is_nobodys else ends.handshakes.key(self.peer, self.tag, sends=not receives)

    def _check(self, rank: int, tag: int) -> tuple[int, int]:
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Size of all partitions together."""
        return self.buffer.nbytes * self.partitions

    @property
    def is_nobodys(self) -> bool:
        """Whether the other end is MPI.PROC_NULL."""
        return self.peer == MPI.PROC_NULL

    # The start

    def check_owner(self) -> None:
        """Raise if the communicator has been freed, then call `check_errors`."""
        if not self._state.current or self.endpoint.comm is None:
            raise self.freed()
        self.check_errors()

    def stream(self) -> Any:
        """Return the stream for a call, after making it wait for the array's producer."""
        return stream_for(self.endpoint.device, (self.buffer,), self.endpoint.caller)

    def check_errors(self) -> None:
        """Raise if kernels have recorded an error or the peer has failed."""
        self.endpoint.check()
        self.endpoint.check_peer(self.name, self.peer)

    def prepare(self) -> None:
        """Allocate words and begin the handshake, once, before the first start."""
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        """Address of the number of rounds that this end has begun."""
        raise NotImplementedError

    def activate(self, began: Event | None) -> None:
        """Mark the round as begun.

        The event `began` is recorded after the launch that began the round; it is None in a graph.
        """
        self.active, self._began = True, began

    # The program's kernels

    @property
    def pointer(self) -> int:
        """Address of this end in device memory; 0 if the other end is MPI.PROC_NULL."""
        if self.is_nobodys:
            return 0
        if self._struct is None:
            self.prepare()
            self.meet()
            data = self.endpoint.teams[self.name] + self.packed()
            struct = self.pieces.take(len(data))
            self.endpoint.device.poke(struct.address, data)
            self._struct = struct
        return self._struct.address

    @property
    def is_met(self) -> bool:
        """Whether both ends have exchanged addresses."""
        raise NotImplementedError

    def meet(self) -> None:
        """Wait on the host until both ends have exchanged addresses.

        If they cannot exchange addresses, raise the reason.
        """
        raise NotImplementedError

    def packed(self) -> bytes:
        """Return the bytes of this end's `Partitions` that follow its Team."""
        raise NotImplementedError

    def wait_until(self, over: Callable[[], bool]) -> None:
        """Launch arrived receives until `over()` is true, for at most PYNCCLX_TIMEOUT."""
        deadline = time.monotonic() + self.endpoint.timeout_s
        while not over():
            self.check_errors()
            self.endpoint.context.receives.launch_arrived()
            if time.monotonic() > deadline:
                raise PeerTimeout(f"{self.name} with tag {self.tag}", 1, self.endpoint.rank, self.peer, 1, 0)
            os.sched_yield()

    # The end

    def launch(self, kernel: str, grid: int, arguments: bytes, stream: Any) -> None:
        """Launch a kernel of partitioned messages. `arguments` follow its Team."""
        function, threads = FUNCTIONS.get()[kernel], self.endpoint.device.threads
        parameters = self.endpoint.teams[self.name] + arguments
        self.endpoint.enqueue(function, grid, threads, parameters, stream)

    def finish(self) -> Wait | None:
        """Make the current stream wait for the end of the round. Raise recorded errors."""
        self.active = False
        if self.is_nobodys:
            return None
        self.check_errors()
        self.meet()
        device = self.endpoint.device
        stream = current_stream(device, (self.buffer,), self.endpoint.caller)
        self.end_round(stream)
        if not device.is_capturing(stream):
            self.pieces.last_use = device.event()
            self.pieces.last_use.record(stream)
        return StreamWait(self.endpoint, stream) if self.endpoint.caller.blocking == "host" else None

    def end_round(self, stream: Any) -> None:
        """Make `stream` wait for the end of the round."""
        self.launch("await_partitions", 1, self.packed(), stream)

    def is_over(self) -> bool:
        """Return whether `finish` would return immediately."""
        if not self.active or self.is_nobodys:
            return True
        self.check_errors()
        self.endpoint.context.receives.launch_arrived()
        return self._began is not None and self._began.is_over() and self.round_is_over()

    def round_is_over(self) -> bool:
        """Return whether the round that the device has begun has ended."""
        raise NotImplementedError

    def peek(self, address: int, number: int) -> tuple[int, ...]:
        """Return the current values of `number` 32-bit words."""
        return struct.unpack(f"={number}I", self.endpoint.device.peek(address, WORD.size * number))

    def let_go(self) -> bool:
        """Release kernels that wait for the failed peer.

        Return whether any kernel may have been waiting.
        """
        raise NotImplementedError

    # Partitions

    def checked(self, method: str, partitions: Iterable[int]) -> list[int]:
        """Return the partitions as integers. Raise if one of them does not exist."""
        numbers = [operator.index(each) for each in partitions]
        for number in numbers:
            if not 0 <= number < self.partitions:
                raise MPIError(MPI.ERR_ARG, f"{method}: partition is {number}; there are 0 to {self.partitions - 1}")
        return numbers

    def ready(self, method: str, partitions: Iterable[int]) -> None:
        """Send partitions; raise if this end receives."""
        raise MPIError(MPI.ERR_REQUEST, f"{method}: the request receives; it is for requests of Psend_init")

    def arrived(self, partition: int) -> bool:
        """Return whether a partition has arrived; raise if this end sends."""
        raise MPIError(MPI.ERR_REQUEST, "Parrived: the request sends; it is for requests of Precv_init")
