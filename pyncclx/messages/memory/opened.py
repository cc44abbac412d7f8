"""Mapped memory of other processes, from which kernels fetch data."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

from mpi_bootstrap import node_identity
from mpi_bootstrap.own_errors import own_error

from ...backends import Device, Peer
from ...requests.open_receives import LOCK
from ...team.team import Team
from ..envelope import EMPTY, INLINE, OFFERED, WINDOW, Envelope, Sender
from .bounce import CLOCK, READY

#: `Endpoint`, whose module imports this one.
_Endpoint = Any

# Most open allocations of other processes. An owner's memory is not freed while it is open here.
MAX_OPEN = 64
# The sender's uid, the allocation, its identity, and the message's clock if the export is a copy for one message.
_Key = tuple[bytes, int, int, int]


class OpenedMemory:
    """Mapped memory of senders; the least recently used allocations are closed.

    `uid` and `bounce` are those of this process, whose own memory is not opened.

    Attributes
    ----------
    bounces : dict of bytes to (int or None)
        Address in this process of each sender's bounce memory, by its uid; None if it cannot be opened.
    is_full : bool
        Whether more than MAX_OPEN allocations are open.
    """

    is_full = False

    def __init__(self, device: Device, uid: bytes, bounce: int) -> None:
        self._device, self._uid, self._node = device, uid, node_identity()
        self.bounces: dict[bytes, int | None] = {uid: bounce}
        self._memories: list[Peer] = []
        self._allocations: OrderedDict[_Key, Peer] = OrderedDict()
        # For each allocation, a list with one item for each kernel that still has to be launched and will use it. A
        # counter would take two steps, between which a signal handler or destructor may run.
        self._in_use: dict[_Key, list[None]] = {}
        # Envelopes whose data is to be released. Destructors may append to it at any time.
        self.unused: deque[Envelope] = deque()

    def bounce_address(self, sender: Sender) -> int | None:
        """Return the address of a sender's bounce memory; None if it cannot be opened.

        Each sender's memory is tried once.
        """
        if sender.uid not in self.bounces:
            with LOCK:
                # Another thread may have opened it meanwhile.
                if sender.uid not in self.bounces:
                    self.bounces[sender.uid] = self._open_bounce(sender)
        return self.bounces[sender.uid]

    def _open_bounce(self, sender: Sender) -> int | None:
        if sender.node != self._node or not sender.bounce_handle:
            return None
        try:
            memory = self._device.open_exported(sender.bounce_handle, sender.bounce_nbytes)
        # The path does not exist, or the driver returns an error.
        except (OSError, RuntimeError) as error:
            if own_error(error) is None:
                raise
            return None
        self._memories.append(memory)
        return memory.address

    def data_address(self, envelope: Envelope) -> int:
        """Map offered data until `release`, without waiting; return its local address."""
        while self.unused:
            self.release(self.unused.popleft())
        if envelope.sender.uid == self._uid:
            return envelope.allocation + envelope.offset
        key = self._key(envelope)
        with LOCK:
            uses = self._in_use.setdefault(key, [])
            uses.append(None)
            try:
                if key not in self._allocations:
                    handle = envelope.handle.rstrip(b"\0")
                    self._allocations[key] = self._device.open_exported(handle, envelope.allocation_nbytes)
                    self.is_full = len(self._allocations) > MAX_OPEN
                self._allocations.move_to_end(key)
                return self._allocations[key].address + envelope.offset
            except BaseException:
                uses.pop()
                raise

    def release(self, envelope: Envelope) -> None:
        """Allow offered data to be closed, once its kernel has been launched.

        If exports are copies, call it only after the kernel has ended.
        """
        if envelope.sender.uid == self._uid:
            return
        key = self._key(envelope)
        # No lock: on the host device a stream's thread calls this, and who holds the lock may wait for that stream.
        self._in_use[key].pop()
        if self._device.exports_are_copies:
            del self._in_use[key]
            self._allocations.pop(key).close()
            self.is_full = len(self._allocations) > MAX_OPEN

    def _key(self, envelope: Envelope) -> _Key:
        # If exports are copies, another thread may open the next copy, at the same address, before this one is closed.
        clock = envelope.clock if self._device.exports_are_copies else 0
        return envelope.sender.uid, envelope.allocation, envelope.identity, clock

    def make_room(self) -> None:
        """Close the least recently used allocations while more than MAX_OPEN are open.

        Closing memory may wait for all work of the device. So only the program's thread does it, at the end of a
        receive, after kernels that the sender may wait for have been launched. See also `MessageContext.make_room`.
        """
        with LOCK:
            memories = []
            for key in list(self._allocations):
                if len(self._allocations) > MAX_OPEN and not self._in_use[key]:
                    del self._in_use[key]
                    memories.append(self._allocations.pop(key))
            self.is_full = len(self._allocations) > MAX_OPEN
        if memories:
            self._device.synchronize()
        for memory in memories:
            memory.close()


def address_of(endpoint: _Endpoint, envelope: Envelope, source: int) -> int:
    """Return the address in this process of data in a rank's window or offered memory."""
    if envelope.transport != WINDOW:
        opened: OpenedMemory = endpoint.context.opened
        return opened.data_address(envelope)
    # All ranks create windows together, so each has a team.
    team: Team = endpoint.team
    return team.windows[envelope.allocation].bases[source] + envelope.offset


def is_ready(endpoint: _Endpoint, envelope: Envelope) -> bool:
    """Return whether a long message's data is readable now; False for short messages."""
    return envelope.transport in (OFFERED, WINDOW) and can_read(endpoint, envelope)


def can_read(endpoint: _Endpoint, envelope: Envelope | None) -> bool:
    """Return whether a message's data can be read without waiting for its sender.

    If so, the sender's memory can also be opened without waiting. There is no envelope if MPI has received the data.
    """
    if envelope is None or envelope.transport in (EMPTY, INLINE):
        return True
    if envelope.transport == WINDOW:
        team = endpoint.team
        # The window is being created.
        if team is None or envelope.allocation not in team.windows.by_number:
            return False
    opened, sender = endpoint.context.opened, envelope.sender
    bounce = opened.bounces.get(sender.uid) or opened.bounce_address(sender)
    if bounce is None:
        return False
    ready = bounce + READY + CLOCK.size * envelope.place
    device: Device = endpoint.device
    return device.peek(ready, CLOCK.size) == CLOCK.pack(envelope.clock)
