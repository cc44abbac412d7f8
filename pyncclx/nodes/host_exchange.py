"""The host exchange: a step that moves a few bytes of each rank through the host.

`mpi_engine.py` and kernels inside nodes need many Python calls, too many for a few bytes. In a host exchange, a rank
copies its bytes to its *record* in pinned memory. MPI's persistent receives store the other ranks' records beside it,
and kernels read all records there. A record begins with a header: a word that shows whether the rank's kernels have
failed, and a text that describes the call. The text must be the same on all ranks. If ranks need only blocks of the
records, the host packs these blocks, so that one copy moves them to the device.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from mpi4py import MPI

import mpi_bootstrap

from ..backends import Device
from ..errors import CollectiveMismatch
from ..failures.error_record import ErrorRecord
from ..recording.failures import noted
from ..system.process import held
from .failures_elsewhere import FailureWords
from .mpi_engine import MpiEngine, Outbox
from .rails import NodeMap

_RECORD_NBYTES = 32 << 10  # bytes of one rank at most
_ALL_NBYTES = 64 << 10  # bytes of all ranks together at most: each may send to all others
MOST_RANKS = 16  # ranks of a communicator
HEADER_NBYTES = 64
STRIDE_NBYTES = HEADER_NBYTES + _RECORD_NBYTES  # distance between records
_WORD_NBYTES = 8  # word of the header that says whether kernels have failed
LABEL_NBYTES = HEADER_NBYTES - _WORD_NBYTES  # text of the call in the header
_TAG = 8  # pieces use another tag
_GAVE_UP = b"\1"
_CANCEL_S = 0.1  # seconds in which MPI may cancel a receive
_left: list[object] = held([])  # receives that MPI has not cancelled, and their memory


class Block(NamedTuple):
    """A part of the bytes in a rank's record."""

    rank: int
    begin: int
    nbytes: int


class Share(NamedTuple):
    """The data that one host exchange moves.

    Attributes
    ----------
    name : str
        Name of the step, for error messages.
    label : bytes
        Label of the call, from `label_of`.
    nbytes : int
        Number of bytes of this rank.
    to, sources : sequence of int
        The ranks that receive these bytes, and the ranks whose bytes this rank receives. This rank is in neither.
    blocks : sequence of Block
        Blocks that the host packs at `HostExchange.gathered`, one after the other.
    """

    name: str
    label: bytes
    nbytes: int
    to: Sequence[int]
    sources: Sequence[int]
    blocks: Sequence[Block] = ()


class HostExchange:
    """Records of all ranks in this process's memory, and the receives that fill them.

    Parameters
    ----------
    engine : MpiEngine
    places : NodeMap
    device : Device
    own : ErrorRecord
        The error record of the node's kernels.
    words : FailureWords
    """

    def __init__(
        self, engine: MpiEngine, places: NodeMap, device: Device, own: ErrorRecord, words: FailureWords
    ) -> None:
        self._engine, self._places, self._errors, self._failure_words = engine, places, own, words
        self._outbox = Outbox(_TAG)
        self._memory = device.allocate_watch(places.size * STRIDE_NBYTES)
        memory = self._memory.array.data.cast("B")
        begins = [places.place_of(rank) * STRIDE_NBYTES for rank in range(places.size)]
        self._gathered = device.allocate_watch(_ALL_NBYTES)
        self._records = [memory[begin : begin + STRIDE_NBYTES] for begin in begins]
        self._receives = {
            rank: engine.comm.Recv_init([record, MPI.BYTE], rank, _TAG)
            for rank, record in enumerate(self._records)
            if rank != places.rank
        }

    def address_of(self, rank: int) -> int:
        """Return the address of a rank's bytes.

        Records are `STRIDE_NBYTES` apart, ordered by node.
        """
        return self._memory.address + self._places.place_of(rank) * STRIDE_NBYTES + HEADER_NBYTES

    @property
    def address(self) -> int:
        """Address of the bytes in the first record; records are ordered by node."""
        return self._memory.address + HEADER_NBYTES

    @property
    def gathered(self) -> int:
        """Address of a share's packed blocks."""
        return self._gathered.address

    def run(self, share: Share, stream: object, call: int) -> None:
        """Send this rank's bytes, and receive those of the ranks in `share`, on the host.

        The exchange begins when the work on `stream` has ended; the host waits for both. `call` is the number of the
        call.

        Raises
        ------
        StepTimeout, CollectiveMismatch, MPI.Exception
            If the exchange fails. Every later exchange raises again.
        """
        self._engine.do(share.name, lambda: self._run(share, call), stream)

    def _run(self, share: Share, call: int) -> None:
        own = self._records[self._places.rank]
        own[:HEADER_NBYTES] = (_GAVE_UP if self._errors.has_failed else b"").ljust(_WORD_NBYTES, b"\0") + share.label
        receives = [self._receives[rank] for rank in share.sources]
        if receives:
            MPI.Prequest.Startall(receives)
        message = bytes(own[: HEADER_NBYTES + share.nbytes])
        for rank in share.to:
            self._outbox.send(self._engine.comm, message, rank)
        waiting = receives[:]

        def over() -> bool:
            while waiting and waiting[-1].Test():
                waiting.pop()
            # Send now: the host may next wait for a kernel, and MPI sends nothing during such a wait.
            return not waiting and self._outbox.is_empty()

        def late() -> tuple[int, ...]:
            senders = {rank for rank in share.sources if not self._receives[rank].Test()}
            return tuple(sorted(senders | self._outbox.receivers()))

        self._engine.wait(share.name, call, over, late)
        for rank in share.sources:
            self._check(share, rank)
        if share.blocks:
            self._gather(share.blocks)

    def _gather(self, blocks: Sequence[Block]) -> None:
        place, gathered = 0, self._gathered.array.data.cast("B")
        for rank, begin, nbytes in blocks:
            gathered[place : place + nbytes] = self._records[rank][HEADER_NBYTES + begin :][:nbytes]
            place += nbytes

    def _check(self, share: Share, rank: int) -> None:
        record = self._records[rank]
        if record[:1] == _GAVE_UP:
            self._failure_words.note(rank)
        label = record[_WORD_NBYTES:HEADER_NBYTES]
        if label != share.label:
            calls = f"rank {self._places.rank} called {text_of(share.label)}; rank {rank} called {text_of(label)}"
            raise noted(CollectiveMismatch(f"{share.name}: {calls}"))

    def close(self) -> None:
        """Free the receives, after all exchanges have ended."""
        while self._receives:
            self._receives.popitem()[1].Free()

    def abandon(self) -> None:
        """Cancel the receives: after a failed step their messages may never arrive."""
        for request in self._receives.values():
            with suppress(MPI.Exception):
                if not request.Test():
                    request.Cancel()
                    end = time.monotonic() + _CANCEL_S
                    while not request.Test() and time.monotonic() < end:
                        time.sleep(0)
                if request.Test():
                    request.Free()
                else:  # a message is arriving
                    _left.append((request, self._memory))


def host_waits(comm: MPI.Intracomm, blocking: str, *, uses_nccl: bool) -> bool:
    """Return whether calls over nodes block the host on all ranks. Collective.

    They do where MPI moves data between nodes instead of NCCL, and where all ranks have ``blocking="host"``.
    """
    return not uses_nccl or mpi_bootstrap.first_bytes(comm, b"" if blocking == "host" else b"stream") is None


def most_nbytes(size: int) -> int:
    """Return the most bytes that a host exchange takes from each of `size` ranks."""
    return min(_RECORD_NBYTES, _ALL_NBYTES // size)


def label_of(operation: str, signature: tuple[object, ...]) -> bytes:
    """Return a label for the comparison of calls: a checksum and the truncated text."""
    text = f"{operation}{signature}".encode()
    room = LABEL_NBYTES - 4
    return zlib.crc32(text).to_bytes(4, "little") + text[:room].ljust(room, b"\0")


def text_of(label: bytes | memoryview) -> str:
    """Return the text in a label that `label_of` made."""
    return bytes(label[4:]).rstrip(b"\0").decode(errors="replace")
