"""The end of a call that sends or receives: it waits if the communicator's calls block, and emits an event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpi4py import MPI

from .. import events
from .receive import Incoming
from .send import Outgoing

if TYPE_CHECKING:
    from .base import MessageBase
    from .endpoint import Endpoint


def drain_if_blocking(endpoint: Endpoint, *messages: Outgoing | Incoming | None) -> None:
    """Wait on the host, if the communicator's calls block; also at the end of a request after it has been freed.

    If they do not and the program has named a stream, arrays may be another stream's: they are kept until their
    messages' kernels have ended.
    """
    caller = endpoint.caller
    if caller.blocking == "host":
        endpoint.drain()
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
