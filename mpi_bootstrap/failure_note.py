"""Notes on a process's page (`presence.py`) that a communicator has failed."""

import struct
import zlib
from typing import NamedTuple

RECORD = struct.Struct("=I16s12s2i4q40s")  # checksum, then the fields of a `Note`


class Note(NamedTuple):
    """A process's note on its page that a communicator has failed.

    Attributes
    ----------
    group : bytes
        Name of the communicator's device side, 16 bytes, the same on all ranks.
    kind : str
        The reason, in a word of at most 12 letters.
    rank, peer : int
        The rank that wrote the note, and the one that it waited for; -1: none.
    epoch, expected, seen : int
        The wait's epoch, the value that it expected, and the value that it last read.
    when_ns : int
        Time on the node's monotonic clock.
    operation : str
    """

    group: bytes
    kind: str
    rank: int
    peer: int
    epoch: int
    expected: int
    seen: int
    when_ns: int
    operation: str

    def pack(self) -> bytes:
        """Return the note as bytes with a checksum, as a page holds it."""
        group, kind, *numbers, operation = self
        body = RECORD.pack(0, group, kind.encode(), *numbers, operation.encode()[:40])[4:]
        return struct.pack("=I", zlib.crc32(body)) + body

    @classmethod
    def unpack(cls, data: bytes) -> "Note | None":
        """Return the note from bytes of a page; None while it is being written."""
        checksum, group, kind, rank, peer, epoch, expected, seen, when_ns, operation = RECORD.unpack(data)
        if checksum != zlib.crc32(data[4:]):
            return None
        return cls(group, text_of(kind), rank, peer, epoch, expected, seen, when_ns, text_of(operation))


def text_of(field: bytes) -> str:
    """Return the text of a field that is filled with zeros."""
    return field.rstrip(b"\0").decode(errors="replace")
