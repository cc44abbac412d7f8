"""The bounce memory of a process, which receivers of its messages map:

    LeaseHeader x HEADERS | arrived words | ready words | done words | ends of channels | slots of SLOT_NBYTES

A message that kernels move holds one *place* from its send until its receiver has read it. A place is a ready word and
a done word; the first SLOTS places also have a slot for data. The host assigns a place only after its last message is
complete. So no kernel waits for a place, and a nonblocking send never blocks a stream. If no place is free, MPI
transfers the data. The ends of channels have their own words; see `persistent/channels.py`.

If a message's peer has failed, or MPI has rejected the message, this process writes the words that the peer would have
written. Then kernels that wait for a failed rank return, and the place of a rejected message becomes free. The abort
word is not set, because kernels of messages between live ranks read the same error record and must continue.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

from ...backends import Device, Exported
from ...requests.open_receives import LOCK
from .headers import HEADER_NBYTES, HEADERS, Headers

# Number of offered messages between two sweeps. A sweep closes exports of messages that have ended, which may hold
# memory.
_SWEEP = 32
ENDS = 2048  # number of channel ends
END_NBYTES = 32
NBYTES = 2 << 20  # size of the bounce memory
# Block counters of receiving kernels. Each stream has one, and MOST_MESSAGES more if it runs batches.
ARRIVED_WORDS = 8192
PLACES = 640
SLOT_NBYTES = 32 << 10  # longest message that is copied to a slot (not measured)
CLOCK = struct.Struct("=Q")  # a ready word or a done word
_LAST = 0xFFFFFFFF  # the largest lower half of a clock
_ARRIVED = HEADERS * HEADER_NBYTES
READY = _ARRIVED + 4 * ARRIVED_WORDS  # offset of the ready words
TO_DONE = CLOCK.size * PLACES  # distance of a place's done word from its ready word
_ENDS = READY + 2 * TO_DONE
_SLOTS = -(-(_ENDS + END_NBYTES * ENDS) // 128) * 128
SLOTS = (NBYTES - _SLOTS) // SLOT_NBYTES


class SlotPool:
    """A range of places, and the messages that hold them. All threads may use it."""

    def __init__(self, first: int, number: int, done_words: Callable[[int, int], tuple[int, ...]]) -> None:
        self._first, self._number, self._done_words = first, number, done_words
        self._free = deque(range(first, first + number))
        # For each place in use: clock of its message, its export, number of the receiver.
        self._held: dict[int, tuple[int, Exported | None, int]] = {}

    def take(self, clock: int, number: int, exported: Exported | None = None) -> int | None:
        """Return a free place for a message to a rank; None if there is none.

        `exported` stays open until the message has ended.
        """
        with LOCK:
            if not self._free or (exported is not None and len(self._held) % _SWEEP == _SWEEP - 1):
                self._sweep()
            message = clock, exported, number
            # A signal handler or destructor may call this method inside this loop. So a place is held before it is
            # removed from the free ones, and belongs to the first message that holds it.
            while self._free:
                place = self._free[0]
                holder = self._held.setdefault(place, message)
                try:  # noqa: SIM105  `suppress` would be three Python calls
                    self._free.remove(place)
                except ValueError:
                    pass
                if holder is message:
                    return place
            return None

    def place_of(self, clock: int) -> int | None:
        """Return the place of the message with this clock; None if it has no place."""
        with LOCK:
            return next((place for place, held in self._held.copy().items() if held[0] == clock), None)

    def held_for(self, number: int) -> list[tuple[int, int]]:
        """Return place and clock of each unfinished message to a rank.

        `number` identifies the rank (`Peers.numbers`).
        """
        with LOCK:
            self._sweep()
            return [(place, clock) for place, (clock, _, each) in self._held.copy().items() if each == number]

    def _sweep(self) -> None:
        """Free the places whose messages have ended."""
        done = self._done_words(self._first, self._number)
        for place, held in self._held.copy().items():
            clock, exported, _ = held
            has_ended = done[place - self._first] == clock
            # No signal handler runs between this test and the deletion, because they call no function.
            if has_ended and place in self._held and self._held[place] is held:
                del self._held[place]
                self._free.append(place)
                if exported is not None:
                    exported.close()


class EndPool:
    """The places of channel ends, whose words begin at `address`."""

    def __init__(self, device: Device, address: int) -> None:
        self._device, self._address = device, address
        self._free = deque(range(ENDS))  # the least recently used first
        self._used: set[int] = set()

    def take(self) -> int | None:
        """Return the place of an end's words, cleared to zero; None if none is free."""
        if not self._free:
            return None
        place = self._free.popleft()
        # The words of an unused place are already zero; clearing them would make the host wait.
        if place in self._used:
            self._device.fill_zero(self.address(place), END_NBYTES)
        self._used.add(place)
        return place

    def address(self, place: int) -> int:
        """Return the address of the words at a place."""
        return self._address + END_NBYTES * place

    def give_back(self, place: int) -> None:
        """Add a place to the free ones."""
        self._free.append(place)


class BounceMemory:
    """The bounce memory of this process, and its free places and headers.

    Attributes
    ----------
    address : int
    handle : bytes
        Handle by which other processes map the memory.
    slots, tickets : SlotPool
        Places of messages that are copied to a slot, and of messages that are read from their buffers.
    ends : EndPool
        Places of channel ends.
    slot_addresses : list of (int, int, int)
        For each place with a slot: addresses of its ready word and of the slot, and the slot's offset in this memory.
    arrived : ArrivedWords
    headers : Headers
        One header for each communicator.
    pulled : dict of bytes to dict
        For each sender's uid and place, the clock of the last message for which this process launched a kernel.
    """

    def __init__(self, device: Device) -> None:
        self._device, self._memory = device, device.allocate_exported(NBYTES)
        self.address, self.handle = self._memory.address, self._memory.handle
        self.slots = SlotPool(0, SLOTS, self.done_words)
        self.tickets = SlotPool(SLOTS, PLACES - SLOTS, self.done_words)
        self.ends, base = EndPool(device, end_address(self.address, 0)), self.address
        offsets = map(slot_offset, range(SLOTS))
        self.slot_addresses = [(words_of(base, place)[0], base + at, at) for place, at in enumerate(offsets)]
        self.headers = Headers(device, self.address)
        self.arrived = ArrivedWords(device, self.address + _ARRIVED, self.address + READY)
        self.pulled: dict[bytes, dict[int, int]] = {}

    def done_words(self, first: int, number: int) -> tuple[int, ...]:
        """Return the current done words of `number` places, from place `first` on."""
        _, done = words_of(self.address, first)
        return struct.unpack(f"={number}Q", self._device.peek(done, CLOCK.size * number))

    def release_receives(self, uid: bytes, base: int) -> frozenset[int]:
        """Release kernels that wait for data of a failed sender, mapped at `base`.

        Return the clocks of messages whose data will never arrive.
        """
        pulled, (first, _) = dict(self.pulled.get(uid, {})), words_of(base, 0)
        words = struct.unpack(f"={PLACES}Q", self._device.peek(first, CLOCK.size * PLACES))
        broken = frozenset(clock for place, clock in pulled.items() if words[place] < clock)
        if broken:
            # Kernels wait for a clock that is no smaller and has an equal upper half.
            self.write(first, CLOCK.pack(max(pulled.values()) | _LAST) * PLACES)
        return broken

    def end_sends(self, number: int) -> None:
        """End the messages to a failed rank (`Peers.numbers`), as if it had read them."""
        for pool in (self.slots, self.tickets):
            for place, clock in pool.held_for(number):
                self._end(place, clock)

    def withdraw(self, clock: int) -> None:
        """Free the place, if any, of the unsent message with this clock."""
        for pool in (self.slots, self.tickets):
            place = pool.place_of(clock)
            if place is not None:
                self._end(place, clock)

    def _end(self, place: int, clock: int) -> None:
        _, done = words_of(self.address, place)
        self.write(done, CLOCK.pack(clock))

    def write(self, address: int, data: bytes) -> None:
        """Write to device memory now, without waiting for streams of the program."""
        with self._device.attached():
            self._device.poke(address, data)


class ArrivedWords(dict[tuple[int, int, int], int]):
    """Addresses of the 4-byte counters in which receiving kernels count their blocks.

    Kernels of one stream run one after the other, so they share the counters. A key is the stream's handle, the
    thread's identifier, and the number of counters. The thread is part of it because a per-thread stream has the same
    handle in all threads.
    """

    def __init__(self, device: Device, begin: int, end: int) -> None:
        super().__init__()
        self._device, self._next, self._end = device, begin, end
        self._more: list[Exported] = []  # memory for more words

    def __missing__(self, key: tuple[int, int, int]) -> int:
        nbytes = 4 * key[-1]
        with LOCK:
            if self._next + nbytes > self._end:
                self._allocate()
            words = self.setdefault(key, self._next)
            self._next += nbytes
            return words

    def _allocate(self) -> None:
        """Allocate more words; used words are never reclaimed, as graphs may run later."""
        more = self._device.allocate_exported(4 * ARRIVED_WORDS)
        self._more.append(more)
        self._next, self._end = more.address, more.address + 4 * ARRIVED_WORDS


def words_of(base: int, place: int) -> tuple[int, int]:
    """Return the addresses of a place's ready and done words in the memory at `base`."""
    ready = base + READY + CLOCK.size * place
    return ready, ready + TO_DONE


def slot_offset(place: int) -> int:
    """Return the offset of a place's slot in its bounce memory."""
    return _SLOTS + SLOT_NBYTES * place


def end_address(base: int, place: int) -> int:
    """Return the address of a channel end's words in bounce memory at `base`."""
    return base + _ENDS + END_NBYTES * place
