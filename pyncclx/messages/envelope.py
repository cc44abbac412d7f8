"""The envelope: what a device array's message is for MPI. It is matched in the data's place, and says where that is."""

from __future__ import annotations

import functools
import struct
from typing import Any, NamedTuple

from ..requests.host_receive import ENVELOPE_MAGIC

# How the data travels.
EMPTY = 0  # there is none
EAGER = 1  # it lies in a slot of the sender's bounce memory
OFFERED = 2  # it lies in the sender's buffer, in an allocation that the receiver opens
WINDOW = 3  # it lies in the sender's buffer, in a window (`comm.Alloc`) that the receiver has mapped
INLINE = 4  # it follows the envelope in the same message of MPI

HANDLE_NBYTES = 64  # of CUDA IPC; the host device's are shorter
_OWN = struct.Struct("=16s16s64sQ16s16s")
_MESSAGE = struct.Struct("=16s9Q64s")  # ENVELOPE_MAGIC, and an `Envelope`
_OWN_OFFSET = _MESSAGE.size
# A multiple of 32, as the lengths of all messages are: received as elements of any type, they are whole ones. MPICH
# ends the program where a message to the same process has a part of one.
ENVELOPE_NBYTES = _OWN_OFFSET + _OWN.size
_GRAIN = 256  # bytes by which the lengths of MPI's messages differ, so that few others have such a length


class Sender(NamedTuple):
    """The process that sends: the same in all its envelopes."""

    uid: bytes  # names the process
    node: bytes  # names the running operating system: memory can be shared below one only
    bounce_handle: bytes  # opens its bounce memory,
    bounce_nbytes: int
    socket: bytes  # where it hears who has opened that,
    token: bytes  # and how it knows that the answer is genuine

    def pack(self) -> bytes:
        """Pack it for `pack`."""
        return _OWN.pack(*self)


class Envelope(NamedTuple):
    """One message."""

    transport: int
    clock: int  # larger than that of every message that may have led to this one; never twice of one sender
    nbytes: int
    control: int  # which pair of words in the bounce memory belongs to it
    answer: int  # not 0: tell the sender, with this number, that its bounce memory has been opened
    offset: int  # EAGER: in the bounce memory; OFFERED: in the allocation; WINDOW: in the window
    allocation: int  # OFFERED: where it begins in the sender's process; WINDOW: its number
    identity: int  # OFFERED: tells it from what the sender had there earlier,
    allocation_nbytes: int
    handle: bytes  # and opens it


def inline_nbytes(nbytes: int) -> int:
    """The length of a message of MPI's with an envelope and `nbytes` of data."""
    return ENVELOPE_NBYTES + -(-nbytes // _GRAIN) * _GRAIN


def may_be_one(nbytes: int) -> bool:
    """Whether a message of MPI's of this length may begin with an envelope."""
    return nbytes >= ENVELOPE_NBYTES and (nbytes - ENVELOPE_NBYTES) % _GRAIN == 0


def pack(sender: bytes, *fields: Any) -> bytes:
    """An envelope; `sender` is what `Sender.pack` gave, the fields are those of `Envelope`."""
    return _MESSAGE.pack(ENVELOPE_MAGIC, *fields) + sender


def unpack(message: Any) -> tuple[Envelope, Sender] | None:
    """Read an envelope at the beginning of some bytes in memory; None if there is none."""
    if len(message) < ENVELOPE_NBYTES:
        return None
    magic, *fields = _MESSAGE.unpack_from(message)
    if magic != ENVELOPE_MAGIC:
        return None
    return Envelope(*fields), _unpack_sender(bytes(message[_OWN_OFFSET:ENVELOPE_NBYTES]))


@functools.lru_cache  # the same few processes send again and again
def _unpack_sender(packed: bytes) -> Sender:
    uid, node, bounce_handle, bounce_nbytes, socket, token = _OWN.unpack(packed)
    return Sender(uid, node, bounce_handle.rstrip(b"\0"), bounce_nbytes, socket.rstrip(b"\0"), token)
