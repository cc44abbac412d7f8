"""The bounce memory of a process, which the receivers of its messages open:

    LeaseHeader x HEADERS | arrived words | ready words | done words | ends of channels | slots of SLOT_NBYTES

A message that kernels move holds one *place* from its send until its receiver has read it: a ready word and a done
word, and with the first SLOTS places a slot for the data. The host hands out only places whose last message is known
to be over. So no kernel ever waits for a place, and a nonblocking send never blocks a stream; when no place is free,
the data goes through MPI. The ends of channels have words of their own, see `channels.py`.
"""

from __future__ import annotations

import struct

from ..backends import Device, Exported
from ..requests.open_receives import LOCK
from .headers import HEADER_NBYTES, HEADERS, Headers
from .places import Places

NBYTES = 2 << 20  # of the whole
ARRIVED_WORDS = 8192  # count the blocks of receiving kernels: each stream has one, and some more for many messages
ENDS = 2048  # of channels
END_NBYTES = 32
PLACES = 640
SLOT_NBYTES = 32 << 10  # the longest message that is copied to a slot (not measured)
CLOCK = struct.Struct("=Q")  # a ready word or a done word
_ARRIVED = HEADERS * HEADER_NBYTES
READY = _ARRIVED + 4 * ARRIVED_WORDS  # where the ready words begin
TO_DONE = CLOCK.size * PLACES  # from a place's ready word to its done word
_ENDS = READY + 2 * TO_DONE
_SLOTS = -(-(_ENDS + END_NBYTES * ENDS) // 128) * 128
SLOTS = (NBYTES - _SLOTS) // SLOT_NBYTES


class BounceMemory:
    """The bounce memory, and what is handed out of it.

    Attributes
    ----------
    address : int
    handle : bytes
        By which other processes open it.
    slots, tickets : Places
        For messages that are copied to a slot, and for messages that stay in their buffers.
    slot_addresses : list of (int, int, int)
        Of each slot's ready word and of the slot, and where the slot begins in this memory; by their places.
    arrived : ArrivedWords
    headers : Headers
        One for each communicator.
    """

    def __init__(self, device: Device) -> None:
        self._device, self._memory = device, device.allocate_exported(NBYTES)
        self.address, self.handle = self._memory.address, self._memory.handle
        self.slots = Places(0, SLOTS, self.done_words)
        self.tickets = Places(SLOTS, PLACES - SLOTS, self.done_words)
        base = self.address
        offsets = map(slot_offset, range(SLOTS))
        self.slot_addresses = [(words_of(base, place)[0], base + at, at) for place, at in enumerate(offsets)]
        self.headers = Headers(device, self.address)
        self.arrived = ArrivedWords(device, self.address + _ARRIVED, self.address + READY)

    def done_words(self, first: int, number: int) -> tuple[int, ...]:
        """Return what receivers have written so far to the done words of `number` places."""
        _, done = words_of(self.address, first)
        return struct.unpack(f"={number}Q", self._device.peek(done, CLOCK.size * number))


class ArrivedWords(dict[tuple[int, int, int], int]):
    """Addresses of words that count receiving kernels' blocks: kernels of one stream share them.

    The keys are a stream's handle, the thread, for a per-thread stream has one handle in all threads, and a number of
    words.
    """

    def __init__(self, device: Device, begin: int, end: int) -> None:
        super().__init__()
        self._device, self._next, self._end = device, begin, end
        self._more: list[Exported] = []  # memory for more words

    def __missing__(self, key: tuple[int, int, int]) -> int:
        nbytes = 4 * key[-1]
        with LOCK:  # no two keys have one word
            if self._next + nbytes > self._end:
                self._allocate()
            words = self.setdefault(key, self._next)
            self._next += nbytes
            return words

    def _allocate(self) -> None:
        """Allocate more words: a kernel or a graph may use those that were handed out, at any time."""
        more = self._device.allocate_exported(4 * ARRIVED_WORDS)
        self._more.append(more)
        self._next, self._end = more.address, more.address + 4 * ARRIVED_WORDS


def words_of(base: int, place: int) -> tuple[int, int]:
    """Return the addresses of a place's ready word and done word in bounce memory that begins at `base`."""
    ready = base + READY + CLOCK.size * place
    return ready, ready + TO_DONE


def slot_offset(place: int) -> int:
    """Return where a place's slot begins in its bounce memory."""
    return _SLOTS + SLOT_NBYTES * place


def end_address(base: int, place: int) -> int:
    """Return where the words of a channel's end begin in bounce memory that begins at `base`."""
    return base + _ENDS + END_NBYTES * place
