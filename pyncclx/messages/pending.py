"""The work of message requests, and the ends of calls with messages."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from .. import events
from ..derived.buffers import TypedBuffer
from ..requests.failures import Failures
from ..requests.request import Request, empty
from ..requests.shown import show
from ..requests.status import copy_status, fill_empty
from ..requests.work import Wait, Work, together
from ..team.streams import current_stream
from .base import MessageBase
from .endpoint import Endpoint
from .envelope import Sender, channel_of
from .receive import Incoming
from .send import Outgoing


def message_request(*messages: Any, status: MPI.Status | None = None) -> Request:
    """Return a request for messages, and post those that have not ended.

    A request to or from MPI.PROC_NULL has no messages.
    """
    for message in messages:
        if isinstance(message, Incoming):
            message.context.receives.post(message)
        elif not message.plan.is_free_at_once:
            message.post()
    request, work = empty(), MessageWork()
    work.messages, work.status, request._work = messages, status, work
    show((request,))
    return request


def finish_messages(works: dict[int, MessageWork], failures: Failures, waits: dict[Wait, None]) -> None:
    """Finish requests of messages, and launch their arrived receives together."""
    begun: list[tuple[int, MessageWork, Any]] = []
    receives: list[Incoming] = []
    messages: tuple[Any, ...] = ()
    try:
        for index, work in works.items():
            work.active = False
            # Take the messages out of the work, so that no second thread completes them. Abandoned messages are taken
            # back.
            messages, work.messages = work.messages, ()
            if not messages:
                try:
                    messages = work.taken_back()
                except BaseException as error:
                    failures.add_own(error, index)
            for message in messages:
                begun.append((index, work, message))
                if isinstance(message, Incoming) and not message.launched:
                    receives.append(message)
        if len(receives) > 1:
            receives[0].context.receives.launch_all(receives)
        _finish(begun, failures, waits)
    except BaseException:
        for message in dict.fromkeys((*(message for _, _, message in begun), *messages)):
            message.leave()
        for _, work, message in begun:
            work.is_received |= isinstance(message, Incoming) and message.launched
        raise


def _finish(begun: list[tuple[int, MessageWork, Any]], failures: Failures, waits: dict[Wait, None]) -> None:
    """Make the current stream wait for each message, even if some raise."""
    endpoint = waited = None
    for index, work, message in begun:
        try:
            if message.endpoint is not endpoint:
                endpoint = waited = message.endpoint
                caller, device = endpoint.caller, endpoint.device
                is_current = caller.stream is None and caller.blocking != "host"
                current = device.current_stream() if is_current else current_stream(device, (), caller)
            stream = current if message.buffer.stream is None else work.stream_of(message)
            if stream is not message.stream or not message.is_settled or endpoint.broken:
                message.finish(stream)
            if isinstance(message.buffer, TypedBuffer) and stream is not message.stream:
                # The message's stream may reuse the memory of the packed copy.
                device.order(stream, message.stream)
            if work.met and (message.envelope is None or channel_of(message.envelope) != work.met_channel):
                work.met(message)
            if caller.blocking == "host":
                if message.stream is not stream:
                    device.order(message.stream, stream)
                if stream is not waited:
                    waits[StreamWait(endpoint, stream)], waited = None, stream
            elif caller.stream is not None:
                message.keep_memory()
        except BaseException as error:
            failures.add_own(error, index)


class MessageWork(Work):
    """The work behind a request of one message, or of a receive and a send.

    Attributes
    ----------
    messages : tuple of Incoming and Outgoing
        Messages in flight; empty for MPI.PROC_NULL.
    status : MPI.Status or None
        Status of the receive.
    met : callable or None
        Called with each finished message, unless it belongs to the channel `met_channel`.
    met_channel : (Sender, int) or None
    """

    finisher = staticmethod(finish_messages)
    met: Callable[[Any], None] | None = None
    met_channel: tuple[Sender, int] | None = None
    messages: tuple[Any, ...] = ()
    status: MPI.Status | None = None
    _abandoned: tuple[weakref.ref[Any], ...] = ()

    @property
    def caller(self) -> Any:
        return self.messages[0].endpoint.caller if self.messages else super().caller

    def finish(self) -> Wait | None:
        failures, waits = Failures(), dict[Wait, None]()
        finish_messages({0: self}, failures, waits)
        error = failures.of_call or failures.of_requests.get(0)
        if error is not None:
            raise error
        return together(waits) if waits else None

    def stream_of(self, message: Any) -> Any:
        """Return the stream to make wait for a message, whose array specifies a stream.

        For a PyTorch tensor this is the message's own stream, for other arrays the current stream.
        """
        endpoint = message.endpoint
        return message.stream if message.buffer.of_torch else current_stream(endpoint.device, (), endpoint.caller)

    def is_over(self) -> bool:
        messages = self.messages
        if not messages:
            return True
        messages[0].endpoint.check()
        messages[0].context.receives.launch_arrived()
        # Query all messages, because each `is_over` makes progress.
        over = [message.is_over() for message in messages]
        return all(over)

    def fill(self, status: MPI.Status) -> None:
        if self.status is None:
            fill_empty(status)
        else:
            copy_status(status, self.status)

    def cancel(self) -> None:
        if len(self.messages) > 1:
            super().cancel()
        for message in self.messages:
            if isinstance(message, Incoming):
                message.cancel()

    def abandon(self) -> None:
        """Let the messages complete without their request.

        The program may still complete them through a copy of the handle. MPI may keep this object forever, so it must
        not refer to the messages.
        """
        # Set `_abandoned` before `messages` is cleared: `finish` in another thread must find the messages in one of
        # them.
        self._abandoned = tuple(map(weakref.ref, self.messages))
        messages, self.messages = self.messages, ()
        for message in messages:
            message.abandon()

    def left(self) -> MessageWork:
        """Return work for copies of the abandoned handle; it keeps no message alive."""
        work = MessageWork()
        work.status, work._abandoned = self.status, self._abandoned
        return work

    def taken_back(self) -> tuple[Any, ...]:
        """Return the abandoned messages, for a call that completes them."""
        messages = tuple(message for reference in self._abandoned if (message := reference()) is not None)
        self._abandoned = ()
        for message in messages:
            message.context.receives.pending_sends.give_back(message)
        return messages

    def drop(self) -> None:
        if self.messages:
            self.messages[0].context.receives.pending_sends.dropped.append(self)


class StreamWait(tuple[int, ...]):
    """A wait of the host for one stream, at the end of a call or request.

    Waits for the same stream are equal. The host must not wait for other streams of the endpoint, because partitions
    there may wait for a receiver that starts only after this rank's next calls.
    """

    _endpoint: Endpoint
    _stream: Any

    def __new__(cls, endpoint: Endpoint, stream: Any) -> StreamWait:
        """Return the wait of an endpoint for a stream, which is equal to other such waits."""
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

    Otherwise, if the program has set a stream, keep the arrays until their messages' kernels have ended, because their
    memory may belong to another stream.
    """
    caller, waited = endpoint.caller, list[Any]()
    if caller.blocking == "host":
        for message in messages:
            # `stream_of` has rejected streams in a capture.
            if message is not None and message.stream not in waited:
                endpoint.device.synchronize(message.stream)
                waited.append(message.stream)
        endpoint.check()
    elif caller.stream is not None:
        for message in messages:
            if message is not None:
                message.keep_memory()


def emit(comm: MessageBase, operation: str, began: float, *messages: Outgoing | Incoming | None) -> None:
    """Emit the event of a call; messages to or from MPI.PROC_NULL are None."""
    under_way = [message for message in messages if message is not None]
    how = events.STAGED if any(message.is_inline for message in under_way) else events.NATIVE
    nbytes = max((message.buffer.nbytes for message in under_way), default=0)
    events.emit(operation, how, nbytes, began, comm=comm, peer=under_way[0].peer if under_way else MPI.PROC_NULL)
