"""The receiver's end of a partitioned message.

Its first start offers the sender the location of its memory.
"""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

import mpi_bootstrap

from ...errors import MPIError, NotSupported
from ...requests.status import fill_empty
from ...team.streams import current_stream
from ..arguments import partitions as pack_partitions
from ..base import MessageBase
from ..envelope import EMPTY, OFFERED, WINDOW, Envelope
from ..memory.arena import Piece
from .base import FAR, WORD, PartitionedMessage
from .handshakes import located, refusal


class PartitionedReceive(PartitionedMessage):
    """The work of a request of `Precv_init`.

    Its words are the number of rounds begun, then for each partition the last round in which it arrived. If the sender
    cannot open the buffer's memory, it stores partitions in a landing buffer. `arrived` or the end of the round copies
    them from there.
    """

    _words: Piece | None = None
    _landing: Piece | None = None
    _is_offered = _met = False
    # The sender's refusal.
    _error: Exception | None = None
    # The stream of the last copy from the landing buffer.
    _landed_on: Any = None

    def __init__(self, comm: MessageBase, operation: str, buf: Any, rank: int, tag: int, partitions: int) -> None:
        super().__init__(comm, operation, buf, rank, tag, partitions, receives=True)
        # Partitions copied from the landing buffer in this round.
        self._landed: set[int] = set()

    def _check(self, rank: int, tag: int) -> tuple[int, int]:
        peer, tag = self.endpoint.check_receive(self.name, rank, tag)
        if peer == MPI.ANY_SOURCE or (tag == MPI.ANY_TAG and peer != MPI.PROC_NULL):
            error = MPI.ERR_RANK if peer == MPI.ANY_SOURCE else MPI.ERR_TAG
            text = "MPI lets partitioned messages have neither MPI.ANY_SOURCE nor MPI.ANY_TAG; name source and tag"
            raise MPIError(error, f"{self.name}: {text}")
        return peer, tag

    # The first start

    def prepare(self) -> None:
        if self._is_offered:
            return
        if self._words is None:
            self._words = self.pieces.take(WORD.size * (1 + self.partitions), zeroed=True)
        assert self._key is not None
        words = located(self._envelope(OFFERED), self._words)
        self.endpoint.partitioned.handshakes.offer(self._key, words, self._located_buffer().pack())
        self._is_offered = True

    def _envelope(self, transport: int) -> Envelope:
        context = self.endpoint.context
        return Envelope(context.sender, transport, context.clock.next(), self.nbytes, self.partitions)

    def _located_buffer(self) -> Envelope:
        """Return an envelope with the location where the sender stores partitions."""
        address, team = self.buffer.address, self.endpoint.team
        window = team.windows.at(address) if team else None
        if not self.nbytes:
            return self._envelope(EMPTY)
        if window is not None:
            return self._envelope(WINDOW).located_in_window(window.number, address - window.memory.address)
        allocation = self.endpoint.device.allocation(address)
        if allocation is not None and allocation.handle:
            return self._envelope(OFFERED).located(allocation)
        # After an interrupt the start is repeated, but the offer is not.
        if self._landing is None:
            self._landing = self.pieces.take(self.nbytes)
        return located(self._envelope(OFFERED), self._landing)

    @property
    def is_met(self) -> bool:
        return self._met and self._error is None

    def meet(self) -> None:
        if not self._has_met():
            self.wait_until(self._has_met)

    def _has_met(self) -> bool:
        """Return whether the sender has answered; raise if its answer is a refusal."""
        if self._error is not None:
            raise self._error
        if self._met:
            return True
        assert self._key is not None
        answer = self.endpoint.partitioned.handshakes.answer(self._key)
        if answer is None:
            return False
        self._take(*answer)
        return self._has_met()

    @mpi_bootstrap.interrupts_deferred()
    def _take(self, error_class: int, text: str) -> None:
        assert self._key is not None
        self._met, self._error = True, refusal(self.name, error_class, text)
        self.endpoint.partitioned.handshakes.forget(self._key)

    # Rounds

    @property
    def epoch(self) -> int:
        assert self._words is not None
        return self._words.address

    def packed(self) -> bytes:
        return pack_partitions(
            epoch=self.epoch,
            started=self.epoch,
            arrived=self.epoch + WORD.size,
            sends=0,
            receives=self.partitions,
            peer=self.peer,
            tag=self.tag,
        )

    @property
    def pointer(self) -> int:
        pointer = super().pointer
        if self._landing is not None:
            text = "the sender cannot open this array's memory, so kernels would not find it there; use comm.Alloc's"
            raise NotSupported(f"{self.name}: {text}")
        return pointer

    def end_round(self, stream: Any) -> None:
        super().end_round(stream)
        if self._landing is None:
            return
        if not self._landed:
            self._copy(0, self.partitions, stream)
            return
        for partition in set(range(self.partitions)) - self._landed:
            self._copy(partition, 1, stream)
        self._landed.clear()

    def _copy(self, first: int, number: int, stream: Any) -> None:
        """Enqueue the copy of partitions from the landing buffer, after earlier copies."""
        assert self._landing is not None
        if self._landed and self._landed_on is not stream:
            self.endpoint.device.order(self._landed_on, stream)
        self._landed_on = stream
        offset, nbytes = first * self.buffer.nbytes, number * self.buffer.nbytes
        self.endpoint.copy(self.buffer.address + offset, self._landing.address + offset, nbytes, stream)

    def arrived(self, partition: int) -> bool:
        (partition,) = self.checked("Parrived", [partition])
        if not self.active or self.is_nobodys:
            return True
        if self._began is None:
            text = "it was started in a graph, which runs without the host; let a kernel ask"
            raise NotSupported(f"Parrived: {text}")
        self.check_errors()
        self.endpoint.context.receives.launch_arrived()
        if not (self._has_met() and self._began.is_over() and self._come()[partition]):
            return False
        if self._landing is not None and partition not in self._landed:
            stream = current_stream(self.endpoint.device, (self.buffer,), self.endpoint.caller)
            self._copy(partition, 1, stream)
            self._landed.add(partition)
            if self._state.blocking == "host":
                self.endpoint.device.synchronize(stream)
        return True

    def stream(self) -> Any:
        """Return the stream of a start, which waits for copies from the landing buffer.

        After the start, the sender may overwrite the landing buffer.
        """
        stream = super().stream()
        device = self.endpoint.device
        if self._landed_on is not None and self._landed_on is not stream and not device.is_capturing(stream):
            device.order(self._landed_on, stream)
        return stream

    def _come(self) -> list[bool]:
        """Return, for each partition, whether it has arrived."""
        epoch, *arrived = self.peek(self.epoch, 1 + self.partitions)
        return [(word - epoch) % (1 << 32) < FAR * 2 for word in arrived]

    def round_is_over(self) -> bool:
        return self._has_met() and all(self._come())

    def fill(self, status: MPI.Status) -> None:
        fill_empty(status)
        status.Set_source(self.peer)
        status.Set_tag(MPI.ANY_TAG if self.is_nobodys else self.tag)
        status.Set_elements(MPI.BYTE, 0 if self.is_nobodys else self.nbytes)

    def let_go(self) -> bool:
        if self._words is None:
            return False
        (epoch,) = self.peek(self.epoch, 1)
        words = WORD.pack((epoch + FAR) % (1 << 32)) * self.partitions
        self.endpoint.context.bounce.write(self.epoch + WORD.size, words)
        return self.active
