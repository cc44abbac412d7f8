"""Batches: one launch moves the messages of several requests on a stream."""

from __future__ import annotations

import operator
import struct
from threading import get_ident
from typing import Any, NamedTuple

from ...system.threads import has_begun
from ..arguments import BATCH, MESSAGE, MOST_MESSAGES, PULL_MESSAGE
from ..endpoint import Endpoint

# A message gets one more block for each BLOCK_NBYTES (not measured).
BLOCK_NBYTES = 32 << 10
_ARRIVED_NBYTES = struct.calcsize("=I")
_KIND = operator.itemgetter(0)
#: Work of a batch for one message: the fields of `ChannelMessage`.
Message = tuple[int, ...]


class ChannelMessage(NamedTuple):
    """Work of a batch for one message of a channel; see `arguments.MESSAGE`.

    Messages outside channels have neither `epoch` nor `stride`.
    """

    kind: int
    data: int = 0
    buffer: int = 0
    nbytes: int = 0
    ready: int = 0
    done: int = 0
    clock: int = 0
    arrived: int = 0
    epoch: int = 0
    stride: int = 0
    peer: int = 0
    tag: int = 0


def launch(endpoint: Endpoint, operation: str, messages: list[Message], stream: Any) -> None:
    """Launch the kernels that move an endpoint's messages on a stream.

    Messages that signal peers are launched before messages that wait for peers, also across launches. Otherwise the
    first launches of two ranks could wait for each other's second.

    Afterwards `messages` is empty. After an exception it contains those that have not been launched.
    """
    messages.sort(key=_KIND)  # the order of MessageKind
    while messages:
        some, packed, grid, total = messages[:MOST_MESSAGES], b"", 0, 0
        words = endpoint.context.bounce.arrived[getattr(stream, "ptr", 0), get_ident(), MOST_MESSAGES]
        for each in some:
            total += each[3] if each[0] == PULL_MESSAGE else 0
        for kind, data, buffer, nbytes, ready, done, clock, arrived, epoch, stride, peer, tag in some:
            blocks = 1
            # Long messages share the device's blocks in proportion to their lengths.
            if kind == PULL_MESSAGE and nbytes > BLOCK_NBYTES:
                blocks = max(1, min(-(-nbytes // BLOCK_NBYTES), endpoint.device.max_channels * nbytes // total))
            fields = data, buffer, nbytes, ready, done, clock, arrived or words, epoch, stride
            packed += MESSAGE.pack(*fields, grid, blocks, kind, peer, tag, 0)
            grid, words = grid + blocks, words + _ARRIVED_NBYTES
        arguments = BATCH.pack(len(some), 0, packed)
        try:
            endpoint.launch(operation, "move_messages", grid, endpoint.device.threads, arguments, stream)
        except BaseException:
            if has_begun(arguments):
                del messages[: len(some)]
            raise
        del messages[: len(some)]
