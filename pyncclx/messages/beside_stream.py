"""Open receives beside their streams: which stream their kernels are for, and when these would wait for nothing."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from ..backends import Event
from .arrival import Arrival
from .envelope import EMPTY, INLINE
from .sender_memory import can_read, is_ready
from .typed import TypedBuffer


class OpenArrival(Arrival):
    """A message that is to come, or has come, whose data no kernel has been launched for.

    Attributes
    ----------
    launched : bool
        Whether its kernel is launched.
    is_posted : bool
        Whether it is, or was, among the open receives.
    is_awaited : bool
        Whether a call waits for it.
    is_abandoned : bool
        Whether no call will finish it: its data is then brought as soon as its kernel waits for nothing.
    """

    launched = is_posted = is_awaited = is_abandoned = False
    _start_event: Event | None = None  # that its kernel comes after, once it has left its stream
    _held_since = 0.0

    def leave_stream(self) -> None:
        """Let its kernel come after what its stream has by now, and on another stream before what follows there."""
        device = self.endpoint.device
        if self._start_event is None and not self.is_abandoned and device.can_leave(self.stream):
            self._start_event = self._event_on(self.stream)

    def _event_on(self, stream: Any) -> Event:
        event = self.endpoint.device.event()
        event.record(stream)
        return event

    def is_due(self) -> bool:
        """Whether the sender may be waiting for nothing but this receive's kernel; then it has left its stream.

        Only of a long message: senders do not wait for others. The kernel then waits neither for the data nor for what
        the stream had, so that no other one waits for it, nor a call that waits for the whole device. An abandoned
        receive, of any length, is due once its data can be read, and its kernel stays on its stream.
        """
        if self.is_abandoned:
            return self._can_read() and self.endpoint.device.can_leave(self.stream)
        if self.envelope is None or not is_ready(self.endpoint, self.envelope):
            return False
        self.leave_stream()
        return self._start_event is not None and self._start_event.is_over()

    @property
    def is_held_back(self) -> bool:
        """Whether its launch would make the program's stream wait for its sender, though no call waits for it.

        On the host device, whether the launch itself would wait: a launch there may return only when its kernel has
        ended, and the lock is held meanwhile, which the sender's other threads may need for what the kernel waits for.
        """
        if self.endpoint.device.launches_at_once:
            return self.is_abandoned and not self._can_read()
        if not self.is_awaited:
            self.leave_stream()
        start = self._start_event
        if start is None and self.stream is not None and not self.is_abandoned:
            return False  # the stream's thread waits
        if self._can_read() and (start is None or self._is_copied or start.is_over()):
            return False
        return not self._is_late()

    def _can_read(self) -> bool:
        """Whether its kernel would wait for nothing of the sender's."""
        envelope = self.envelope
        return envelope is None or envelope.transport in (EMPTY, INLINE) or can_read(self.endpoint, envelope)

    @property
    def _is_copied(self) -> bool:
        """Whether MPI has brought the data, which is then copied on the receive's own stream."""
        return self.envelope is None or self.envelope.transport in (EMPTY, INLINE)

    def _is_late(self) -> bool:
        """Whether the sender has failed, or not come as far as its data within PYNCCLX_TIMEOUT since first asked."""
        now, endpoint = time.monotonic(), self.endpoint
        self._held_since = self._held_since or now
        return now - self._held_since > endpoint.timeout_s or self._sender_failure() is not None

    def _sender_failure(self) -> Exception | None:
        return self.endpoint.failure_of(self.status.source, self.plan.operation)

    def _is_lost(self) -> bool:
        """Whether the sender has failed before its data could be read; this error is kept, unless there is one."""
        failure = None if self._can_read() else self._sender_failure()
        self._error = self._error or failure
        return failure is not None

    def _unpack(self) -> Any:
        """Copy what was received into an array with gaps, on the receive's own stream, which is returned."""
        assert isinstance(self.buffer, TypedBuffer)
        if self._kernel_stream is not self.stream:
            self.endpoint.device.order(self._kernel_stream, self.stream)
        self.buffer.unpack(self.endpoint, self.stream, self._nbytes)
        return self.stream

    def _finish_alone(self) -> None:
        """Do what `finish` does for the data: the program's stream sees it from now on."""
        with suppress(Exception):  # no call is there to raise it
            if isinstance(self.buffer, TypedBuffer) and self._error is None:
                self._unpack()
            elif self._kernel_stream is not self.stream:
                self.endpoint.device.order(self._kernel_stream, self.stream)
            self.keep_memory()

    def keep_memory(self) -> None:
        """Keep the array until its stream has done what it has by now."""
        memory = self.buffer, self.owner
        self.postbox.receives.unsent.keep_for(self.endpoint.device, self.stream, memory)
