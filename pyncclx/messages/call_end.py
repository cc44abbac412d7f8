"""The end of a call that sends or receives: it waits if the communicator's calls block, and emits an event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .. import events
from .receive import Incoming
from .send import Outgoing

if TYPE_CHECKING:
    from .base import MessageBase
    from .endpoint import Endpoint


class StreamWait:
    """The wait of the host for a stream, at the end of a call or request; equal ones are for the same stream.

    On others of the endpoint there may be partitions for a receiver that starts only after this rank's next calls.
    """

    __slots__ = ("_endpoint", "_key", "_stream")

    def __init__(self, endpoint: Endpoint, stream: Any) -> None:
        self._endpoint, self._stream = endpoint, stream
        self._key = endpoint.serial, getattr(stream, "ptr", 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamWait) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __call__(self) -> None:
        """Wait, unless the stream is captured, and raise what kernels have recorded."""
        device = self._endpoint.device
        if not device.is_capturing(self._stream):
            device.synchronize(self._stream)
        self._endpoint.check()


def end_call(endpoint: Endpoint, *messages: Outgoing | Incoming | None) -> None:
    """Wait on the host for the messages of a call, if the communicator's calls block.

    If they do not and the program has named a stream, arrays may be another stream's: they are kept until their
    messages' kernels have ended.
    """
    caller, waited = endpoint.caller, list[Any]()
    if caller.blocking == "host":
        for message in messages:
            # `stream_of` has refused streams that are captured.
            if message is not None and message.stream not in waited:
                endpoint.device.synchronize(message.stream)
                waited.append(message.stream)
        endpoint.check()
    elif caller.stream is not None:
        for message in messages:
            if message is not None:
                message.keep_memory()


def emit(comm: MessageBase, operation: str, began: float, *messages: Outgoing | Incoming | None) -> None:
    """Emit the event of a call that has sent or received messages, or has begun to; None for MPI.PROC_NULL."""
    under_way = [message for message in messages if message is not None]
    how = events.STAGED if any(message.is_inline for message in under_way) else events.NATIVE
    nbytes = max((message.buffer.nbytes for message in under_way), default=0)
    events.emit(operation, how, nbytes, began, comm=comm, peer=under_way[0].peer if under_way else MPI.PROC_NULL)
