"""Arguments of the kernels that move messages (twins of structs in cuda/messages/point_to_point.cu).

They are packed by `pack` of their structs, or by functions: objects with the fields would cost each message a
microsecond. Fields are addresses but for lengths, clocks, ranks and tags.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from ..memory import layout
from ..memory.parameters import NO_CALL, TeamStruct

# `Put`, for `put_eager`: copy a short message to its slot, set its ready word.
PUT, PUT_FIELDS = struct.Struct("=QQQQQ"), "data slot ready nbytes clock"
OFFER = struct.Struct("=QQQii")
# `Pull`, for `pull`: wait for the ready word, copy the data to the buffer, set the done word. The word at `arrived`
# counts the kernel's blocks.
PULL, PULL_FIELDS = struct.Struct("=QQQQQQQii"), "ready done arrived data buffer nbytes clock peer tag"
MESSAGE = struct.Struct("=QQQQQQQQQIIiiiI")
MOST_MESSAGES = 39  # kMostMessages
_COUNT = struct.Struct("=II")
PUT_MESSAGE, SIGNAL_MESSAGE, PULL_MESSAGE, AWAIT_MESSAGE = range(4)  # MessageKind


def offer_arguments(*, ready: int, done: int, clock: int, peer: int, tag: int) -> bytes:
    """Return an `OfferArgs` after its Team: set a long message's ready word, wait for its done word, or both.

    `ready` and `done` are addresses, or 0: the word was set before, or is not waited for.
    """
    return OFFER.pack(ready, done, clock, peer, tag)


def message(
    *,
    data: int = 0,
    buffer: int = 0,
    nbytes: int = 0,
    ready: int = 0,
    done: int = 0,
    clock: int = 0,
    arrived: int = 0,
    epoch: int = 0,
    stride: int = 0,
    first_block: int,
    blocks: int,
    kind: int,
    peer: int,
    tag: int,
    unused: int = 0,
) -> bytes:
    """Return a `Message`, one of a batch.

    `data`, `buffer`, `ready`, `done`, `arrived` and `epoch` are addresses. With an `epoch` the message is one of a
    channel, and `stride` is the distance of its slots.
    """
    return MESSAGE.pack(
        *(data, buffer, nbytes, ready, done, clock, arrived, epoch, stride),
        *(first_block, blocks, kind, peer, tag, unused),
    )


def batch_arguments(messages: Sequence[bytes]) -> bytes:
    """Return a `BatchArgs` after its Team, for `move_messages`: up to `MOST_MESSAGES` that `message` has packed."""
    return _COUNT.pack(len(messages), 0) + b"".join(messages).ljust(MOST_MESSAGES * MESSAGE.size, b"\0")


def teams_of(operations: Iterable[str], *, header: int, watch: int, timeout_s: float) -> dict[str, bytes]:
    """Return the `Team` of one rank with which the parameter of each operation's kernels begins."""
    alone, timeout_ns = layout.Layout(0, 1, 1, 0, 0), int(timeout_s * 1e9)
    return {
        name: TeamStruct.of(
            alone, rank=0, operation=number, timeout_ns=timeout_ns, watch=watch, base=[header]
        ).pack()
        + NO_CALL
        for number, name in enumerate(operations)
    }
