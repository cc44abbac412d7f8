"""What a process has for messages: its bounce memory and who uses which part, its clock, the receives it awaits.

The bounce memory, which the receivers of this process's messages open:

    LeaseHeader x HEADERS | arrived | ready words | done words | slots of SLOT_NBYTES

A message that moves by kernels holds one *place* from its send until its receiver has read it: a ready and a done
word, and with the first SLOTS places a slot for the data. Places are given out by the host, and only those whose
last message is known to be over. So no kernel ever waits for a place, and a nonblocking send never blocks a stream;
where no place is free the data goes through MPI.

Each message carries the sender's *clock*, a number above that of all messages the process has sent or seen arrive
(Lamport 1978). Kernels that receive are launched in its order, which is what keeps streams from waiting for each
other in a circle: data that was sent can only wait, on its sender's stream, for messages of smaller clock. Those
that the watcher launches wait for nobody.
"""

from __future__ import annotations

import struct
import threading
import uuid
from collections import deque
from typing import Any

import numpy as np
from mpi4py import MPI

from ..backends import Device, Watch
from ..launch import kernels
from ..requests.open_receives import LOCK
from .envelope import Sender
from .peers import Opened, Readers, this_node
from .places import Places
from .progress import ReceiveProgress

NBYTES = 2 << 20  # of the bounce memory
HEADERS, HEADER_NBYTES = 128, 128  # communicators that have sent or received; sizeof(LeaseHeader)
STREAMS = 1024  # that have received: each has a word to count the blocks of a kernel
PLACES = 640
SLOT_NBYTES = 32 << 10  # the longest message that is copied
_ARRIVED = HEADERS * HEADER_NBYTES
_READY = _ARRIVED + 4 * STREAMS
_DONE = _READY + 8 * PLACES
_SLOTS = -(-(_DONE + 8 * PLACES) // 128) * 128
SLOTS = (NBYTES - _SLOTS) // SLOT_NBYTES
SCRATCH_NBYTES = 1 << 20  # of host memory for what MPI receives
MOST_EXTRA_NBYTES = 64 << 20  # room for messages that are longer than they should be


def host_memory(nbytes: int) -> memoryview:
    """Memory for what MPI receives. A view costs less to slice and to read than an array."""
    return np.empty(nbytes, np.uint8).data


class Postbox(ReceiveProgress):
    """The process's end of all its messages.

    Attributes
    ----------
    side : stream
        Where receives go on whose own streams may wait for peers.
    beside : stream
        Where data comes to host arrays, one after the other.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.functions = kernels.load_alone(device, "messages/point_to_point.cu")
        self.memory = device.allocate_exported(NBYTES)
        self.uid = uuid.uuid4().bytes
        self.readers = Readers()
        self.readers.add(MPI.COMM_WORLD.rank)
        self.opened = Opened(device, self.uid, self.memory.address)
        sender = Sender(self.uid, this_node(), self.memory.handle, NBYTES, self.readers.name, self.readers.token)
        self.sender = sender.pack()
        self.slots = Places(0, SLOTS, self.done_words)
        self.tickets = Places(SLOTS, PLACES - SLOTS, self.done_words)
        self.headers = deque(range(HEADERS))
        self.retired: deque[tuple[int, Watch]] = deque()  # of endpoints that are gone; late kernels may still use them
        self.clock = 0
        self._words: dict[tuple[int, int], int] = {}  # of streams and threads: where they are
        self._scratch: list[memoryview] = []
        self._sent: deque[tuple[MPI.Request, Any]] = deque()  # messages that MPI has not finished, and their memory
        self.side, self.beside = device.new_stream(), device.new_stream()

    # Places

    def next_clock(self) -> int:
        """The clock of a message that is sent now."""
        with LOCK:
            self.clock += 1
            return self.clock

    def observe_clock(self, clock: int) -> None:
        """A message with this clock has come: what is sent from now on may follow from it."""
        if clock > self.clock:  # else it is above already, and never goes back
            with LOCK:
                self.clock = max(self.clock, clock)

    @staticmethod
    def words_of(place: int, base: int) -> tuple[int, int]:
        """Addresses of a place's ready word and done word in bounce memory that begins at `base`."""
        return base + _READY + 8 * place, base + _DONE + 8 * place

    @staticmethod
    def slot_offset(place: int) -> int:
        """Where the slot of a place begins."""
        return _SLOTS + SLOT_NBYTES * place

    def done_words(self, first: int, number: int) -> tuple[int, ...]:
        """What receivers have written to the done words of some places by now."""
        _, done = self.words_of(first, self.memory.address)
        return struct.unpack(f"={number}Q", self.device.peek(done, 8 * number))

    def reclaim(self) -> None:
        """Let others have what endpoints had that are gone."""
        with LOCK:
            number = len(self.retired)
            if number:
                self.device.synchronize()
            for _ in range(number):
                header, watch = self.retired.popleft()
                self.headers.append(header)
                watch.close()

    def arrived_word(self, stream: Any) -> int:
        """Address of the word that counts a receiving kernel's blocks: kernels of one stream share it."""
        key = (getattr(stream, "ptr", 0), threading.get_ident())  # a per-thread stream has one name in all threads
        word = self._words.get(key)
        return self._new_word(key) if word is None else word

    def _new_word(self, key: tuple[int, int]) -> int:
        with LOCK:  # no two keys have one word
            if len(self._words) == STREAMS:
                self.device.synchronize()
                self._words.clear()
            return self._words.setdefault(key, self.memory.address + _ARRIVED + 4 * len(self._words))

    def keep(self, request: MPI.Request, message: Any) -> None:
        """Keep a message that nobody waits for until MPI has sent it."""
        with LOCK:
            if not request.Test():
                self._sent.append((request, message))
            while self._sent and self._sent[0][0].Test():
                self._sent.popleft()

    # Host memory

    def scratch(self, nbytes: int) -> memoryview:
        """Room for a message that may bring its data, and for a much longer one than it should be.

        That one is then refused by us. Open MPI 5.0 writes all of it when it refuses it, past the end of the
        receiver's buffer. What nobody writes takes no memory.
        """
        if 2 * nbytes > SCRATCH_NBYTES:
            return host_memory(nbytes + min(nbytes, MOST_EXTRA_NBYTES))
        try:
            return self._scratch.pop()
        except IndexError:
            return host_memory(SCRATCH_NBYTES)

    def give_back(self, scratch: memoryview) -> None:
        """Use it for another message."""
        if len(scratch) == SCRATCH_NBYTES:
            self._scratch.append(scratch)


_postbox: Postbox | None = None
_making = threading.Lock()


def process_postbox(device: Device) -> Postbox:
    """The postbox of this process, made at the first message."""
    global _postbox
    with _making:
        if _postbox is None:
            _postbox = Postbox(device)
        return _postbox


def memory_held() -> int:
    """Bytes of bounce memory."""
    return 0 if _postbox is None else NBYTES
