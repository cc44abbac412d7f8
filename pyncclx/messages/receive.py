"""Receives: MPI matches the envelope, then a kernel copies the data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from threading import get_ident
from typing import Any

from mpi4py import MPI

from mpi_bootstrap import interrupts_deferred
from mpi_bootstrap.own_errors import own_error, own_errors_suppressed

from ..backends import Event
from ..derived.buffers import TypedBuffer
from ..failures.attribution import failure_behind
from ..requests.open_receives import LOCK, OPEN_RECEIVES
from ..requests.status import copy_status
from ..system.threads import has_begun
from .arguments import PULL, PULL_MESSAGE
from .envelope import EAGER, EMPTY, ENVELOPE_NBYTES, INLINE, OFFERED, Envelope
from .memory.bounce import CLOCK, READY, TO_DONE
from .memory.opened import address_of
from .persistent.starts import BLOCK_NBYTES, Message
from .progress.beside_stream import OpenArrival
from .progress.pending_sends import UNFOLLOWED
from .receive_launch import end_launch, launch_together, leave
from .send import Outgoing

# Number of polls for a message before the host continues (not measured).
POLLS = 8


class Incoming(OpenArrival):
    """A receive of a device array.

    Either a call waits for its message, or it is posted (`requests/open_receives.py`).
    """

    _has_opened = False  # whether the sender's memory is open for this message
    _fetches = False  # whether a kernel fetches the data
    _is_enqueued = False  # whether the kernel or copy has been enqueued; after an interrupt `launched` may be false
    _end_event: Event | None = None  # recorded after a kernel that has left the receive's stream
    # The event after the joint launch of several receives. One of them has the event, and returns it for reuse; the
    # others have None.
    _end_uses: list[Event | None]
    _copied: Event | None = None  # recorded after a copy from memory that MPI has received into

    # The message

    def accept(self, message: Any, status: MPI.Status) -> None:
        """Launch the kernel for a message that MPI has already received."""
        self._message, self.status = message, status
        self.poll()
        self.launch()

    def launch_soon(self, outgoing: Outgoing) -> None:
        """Poll briefly for the message; if it arrives, one kernel copies both messages."""
        if OPEN_RECEIVES and not self.context.receives.claim(self):
            return
        for _ in range(POLLS):
            if self.poll():
                self.launch(outgoing)
                return

    def await_message(self) -> None:
        """Wait on the host until the message has arrived and its kernel is launched."""
        receives, self.is_awaited = self.context.receives, True
        try:
            if (OPEN_RECEIVES or UNFOLLOWED or self.is_posted) and not receives.claim(self):
                receives.wait_until(lambda: self.launched)
                return
            while not self.has_arrived:
                try:
                    # An interrupted `Test` may have completed it; waiting again would empty the status.
                    if self._request:
                        self._request.Wait(self.status)
                except MPI.Exception as error:
                    self._refusal = error
                self.poll()
            self.launch()
        except BaseException:
            self.leave()
            raise

    # The data

    def launch(self, outgoing: Outgoing | None = None) -> None:
        """Enqueue the kernel or copy that moves the data to the buffer.

        The kernel also copies the short message `outgoing` to its slot, if given.
        """
        arguments = b""
        try:
            message = None if self._is_enqueued else self._begin_launch()
            if message is not None:
                self._fetches = True
                _, data, buffer, nbytes, ready, done, clock, *_, peer, tag = message
                endpoint, stream, kernel, blocks = self.endpoint, self._kernel_stream, "pull", 1
                if nbytes > BLOCK_NBYTES:
                    blocks = min(-(-nbytes // BLOCK_NBYTES), endpoint.device.max_channels)
                arrived = self.context.bounce.arrived[getattr(stream, "ptr", 0), get_ident(), 1]
                arguments = PULL.pack(ready, done, arrived, data, buffer, nbytes, clock, peer, tag)
                if outgoing is not None:
                    kernel, arguments = "put_and_pull", outgoing.put + arguments
                endpoint.launch(self.plan.operation, kernel, blocks, endpoint.device.threads, arguments, stream)
                if outgoing is not None:
                    outgoing.put = b""
            self._is_enqueued = True
        except BaseException as error:
            own = own_error(error)
            if own is None:
                self._interrupt(has_launched=arguments != b"" and has_begun(arguments))
                if self._is_enqueued and outgoing is not None:
                    outgoing.put = b""
                raise
            # Another call may have launched this receive. The call that waits for it raises the error.
            self._error = self._error or own
        if self.start_event is not None or self._has_opened:
            leave((self,))
        end_launch((self,))

    def _interrupt(self, *, has_launched: bool) -> None:
        """Prepare the next launch to continue or repeat an interrupted one."""
        self._is_enqueued = self._is_enqueued or has_launched
        if not self._is_enqueued and self._has_opened and self.envelope is not None:
            self._has_opened = False
            self._release(self.envelope)

    def launch_first(self, receives: Sequence[Any], first: int) -> int:
        """Launch this receive, at index `first`, with those after it on its stream.

        Return the index of the first receive that still has to be launched.
        """
        end, has_left = first + 1, self.start_event is not None
        for other in receives[end:]:
            if not (
                isinstance(other, Incoming)
                and other.endpoint is self.endpoint
                and (other.start_event is not None) == has_left
                and (has_left or other.stream is self.stream or other.stream == self.stream)
            ):
                break
            end += 1
        if end == first + 1:
            self.launch()
        else:
            launch_together(receives[first:end])
        return end

    def _begin_launch(self) -> Message | None:
        """Prepare the stream, open the memory, and return the message to fetch.

        Return None if no kernel is needed, because MPI has the data, the message is empty, or the sender has failed.
        """
        envelope = self.envelope
        if envelope is None or envelope.transport == INLINE:
            self._copy(0 if envelope is None else ENVELOPE_NBYTES)
            return None
        if envelope.transport == EMPTY or (self.endpoint.comm_failure is not None and self._is_lost()):
            return None
        endpoint, context, sender, place = self.endpoint, self.context, envelope.sender, envelope.place
        bounce, source, clock = context.opened.bounces.get(sender.uid), self.status.source, envelope.clock
        if bounce is None:
            bounce = context.opened.bounce_address(sender)
            # The bounce memory is open here: otherwise MPI would have transferred the data.
            assert bounce is not None
        if self.start_event is not None:
            self._kernel_stream = context.side_stream
            self.start_event.order_eager(self._kernel_stream)
        # After an error, the kernel only sets the done word.
        data = bounce + envelope.offset if envelope.transport == EAGER else self._opened(envelope)
        nbytes, ready = 0 if self._error else envelope.nbytes, bounce + READY + CLOCK.size * place
        context.bounce.pulled.setdefault(sender.uid, {})[place] = clock
        endpoint.senders[source] = sender
        words = ready, ready + TO_DONE, clock
        return PULL_MESSAGE, data, self.buffer.address, nbytes, *words, 0, 0, 0, source, self.status.tag

    def _copy(self, begin: int) -> None:
        """Enqueue the copy of data that MPI has received, which starts at offset `begin`."""
        if self._error is None and self._nbytes:
            if self.start_event is not None:
                self.start_event.order(self.stream)
            data = MPI.Get_address(self._message) + begin
            self.endpoint.copy(self.buffer.address, data, self._nbytes, self.stream)
            if self._scratch.is_read_later:
                self._copied = self.endpoint.device.event()
                self._copied.record(self.stream)

    def _opened(self, envelope: Envelope) -> int:
        """Return the address of a long message's data; 0 after an error, which is stored."""
        if self._error:
            return 0
        try:
            data = address_of(self.endpoint, envelope, self.status.source)
            self._has_opened = envelope.transport == OFFERED
            return data
        except BaseException as error:
            own = own_error(error)
            if own is None:
                raise
            # Launch even after an error, so that the sender can reuse its memory.
            is_of_system = isinstance(own, (OSError, RuntimeError))
            self._error = failure_behind(own, self._sender_failure) if is_of_system else own
        return 0

    def _release(self, envelope: Envelope) -> None:
        device, release = self.endpoint.device, self.context.opened.release
        # An exported copy is closed only after the kernel has ended.
        if device.exports_are_copies:
            device.call_between(self._kernel_stream, partial(release, envelope))
        else:
            release(envelope)

    # The end

    def is_over(self) -> bool:
        """Return whether the kernel is launched and, if it has left its stream, has ended."""
        end = self._end_event
        return self.launched and (end is None or end.is_over())

    def finish(self, stream: Any) -> None:
        """Make `stream` wait for the data; the host waits only for the envelope."""
        if not self.launched:
            self.await_message()
        device, last = self.endpoint.device, self._kernel_stream
        if self.context.opened.is_full and not device.is_capturing(stream):
            self.context.make_room()
        if isinstance(self.buffer, TypedBuffer) and self._error is None:
            last = self._unpack()
        end, self._end_event = self._end_event, None
        if end is not None and last is self._kernel_stream:
            end.order(stream)
        elif last is not stream:
            device.order(last, stream)
        if end is not None and self._end_uses.pop() is not None:
            self.context.spare_events.append(end)
        if self.endpoint.broken and self.envelope is not None and self._error is None:
            self.endpoint.check_data(self.plan.operation, self.status.source, self.envelope.clock)
        if self._error is not None:
            # After an error, do not unpack the data.
            error, self._error, self._nbytes = self._error, None, 0
            raise error

    def post(self) -> None:
        """Post the receive, so that it makes progress during all waits of this process."""
        self.context.receives.post(self)

    def leave(self, status: MPI.Status | None = None) -> None:
        """End the receive of a call that has raised.

        As in MPI, `status` then describes the message, if one has arrived.
        """
        if not self.has_begun:
            return
        if not (self._request or self.launched or self in OPEN_RECEIVES):
            self._end_interrupted()
        if status is not None and self.has_arrived:
            copy_status(status, self.status)
        self.cancel()
        self.abandon()

    def _end_interrupted(self) -> None:
        """Receive the data of a message, after a signal handler has raised.

        As in MPI, its exception is raised after the data has arrived.
        """
        # Raise only the exception of the call.
        with interrupts_deferred(to_the_end=True), own_errors_suppressed():
            if not self.has_arrived:
                self.poll()
            self.launch()
            if self.endpoint.caller.blocking == "host":
                self.endpoint.device.synchronize(self.stream)

    @property
    def has_begun(self) -> bool:
        """Whether MPI has begun the receive; its request is then known."""
        if self._begun:
            self._request = self._begun[-1]
        return bool(self._begun)

    def abandon(self) -> None:
        """Let the receive complete although no call will finish it."""
        with LOCK:
            if self.launched:
                self._finish_alone()
            elif not self.is_abandoned:
                self.is_abandoned, self.is_awaited = True, False
                self.post()
