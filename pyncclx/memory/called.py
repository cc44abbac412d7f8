"""Text and hash of a call, which kernels record and compare between ranks.

It is the twin of `Called` in cuda/protocol/layout.cuh; see also cuda/protocol/calls.cuh.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from zlib import crc32

from ..backends import Device
from . import layout

TEXT_NBYTES = 56
# End of a text that is truncated.
_DIGEST = "~{:08x}"
_FORM = struct.Struct(f"=Q{TEXT_NBYTES}s")
NBYTES = _FORM.size
# The call of kernels that are not collective operations.
NONE = bytes(NBYTES)
# Seconds to wait for a call, and between two reads: a kernel may notice a difference before the other rank's kernel has
# recorded its call.
_RECORD_S, _PAUSE_S = 1.0, 0.001
_HALF = 1 << 31  # half of the numbers of operations


def describe(operation: str, signature: Iterable[object]) -> str:
    """Return an operation and its signature as text; items that are None are omitted.

    The signature contains the arguments that must be equal on all ranks.
    """
    return f"{operation}({', '.join([str(each) for each in signature if each is not None])})"


def pack_call(text: str) -> bytes:
    """Return the `Called` of a text; a long text is truncated and ends with its hash."""
    data = text.encode()
    if len(data) > TEXT_NBYTES:
        digest = _DIGEST.format(crc32(data)).encode()
        data = data[: TEXT_NBYTES - len(digest)] + digest
    return _FORM.pack(crc32(data), data)


def on_record(text: str, epoch: int) -> bytes:
    """Return a lease's record of a call: the `Called` of a text for operation `epoch`."""
    packed = pack_call(text)
    (mark,) = struct.unpack_from("=Q", packed)
    return struct.pack("=Q", epoch << 32 | mark) + packed[8:]


def unpack_call(called: bytes) -> str | None:
    """Return the text of a `Called` from a lease; None if it is empty or inconsistent."""
    mark, padded = _FORM.unpack(called)
    data: bytes = padded.rstrip(b"\0")
    return data.decode(errors="replace") if data and crc32(data) == mark & 0xFFFFFFFF else None


class RecordedCalls:
    """The part of a communicator's leases where kernels record their calls."""

    def __init__(self, device: Device, rank: int, bases: list[int]) -> None:
        self._device, self._rank, self._bases = device, rank, bases

    def describe(self, a: int, b: int, epoch: int) -> str:
        """Return a sentence that shows two ranks' different calls, at or before `epoch`.

        `epoch` is the number, on channel 0, of the operation in which the kernels noticed the difference.
        """
        what, ranks = "ranks disagree about a call", sorted((a, b))
        deadline = time.monotonic() + _RECORD_S
        while time.monotonic() < deadline:
            for then in range(epoch - layout.CALLS + 1, epoch + 1):
                calls = [self._call(rank, then) for rank in ranks]
                if None not in calls and calls[0] != calls[1]:
                    return f"{what}: rank {ranks[0]} called {calls[0]}; rank {ranks[1]} called {calls[1]}"
            time.sleep(_PAUSE_S)
        text = f"ranks {ranks[0]} and {ranks[1]} made different ones some time ago"
        return f"{what}: {text}; PYNCCLX_CHECK=1 finds the first of them"

    def find(self, text: str) -> tuple[int, int] | None:
        """Find a rank whose kernel waits in a different call than the one of this rank.

        Such a kernel waits for this rank, while this rank waits on the host for all ranks to prepare the kernel of
        `text`. Call this method after the other ranks have had enough time to arrive there. It records `text` as this
        rank's call, and returns the other rank and its epoch, or None.
        """
        channel = self._bases[self._rank] + layout.HEADER_NBYTES + layout.CALLS_NBYTES  # the first ChannelControl
        (finished,) = _epochs(self._device.peek(channel, 8))
        entered = _epochs(self._device.peek(channel + layout.ENTERED_OFFSET, 8 * len(self._bases)))
        epoch = finished + 1
        for rank, began in enumerate(entered):
            if rank != self._rank and began >= epoch and self._call(rank, epoch) is not None:
                self._device.poke(self._record(self._rank, epoch), on_record(text, epoch))
                return rank, epoch
        return None

    def late(self) -> tuple[list[int], list[int]]:
        """Return which ranks have not begun the failed operation, and which ended it.

        The ranks that are furthest behind come first. Every kernel of a collective operation records its call before it
        waits. The last call on this rank's record is that of the operation that failed, or of the one after it
        (`LeaseHeader::recorded_late`). In a lease, the number of the first channel's last ended operation follows the
        calls.
        """
        ranks, nbytes = range(len(self._bases)), layout.HEADER_NBYTES + layout.CALLS_NBYTES + 8
        leases = [self._device.peek(base, nbytes) for base in self._bases]
        recorded = [_epochs(lease[layout.HEADER_NBYTES : -8])[:: NBYTES // 8] for lease in leases]
        own = max(recorded[self._rank])
        if not own:
            return [], []
        begun = [max((_signed(epoch, own) for epoch in epochs if epoch), default=-_HALF) for epochs in recorded]
        ended = [_signed(_epochs(lease[-8:])[0], own) for lease in leases]
        (after,) = struct.unpack_from("=I", leases[self._rank], layout.RECORDED_LATE_OFFSET)
        failed = begun[self._rank] - bool(after)
        behind = sorted((rank for rank in ranks if begun[rank] < failed), key=begun.__getitem__)
        return behind, [rank for rank in ranks if ended[rank] >= failed]

    def _call(self, rank: int, epoch: int) -> str | None:
        """Return the text of a rank's call in an operation; None if none is recorded."""
        called = self._device.peek(self._record(rank, epoch), NBYTES)
        return unpack_call(called) if _epochs(called[:8]) == (epoch,) else None

    def _record(self, rank: int, epoch: int) -> int:
        return self._bases[rank] + layout.HEADER_NBYTES + epoch % layout.CALLS * NBYTES


def _epochs(words: bytes) -> tuple[int, ...]:
    """Return the upper halves of 64-bit words."""
    return tuple(word >> 32 for word in struct.unpack(f"={len(words) // 8}Q", words))


def _signed(epoch: int, other: int) -> int:
    """Return the difference of two operations' numbers, which begin anew after 2^32."""
    return (epoch - other + _HALF) % (2 * _HALF) - _HALF
