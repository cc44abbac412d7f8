"""The end of a call that sends or receives: a wait on the host, and an event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .. import events
from .receive import Incoming
from .send import Outgoing

if TYPE_CHECKING:
    from .base import MessageBase
    from .endpoint import Endpoint


class StreamWait(tuple[int, ...]):
    """A wait of the host for one stream, at the end of a call or request.

    Waits for the same stream are equal. Other streams of the endpoint are not waited for: partitions there may wait
    for a receiver that starts only after this rank's next calls.
    """

    _endpoint: Endpoint
    _stream: Any

    def __new__(cls, endpoint: Endpoint, stream: Any) -> StreamWait:
        """Make the wait of an endpoint's call; it equals others by the numbers of both."""
        wait = tuple.__new__(cls, (endpoint.serial, getattr(stream, "ptr", 0)))
        wait._endpoint, wait._stream = endpoint, stream
        return wait

    def __call__(self) -> None:
        """Synchronize the stream, unless it is captured; raise recorded errors."""
        device = self._endpoint.device
        if not device.is_capturing(self._stream):
            device.synchronize(self._stream)
        self._endpoint.check()


def end_call(endpoint: Endpoint, *messages: Outgoing | Incoming | None) -> None:
    """Wait on the host for the messages of a call, if the communicator's calls block.

    Otherwise, if the program has set a stream, keep the arrays until their messages' kernels have ended: their memory
    may belong to another stream.
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
    """Emit the event of a call; its messages to or from MPI.PROC_NULL are None."""
    under_way = [message for message in messages if message is not None]
    how = events.STAGED if any(message.is_inline for message in under_way) else events.NATIVE
    nbytes = max((message.buffer.nbytes for message in under_way), default=0)
    events.emit(operation, how, nbytes, began, comm=comm, peer=under_way[0].peer if under_way else MPI.PROC_NULL)
