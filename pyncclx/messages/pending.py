"""Requests of sends and receives of device arrays."""

from __future__ import annotations

import weakref
from typing import Any

from mpi4py import MPI

from ..requests.request import Request, request_of
from ..requests.status import copy_status, status_of_no_source
from ..team.streams import current_stream
from .call_end import drain_if_blocking
from .receive import Incoming
from .send import Outgoing
from .typed import TypedBuffer


def send_request(outgoing: Outgoing | None) -> Request:
    """Post a send and make its request; None: to MPI.PROC_NULL."""
    if outgoing is not None:
        outgoing.post()
    return request_of(_Pending(outgoing, MPI.Status()))


def receive_request(incoming: Incoming | None) -> Request:
    """Post a receive and make its request; None: from MPI.PROC_NULL."""
    if incoming is None:
        return request_of(_Pending(None, status_of_no_source()))
    incoming.post()
    return request_of(_Pending(incoming, incoming.status), incoming)


class _Pending:
    """The work of such a request."""

    def __init__(self, message: Outgoing | Incoming | None, status: MPI.Status) -> None:
        self._message, self._status = message, status
        self._abandoned: weakref.ref[Outgoing | Incoming] | None = None

    def finish(self) -> None:
        # Two threads may not complete one message: what has no request any more is abandoned by another one.
        message, self._message = self._message, None
        if message is None and self._abandoned is not None and (message := self._abandoned()) is not None:
            message.postbox.receives.unsent.give_back(message)
        if message is not None:
            stream = _stream_now(message)
            message.finish(stream)
            if isinstance(message.buffer, TypedBuffer):  # whose packed copy goes back to the message's stream
                message.endpoint.device.order(stream, message.stream)
            drain_if_blocking(message.endpoint, message)

    def is_over(self) -> bool:
        message = self._message
        if message is None:
            return True
        message.endpoint.check()
        message.postbox.receives.launch_arrived()
        return message.is_over()

    def fill(self, status: MPI.Status) -> None:
        copy_status(status, self._status)

    @property
    def is_cancelled(self) -> bool:
        """Whether MPI has taken the receive back."""
        return self._status.Is_cancelled()

    def cancel(self) -> None:
        """Cancel a receive that nothing has matched; a send goes on."""
        if isinstance(self._message, Incoming):
            self._message.cancel()

    def abandon(self) -> None:
        """Let the message go on without its request, unless a call completes it by a copy of the handle.

        MPI may keep this for ever, so it must not keep the message.
        """
        message = self._message
        if message is not None:
            # First, for `finish` in another thread is to find the message in one of the two.
            self._abandoned = weakref.ref(message)
            message, self._message = self._message, None
        if message is not None:
            message.abandon()

    def drop(self) -> None:
        """Abandon the message soon; a destructor calls this, at any time."""
        message = self._message
        if message is not None:
            message.postbox.receives.unsent.dropped.append(self)


def _stream_now(message: Outgoing | Incoming) -> Any:
    """The stream that waits when the program waits for a request; with PyTorch's tensors, theirs."""
    endpoint, buffer = message.endpoint, message.buffer
    of_torch = buffer.stream is not None and buffer.of_torch
    return message.stream if of_torch else current_stream(endpoint.device, (), endpoint.caller)
