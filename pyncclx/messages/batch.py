"""Messages that one launch moves: what many requests have to do on a stream at the same time."""

from __future__ import annotations

import operator
import struct
from typing import Any

from .arguments import BATCH, MESSAGE, MOST_MESSAGES, PULL_MESSAGE
from .endpoint import Endpoint

BLOCK_NBYTES = 32 << 10  # that a block moves before another one pays (not measured)
_ARRIVED_NBYTES = struct.calcsize("=I")
_KIND = operator.itemgetter(0)


class Batch:
    """What is to be done for some messages of an endpoint.

    What signals goes before what waits for peers, also if it takes several launches: so no two ranks wait for each
    other's second launch in their first one.
    """

    def __init__(self, endpoint: Endpoint, operation: str) -> None:
        self._endpoint, self._operation = endpoint, operation
        self._messages: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self._messages)

    def add(
        self,
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
    ) -> None:
        """Add a message: one of a channel has an `epoch`, and the distance of its slots; see `arguments.MESSAGE`."""
        self._messages.append((kind, data, buffer, nbytes, ready, done, clock, arrived, epoch, stride, peer, tag))

    def launch(self, stream: Any) -> None:
        """Do all of it on a stream."""
        self._messages.sort(key=_KIND)  # in the order of MessageKind
        for first in range(0, len(self._messages), MOST_MESSAGES):
            self._launch(self._messages[first : first + MOST_MESSAGES], stream)

    def _launch(self, messages: list[tuple[int, ...]], stream: Any) -> None:
        """Launch some. Each has one block, or those that fetch long messages share the device's by their lengths."""
        endpoint, packed, grid = self._endpoint, b"", 0
        words = endpoint.postbox.bounce.arrived_words(stream, MOST_MESSAGES)
        most, total = endpoint.device.max_channels, 0
        for each in messages:
            total += each[3] if each[0] == PULL_MESSAGE else 0
        for kind, data, buffer, nbytes, ready, done, clock, arrived, epoch, stride, peer, tag in messages:
            blocks = 1
            if kind == PULL_MESSAGE and nbytes > BLOCK_NBYTES:
                blocks = max(1, min(-(-nbytes // BLOCK_NBYTES), most * nbytes // total))
            fields = data, buffer, nbytes, ready, done, clock, arrived or words, epoch, stride
            packed += MESSAGE.pack(*fields, grid, blocks, kind, peer, tag, 0)
            grid, words = grid + blocks, words + _ARRIVED_NBYTES
        arguments = BATCH.pack(len(messages), 0, packed)
        endpoint.launch(self._operation, "move_messages", grid, endpoint.device.threads, arguments, stream)
