"""The envelope: what MPI matches and transfers in place of a device array's data, and where the receiver finds that."""

from __future__ import annotations

import functools
import struct
import zlib
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

from ..backends import Exported
from ..requests.host_receive import ENVELOPE_MAGIC

# Transports: how the data travels.
EMPTY = 0  # there is none
EAGER = 1  # in a slot of the sender's bounce memory
OFFERED = 2  # in the sender's buffer, whose allocation the receiver opens
WINDOW = 3  # in the sender's buffer, in a window (`comm.Alloc`) that the receiver has mapped
INLINE = 4  # behind the envelope, in the same message of MPI
LETTER = 5  # not at all: see letters.py

_SENDER = struct.Struct("=16s16s64sQ16s16s")  # the fields of `Sender`
_HEAD = struct.Struct("=16sI")  # ENVELOPE_MAGIC, checksum of the fields
_FIELDS = struct.Struct(f"=I2Q2I5Q64s4Q{_SENDER.size}s")  # of `Envelope`
# A multiple of 32, as the lengths of all messages are, so that they are whole elements of any datatype. MPICH ends the
# program where a message to the same process has a part of one.
ENVELOPE_NBYTES = _HEAD.size + _FIELDS.size
STEP_NBYTES = 256  # by which the lengths of messages with data differ: few other messages have such a length
LETTER_NBYTES = ENVELOPE_NBYTES + 2 * STEP_NBYTES  # of a letter, see letters.py


@dataclass(frozen=True)
class Sender:
    """The sending process: the same in all its envelopes.

    Attributes
    ----------
    uid : bytes
        Identifies the process.
    node : bytes
        Identifies its node (`mpi_bootstrap.node_identity`): memory can be shared inside one only.
    bounce_handle : bytes
        Opens its bounce memory, of `bounce_nbytes`.
    socket : bytes
        Address of the socket that receives answers, see `readers.py`.
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
        """As in an envelope."""
        return _SENDER.pack(*astuple(self))


class Envelope(NamedTuple):
    """Description of one message.

    Attributes
    ----------
    transport : int
        EMPTY, EAGER, OFFERED, WINDOW, INLINE or LETTER.
    clock : int
        Larger than that of every message that may have led to this one; unique among those of its sender.
    nbytes : int
        Of the data.
    place : int
        In the bounce memory: that of the message's ready word and done word.
    source : int
        The sender's rank in the communicator of the message.
    answer : int
        Not 0: answer the sender with this number once its bounce memory is open.
    offset : int
        Of the data: in the bounce memory (EAGER), the allocation (OFFERED) or the window (WINDOW).
    allocation : int
        The allocation's address in the sender's process (OFFERED), or the window's number (WINDOW).
    identity : int
        Distinguishes the allocation from earlier ones at the same address (OFFERED).
    allocation_nbytes, handle : int, bytes
        What opens the allocation (OFFERED).
    channel : int
        Not 0: a persistent request sends this, and graphs may send more by this channel of the process. Of a channel
        with slots, `allocation` to `handle` locate these, whatever the transport is; of one without, the buffer.
    channel_place : int
        In the bounce memory: that of its words.
    channel_offset, channel_stride : int
        Of its slots in the allocation, and from one to the other; 0: it has none.
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
        """Return one that says where the data is: in memory that other processes can open."""
        return self._without_slots()._replace(
            offset=exported.offset,
            allocation=exported.address,
            identity=exported.identity,
            allocation_nbytes=exported.nbytes,
            handle=exported.handle,
        )

    def located_in_window(self, number: int, offset: int) -> Envelope:
        """Return one that says where the data is: in a window."""
        return self._without_slots()._replace(allocation=number, offset=offset)

    def located_as(self, other: Envelope) -> Envelope:
        """Return one that describes the same place as another envelope does."""
        return Envelope(*self[:7], *other[7:12], *self[12:])

    def _without_slots(self) -> Envelope:
        """Leave out a channel whose slots the same fields would describe."""
        return self._replace(channel=0, channel_stride=0) if self.channel_stride else self

    @property
    def of_channel(self) -> Channel:
        """The fields from `allocation` on."""
        return self[8:]

    def pack(self) -> bytes:
        """Return the ENVELOPE_NBYTES that MPI transfers."""
        packed = _FIELDS.pack(*self[1:], self.sender.packed)
        return _HEAD.pack(ENVELOPE_MAGIC, zlib.crc32(packed)) + packed


def eager(
    sender: Sender, clock: int, nbytes: int, place: int, source: int, offset: int, channel: Channel | None = None
) -> bytes:
    """Pack the envelope of a message whose data is in a slot, as that of most messages."""
    rest = _NO_CHANNEL if channel is None else channel
    packed = _FIELDS.pack(EAGER, clock, nbytes, place, source, 0, offset, *rest, sender.packed)
    return _HEAD.pack(ENVELOPE_MAGIC, zlib.crc32(packed)) + packed


#: The fields of an envelope from `allocation` on.
Channel = tuple[int, int, int, bytes, int, int, int, int]
_NO_CHANNEL: Channel = (0, 0, 0, b"", 0, 0, 0, 0)


def unpack(message: Any, nbytes: int) -> Envelope | None:
    """Read the envelope at the beginning of a message of `nbytes`; None if there is none, or a part of it."""
    if nbytes < ENVELOPE_NBYTES:
        return None
    magic, checksum = _HEAD.unpack_from(message)
    if magic != ENVELOPE_MAGIC or checksum != zlib.crc32(message[_HEAD.size : ENVELOPE_NBYTES]):
        return None
    fields = _FIELDS.unpack_from(message, _HEAD.size)  # the sender comes last
    return tuple.__new__(Envelope, (_unpack_sender(fields[-1]), *fields[:-1]))


@functools.lru_cache  # the same few processes send again and again
def _unpack_sender(packed: bytes) -> Sender:
    uid, node, bounce_handle, bounce_nbytes, socket, token = _SENDER.unpack(packed)
    return Sender(uid, node, bounce_handle.rstrip(b"\0"), bounce_nbytes, socket.rstrip(b"\0"), token)


def inline_nbytes(nbytes: int) -> int:
    """Length of a message of MPI's with an envelope and `nbytes` of data."""
    return ENVELOPE_NBYTES + -(-nbytes // STEP_NBYTES) * STEP_NBYTES


def may_be_envelope(nbytes: int) -> bool:
    """Whether a message of MPI's of this length may begin with an envelope."""
    return nbytes >= ENVELOPE_NBYTES and (nbytes - ENVELOPE_NBYTES) % STEP_NBYTES == 0
