"""Memory of other processes that this one has opened: each sender's bounce memory, and some allocations."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque

from mpi_bootstrap import node_identity

from ..backends import Device, Peer
from .envelope import Envelope, Sender

MAX_OPEN = 64  # allocations of other processes: an open one keeps its memory from its owner's other uses
_Key = tuple[bytes, int, int, int]  # uid of the sender, allocation, its identity, of a copy for one message its clock


class OpenedMemory:
    """Opens senders' memory, and closes allocations that were used longest ago.

    `uid` and `bounce` are this process's own, whose memory needs no opening.

    Attributes
    ----------
    bounces : dict of bytes to (int or None)
        The address here of each process's bounce memory that was to be opened, by its uid; None: it cannot be.
    is_full : bool
        Whether more is open than MAX_OPEN.
    """

    is_full = False

    def __init__(self, device: Device, uid: bytes, bounce: int) -> None:
        self._device, self._uid, self._node = device, uid, node_identity()
        self.bounces: dict[bytes, int | None] = {uid: bounce}
        self._memories: list[Peer] = []
        self._allocations: OrderedDict[_Key, Peer] = OrderedDict()
        self._in_use: Counter[_Key] = Counter()  # by kernels that have not been launched yet
        self.unused: deque[Envelope] = deque()  # to be released; appended to at any time, by destructors
        self._lock = threading.Lock()

    def bounce_address(self, sender: Sender) -> int | None:
        """Return the address here of a sender's bounce memory; None if it cannot be opened, which is tried once."""
        if sender.uid not in self.bounces:
            with self._lock:
                if sender.uid not in self.bounces:  # another thread has been faster
                    self.bounces[sender.uid] = self._open_bounce(sender)
        return self.bounces[sender.uid]

    def _open_bounce(self, sender: Sender) -> int | None:
        if sender.node != self._node or not sender.bounce_handle:
            return None
        try:
            memory = self._device.open_exported(sender.bounce_handle, sender.bounce_nbytes)
        except (OSError, RuntimeError):  # no such path, or the driver's refusal
            return None
        self._memories.append(memory)
        return memory.address

    def data_address(self, envelope: Envelope) -> int:
        """Return the address here of offered data, which stays open until `release` is called. Waits for nothing."""
        while self.unused:
            self.release(self.unused.popleft())
        if envelope.sender.uid == self._uid:
            return envelope.allocation + envelope.offset
        key = self._key(envelope)
        with self._lock:
            if key not in self._allocations:
                handle = envelope.handle.rstrip(b"\0")
                self._allocations[key] = self._device.open_exported(handle, envelope.allocation_nbytes)
                self.is_full = len(self._allocations) > MAX_OPEN
            self._allocations.move_to_end(key)
            self._in_use[key] += 1
            return self._allocations[key].address + envelope.offset

    def release(self, envelope: Envelope) -> None:
        """Let offered data be closed: its kernel has been launched or, where exports are copies, has ended."""
        if envelope.sender.uid == self._uid:
            return
        key = self._key(envelope)
        with self._lock:
            self._in_use[key] -= 1
            if not self._in_use[key]:
                del self._in_use[key]
            if self._device.exports_are_copies:
                self._allocations.pop(key).close()
                self.is_full = len(self._allocations) > MAX_OPEN

    def _key(self, envelope: Envelope) -> _Key:
        # If exports are copies, the next may have this address, and another thread may open it before this is closed.
        clock = envelope.clock if self._device.exports_are_copies else 0
        return envelope.sender.uid, envelope.allocation, envelope.identity, clock

    def make_room(self) -> None:
        """Close what was used longest ago, if more is open than MAX_OPEN.

        To close memory may wait for all that the device has to do, so only the program's thread does that, at the end
        of a receive: what its sender may wait for is launched by then. See also `Postbox.make_room`.
        """
        with self._lock:
            idle = [key for key in self._allocations if key not in self._in_use]
            closing = idle[: max(0, len(self._allocations) - MAX_OPEN)]
            memories = [self._allocations.pop(key) for key in closing]
            self.is_full = len(self._allocations) > MAX_OPEN
        if memories:
            self._device.synchronize()
        for memory in memories:
            memory.close()
