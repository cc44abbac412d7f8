"""Packed arguments of the kernels that move messages.

The layouts equal those of the structs in cuda/messages/point_to_point.cu and, for partitioned messages, in
cuda/messages/partitioned.cu and cuda/device/partitions.cuh. Callers call `pack` of these structs directly, because
objects with fields would cost a microsecond per message. Fields are addresses, except lengths, clocks, ranks and tags.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from ..memory import layout
from ..memory.parameters import NO_CALL, TeamStruct

# `Put`, for `put_eager`: copy a short message to its slot, set its ready word. Fields: data slot ready nbytes clock.
PUT = struct.Struct("=QQQQQ")
# `OfferArgs`, for `offer`: set a long message's ready word if `signals`, wait for its done word unless that is 0.
# Fields: ready done clock peer tag signals unused.
OFFER = struct.Struct("=QQQiiii")
# `Pull`, for `pull`: wait for the ready word, copy the data to the buffer, set the done word. The word at `arrived`
# counts the kernel's blocks. Fields: ready done arrived data buffer nbytes clock peer tag.
PULL = struct.Struct("=QQQQQQQii")
# `Message`, one of a batch. A channel's message has the address of its `epoch`, and `stride`, the distance in bytes
# between the channel's slots. Fields: data buffer nbytes ready done clock arrived epoch stride first_block blocks kind
# peer tag unused.
MESSAGE = struct.Struct("=QQQQQQQQQIIiiiI")
MOST_MESSAGES = 39  # kMostMessages
BATCH = struct.Struct(f"=II{MOST_MESSAGES * MESSAGE.size}s")  # `BatchArgs`, for `move_messages`
PUT_MESSAGE, SIGNAL_MESSAGE, PULL_MESSAGE, AWAIT_MESSAGE = range(4)  # MessageKind
# The members of `Partitions`, one end of a partitioned message, that follow `team`. `SendPartitionsArgs` has more.
PARTITIONS = struct.Struct("=QQQQQQQQIIii")
_SEND = struct.Struct("=IIII")
MOST_LISTED = 512  # kMostListed
MOST_ROUNDS = 500  # kMostRounds


def teams_of(operations: Iterable[str], *, header: int, watch: int, timeout_s: float) -> dict[str, bytes]:
    """Return the packed one-rank `Team` with which each operation's parameters begin."""
    alone, timeout_ns = layout.Layout(0, 1, 1, 0, 0), int(timeout_s * 1e9)
    return {
        name: TeamStruct.of(alone, rank=0, operation=number, timeout_ns=timeout_ns, watch=watch, base=[header]).pack()
        + NO_CALL
        for number, name in enumerate(operations)
    }


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
    """Pack one end of a message: the members of `Partitions` that follow `team`.

    All arguments but `nbytes` and the last four are addresses.
    """
    return PARTITIONS.pack(data, buffer, nbytes, epoch, started, arrived, sent, finished, sends, receives, peer, tag)


def send_arguments(end: bytes, numbers: Sequence[int], chunks: int) -> bytes:
    """Pack the members of `SendPartitionsArgs` that follow `team`.

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
    """Pack a `BeginRoundsArgs` for at most MOST_ROUNDS addresses of epochs."""
    count = len(epochs)
    return struct.pack(f"={1 + count}Q", count, *epochs).ljust(8 * (1 + MOST_ROUNDS), b"\0")
