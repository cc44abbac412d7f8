"""Receiving: MPI matches the envelope, then a kernel takes the data from where that says it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..backends import Event
from ..errors import MPIError
from .endpoint import PULL, Endpoint
from .envelope import EMPTY, ENVELOPE_NBYTES, INLINE, OFFERED, Envelope, Sender, inline_nbytes, unpack
from .probe import ProbedMessage
from .send import Outgoing
from .sender_memory import address_of, is_ready
from .typed import TypedBuffer

LOOKS = 8  # for a message before the host does something else
WORTH_A_BLOCK = 32 << 10  # bytes that a block of `pull` moves before another one pays

Start = Callable[[Any, int, int], MPI.Request]


class Incoming:
    """A receive of a device array: somebody waits for its message at once, or it is posted in the postbox.

    Attributes
    ----------
    status : MPI.Status
        Of the message, once it has come.
    stays : bool
        Whether its kernel must be on its own stream: nobody will wait for it.
    """

    stays_on_stream = False

    def __init__(
        self,
        endpoint: Endpoint,
        operation: str,
        buffer: Buffer,
        source: int,
        tag: int,
        stream: Any,
        start: Start,
        held: ProbedMessage | None = None,  # what a probe has found, where MPI knows another source
    ) -> None:
        self._held = held
        self._prepare(endpoint, operation, buffer, stream)
        if isinstance(buffer, TypedBuffer):
            buffer.allocate(endpoint.device, stream)
        self._message = self.postbox.scratch(inline_nbytes(self._room))
        self._request = start(self._message, source, tag)

    def _prepare(self, endpoint: Endpoint, operation: str, buffer: Buffer, stream: Any) -> None:
        self.endpoint, self.postbox = endpoint, endpoint.postbox
        self.operation, self.buffer, self.stream = operation, buffer, stream
        self._on = stream  # where its kernel is
        self._after: Event | None = None  # what that comes after, once it is not to be on its own stream
        self._end: Event | None = None  # of the kernel, then
        self._room = buffer.nbytes
        self.status = MPI.Status()
        self.clock = 0
        self.has_arrived = self.launched = self.is_awaited = False
        self._found: tuple[Envelope, Sender] | None = None  # None: the message is a host array's
        self._nbytes = 0
        self._error: Exception | None = None

    # The message

    def poll(self) -> bool:
        """Look whether the message has come; True once."""
        try:
            if not self._request.Test(self.status):
                return False
            self._read()
        except Exception as error:  # belongs to the call that waits for this receive; the request is used up
            self._error = self._refusal(error)
        self.has_arrived = True
        return True

    def launch_soon(self, outgoing: Outgoing) -> None:
        """Look for the message for as long as a launch takes; if it comes by then, launch it with one to send."""
        looks = range(LOOKS if self.postbox.alone(self) else 0)
        if any(self.poll() for _ in looks):
            self.launch(outgoing)

    def await_message(self) -> None:
        """Wait on the host until the message has come and its kernel is launched."""
        if self.launched:
            return
        self.is_awaited = True
        if not self.postbox.alone(self):
            self.postbox.wait_until(lambda: self.launched)
            return
        try:
            if not self.has_arrived:
                self._request.Wait(self.status)
                self._read()
        except MPI.Exception as error:
            self._error = self._refusal(error)
        self.launch()

    def _read(self) -> None:
        received = self.status.Get_elements(MPI.BYTE)
        if self._held is not None:
            self._held.tell(self.status)
        self._found = unpack(self._message[:received])
        self._nbytes = received  # of a host array, if there is no envelope
        if self._found is not None:
            envelope, sender = self._found
            self._nbytes = envelope.nbytes
            self.clock = envelope.clock
            self.postbox.observe_clock(envelope.clock)
            if envelope.answer and self.postbox.opened.bounce(sender) is not None:
                self.postbox.readers.answer(sender, envelope.answer - 1)
        self.status.Set_elements(MPI.BYTE, min(self._nbytes, self._room))
        if self._nbytes > self._room:
            self._error = self._truncated(f"{self._nbytes}")

    def _truncated(self, sent: str) -> MPIError:
        source, tag = self.status.source, self.status.tag
        text = f"rank {source} sent {sent} bytes with tag {tag}, the buffer has room for {self._room}"
        return MPIError(MPI.ERR_TRUNCATE, f"{self.operation}: {text}; receive into a larger array")

    def _refusal(self, error: Exception) -> Exception:
        """MPI's own complaint; that a message is too long can only be one that brought its data."""
        too_long = isinstance(error, MPI.Exception) and error.Get_error_class() == MPI.ERR_TRUNCATE
        return self._truncated("more") if too_long else error

    def is_over(self) -> bool:
        """Whether `finish` would not wait: on another stream than its own, the program's does not either."""
        return self.launched and (self._end is None or self._end.is_over())

    # The data

    def launch(self, outgoing: Outgoing | None = None) -> None:
        """Enqueue what brings the data to the buffer, and by the same kernel what copies a short message to send."""
        try:
            self._move(outgoing)
        except Exception as error:  # belongs to the call that waits for this receive, which may be another one
            self._error = self._error or error
        finally:
            self.launched = True  # not before: another thread may wait for it
        self.postbox.give_back(self._message)
        del self._message

    def _move(self, outgoing: Outgoing | None) -> None:
        if self._found is None or self._found[0].transport == INLINE:
            if self._error is None and self._nbytes:
                data = MPI.Get_address(self._message) + (ENVELOPE_NBYTES if self._found else 0)
                self.endpoint.device.copy(self.buffer.address, data, self._nbytes, self.stream)
        elif self._found[0].transport != EMPTY:
            self._pull(*self._found, outgoing)

    def _pull(self, envelope: Envelope, sender: Sender, outgoing: Outgoing | None) -> None:
        base = self.postbox.opened.bounce(sender)
        assert base is not None  # or the sender would have sent the data along
        ready, done = self.postbox.words_of(envelope.control, base)
        nbytes, address = (0, 0) if self._error else (envelope.nbytes, 0)
        if self._after is not None:
            self._on = self.postbox.side
            self._after.order(self._on)
        try:
            if not self._error:
                address = address_of(self.endpoint, base, envelope, sender, self.status.source)
        except (OSError, RuntimeError) as error:
            nbytes, self._error = 0, error
        arguments = PULL.pack(
            ready,
            done,
            self.postbox.arrived_word(self._on),
            address,
            self.buffer.address,
            nbytes,
            envelope.clock,
            self.status.source,
            self.status.tag,
        )
        try:
            self._launch_pull(nbytes, arguments, outgoing)
            if self._after is not None:
                self._end = self._event_on(self._on)
        finally:
            if address and envelope.transport == OFFERED:
                self.postbox.opened.launched(envelope, sender)

    def _launch_pull(self, nbytes: int, arguments: bytes, outgoing: Outgoing | None) -> None:
        device = self.endpoint.device
        grid = max(1, min(-(-nbytes // WORTH_A_BLOCK), device.max_channels))
        if outgoing is None:
            self.endpoint.launch(self.operation, "pull", grid, device.threads, arguments, self._on)
        else:
            both, outgoing.put = outgoing.put + arguments, b""
            self.endpoint.launch(self.operation, "put_and_pull", grid, device.threads, both, self._on)

    def finish(self, stream: Any) -> None:
        """What is enqueued on `stream` from now on sees the data. The host waits for the envelope only."""
        self.await_message()
        device, on = self.endpoint.device, self._on
        if isinstance(self.buffer, TypedBuffer) and self._error is None:
            if on is not self.stream:
                device.order(on, self.stream)
            on = self.stream
            self.buffer.unpack(self.endpoint, on, self._nbytes)
        if on is not stream:
            device.order(on, stream)
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    # Beside its stream

    def leave_stream(self) -> None:
        """What its stream has by now is all that its kernel comes after, on the postbox's stream."""
        device = self.endpoint.device
        if self._after is None and not self.stays_on_stream and device.can_leave(self.stream):
            self._after = self._event_on(self.stream)

    def _event_on(self, stream: Any) -> Event:
        event = self.endpoint.device.event()
        event.record(stream)
        return event

    def is_due(self) -> bool:
        """Whether the sender may be waiting for nothing but this receive's kernel; then it has left its stream.

        Only for a long message: others have left their senders. The kernel then waits neither for the data nor for what
        the stream had, so that no other one waits for it, nor a call that waits for the whole device.
        """
        if self._found is None or not is_ready(self.endpoint, *self._found):
            return False
        self.leave_stream()
        return self._after is not None and self._after.is_over()
