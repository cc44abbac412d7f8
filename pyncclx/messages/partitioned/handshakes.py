"""The ends of partitioned messages, and the handshake messages of two ends.

The receiver's offer has the location of its memory; the sender answers. Both are on a board of the receiver
(`board.py`). MPI transfers only the location of the first board between two ranks; see `contacts.py`. So receives and
probes of the program do not match these messages.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any, NamedTuple

import mpi_bootstrap
from mpi_bootstrap.own_errors import own_error

from ...backends import Device, Exported
from ...errors import MPIError, NotSupported, PeerTimeout
from ...requests.open_receives import LOCK
from ..context import MessageContext
from ..envelope import EMPTY, ENVELOPE_NBYTES, Envelope, unpack
from ..memory.arena import Piece, Pieces
from .board import CONTENT_NBYTES, NBYTES, Note, OwnBoard, PeerBoard
from .contacts import LOCATION, REFUSAL, Contacts, freed

#: `PartitionedMessage`, whose module imports this one.
_End = Any
_BODY_NBYTES = CONTENT_NBYTES - ENVELOPE_NBYTES


class Key(NamedTuple):
    """The key of a handshake.

    It consists of the other rank, the tag, and the number of earlier requests with both.
    """

    rank: int
    tag: int
    number: int


class Offer(NamedTuple):
    """The receiver's offer: two envelopes, and its place on a board."""

    head: Envelope
    body: bytes
    board: PeerBoard
    note: Note


def refusal(operation: str, error_class: int, text: str) -> Exception | None:
    """Return the exception that an answer describes; None if the answer has no text.

    Parameters
    ----------
    operation : str
    error_class : int
        MPI's error class; 0 for NotSupported.
    text : str
    """
    if not text:
        return None
    return MPIError(error_class, f"{operation}: {text}") if error_class else NotSupported(f"{operation}: {text}")


class Handshakes:
    """The handshakes of a communicator's partitioned messages.

    On COMM_WORLD and COMM_SELF, this object is used after `free` too: another rank may not have called `free` yet, and
    its requests still need handshakes.

    Parameters
    ----------
    contacts : Contacts
    context : MessageContext
    device : Device
    rank : int
        This process's rank.
    """

    def __init__(self, contacts: Contacts, context: MessageContext, device: Device, rank: int) -> None:
        self._contacts, self._context, self._device, self._rank = contacts, context, device, rank
        self._numbers: Counter[tuple[bool, int, int]] = Counter()
        # This rank's boards for each sender, and the places of unanswered offers.
        self._boards: dict[int, list[OwnBoard]] = {}
        self._places: dict[Key, tuple[OwnBoard, int]] = {}
        self._pieces: Pieces | None = None
        # Boards of each receiver, and unanswered offers on them.
        self._opened: dict[int, list[PeerBoard]] = {}
        # For each rank, the last poll of open receives in which its boards were read.
        self._rounds: dict[int, int] = {}
        self._offers: dict[Key, Offer] = {}
        self._refused: dict[int, str] = {}

    def key(self, rank: int, tag: int, *, sends: bool) -> Key:
        """Return the key of a new request; both ends number their requests equally."""
        self._contacts.expect(rank)
        with LOCK:
            number = self._numbers[sends, rank, tag]
            self._numbers[sends, rank, tag] += 1
        return Key(rank, tag, number)

    # The receiver's end

    @mpi_bootstrap.interrupts_deferred()
    def offer(self, key: Key, head: Envelope, body: bytes) -> None:
        """Write an offer for the key's rank, unless it is already written.

        After an interrupt, call it again to continue.
        """
        head = head._replace(channel=key.number, channel_place=key.tag)
        with LOCK:
            boards = self._boards.setdefault(key.rank, [])
            if key not in self._places:
                board = next((each for each in boards if not each.is_full), None) or self._new_board(boards)
                self._places[key] = board, board.reserve()
            if boards[-1].piece is not None:
                self._announce(key.rank, *boards[-2:])
            board, slot = self._places[key]
            board.offer(slot, head.pack() + body)

    def _new_board(self, boards: list[OwnBoard]) -> OwnBoard:
        """Allocate a board for a sender."""
        if self._pieces is None:
            self._pieces = Pieces(self._context.arena)
            weakref.finalize(self, self._pieces.give_back).atexit = False
        piece = self._pieces.take(NBYTES, zeroed=True)
        board = OwnBoard(self._device, piece.address)
        board.piece = piece
        boards.append(board)
        return board

    def _announce(self, rank: int, *boards: OwnBoard) -> None:
        """Send the location of the last board: on the previous board, or by a message."""
        context, board = self._context, boards[-1]
        assert board.piece is not None
        location = located(Envelope(context.sender, EMPTY, context.clock.next(), NBYTES), board.piece)
        if len(boards) > 1:
            boards[0].link(location)
        else:
            self._contacts.send(rank, LOCATION, location)
        board.piece = None

    def answer(self, key: Key) -> tuple[int, str] | None:
        """Return error class and text of the answer; None before it arrives."""
        with LOCK:
            board, slot = self._places[key]
            content = board.answer(slot)
            head = None if content is None else unpack(content, ENVELOPE_NBYTES)
            if content is not None and head is not None:
                return head.place, _text(content[ENVELOPE_NBYTES:])
            refused = self._contacts.take(key.rank, REFUSAL)
            return None if refused is None else (0, _text(refused[1]))

    @mpi_bootstrap.interrupts_deferred()
    def forget(self, key: Key) -> None:
        """Free the place of an offer whose answer has been read."""
        with LOCK:
            if key in self._places:
                board, slot = self._places.pop(key)
                board.free(slot)

    # The sender's end

    def take(self, key: Key) -> Offer | None:
        """Return the offer of the other rank for this key; None before it arrives.

        Raise NotSupported if this rank cannot read the offer, and MPI.Exception (ERR_COMM) if it can no longer arrive.
        """
        with LOCK:
            try:
                if key not in self._offers:
                    self._read(key.rank)
            except NotSupported:
                # Another board may have the offer.
                if key not in self._offers:
                    raise
            if key not in self._offers and self._contacts.is_closed:
                raise freed()
            return self._offers.get(key)

    def _read(self, rank: int) -> None:
        """Store the new offers of a rank, once in each poll of all open receives."""
        if self._rounds.get(rank) == self._context.receives.round:
            return
        self._rounds[rank] = self._context.receives.round
        if rank not in self._opened:
            location = self._contacts.take(rank, LOCATION)
            if location is not None:
                self._open(rank, location[0])
        for board in self._opened.get(rank, [])[:]:
            # An interrupt may occur between any two of these statements.
            notes, following = board.look()
            for note in notes:
                head = unpack(note.content, ENVELOPE_NBYTES)
                assert head is not None
                key = Key(rank, head.channel_place, head.channel)
                self._offers[key] = Offer(head, note.content[ENVELOPE_NBYTES:], board, note)
                board.see(note)
            if following is not None and board is self._opened[rank][-1]:
                self._open(rank, following)

    @mpi_bootstrap.interrupts_deferred()
    def _open(self, rank: int, location: Envelope) -> None:
        """Open a board of a receiver; if that is impossible, send a refusal."""
        context, text = self._context, self._refused.get(rank, "")
        if text:
            raise NotSupported(text)
        if location.sender.node != context.sender.node:
            text = f"ranks {self._rank} and {rank} are on different nodes, between which no kernel sends partitions"
            text = f"{text}; use Send_init and Recv_init"
        else:
            try:
                address = context.opened.data_address(location)
                weakref.finalize(self, context.opened.unused.append, location).atexit = False
                self._opened.setdefault(rank, []).append(PeerBoard(self._device, address))
            except (OSError, RuntimeError) as error:
                text = f"rank {self._rank} cannot open the memory of rank {rank} ({error})"
        if text:
            head = Envelope(context.sender, EMPTY, context.clock.next(), 0)
            self._refused[rank] = text
            self._contacts.send(rank, REFUSAL, head, text.encode()[:_BODY_NBYTES])
            raise NotSupported(text)

    @mpi_bootstrap.interrupts_deferred()
    def reply(self, key: Key, offer: Offer, error_class: int, text: str) -> None:
        """Answer an offer, unless it is already answered.

        The receiver may already have reused the place of an answered offer.
        """
        context = self._context
        head = Envelope(context.sender, EMPTY, context.clock.next(), 0, error_class)
        with LOCK:
            if key not in self._offers:
                return
            offer.board.answer(offer.note, head.pack() + text.encode()[:_BODY_NBYTES])
            del self._offers[key]


def located(envelope: Envelope, piece: Piece) -> Envelope:
    """Return a copy of an envelope that locates a piece of this process's memory."""
    memory = piece.memory
    return envelope.located(Exported(memory.address, memory.nbytes, memory.handle, memory.identity, piece.offset))


def _text(body: bytes) -> str:
    return body.rstrip(b"\0").decode(errors="replace")


class PartitionedEnds:
    """The ends of a communicator's partitioned messages.

    Attributes
    ----------
    handshakes : Handshakes
        The handshakes in which two ends exchange addresses.
    """

    handshakes: Handshakes

    def __init__(self) -> None:
        self._ends: weakref.WeakSet[_End] = weakref.WeakSet()

    def add(self, end: _End) -> None:
        """Register a new end for the other methods; the garbage collector removes it."""
        self._ends.add(end)

    def are_active(self) -> bool:
        """Return whether any end has begun a round that has not ended."""
        return any(end.active for end in list(self._ends))

    def meet(self) -> None:
        """Wait until the ends of active messages have exchanged addresses.

        Errors are raised by the calls that wait for the messages, not here.
        """
        for end in list(self._ends):
            try:
                if end.active and not end.is_nobodys:
                    end.meet()
            except PeerTimeout:
                return
            except BaseException as error:
                if own_error(error) is None:
                    raise

    def let_go(self, rank: int) -> bool:
        """Release kernels that wait for a failed rank.

        Return whether any kernel may have waited.
        """
        waiting = [end.let_go() for end in list(self._ends) if end.peer == rank]
        return any(waiting)
