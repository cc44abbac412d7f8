"""The text and the hash of a call, which kernels compare among ranks (twin of `Called` in cuda/protocol/layout.cuh)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from zlib import crc32

TEXT_NBYTES = 56
_DIGEST = "~{:08x}"  # ends a text that is cut
_FORM = struct.Struct(f"=Q{TEXT_NBYTES}s")
NBYTES = _FORM.size
NONE = bytes(NBYTES)  # of kernels that are no collective operations


def describe(operation: str, signature: Iterable[object]) -> str:
    """Return an operation with what must be equal on all ranks, but for what is left to its default (None)."""
    return f"{operation}({', '.join([str(each) for each in signature if each is not None])})"


def pack_call(text: str) -> bytes:
    """Return the `Called` of a text; one that is too long is cut, and ends with its digest."""
    data = text.encode()
    if len(data) > TEXT_NBYTES:
        digest = _DIGEST.format(crc32(data)).encode()
        data = data[: TEXT_NBYTES - len(digest)] + digest
    return _FORM.pack(crc32(data), data)


def on_record(text: str, epoch: int) -> bytes:
    """Return the `Called` of a text as it is in a lease, for operation `epoch`."""
    packed = pack_call(text)
    (mark,) = struct.unpack_from("=Q", packed)
    return struct.pack("=Q", epoch << 32 | mark) + packed[8:]


def unpack_call(called: bytes) -> str | None:
    """Return the text of a `Called` from a lease; None if there is none, or its words are not all of one call."""
    mark, padded = _FORM.unpack(called)
    data: bytes = padded.rstrip(b"\0")
    return data.decode(errors="replace") if data and crc32(data) == mark & 0xFFFFFFFF else None
