"""Which processes can read this one's memory, and whose memory this one has opened.

Nobody meets to set this up. The first messages to a rank carry their data through MPI and ask for an answer; the
receiver opens the sender's bounce memory and, if that works, says so by a datagram to the sender's socket. From then
on the sender leaves data where it is. A rank on another node, or in a container that cannot open the memory, never
answers, and its messages go on through MPI.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections import Counter, OrderedDict
from pathlib import Path

from ..backends import Device, Peer
from .envelope import Envelope, Sender

_ANSWER = struct.Struct("=16sQ")  # token, Envelope.answer
_TOKEN_NBYTES = 16
_Key = tuple[bytes, int, int]  # sender, allocation, and of a copy for one message its clock
MOST_OPEN = 64  # allocations of other processes: an open one keeps its memory from its owner's other uses


def this_node() -> bytes:
    """16 bytes that name the running operating system."""
    return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))


class Readers:
    """The ranks that have opened this process's bounce memory, by numbers that the sender gives them."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(b"")  # the kernel picks a free abstract name
        self.name: bytes = self._socket.getsockname()
        self.token = os.urandom(_TOKEN_NBYTES)
        self._known: set[int] = set()

    def add(self, number: int) -> None:
        """Count a rank in, this process itself for one."""
        self._known.add(number)

    def has(self, number: int) -> bool:
        """Whether a rank is known to have opened it by now."""
        return number in self._known or (self._read_answers() and number in self._known)

    def _read_answers(self) -> bool:
        before = len(self._known)
        with contextlib.suppress(BlockingIOError):
            while True:
                answer = self._socket.recv(_ANSWER.size)
                if len(answer) == _ANSWER.size and answer.startswith(self.token):
                    self._known.add(_ANSWER.unpack(answer)[1])
        return len(self._known) > before

    def answer(self, sender: Sender, number: int) -> None:
        """Tell a sender that this process has opened its bounce memory. It asks again if the answer is lost."""
        with contextlib.suppress(OSError):
            self._socket.sendto(_ANSWER.pack(sender.token, number), sender.socket)


class Opened:
    """Memory of other processes that this one has opened: each bounce memory, and some allocations."""

    def __init__(self, device: Device, uid: bytes, bounce: int) -> None:
        self._device, self._uid, self._node = device, uid, this_node()
        self._own_bounce = bounce
        self._bounces: dict[bytes, Peer | None] = {}
        self._allocations: OrderedDict[_Key, tuple[int, Peer]] = OrderedDict()
        self._wanted: Counter[_Key] = Counter()  # by kernels that have not been launched yet
        self._lock = threading.Lock()

    def bounce(self, sender: Sender) -> int | None:
        """Address in this process of a sender's bounce memory; None if it cannot be opened, which is tried once."""
        if sender.uid == self._uid:
            return self._own_bounce
        with self._lock:
            if sender.uid not in self._bounces:
                self._bounces[sender.uid] = self._open_bounce(sender)
            memory = self._bounces[sender.uid]
        return None if memory is None else memory.address

    def _open_bounce(self, sender: Sender) -> Peer | None:
        if sender.node != self._node or not sender.bounce_handle:
            return None
        try:
            return self._device.open_exported(sender.bounce_handle, sender.bounce_nbytes)
        except (OSError, RuntimeError):  # no such path, or the driver's refusal
            return None

    def opens_at_once(self, envelope: Envelope, sender: Sender) -> bool:
        """Whether `data` closes nothing: that may wait for all that the device has to do."""
        with self._lock:
            known = self._allocations.get(self._key(envelope, sender))
            return len(self._allocations) < MOST_OPEN if known is None else known[0] == envelope.identity

    def data(self, envelope: Envelope, sender: Sender) -> int:
        """Address in this process of data that was offered; it stays open until its kernel is `launched`."""
        if sender.uid == self._uid:
            return envelope.allocation + envelope.offset
        key = self._key(envelope, sender)
        if key not in self._allocations:
            self._make_room()
        with self._lock:
            if key in self._allocations and self._allocations[key][0] != envelope.identity:
                self._allocations.pop(key)[1].close()  # the sender has freed it, and has something else there
            if key not in self._allocations:
                memory = self._device.open_exported(envelope.handle.rstrip(b"\0"), envelope.allocation_nbytes)
                self._allocations[key] = (envelope.identity, memory)
            self._allocations.move_to_end(key)
            self._wanted[key] += 1
            return self._allocations[key][1].address + envelope.offset

    def launched(self, envelope: Envelope, sender: Sender) -> None:
        """The kernel that reads what was offered has been launched; where exports are copies it is over, too."""
        if sender.uid == self._uid:
            return
        key = self._key(envelope, sender)
        with self._lock:
            self._wanted[key] -= 1
            if not self._wanted[key]:
                del self._wanted[key]
            if self._device.exports_are_copies:
                self._allocations.pop(key)[1].close()

    def _key(self, envelope: Envelope, sender: Sender) -> _Key:
        # The next copy may be at this address, and known to another thread, before this one is closed.
        return sender.uid, envelope.allocation, envelope.clock if self._device.exports_are_copies else 0

    def _make_room(self) -> None:
        """Close what was used longest ago, if it is too much."""
        with self._lock:
            idle = [key for key in self._allocations if key not in self._wanted]
            closing = idle[: max(0, len(self._allocations) + 1 - MOST_OPEN)]
            memories = [self._allocations.pop(key)[1] for key in closing]
        if memories:
            self._device.synchronize()
        for memory in memories:
            memory.close()
