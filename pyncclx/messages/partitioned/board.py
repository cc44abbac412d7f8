"""A board: a receiver's offers to one sender of partitioned messages.

A board is memory that the sender opens. The receiver writes an offer into a free slot, and the sender overwrites it
with an answer. Neither needs a message of MPI or a call of the other rank. Each slot has two words, which are written
after the slot's bytes: the receiver writes the number of its last offer, the sender the number of the offer that it has
answered.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from ...backends import Device
from ..envelope import ENVELOPE_NBYTES, Envelope, unpack
from ..memory.arena import Piece

_SLOTS = 32  # one more offer needs another board
_WORD, _WORDS = struct.Struct("=I"), struct.Struct(f"={_SLOTS}I")
_HEAD = struct.Struct("=II")  # checksum of the rest of the slot, which begins with the number of the offer
#: Most bytes of an offer or an answer, which is two envelopes, or an envelope and a text.
CONTENT_NBYTES = ENVELOPE_NBYTES + 512
_SLOT_NBYTES = _HEAD.size + CONTENT_NBYTES
_ANSWERS_AT, _NEXT_AT = _WORDS.size, 2 * _WORDS.size
_SLOTS_AT = _NEXT_AT + ENVELOPE_NBYTES
#: Length of a board.
NBYTES = _SLOTS_AT + _SLOTS * _SLOT_NBYTES


class _Board:
    """A board at an address of this process."""

    def __init__(self, device: Device, address: int) -> None:
        self._device, self._address = device, address
        self._numbers = [0] * _SLOTS  # numbers of the last offers that were read

    def _write(self, slot: int, content: bytes, words_at: int) -> None:
        """Write into a slot, then the number of its offer into its word."""
        number = _WORD.pack(self._numbers[slot])
        rest = number + content.ljust(CONTENT_NBYTES, b"\0")
        self._device.poke(self._slot(slot), _WORD.pack(zlib.crc32(rest)) + rest)
        self._device.poke(self._address + words_at + _WORD.size * slot, number)

    def _read(self, slot: int, number: int) -> bytes | None:
        """Return the content of a slot; None while it is being written."""
        data = self._device.peek(self._slot(slot), _SLOT_NBYTES)
        checksum, found = _HEAD.unpack_from(data)
        is_whole = found == number and checksum == zlib.crc32(data[_WORD.size :])
        return data[_HEAD.size :] if is_whole else None

    def _slot(self, slot: int) -> int:
        return self._address + _SLOTS_AT + _SLOT_NBYTES * slot


class OwnBoard(_Board):
    """The receiver's side of a board, in which it offers receives to one sender.

    Its memory must be zeroed before the first use.

    Attributes
    ----------
    piece : Piece or None
        The board's memory; None after its location has been sent to the sender.
    """

    piece: Piece | None = None

    def __init__(self, device: Device, address: int) -> None:
        super().__init__(device, address)
        self._free = list(range(_SLOTS))

    @property
    def is_full(self) -> bool:
        """Whether no slot is free."""
        return not self._free

    def reserve(self) -> int:
        """Return a slot for an offer."""
        slot = self._free.pop()
        self._numbers[slot] += 1
        return slot

    def offer(self, slot: int, content: bytes) -> None:
        """Write an offer into its slot, unless it is already written.

        Writing it again could overwrite the sender's answer.
        """
        if self._word(slot, 0) != self._numbers[slot]:
            self._write(slot, content, 0)

    def answer(self, slot: int) -> bytes | None:
        """Return the answer to an offer; None before it arrives."""
        number = self._word(slot, _ANSWERS_AT)
        return self._read(slot, number) if number == self._numbers[slot] else None

    def _word(self, slot: int, words_at: int) -> int:
        (word,) = _WORD.unpack(self._device.peek(self._address + words_at + _WORD.size * slot, _WORD.size))
        return int(word)

    def free(self, slot: int) -> None:
        """Make a slot free for another offer."""
        self._free.append(slot)

    def link(self, following: Envelope) -> None:
        """Write the location of the next board."""
        self._device.poke(self._address + _NEXT_AT, following.pack())


class Note(NamedTuple):
    """An offer on another rank's board."""

    slot: int
    number: int
    content: bytes


class PeerBoard(_Board):
    """The sender's view of a board."""

    def look(self) -> tuple[list[Note], Envelope | None]:
        """Return unread offers, and the location of the next board."""
        words, notes = self._device.peek(self._address, _SLOTS_AT), []
        for slot, number in enumerate(_WORDS.unpack_from(words)):
            content = self._read(slot, number) if number != self._numbers[slot] else None
            if content is not None:
                notes.append(Note(slot, number, content))
        return notes, unpack(words[_NEXT_AT:], ENVELOPE_NBYTES)

    def see(self, note: Note) -> None:
        """Mark an offer as read, so that `look` omits it."""
        self._numbers[note.slot] = note.number

    def answer(self, note: Note, content: bytes) -> None:
        """Overwrite an offer with its answer."""
        self.see(note)
        self._write(note.slot, content, _ANSWERS_AT)
