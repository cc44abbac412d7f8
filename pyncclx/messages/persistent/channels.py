"""Channels, which transfer messages of persistent requests in graphs, without MPI.

Each persistent send has the sender's end, the *outlet*, which its envelopes describe. A persistent receive that matches
such an envelope creates the receiver's end, the *inlet*, and answers. From then on both requests may be captured, and
in graphs each is matched with the other.

Each end has a place in its process's bounce memory, with 32-bit words (cuda/messages/point_to_point.cu):

    outlet   ready | done, answer | times sent | times awaited      the other end reads `ready`, writes `done`, `answer`
    inlet    times received | blocks that have arrived

Short messages use two slots alternately; long messages are fetched from the sender's buffer.
"""

from __future__ import annotations

import itertools
import weakref
from typing import NamedTuple

from mpi4py import MPI

from mpi_bootstrap.own_errors import own_error

from ...errors import NotSupported
from ..arguments import AWAIT_MESSAGE, PULL_MESSAGE, PUT_MESSAGE, SIGNAL_MESSAGE
from ..endpoint import Endpoint
from ..envelope import EAGER, Envelope, channel_of
from ..memory.arena import ALIGNMENT
from ..memory.bounce import SLOT_NBYTES, end_address
from .starts import ChannelMessage, Message

_WORD_NBYTES = 8  # distance between words; kernels use 4 of the bytes
_ANSWER = (1).to_bytes(4, "little")

_numbers = itertools.count(1)


class _Words(NamedTuple):
    """Addresses of an outlet's words."""

    ready: int
    done: int
    sent: int
    awaited: int

    @classmethod
    def at(cls, address: int) -> _Words:
        return cls(*range(address, address + 4 * _WORD_NBYTES, _WORD_NBYTES))


class Outlet:
    """The sender's end of a channel.

    Attributes
    ----------
    number : int
        Number of the channel in this process.
    located : tuple
        The fields that describe the channel in envelopes of short messages.
    """

    def __init__(self, endpoint: Endpoint, nbytes: int, place: int) -> None:
        self._device, ends, arena = endpoint.device, endpoint.context.bounce.ends, endpoint.context.arena
        self.number, self._place, self._nbytes, self._answered = next(_numbers), place, nbytes, False
        self._words = _Words.at(ends.address(place))
        weakref.finalize(self, ends.give_back, place).atexit = False
        self._stride, self._slots = -(-nbytes // ALIGNMENT) * ALIGNMENT, None
        if 0 < nbytes <= SLOT_NBYTES:
            self._slots = arena.take(2 * self._stride)
            weakref.finalize(self, arena.give_back, self._slots).atexit = False
        self.located = self.described(Envelope(endpoint.context.sender, EAGER, 0, nbytes)).of_channel

    def described(self, envelope: Envelope) -> Envelope:
        """Return a copy of an envelope that also describes the channel."""
        slots, envelope = self._slots, envelope._replace(channel=self.number, channel_place=self._place)
        if slots is None:
            return envelope
        return envelope.located(slots.memory)._replace(channel_offset=slots.offset, channel_stride=self._stride)

    @property
    def is_answered(self) -> bool:
        """Whether a persistent receive has created the inlet."""
        if not self._answered:
            self._answered = self._device.peek(self._words.done + 4, len(_ANSWER)) == _ANSWER
        return self._answered

    def send(self, batch: list[Message], data: int, peer: int, tag: int) -> None:
        """Append to a batch the work that sends the data at an address."""
        ready, done, sent, awaited = self._words
        common = {"ready": ready, "done": done, "peer": peer, "tag": tag}
        if self._nbytes > SLOT_NBYTES:
            batch.append(ChannelMessage(SIGNAL_MESSAGE, **common, epoch=sent))
            batch.append(ChannelMessage(AWAIT_MESSAGE, **common, epoch=awaited))
            return
        slots = {"buffer": self._slots.address, "stride": self._stride} if self._slots is not None else {}
        batch.append(ChannelMessage(PUT_MESSAGE, **common, **slots, data=data, nbytes=self._nbytes, epoch=sent))


class Inlet:
    """The receiver's end of a channel that an envelope describes.

    Attributes
    ----------
    nbytes : int
        Length of each message.
    """

    def __init__(self, endpoint: Endpoint, bounce: int, envelope: Envelope, source: int, place: int) -> None:
        ends = endpoint.context.bounce.ends
        self.nbytes, self._stride, self._source = envelope.nbytes, envelope.channel_stride, source
        self._theirs, self._mine = _Words.at(end_address(bounce, envelope.channel_place)), ends.address(place)
        weakref.finalize(self, ends.give_back, place).atexit = False
        self._data = _opened(self, endpoint, envelope, source) if self.nbytes else 0
        self._continue(endpoint)
        self._answer(endpoint)

    def _continue(self, endpoint: Endpoint) -> None:
        """Continue the count of received messages from an earlier inlet of this channel."""
        device, stream = endpoint.device, endpoint.device.current_stream()
        received = bytearray(device.peek(self._theirs.done, 4))
        if any(received):
            device.copy(self._mine, MPI.Get_address(received), 4, stream)
            device.synchronize(stream)

    def _answer(self, endpoint: Endpoint) -> None:
        """Set the sender's answer word, on a stream that never waits for a peer."""
        answer = bytearray(_ANSWER)
        endpoint.device.copy(
            self._theirs.done + 4, MPI.Get_address(answer), len(answer), endpoint.context.host_array_stream
        )

    def receive(self, batch: list[Message], buffer: int, tag: int) -> None:
        """Append to a batch the work that receives the next message at an address."""
        words = {"ready": self._theirs.ready, "done": self._theirs.done}
        own = {"epoch": self._mine, "arrived": self._mine + _WORD_NBYTES}
        where = {"data": self._data, "stride": self._stride, "buffer": buffer, "nbytes": self.nbytes}
        batch.append(ChannelMessage(PULL_MESSAGE, **words, **own, **where, peer=self._source, tag=tag))


def _opened(inlet: Inlet, endpoint: Endpoint, envelope: Envelope, source: int) -> int:
    """Map a channel's data for the inlet's lifetime; return its local address."""
    if not envelope.channel_stride and not envelope.allocation_nbytes:
        assert endpoint.team is not None  # all ranks create windows together
        return endpoint.team.windows[envelope.allocation].bases[source] + envelope.offset
    located = envelope._replace(offset=envelope.channel_offset) if envelope.channel_stride else envelope
    opened = endpoint.context.opened
    address = opened.data_address(located)
    weakref.finalize(inlet, opened.unused.append, located).atexit = False
    return address


def outlet_of(endpoint: Endpoint, address: int, nbytes: int) -> Outlet | None:
    """Create the outlet of a persistent send; None if graphs cannot share its data."""
    device, team = endpoint.device, endpoint.team
    in_place = nbytes > SLOT_NBYTES and (team is None or team.windows.at(address) is None)
    if in_place and (device.exports_are_copies or device.allocation(address) is None):
        return None
    place = endpoint.context.bounce.ends.take()
    return None if place is None else Outlet(endpoint, nbytes, place)


def inlet_of(endpoint: Endpoint, envelope: Envelope, source: int) -> Inlet | None:
    """Return the receiver's end of the channel in a persistent send's envelope.

    If it is new, create it and answer the sender. Return None if the envelope names no channel, if no place in this
    process's bounce memory is free, or if the sender's memory cannot be mapped.
    """
    context = endpoint.context
    bounce = context.opened.bounce_address(envelope.sender) if envelope.channel else None
    if bounce is None:
        return None
    key = channel_of(envelope)
    inlet: Inlet | None = context.inlets.get(key)
    if inlet is not None:
        return inlet
    place = context.bounce.ends.take()
    if place is None:
        return None
    try:
        inlet = context.inlets[key] = Inlet(endpoint, bounce, envelope, source, place)
    except (OSError, RuntimeError) as error:
        if own_error(error) is None:
            raise
        return None
    return inlet


def unmatched(operation: str, why: str) -> NotSupported:
    """Return the exception for a request that cannot be captured."""
    return NotSupported(f"{operation}: in a graph a request meets the one that it met before, but {why}")
