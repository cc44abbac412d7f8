"""The envelope: MPI matches and transfers it in place of a device array's data.

It contains the location of the data. The functions `received_spec` and `sent_spec` specify a message's memory for MPI:
a message may be longer than an int can count, or than the receive buffer.
"""

from __future__ import annotations

import functools
import operator
import struct
import zlib
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import mpi_bootstrap

from ..backends import Exported
from ..requests.host_receive import ENVELOPE_MAGIC
from ..system.process import PerProcess, held

# Transports: where the data is.
EMPTY = 0  # no data
EAGER = 1  # in a slot of the sender's bounce memory
OFFERED = 2  # in the sender's buffer, whose allocation the receiver opens
WINDOW = 3  # in the sender's buffer, in a window (`comm.Alloc`) that the receiver has mapped
INLINE = 4  # behind the envelope, in the same message of MPI

_SENDER = struct.Struct("=16s16s64sQ16s16s")  # the fields of `Sender`
_HEAD = struct.Struct("=16sI")  # ENVELOPE_MAGIC, checksum of the rest
# First the length of the envelope, the fields of `Envelope` up to `offset`, and the sender. Then the other fields.
_FIRST, _OTHERS = f"2H2Q2I2Q{_SENDER.size}s", "3Q64s4Q"
_FIELDS, _SHORT = struct.Struct(f"={_FIRST}{_OTHERS}"), struct.Struct(f"={_FIRST}24x")
_BEGIN, _REST = struct.Struct(f"{_HEAD.format}{_FIRST}"), struct.Struct(f"={_OTHERS}")
# Messages with envelopes are multiples of 32 bytes long, so that they are whole numbers of elements of any datatype.
# MPICH aborts if a message to the same process has a part of an element.
ENVELOPE_NBYTES = _HEAD.size + _FIELDS.size
# An envelope without the other fields. Open MPI sends up to 256 bytes at once; of a longer message, it completes the
# send when the receiver calls MPI.
SHORT_NBYTES = _HEAD.size + _SHORT.size
_LENGTHS = SHORT_NBYTES, ENVELOPE_NBYTES
# The lengths of messages with an envelope and data differ by multiples of this number. So few of the program's own
# messages have a length for which the receiver must look for an envelope.
STEP_NBYTES = 256
# Bytes between an envelope and its data in the sender's memory. They are not sent.
GAP_NBYTES = 64 - ENVELOPE_NBYTES % 64
# Longest message sent in one part. Open MPI does not overrun the receive buffer with it; see `two_part_datatype`.
_SHORT_NBYTES = 1 << 10
_MOST_KEPT = 64  # datatypes
_INT_MAX = (1 << 31) - 1
_BLOCK_NBYTES = 1 << 20
#: A communicator of this process only. Hold `LOCK` until messages sent on it have been matched.
ITSELF = PerProcess(lambda: mpi_bootstrap.same_ranks(MPI.COMM_SELF), lasting=True)
# Cached datatypes, by the length of the message.
_KEPT: dict[int, MPI.Datatype] = held({})


@dataclass(frozen=True)
class Sender:
    """The sending process; this description is the same in all its envelopes.

    Attributes
    ----------
    uid : bytes
        Identifies the process.
    node : bytes
        Identifies its node (`mpi_bootstrap.node_identity`). Memory can be shared inside a node only.
    bounce_handle : bytes
        Handle to open its bounce memory, which is `bounce_nbytes` long.
    socket : bytes
        Address of the socket that receives answers; see `peers.py`.
    token : bytes
        Proves that an answer is genuine.
    """

    uid: bytes
    node: bytes
    bounce_handle: bytes
    bounce_nbytes: int
    socket: bytes
    token: bytes

    @functools.cached_property
    def packed(self) -> bytes:
        """The fields as bytes of an envelope."""
        return _SENDER.pack(*astuple(self))


class Envelope(NamedTuple):
    """The description of one message.

    Attributes
    ----------
    transport : int
        EMPTY, EAGER, OFFERED, WINDOW or INLINE.
    clock : int
        Larger than the clocks of all messages that causally precede this one, and unique among its sender's messages.
    nbytes : int
        Length of the data.
    place : int
        Place of the message's ready word and done word in the bounce memory.
    source : int
        The sender's rank in the communicator of the message.
    answer : int
        If not 0, the receiver answers with this number once it has mapped the sender's bounce memory.
    offset : int
        Offset of the data in the bounce memory (EAGER), the allocation (OFFERED) or the window (WINDOW).
    allocation : int
        The allocation's address in the sender's process (OFFERED), or the window's number (WINDOW).
    identity : int
        Distinguishes the allocation from earlier ones at the same address (OFFERED).
    allocation_nbytes, handle : int, bytes
        Length of the allocation, and handle to open it (OFFERED).
    channel : int
        Number of a persistent request's channel in the process; 0: no channel. If the channel has slots, `allocation`
        to `handle` locate the slots, for every transport; otherwise they locate the buffer.
    channel_place : int
        Place of the channel's words in the bounce memory.
    channel_offset, channel_stride : int
        Offset of the channel's slots in the allocation, and the distance between them; 0: no slots.
    """

    sender: Sender
    transport: int
    clock: int
    nbytes: int
    place: int = 0
    source: int = 0
    answer: int = 0
    offset: int = 0
    allocation: int = 0
    identity: int = 0
    allocation_nbytes: int = 0
    handle: bytes = b""
    channel: int = 0
    channel_place: int = 0
    channel_offset: int = 0
    channel_stride: int = 0

    def located(self, exported: Exported) -> Envelope:
        """Return a copy that locates the data in exported memory."""
        return self._without_slots()._replace(
            offset=exported.offset,
            allocation=exported.address,
            identity=exported.identity,
            allocation_nbytes=exported.nbytes,
            handle=exported.handle,
        )

    def located_in_window(self, number: int, offset: int) -> Envelope:
        """Return a copy that locates the data in a window."""
        return self._without_slots()._replace(allocation=number, offset=offset)

    def located_as(self, other: Envelope) -> Envelope:
        """Return a copy with the location of another envelope."""
        return Envelope(*self[:7], *other[7:12], *self[12:])

    def _without_slots(self) -> Envelope:
        """Return a copy without the channel's slots, so that fields locate the data."""
        return self._replace(channel=0, channel_stride=0) if self.channel_stride else self

    @property
    def of_channel(self) -> Channel:
        """The fields from `allocation` on, which describe a channel."""
        return self[8:]

    @property
    def is_short(self) -> bool:
        """Whether `eager` packs it in SHORT_NBYTES."""
        return self.transport == EAGER and not self.channel

    def pack(self) -> bytes:
        """Return the ENVELOPE_NBYTES that MPI transfers."""
        packed = _FIELDS.pack(ENVELOPE_NBYTES, *self[1:8], self.sender.packed, *self[8:])
        return _HEAD.pack(ENVELOPE_MAGIC, zlib.crc32(packed)) + packed


def eager(
    sender: Sender, clock: int, nbytes: int, place: int, source: int, offset: int, channel: Channel | None = None
) -> bytes:
    """Pack the envelope of a message whose data is in a slot (most messages)."""
    if channel is None:
        packed = _SHORT.pack(SHORT_NBYTES, EAGER, clock, nbytes, place, source, 0, offset, sender.packed)
    else:
        packed = _FIELDS.pack(ENVELOPE_NBYTES, EAGER, clock, nbytes, place, source, 0, offset, sender.packed, *channel)
    return _HEAD.pack(ENVELOPE_MAGIC, zlib.crc32(packed)) + packed


#: Return sender and channel number of an envelope, which identify the channel.
channel_of: Callable[[Envelope], tuple[Sender, int]] = operator.attrgetter("sender", "channel")
#: The fields of an envelope from `allocation` on.
Channel = tuple[int, int, int, bytes, int, int, int, int]
_NO_CHANNEL: Channel = (0, 0, 0, b"", 0, 0, 0, 0)


def unpack(message: Any, nbytes: int) -> Envelope | None:
    """Return the envelope at the beginning of a message; None if it has none."""
    if nbytes < SHORT_NBYTES:
        return None
    magic, checksum, length, transport, clock, size, place, source, answer, offset, sender = _BEGIN.unpack_from(message)
    if magic != ENVELOPE_MAGIC or length not in _LENGTHS or length > nbytes:
        return None
    if checksum != zlib.crc32(message[_HEAD.size : length]):
        return None
    rest = _NO_CHANNEL if length == SHORT_NBYTES else _REST.unpack_from(message, _BEGIN.size)
    first = _unpack_sender(sender), transport, clock, size, place, source, answer, offset
    return tuple.__new__(Envelope, first + rest)


@functools.lru_cache
def _unpack_sender(packed: bytes) -> Sender:
    uid, node, bounce_handle, bounce_nbytes, socket, token = _SENDER.unpack(packed)
    return Sender(uid, node, bounce_handle.rstrip(b"\0"), bounce_nbytes, socket.rstrip(b"\0"), token)


def inline_nbytes(nbytes: int) -> int:
    """Return the length of an MPI message with an envelope and `nbytes` of data."""
    return ENVELOPE_NBYTES + -(-nbytes // STEP_NBYTES) * STEP_NBYTES


def may_be_envelope(nbytes: int) -> bool:
    """Return whether an MPI message of this length may begin with an envelope."""
    is_long = nbytes >= ENVELOPE_NBYTES and (nbytes - ENVELOPE_NBYTES) % STEP_NBYTES == 0
    return is_long or nbytes == SHORT_NBYTES


def received_spec(memory: memoryview) -> tuple[list[Any], MPI.Datatype | None]:
    """Return mpi4py's specification of memory for a message of any length.

    Free the second item, if not None, once MPI has begun the receive.
    """
    return _spec(memory, None if len(memory) <= _INT_MAX else two_part_datatype(len(memory), 0))


def sent_spec(message: Any) -> tuple[list[Any], MPI.Datatype | None]:
    """Return mpi4py's specification of a message to send.

    An array has a gap of `GAP_NBYTES` after the first `ENVELOPE_NBYTES`, which is not sent. Free the second item, if
    not None, once MPI has begun the send.
    """
    if isinstance(message, np.ndarray) and len(message) <= _SHORT_NBYTES:
        message = bytes(message[:ENVELOPE_NBYTES]) + bytes(message[ENVELOPE_NBYTES + GAP_NBYTES :])
    if not isinstance(message, np.ndarray):
        return _spec(message, None if len(message) <= _INT_MAX else two_part_datatype(len(message), 0))
    known = _kept_datatype(len(message))
    return _spec(message, two_part_datatype(len(message))) if known is None else ([message, 1, known], None)


def _spec(memory: Any, datatype: MPI.Datatype | None) -> tuple[list[Any], MPI.Datatype | None]:
    return [memory, MPI.BYTE] if datatype is None else [memory, 1, datatype], datatype


def _kept_datatype(nbytes: int) -> MPI.Datatype | None:
    """Return the cached datatype for this length; None if the cache is full."""
    if nbytes not in _KEPT and len(_KEPT) < _MOST_KEPT:
        _KEPT[nbytes] = two_part_datatype(nbytes)
    return _KEPT.get(nbytes)


def two_part_datatype(nbytes: int, gap_nbytes: int = GAP_NBYTES) -> MPI.Datatype:
    """Create the datatype of an envelope and its data in `nbytes` of memory.

    Open MPI 5.0 copies a contiguous message of more than 4 KiB (1 KiB to the same process) in one piece, even if the
    receive buffer is too short. It reports the error after it has overwritten the receiver's heap. A device array's
    message is longer than the array, so this would affect receives into host arrays of the array's length. A message in
    two parts is copied piece by piece, up to the end of the buffer.
    """
    begin = ENVELOPE_NBYTES + gap_nbytes
    blocks, rest = divmod(nbytes - begin, _BLOCK_NBYTES)
    block = MPI.BYTE.Create_contiguous(_BLOCK_NBYTES)
    whole = MPI.Datatype.Create_struct(
        [ENVELOPE_NBYTES, blocks, rest], [0, begin, nbytes - rest], [MPI.BYTE, block, MPI.BYTE]
    )
    block.Free()
    return whole.Commit()
