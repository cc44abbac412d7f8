"""The sender's end of a partitioned message.

After the receiver's offer has arrived, the next poll opens the receiver's memory, answers, and launches the kernels of
earlier `Pready` calls. The program or the monitor thread polls, so `Pready` does not wait. Its kernels wait for the
receiver's start, on the request's own stream.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from mpi4py import MPI

from mpi_bootstrap.own_errors import own_error

from ...errors import MPIError, NotSupported
from ...requests.open_receives import LOCK, OpenReceive
from ...system.threads import forget, has_begun
from ..arguments import MOST_LISTED, send_arguments
from ..arguments import partitions as pack_partitions
from ..base import MessageBase
from ..envelope import EMPTY, ENVELOPE_NBYTES, WINDOW, Envelope, unpack
from ..memory.opened import address_of
from ..persistent.starts import BLOCK_NBYTES
from .base import FAR, WORD, PartitionedMessage
from .handshakes import Key, Offer, refusal


class _Other(NamedTuple):
    """The receiver's end: its number of partitions, and its addresses in this process.

    `sent` is the address of the sender's counters, one for each partition of the receiver.
    """

    words: int
    buffer: int
    partitions: int
    sent: int


class OfferWait(OpenReceive):
    """The wait for the receiver's offer, polled like an open receive."""

    def __init__(self, end: PartitionedSend, key: Key) -> None:
        self._end, self._handshakes, self._key = weakref.ref(end), end.endpoint.partitioned.handshakes, key
        self._offer: Offer | None = None
        self._error: Exception | None = None

    def poll(self) -> bool:
        if self.has_arrived:
            return False
        is_dropped = self._end() is None
        try:
            self._offer = None if is_dropped else self._handshakes.take(self._key)
        except BaseException as error:
            self._error = own_error(error)
            if self._error is None:
                raise
        self.has_arrived = is_dropped or self._offer is not None or self._error is not None
        return self.has_arrived

    def launch(self) -> None:
        end = self._end()
        try:
            if end is not None and self._error is not None:
                is_refused = isinstance(self._error, NotSupported)
                end.error = refusal(end.name, 0, str(self._error)) if is_refused else self._error
            elif end is not None and self._offer is not None:
                end.find(self._offer)
        except BaseException as error:
            own = own_error(error)
            if own is None:
                raise
            # The request's next call raises the error.
            if end is not None:
                end.error = own
        self.launched = True


class PartitionedSend(PartitionedMessage):
    """The work of a request of `Psend_init`.

    Its words are the number of rounds begun, and the number of the receiver's partitions sent in all rounds.

    Attributes
    ----------
    error : Exception or None
        The reason why the two ends cannot exchange addresses.
    """

    error: Exception | None = None
    # Address of the words; 0 before they are allocated.
    _words = 0
    _other: _Other | None = None
    # Error class and text of the answer to the receiver.
    _answer: tuple[int, str] | None = None
    _offer_wait: OfferWait | None = None
    # The stream on which `Pready` has launched kernels in this round.
    _side: Any = None

    def __init__(self, comm: MessageBase, operation: str, buf: Any, rank: int, tag: int, partitions: int) -> None:
        super().__init__(comm, operation, buf, rank, tag, partitions, receives=False)
        # Partitions that the host has sent in this round.
        self._readied: set[int] = set()
        # Partitions whose kernel is launched only after the handshake is complete.
        self._waiting: list[int] = []
        # One stream for calls outside of captures (False), one for captures (True).
        self._streams: dict[bool, Any] = {}

    def _check(self, rank: int, tag: int) -> tuple[int, int]:
        return self.endpoint.check_send(self.name, rank, tag)

    # The handshake

    def prepare(self) -> None:
        if self._offer_wait is not None and self._offer_wait.is_posted:
            return
        if not self._words:
            self._words = self.pieces.take(2 * WORD.size, zeroed=True).address
        assert self._key is not None
        self._offer_wait = self._offer_wait or OfferWait(self, self._key)
        self.endpoint.context.receives.post(self._offer_wait)

    @property
    def is_met(self) -> bool:
        return self._other is not None

    def meet(self) -> None:
        offer_wait = self._offer_wait
        assert offer_wait is not None
        if not offer_wait.launched:
            self.wait_until(lambda: offer_wait.launched)
        if self.error is not None:
            raise self.error

    def find(self, offer: Offer) -> None:
        """Open the receiver's memory, answer, and send the waiting partitions.

        After an interrupted poll, this is called again.
        """
        assert self._key is not None
        if self._answer is None:
            self._answer = self._answer_to(offer)
        self.endpoint.partitioned.handshakes.reply(self._key, offer, *self._answer)
        self.error = refusal(self.name, *self._answer)
        if self._waiting and self._other is not None:
            self._send(self._waiting, self._side)

    def _answer_to(self, offer: Offer) -> tuple[int, str]:
        """Open the receiver's memory; return error class and text of the answer."""
        head, buffer = offer.head, unpack(offer.body, ENVELOPE_NBYTES)
        if head.nbytes != self.nbytes:
            text = f"rank {self.endpoint.rank} sends {self.nbytes} bytes with tag {self.tag}"
            text = f"{text}, rank {self.peer} receives {head.nbytes}; all partitions together must be as long"
            return MPI.ERR_TRUNCATE, text
        assert buffer is not None
        try:
            words, address = self._address_of(head), self._address_of(buffer)
            sent = self.pieces.take(8 * head.place, zeroed=True).address
        except (OSError, RuntimeError, KeyError) as error:
            if own_error(error) is None:
                raise
            return 0, f"rank {self.endpoint.rank} cannot open the memory of rank {self.peer} ({error})"
        self._other = _Other(words, address, head.place, sent)
        return 0, ""

    def _address_of(self, envelope: Envelope) -> int:
        """Return the address of memory that stays open as long as this end exists."""
        if envelope.transport == EMPTY:
            return 0
        address = address_of(self.endpoint, envelope, self.peer)
        if envelope.transport != WINDOW:
            weakref.finalize(self, self.endpoint.context.opened.unused.append, envelope).atexit = False
        return address

    # Rounds

    @property
    def epoch(self) -> int:
        return self._words

    def packed(self) -> bytes:
        assert self._other is not None
        return pack_partitions(
            data=self.buffer.address,
            buffer=self._other.buffer,
            nbytes=self.nbytes,
            epoch=self._words,
            started=self._other.words,
            arrived=self._other.words + WORD.size,
            sent=self._other.sent,
            finished=self._words + WORD.size,
            sends=self.partitions,
            receives=self._other.partitions,
            peer=self.peer,
            tag=self.tag,
        )

    def ready(self, method: str, partitions: Iterable[int]) -> None:
        numbers = self.checked(method, partitions)
        if not self.active:
            raise MPIError(MPI.ERR_REQUEST, f"{method}: the request has not been started")
        twice = self._readied.intersection(numbers)
        if twice or len(set(numbers)) < len(numbers):
            raise MPIError(MPI.ERR_ARG, f"{method}: partition {min(twice, default='')} is sent twice in a round")
        if self.is_nobodys or not numbers:
            return
        self.check_errors()
        stream = self.stream()
        # All kernels of a capture must be launched now.
        if self.endpoint.device.is_capturing(stream):
            self.meet()
        with LOCK:
            if self.error is not None:
                raise self.error
            self._side = self._beside(stream)
            if self._other is None:
                # No interrupt can occur between these two statements.
                self._waiting += numbers
                self._readied.update(numbers)
            else:
                self._send(numbers, self._side)

    def _beside(self, stream: Any) -> Any:
        """Return a stream of the request's own, after making it wait for `stream`.

        While `stream` is captured, return `stream` itself if the other is in another capture.
        """
        device = self.endpoint.device
        captured = device.is_capturing(stream)
        if captured not in self._streams:
            self._streams[captured] = device.new_stream()
        side = self._streams[captured]
        if captured:
            return side if device.fork(stream, side) else stream
        device.order(stream, side)
        return side

    def _send(self, numbers: Sequence[int], stream: Any) -> None:
        """Launch the kernels that send partitions.

        After an exception, partitions whose kernel was not launched may be sent again.
        """
        most = self.endpoint.device.max_channels
        chunks = min(max(1, -(-self.buffer.nbytes // BLOCK_NBYTES)), most)
        for first in range(0, len(numbers), MOST_LISTED):
            listed = numbers[first : first + MOST_LISTED]
            arguments = send_arguments(self.packed(), listed, chunks)
            forget()
            try:
                self.launch("send_partitions", min(len(listed) * chunks, most), arguments, stream)
                self._note_sent(listed)
            except BaseException:
                if has_begun(arguments):
                    self._note_sent(listed)
                raise

    def _note_sent(self, numbers: Sequence[int]) -> None:
        self._readied.update(numbers)
        self._waiting = sorted(set(self._waiting).difference(numbers))

    def end_round(self, stream: Any) -> None:
        if self._readied and self._side is not stream:
            self.endpoint.device.order(self._side, stream)
        self._readied.clear()
        super().end_round(stream)

    def is_over(self) -> bool:
        return self.error is not None or super().is_over()

    def round_is_over(self) -> bool:
        if self._other is None:
            return False
        epoch, finished = self.peek(self._words, 2)
        return (finished - epoch * self._other.partitions) % (1 << 32) < 2 * FAR

    def let_go(self) -> bool:
        if self._other is not None:
            (epoch,) = self.peek(self._words, 1)
            write = self.endpoint.context.bounce.write
            write(self._other.words, WORD.pack((epoch + FAR) % (1 << 32)))
            write(self._words + WORD.size, WORD.pack((epoch * self._other.partitions + FAR) % (1 << 32)))
        return self.active
