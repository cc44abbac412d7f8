"""Messages that one launch moves: what many requests have to do on a stream at the same time."""

from __future__ import annotations

import struct
from typing import Any

from .arguments import (
    AWAIT_MESSAGE,
    MOST_MESSAGES,
    PULL,
    PULL_MESSAGE,
    PUT,
    PUT_MESSAGE,
    SIGNAL_MESSAGE,
    batch_arguments,
    message,
)
from .endpoint import Endpoint

BLOCK_NBYTES = 32 << 10  # that a block moves before another one pays (not measured)
_ARRIVED_NBYTES = struct.calcsize("=I")


class Batch:
    """What is to be done for some messages of an endpoint.

    What signals goes before what waits for peers, also if it takes several launches: so no two ranks wait for each
    other's second launch in their first one.
    """

    def __init__(self, endpoint: Endpoint, operation: str) -> None:
        self._endpoint, self._operation = endpoint, operation
        self._messages: list[dict[str, int]] = []

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, arguments: bytes, peer: int, tag: int) -> None:
        """Copy a short message to its slot; `arguments` are those of `put_eager`."""
        data, slot, ready, nbytes, clock = PUT.unpack(arguments)
        self.add(PUT_MESSAGE, data=data, buffer=slot, ready=ready, nbytes=nbytes, clock=clock, peer=peer, tag=tag)

    def signal(self, *, ready: int, clock: int, peer: int, tag: int) -> None:
        """Set the ready word of a long message."""
        self.add(SIGNAL_MESSAGE, ready=ready, clock=clock, peer=peer, tag=tag)

    def pull(self, arguments: bytes) -> None:
        """Fetch a message; `arguments` are those of `pull`, with no word for `arrived`."""
        ready, done, _, data, buffer, nbytes, clock, peer, tag = PULL.unpack(arguments)
        where = {"ready": ready, "done": done, "data": data, "buffer": buffer}
        self.add(PULL_MESSAGE, **where, nbytes=nbytes, clock=clock, peer=peer, tag=tag)

    def add(self, kind: int, **fields: int) -> None:
        """Add a message by the fields of `arguments.message`."""
        self._messages.append({"kind": kind, **fields})

    def launch(self, stream: Any) -> None:
        """Do all of it on a stream."""
        self._messages.sort(key=lambda each: each["kind"])  # in the order of MessageKind
        for first in range(0, len(self._messages), MOST_MESSAGES):
            self._launch(self._messages[first : first + MOST_MESSAGES], stream)

    def _launch(self, messages: list[dict[str, int]], stream: Any) -> None:
        endpoint = self._endpoint
        arrived = endpoint.postbox.bounce.arrived_words(stream, MOST_MESSAGES)
        packed, grid = [], 0
        for index, (each, blocks) in enumerate(zip(messages, self._blocks(messages), strict=True)):
            fields = {"arrived": arrived + index * _ARRIVED_NBYTES, **each}
            packed.append(message(**fields, first_block=grid, blocks=blocks))
            grid += blocks
        arguments = batch_arguments(packed)
        endpoint.launch(self._operation, "move_messages", grid, endpoint.device.threads, arguments, stream)

    def _blocks(self, messages: list[dict[str, int]]) -> list[int]:
        """How many blocks each has: one, or those that fetch long messages share the device's by their lengths."""
        lengths = [each["nbytes"] if each["kind"] == PULL_MESSAGE else 0 for each in messages]
        most, total = self._endpoint.device.max_channels, max(1, sum(lengths))
        return [max(1, min(-(-nbytes // BLOCK_NBYTES), most * nbytes // total)) for nbytes in lengths]


__all__ = ["AWAIT_MESSAGE", "BLOCK_NBYTES", "PULL_MESSAGE", "PUT_MESSAGE", "SIGNAL_MESSAGE", "Batch"]
