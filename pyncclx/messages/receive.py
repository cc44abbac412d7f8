"""Receiving: MPI matches the envelope, then a kernel takes the data from where that says it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from ..buffers import Buffer
from ..errors import MPIError
from .endpoint import PULL, Endpoint
from .envelope import EAGER, EMPTY, ENVELOPE_NBYTES, INLINE, OFFERED, WINDOW, Envelope, Sender, inline_nbytes, unpack
from .probe import Held
from .send import Outgoing
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
    """

    def __init__(
        self,
        endpoint: Endpoint,
        operation: str,
        buffer: Buffer,
        source: int,
        tag: int,
        stream: Any,
        start: Start,
        held: Held | None = None,  # what a probe has found, where MPI knows another source
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
        self._room = buffer.nbytes
        self.status = MPI.Status()
        self.clock = 0
        self.launched = False
        self._found: tuple[Envelope, Sender] | None = None  # None: the message is a host array's
        self._nbytes = 0
        self._error: Exception | None = None

    # The message

    def arrived(self) -> bool:
        """Look whether the message has come; True once."""
        try:
            if not self._request.Test(self.status):
                return False
        except MPI.Exception as error:
            self._error = self._refusal(error)
            return True
        self._read()
        return True

    def launch_soon(self, outgoing: Outgoing) -> None:
        """Look for the message for as long as a launch takes; if it comes by then, launch it with one to send."""
        looks = range(LOOKS if self.postbox.alone(self) else 0)
        if any(self.arrived() for _ in looks):
            self.launch(outgoing)

    def await_message(self) -> None:
        """Wait on the host until the message has come and its kernel is launched."""
        if self.launched:
            return
        if self.postbox.alone(self):
            try:
                self._request.Wait(self.status)
                self._read()
            except MPI.Exception as error:
                self._error = self._refusal(error)
            self.launch()
        else:
            self.postbox.wait_until(lambda: self.launched)

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
            self.postbox.see(envelope.clock)
            if envelope.answer and self.postbox.opened.bounce(sender) is not None:
                self.postbox.readers.answer(sender, envelope.answer - 1)
        self.status.Set_elements(MPI.BYTE, min(self._nbytes, self._room))
        if self._nbytes > self._room:
            self._error = self._truncated(f"{self._nbytes}")

    def _truncated(self, sent: str) -> MPIError:
        source, tag = self.status.source, self.status.tag
        text = f"rank {source} sent {sent} bytes with tag {tag}, the buffer has room for {self._room}"
        return MPIError(MPI.ERR_TRUNCATE, f"{self.operation}: {text}; receive into a larger array")

    def _refusal(self, error: MPI.Exception) -> Exception:
        """MPI's own complaint; that a message is too long can only be one that brought its data."""
        return self._truncated("more") if error.Get_error_class() == MPI.ERR_TRUNCATE else error

    def is_over(self) -> bool:
        """Whether `finish` would not wait."""
        return self.launched

    # The data

    def launch(self, outgoing: Outgoing | None = None) -> None:
        """Enqueue what brings the data to the buffer, and by the same kernel what copies a short message to send."""
        try:
            self._move(outgoing)
            if isinstance(self.buffer, TypedBuffer) and self._error is None:
                self.buffer.unpack(self.endpoint, self.stream, self._nbytes)
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
        try:
            if not self._error:
                address = self._address(base, envelope, sender)
        except (OSError, RuntimeError) as error:
            nbytes, self._error = 0, error
        arguments = PULL.pack(
            ready,
            done,
            self.postbox.arrived_word(self.stream),
            address,
            self.buffer.address,
            nbytes,
            envelope.clock,
            self.status.source,
            self.status.tag,
        )
        try:
            self._launch_pull(nbytes, arguments, outgoing)
        finally:
            if address and envelope.transport == OFFERED:
                self.postbox.opened.launched(envelope, sender)

    def _launch_pull(self, nbytes: int, arguments: bytes, outgoing: Outgoing | None) -> None:
        device = self.endpoint.device
        grid = max(1, min(-(-nbytes // WORTH_A_BLOCK), device.max_channels))
        if outgoing is None:
            self.endpoint.launch(self.operation, "pull", grid, device.threads, arguments, self.stream)
        else:
            both, outgoing.put = outgoing.put + arguments, b""
            self.endpoint.launch(self.operation, "put_and_pull", grid, device.threads, both, self.stream)

    def _address(self, bounce: int, envelope: Envelope, sender: Sender) -> int:
        if envelope.transport == EAGER:
            return bounce + envelope.offset
        if envelope.transport == WINDOW:
            team = self.endpoint.team
            assert team is not None  # windows are made by all ranks
            return team.windows[envelope.allocation].bases[self.status.source] + envelope.offset
        return self.postbox.opened.data(envelope, sender)

    def finish(self, stream: Any) -> None:
        """What is enqueued on `stream` from now on sees the data. The host waits for the envelope only."""
        self.await_message()
        if self.stream is not stream:
            self.endpoint.device.order(self.stream, stream)
        if self._error is not None:
            error, self._error = self._error, None
            raise error


class Found(Incoming):
    """A device array's message that a receive of a host array has got, envelope and all."""

    _held = None

    def __init__(self, endpoint: Endpoint, buffer: Buffer, stream: Any, message: Any, status: MPI.Status) -> None:
        self._prepare(endpoint, "Recv", buffer, stream)
        self._message, self.status = message, status
        self._read()
        self.launch()
