"""Arguments of the kernels of partitioned messages.

Their layouts match the structs in cuda/device/partitions.cuh and cuda/messages/partitioned.cu.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

PARTITIONS = struct.Struct("=QQQQQQQQIIii")
_SEND = struct.Struct("=IIII")
MOST_LISTED = 512  # kMostListed
MOST_ROUNDS = 500  # kMostRounds


def partitions(
    *,
    data: int = 0,
    buffer: int = 0,
    nbytes: int = 0,
    epoch: int,
    started: int,
    arrived: int,
    sent: int = 0,
    finished: int = 0,
    sends: int,
    receives: int,
    peer: int,
    tag: int,
) -> bytes:
    """Return the bytes of a `Partitions` that follow its Team: one end of a message.

    All arguments but `nbytes` and the last four are addresses.
    """
    return PARTITIONS.pack(data, buffer, nbytes, epoch, started, arrived, sent, finished, sends, receives, peer, tag)


def send_arguments(end: bytes, numbers: Sequence[int], chunks: int) -> bytes:
    """Return the bytes of a `SendPartitionsArgs` that follow its Team.

    `numbers` are at most MOST_LISTED partitions, or a range of any length.
    """
    first = numbers[0]
    if list(numbers) == list(range(first, first + len(numbers))):
        listed: Sequence[int] = ()
    else:
        listed = numbers
    head = _SEND.pack(len(numbers), chunks, first, len(listed))
    return end + head + struct.pack(f"={len(listed)}I", *listed).ljust(4 * MOST_LISTED, b"\0")


def begin_arguments(epochs: Sequence[int]) -> bytes:
    """Return a `BeginRoundsArgs` for at most MOST_ROUNDS addresses of epochs."""
    count = len(epochs)
    return struct.pack(f"={1 + count}Q", count, *epochs).ljust(8 * (1 + MOST_ROUNDS), b"\0")
