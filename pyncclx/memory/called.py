"""Text and hash of a call, which kernels compare among ranks.

It is the twin of `Called` in cuda/protocol/layout.cuh.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from zlib import crc32

TEXT_NBYTES = 56
# End of a text that is truncated.
_DIGEST = "~{:08x}"
_FORM = struct.Struct(f"=Q{TEXT_NBYTES}s")
NBYTES = _FORM.size
# The call of kernels that are no collective operations.
NONE = bytes(NBYTES)


def describe(operation: str, signature: Iterable[object]) -> str:
    """Return an operation and its signature as text; None, a default, is left out.

    The signature has the arguments that must be equal on all ranks.
    """
    return f"{operation}({', '.join([str(each) for each in signature if each is not None])})"


def pack_call(text: str) -> bytes:
    """Return the `Called` of a text; a long text is cut, and ends with its hash."""
    data = text.encode()
    if len(data) > TEXT_NBYTES:
        digest = _DIGEST.format(crc32(data)).encode()
        data = data[: TEXT_NBYTES - len(digest)] + digest
    return _FORM.pack(crc32(data), data)


def on_record(text: str, epoch: int) -> bytes:
    """Return the `Called` of a text as a lease stores it for operation `epoch`."""
    packed = pack_call(text)
    (mark,) = struct.unpack_from("=Q", packed)
    return struct.pack("=Q", epoch << 32 | mark) + packed[8:]


def unpack_call(called: bytes) -> str | None:
    """Return the text of a `Called` from a lease; None if it is empty or inconsistent."""
    mark, padded = _FORM.unpack(called)
    data: bytes = padded.rstrip(b"\0")
    return data.decode(errors="replace") if data and crc32(data) == mark & 0xFFFFFFFF else None
