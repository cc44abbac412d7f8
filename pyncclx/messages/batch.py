"""Messages that one launch moves: what many requests have to do on a stream at the same time."""

from __future__ import annotations

import operator
import struct
from threading import get_ident
from typing import Any

from .arguments import BATCH, MESSAGE, MOST_MESSAGES, PULL_MESSAGE
from .endpoint import Endpoint

BLOCK_NBYTES = 32 << 10  # that a block moves before another one pays (not measured)
_ARRIVED_NBYTES = struct.calcsize("=I")
_KIND = operator.itemgetter(0)
#: What is to be done for a message, see `message`.
Message = tuple[int, int, int, int, int, int, int, int, int, int, int, int]


def message(
    kind: int,
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
    peer: int,
    tag: int,
) -> Message:
    """Make one: that of a channel has an `epoch`, and the distance of its slots; see `arguments.MESSAGE`."""
    return kind, data, buffer, nbytes, ready, done, clock, arrived, epoch, stride, peer, tag


def launch(endpoint: Endpoint, operation: str, messages: list[Message], stream: Any) -> None:
    """Do what is to be done for messages of an endpoint on a stream.

    What signals goes before what waits for peers, also if it takes several launches: so no two ranks wait for each
    other's second launch in their first one.
    """
    messages.sort(key=_KIND)  # in the order of MessageKind
    while messages:
        some, messages, packed, grid, total = messages[:MOST_MESSAGES], messages[MOST_MESSAGES:], b"", 0, 0
        words = endpoint.postbox.bounce.arrived[getattr(stream, "ptr", 0), get_ident(), MOST_MESSAGES]
        for each in some:
            total += each[3] if each[0] == PULL_MESSAGE else 0
        for kind, data, buffer, nbytes, ready, done, clock, arrived, epoch, stride, peer, tag in some:
            blocks = 1  # or those that fetch long ones share the device's by their lengths
            if kind == PULL_MESSAGE and nbytes > BLOCK_NBYTES:
                blocks = max(1, min(-(-nbytes // BLOCK_NBYTES), endpoint.device.max_channels * nbytes // total))
            fields = data, buffer, nbytes, ready, done, clock, arrived or words, epoch, stride
            packed += MESSAGE.pack(*fields, grid, blocks, kind, peer, tag, 0)
            grid, words = grid + blocks, words + _ARRIVED_NBYTES
        arguments = BATCH.pack(len(some), 0, packed)
        endpoint.launch(operation, "move_messages", grid, endpoint.device.threads, arguments, stream)
