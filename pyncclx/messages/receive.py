"""Receiving: MPI matches the envelope, then a kernel brings the data from where the envelope locates it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..backends import Event
from ..errors import MPIError
from .arguments import pull_arguments
from .bounce import words_of
from .endpoint import Endpoint
from .envelope import EMPTY, ENVELOPE_NBYTES, INLINE, OFFERED, Envelope, inline_nbytes, unpack
from .probe import ProbedMessage
from .send import Outgoing
from .sender_memory import address_of, is_ready
from .typed import TypedBuffer

# Not measured
POLLS = 8  # for a message before the host does something else
BLOCK_NBYTES = 32 << 10  # that a block of `pull` moves before another one pays


class Incoming:
    """A receive of a device array: a call waits for its message at once, or it is posted (`requests/open_receives.py`).

    Attributes
    ----------
    status : MPI.Status
        Of the message, once it has arrived.
    clock : int
        Of the message, once it has arrived; 0 of a host array.
    has_arrived, launched : bool
        Whether its message has arrived, and whether its kernel is launched.
    is_awaited : bool
        Whether a call waits for it.
    stays_on_stream : bool
        Whether its kernel must be on its own stream: no call will wait for it.
    """

    clock = _entry = 0
    has_arrived = launched = is_awaited = stays_on_stream = False
    _envelope: Envelope | None = None  # None: the message is a host array's
    _nbytes = 0  # of the message
    _error: Exception | None = None
    _start_event: Event | None = None  # that its kernel comes after, once it has left its stream
    _end_event: Event | None = None  # of the kernel, then

    def __init__(
        self, endpoint: Endpoint, operation: str, buffer: Buffer, stream: Any, probed: ProbedMessage | None = None
    ) -> None:
        self.endpoint, self.postbox, self.operation = endpoint, endpoint.postbox, operation
        self.buffer, self.stream, self._kernel_stream = buffer, stream, stream
        self._probed = probed  # the message that a probe has found: MPI has another source and tag for it
        self._capacity_nbytes = buffer.nbytes
        self.status = MPI.Status()

    # The message

    def record(self, source: int, tag: int) -> None:
        """Write the entry for the flight recorder."""
        self._entry = self.endpoint.record(self.operation, source, tag, self.buffer)

    def start(self, transfer: Callable[[memoryview], MPI.Request]) -> None:
        """Start to receive the message: `transfer` starts MPI's receive into host memory."""
        if isinstance(self.buffer, TypedBuffer):
            self.buffer.allocate(self.endpoint.device, self.stream)
        self._message = self.postbox.scratch.take(inline_nbytes(self._capacity_nbytes))
        self._request = transfer(self._message)

    def accept(self, message: Any, status: MPI.Status) -> None:
        """Take a message that MPI has already received, and launch its kernel."""
        self._message, self.status = message, status
        self._read()
        self.launch()

    def poll(self) -> bool:
        """Look whether the message has arrived; True once."""
        try:
            if not self._request.Test(self.status):
                return False
            self._read()
        except Exception as error:  # belongs to the call that waits for this receive
            self._refuse(error)
        self.has_arrived = True
        return True

    def launch_soon(self, outgoing: Outgoing) -> None:
        """Look for the message for as long as a launch takes; if it arrives, launch it with the one to send."""
        polls = range(POLLS if self.postbox.receives.claim(self) else 0)
        if any(self.poll() for _ in polls):
            self.launch(outgoing)

    def await_message(self) -> None:
        """Wait on the host until the message has arrived and its kernel is launched."""
        if self.launched:
            return
        self.is_awaited = True
        if not self.postbox.receives.claim(self):
            self.postbox.receives.wait_until(lambda: self.launched)
            return
        try:
            if not self.has_arrived:
                self._request.Wait(self.status)
                self._read()
        except MPI.Exception as error:
            self._refuse(error)
        self.launch()

    def _read(self) -> None:
        received_nbytes = self.status.Get_elements(MPI.BYTE)
        if self._probed is not None:
            self._probed.set_origin(self.status)
        envelope = self._envelope = unpack(self._message, received_nbytes)
        self._nbytes = received_nbytes  # of a host array, if there is no envelope
        if envelope is not None:
            self._nbytes, self.clock = envelope.nbytes, envelope.clock
            self.postbox.clock.observe(envelope.clock)
            if envelope.answer and self.postbox.opened.bounce_address(envelope.sender) is not None:
                self.postbox.readers.answer(envelope.sender, envelope.answer - 1)
        self.status.Set_elements(MPI.BYTE, min(self._nbytes, self._capacity_nbytes))
        if self._nbytes > self._capacity_nbytes:
            self._error = self._truncated(f"{self._nbytes}")

    def _truncated(self, sent: str) -> MPIError:
        source, tag = self.status.source, self.status.tag
        text = f"rank {source} sent {sent} bytes with tag {tag}, the buffer has room for {self._capacity_nbytes}"
        return MPIError(MPI.ERR_TRUNCATE, f"{self.operation}: {text}; receive into a larger array")

    def _refuse(self, error: Exception) -> None:
        """Keep MPI's own error, or what it is about; only a message with its data in it can be too long for MPI."""
        if not isinstance(error, MPI.Exception):
            self._error = error
        elif error.Get_error_class() == MPI.ERR_TRUNCATE:
            self._error = self._truncated("more")
        else:
            self._error = self.endpoint.explained(error, self.operation)
        if self._request:  # a receive from any rank, which MPI has not ended: some rank has failed
            self._request.Cancel()
            with suppress(MPI.Exception):
                self._request.Wait()

    # The data

    def launch(self, outgoing: Outgoing | None = None) -> None:
        """Enqueue what brings the data to the buffer; the same kernel copies a short message to send, if given."""
        try:
            self._move(outgoing)
        except Exception as error:  # belongs to the call that waits for this receive, which may be another one
            self._error = self._error or error
        finally:
            self.launched = True  # not before: another thread may wait for it
        if self.endpoint.calls is not None:
            self.endpoint.calls.received(self._entry, self.status.source, self.status.tag)
        self.postbox.scratch.give_back(self._message)
        del self._message

    def _move(self, outgoing: Outgoing | None) -> None:
        envelope = self._envelope
        if envelope is None or envelope.transport == INLINE:
            if self._error is None and self._nbytes:
                data = MPI.Get_address(self._message) + (ENVELOPE_NBYTES if envelope else 0)
                self.endpoint.copy(self.buffer.address, data, self._nbytes, self.stream)
        elif envelope.transport != EMPTY:
            self._pull(envelope, outgoing)

    def _pull(self, envelope: Envelope, outgoing: Outgoing | None) -> None:
        bounce = self.postbox.opened.bounce_address(envelope.sender)
        assert bounce is not None  # or the sender would have sent the data along
        data, nbytes = 0, 0  # after an error, the kernel only sets the done word
        if self._start_event is not None:
            self._kernel_stream = self.postbox.side_stream
            self._start_event.order(self._kernel_stream)
        try:
            if not self._error:
                data = address_of(self.endpoint, bounce, envelope, self.status.source)
                nbytes = envelope.nbytes
        except (OSError, RuntimeError) as error:
            self._error = self.endpoint.failure_of(self.status.source, self.operation) or error
        try:
            self._launch_pull(nbytes, self._pull_arguments(envelope, bounce, data, nbytes), outgoing)
            if self._start_event is not None:
                self._end_event = self._event_on(self._kernel_stream)
        finally:
            if data and envelope.transport == OFFERED:
                if self.endpoint.device.exports_are_copies:  # of which this is closed now
                    self.endpoint.device.synchronize(self._kernel_stream)
                self.postbox.opened.release(envelope)

    def _pull_arguments(self, envelope: Envelope, bounce: int, data: int, nbytes: int) -> bytes:
        ready, done = words_of(bounce, envelope.place)
        self.postbox.rescue.pulled.setdefault(envelope.sender.uid, {})[envelope.place] = envelope.clock
        self.endpoint.senders[self.status.source] = envelope.sender
        return pull_arguments(
            ready=ready,
            done=done,
            arrived=self.postbox.bounce.arrived_word(self._kernel_stream),
            data=data,
            buffer=self.buffer.address,
            nbytes=nbytes,
            clock=envelope.clock,
            peer=self.status.source,
            tag=self.status.tag,
        )

    def _launch_pull(self, nbytes: int, arguments: bytes, outgoing: Outgoing | None) -> None:
        device, kernel = self.endpoint.device, "pull"
        grid = max(1, min(-(-nbytes // BLOCK_NBYTES), device.max_channels))
        if outgoing is not None:
            kernel, arguments, outgoing.put = "put_and_pull", outgoing.put + arguments, b""
        self.endpoint.launch(self.operation, kernel, grid, device.threads, arguments, self._kernel_stream)

    # The end

    def is_over(self) -> bool:
        """Whether its kernel is launched; of one that has left its stream, whether it has ended."""
        return self.launched and (self._end_event is None or self._end_event.is_over())

    def finish(self, stream: Any) -> None:
        """Make `stream` wait for the data. The host waits for the envelope only."""
        self.await_message()
        device, last = self.endpoint.device, self._kernel_stream
        if isinstance(self.buffer, TypedBuffer) and self._error is None:
            if last is not self.stream:
                device.order(last, self.stream)
            last = self.stream
            self.buffer.unpack(self.endpoint, last, self._nbytes)
        if last is not stream:
            device.order(last, stream)
        if self._envelope is not None and self._error is None:
            self.endpoint.check_data(self.operation, self.status.source, self._envelope.clock)
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    @property
    def is_inline(self) -> bool:
        """Whether MPI has transferred the data: with its envelope, or of a host array."""
        return self.launched and (self._envelope is None or self._envelope.transport == INLINE)

    @property
    def peer(self) -> int:
        """The rank that sent it; MPI.ANY_SOURCE before it has arrived."""
        return self.status.source

    # Beside its stream

    def post(self) -> None:
        """Let it go on whatever this process waits for."""
        self.postbox.receives.post(self)

    def leave_stream(self) -> None:
        """Let its kernel come after what its stream has by now, and on another stream before what follows there."""
        device = self.endpoint.device
        if self._start_event is None and not self.stays_on_stream and device.can_leave(self.stream):
            self._start_event = self._event_on(self.stream)

    def _event_on(self, stream: Any) -> Event:
        event = self.endpoint.device.event()
        event.record(stream)
        return event

    def is_due(self) -> bool:
        """Whether the sender may be waiting for nothing but this receive's kernel; then it has left its stream.

        Only of a long message: senders do not wait for others. The kernel then waits neither for the data nor for what
        the stream had, so that no other one waits for it, nor a call that waits for the whole device.
        """
        if self._envelope is None or not is_ready(self.endpoint, self._envelope):
            return False
        self.leave_stream()
        return self._start_event is not None and self._start_event.is_over()
