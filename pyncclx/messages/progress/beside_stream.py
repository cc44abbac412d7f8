"""Open receives: choose the stream of their kernels, and when to launch them."""

from __future__ import annotations

import time
from typing import Any

from mpi_bootstrap.own_errors import own_errors_suppressed

from ...backends import Event
from ...derived.buffers import TypedBuffer
from ..arrival import Arrival
from ..endpoint import Endpoint
from ..envelope import EMPTY, INLINE
from ..memory.opened import can_read, is_ready


def event_of(endpoint: Endpoint) -> Event:
    """Return an event for a receive's start or end; reuse one if possible."""
    try:
        return endpoint.context.spare_events.pop()
    except IndexError:
        return endpoint.device.event()


class OpenArrival(Arrival):
    """A receive up to the launch of its kernel.

    Attributes
    ----------
    is_abandoned : bool
        Whether no call will finish it. Then its kernel is launched once the data can be read.
    is_settled : bool
        Whether its own stream already waits for the data, so that `finish` has nothing left to do unless a rank fails.
    start_event : Event or None
        Event that the kernel waits for on the side stream; None while the kernel is to run on the receive's own stream.
    """

    is_abandoned = is_settled = False
    start_event: Event | None = None
    _held_since = 0.0

    @property
    def is_inline(self) -> bool:
        """Whether MPI has transferred the data, with an envelope or from a host array."""
        return self.launched and (self.envelope is None or self.envelope.transport == INLINE)

    @property
    def peer(self) -> int:
        """Rank of the sender; MPI.ANY_SOURCE before the message has arrived."""
        return self.status.source

    def leave_stream(self) -> None:
        """Move the kernel to the side stream, after the earlier work of its own stream.

        Until the receive is finished, later work on its own stream does not wait for the kernel.
        """
        device = self.endpoint.device
        if self.start_event is None and not self.is_abandoned and device.can_leave(self.stream):
            event = event_of(self.endpoint)
            event.record(self.stream)
            self.start_event = event

    def is_due(self) -> bool:
        """Return whether the kernel can run now, and the sender may be waiting for it.

        Senders wait only for receivers of long messages. Such a receive leaves its stream once its data can be read,
        and is due when the earlier work of that stream has ended too. So its launch delays neither another kernel nor a
        call that synchronizes the device. An abandoned receive, of any length, is due once its data can be read. Its
        kernel stays on its stream, unless it had left before.
        """
        if self.is_abandoned:
            is_free = can_read(self.endpoint, self.envelope) and self._has_started()
            return is_free and self.endpoint.device.can_leave(self.stream)
        if self.envelope is None or not is_ready(self.endpoint, self.envelope):
            return False
        self.leave_stream()
        return self.start_event is not None and self.start_event.is_over()

    @property
    def is_held_back(self) -> bool:
        """Whether to delay the launch because it would make this rank wait for the sender.

        On a GPU this concerns abandoned receives: the program's stream would wait, although no call does. On the host
        device a launch may return only when its kernel has ended, and holds the lock until then. Threads that must
        first enqueue the sender's work may need that lock.
        """
        if self.endpoint.device.launches_at_once:
            return self.is_abandoned and not (can_read(self.endpoint, self.envelope) and self._has_started())
        if not self.is_awaited:
            self.leave_stream()
        start = self.start_event
        if start is None and self.stream is not None and not self.is_abandoned:
            # A stream of the host device has its own thread, which waits.
            return False
        if (start is None or self._is_copied or start.is_over()) and can_read(self.endpoint, self.envelope):
            return False
        return not self._is_late()

    def _has_started(self) -> bool:
        """Return whether the work before the kernel on its former stream has ended."""
        return self.start_event is None or self.start_event.is_over()

    @property
    def _is_copied(self) -> bool:
        """Whether MPI has received the data, which the receive's own stream then copies."""
        return self.envelope is None or self.envelope.transport in (EMPTY, INLINE)

    def _is_late(self) -> bool:
        """Return whether the sender failed, or the wait has exceeded PYNCCLX_TIMEOUT."""
        now, endpoint = time.monotonic(), self.endpoint
        self._held_since = self._held_since or now
        return now - self._held_since > endpoint.timeout_s or self._sender_failure() is not None

    def _sender_failure(self) -> Exception | None:
        return self.endpoint.failure_of(self.status.source, self.plan.operation)

    def _is_lost(self) -> bool:
        """Return whether the sender failed before its data was readable; store the error."""
        failure = None if can_read(self.endpoint, self.envelope) else self._sender_failure()
        self._error = self._error or failure
        return failure is not None

    def _unpack(self) -> Any:
        """Unpack the data into an array with gaps; return the receive's own stream."""
        assert isinstance(self.buffer, TypedBuffer)
        if self._kernel_stream is not self.stream:
            self.endpoint.device.order(self._kernel_stream, self.stream)
        self.buffer.unpack(self.endpoint, self.stream, self._nbytes)
        return self.stream

    def _finish_alone(self) -> None:
        """Make the program's stream wait for the data of an abandoned receive."""
        # No call is left that could raise an error.
        with own_errors_suppressed():
            if isinstance(self.buffer, TypedBuffer) and self._error is None:
                self._unpack()
            elif self._kernel_stream is not self.stream:
                self.endpoint.device.order(self._kernel_stream, self.stream)
            self.keep_memory()

    def keep_memory(self) -> None:
        """Keep the array until the work enqueued so far on its stream has ended."""
        memory = self.buffer, self.owner
        self.context.receives.pending_sends.keep_for(self.endpoint.device, self.stream, memory)
