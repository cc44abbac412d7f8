"""Receiving: MPI matches the envelope, then a kernel brings the data from where the envelope locates it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from ..backends import Event
from ..recovery.blame import failure_behind
from ..requests.open_receives import LOCK
from .arguments import PULL, PULL_MESSAGE
from .batch import BLOCK_NBYTES, Batch
from .beside_stream import OpenArrival
from .bounce import words_of
from .envelope import EAGER, EMPTY, ENVELOPE_NBYTES, INLINE, OFFERED, Envelope
from .send import Outgoing
from .sender_memory import address_of
from .typed import TypedBuffer

# Not measured
POLLS = 8  # for a message before the host does something else


class Incoming(OpenArrival):
    """A receive of a device array: a call waits for its message, or it is posted (`requests/open_receives.py`)."""

    _has_opened = False  # the sender's memory for this message
    _end_event: Event | None = None  # of the kernel, then
    _copied: Event | None = None  # behind a copy from what MPI has received

    # The message

    def accept(self, message: Any, status: MPI.Status) -> None:
        """Take a message that MPI has already received, and launch its kernel."""
        self._message, self.status = message, status
        self._read()
        self.launch()

    def launch_soon(self, outgoing: Outgoing) -> None:
        """Look for the message for as long as a launch takes; if it arrives, launch it with the one to send."""
        if not self.postbox.receives.claim(self):
            return
        for _ in range(POLLS):
            if self.poll():
                self.launch(outgoing)
                return

    def await_message(self) -> None:
        """Wait on the host until the message has arrived and its kernel is launched."""
        receives, self.is_awaited = self.postbox.receives, True
        try:
            if not receives.claim(self):
                receives.wait_until(lambda: self.launched)
                return
            try:
                while not self.has_arrived:
                    self._request.Wait(self.status)
                    self.has_arrived = self._read()
            except MPI.Exception as error:
                self._refuse(error)
            self.launch()
        except BaseException:  # of a signal handler, say: no later message may come into this call's buffer
            self.cancel()
            self.abandon()
            raise

    # The data

    def launch(self, outgoing: Outgoing | None = None) -> None:
        """Enqueue what brings the data to the buffer; the same kernel copies a short message to send, if given."""
        envelope = self.envelope
        try:
            if envelope is None or envelope.transport == INLINE:
                self._copy(0 if envelope is None else ENVELOPE_NBYTES)
            elif envelope.transport != EMPTY:
                self._pull(envelope, outgoing)
        except Exception as error:  # belongs to the call that waits for this receive, which may be another one
            self._error = self._error or error
        finally:
            self._end_launch()

    def _end_launch(self) -> None:
        if self.is_abandoned:
            self._finish_alone()
        self.launched = True  # not before: another thread may wait for it
        ring, calls = self.endpoint.ring, self.endpoint.calls
        if ring is not None and calls is not None:
            if self._is_wild:
                calls.match(self._entry, self.status.source, self.status.tag)
            ring.end(self._entry)
        release = self._scratch.give_back if self._transfer is not None else self._scratch.drop  # of `accept`
        release(self._message, self._copied)
        del self._message

    def launch_first(self, receives: Sequence[Any], first: int) -> int:
        """Launch this one, which is at `first`, with those after it of its endpoint and stream; return their end."""
        end = first + 1
        while end < len(receives) and isinstance(receives[end], Incoming) and self._goes_with(receives[end]):
            end += 1
        if end == first + 1:
            self.launch()
        else:
            _launch_together(receives[first:end])
        return end

    def _goes_with(self, other: Incoming) -> bool:
        """Whether one kernel may do both."""
        has_left, other_left = self._start_event is not None, other._start_event is not None
        return (
            self.endpoint is other.endpoint
            and has_left == other_left
            and (has_left or self.stream is other.stream or self.stream == other.stream)
        )

    def _copy(self, begin: int) -> None:
        """Enqueue the copy of what MPI has received from a place of its message on."""
        if self._error is None and self._nbytes:
            data = MPI.Get_address(self._message) + begin
            self.endpoint.copy(self.buffer.address, data, self._nbytes, self.stream)
            if self._scratch.is_read_later:
                self._copied = self._event_on(self.stream)

    def _pull(self, envelope: Envelope, outgoing: Outgoing | None) -> None:
        try:
            ready, done, *fields = self._begin_pull(envelope)
            device, kernel, grid, nbytes = self.endpoint.device, "pull", 1, fields[2]
            if nbytes > BLOCK_NBYTES:
                grid = min(-(-nbytes // BLOCK_NBYTES), device.max_channels)
            arguments = PULL.pack(ready, done, self.postbox.bounce.arrived_words(self._kernel_stream, 1), *fields)
            if outgoing is not None:
                kernel, arguments, outgoing.put = "put_and_pull", outgoing.put + arguments, b""
            self.endpoint.launch(self.operation, kernel, grid, device.threads, arguments, self._kernel_stream)
            if self._start_event is not None:
                self._end_event = self._event_on(self._kernel_stream)
        finally:
            if self._has_opened:
                self._release(envelope)

    def _begin_pull(self, envelope: Envelope) -> tuple[int, ...]:
        """Prepare the stream and open the memory; return the fields of `PULL`, without the word for `arrived`."""
        endpoint, postbox, source = self.endpoint, self.postbox, self.status.source
        bounce = postbox.opened.bounce_address(envelope.sender)
        assert bounce is not None  # or the sender would have sent the data along
        if self._start_event is not None:
            self._kernel_stream = postbox.side_stream
            self._start_event.order(self._kernel_stream)
        # After an error, the kernel only sets the done word.
        data = bounce + envelope.offset if envelope.transport == EAGER else self._opened(envelope)
        nbytes = 0 if self._error else envelope.nbytes
        postbox.rescue.pulled.setdefault(envelope.sender.uid, {})[envelope.place] = envelope.clock
        endpoint.senders[source] = envelope.sender
        ready, done = words_of(bounce, envelope.place)
        return ready, done, data, self.buffer.address, nbytes, envelope.clock, source, self.status.tag

    def _opened(self, envelope: Envelope) -> int:
        """Return where a long message's data is in this process; 0 after an error, which is kept."""
        if self._error:
            return 0
        try:
            data = address_of(self.endpoint, envelope, self.status.source)
            self._has_opened = envelope.transport == OFFERED
            return data
        except (OSError, RuntimeError) as error:
            self._error = failure_behind(error, self._sender_failure)
        except Exception as error:  # whatever it is, the sender may use its memory again
            self._error = error
        return 0

    def _sender_failure(self) -> Exception | None:
        return self.endpoint.failure_of(self.status.source, self.operation)

    def _release(self, envelope: Envelope) -> None:
        if self.endpoint.device.exports_are_copies:  # of which this is closed now
            self.endpoint.device.synchronize(self._kernel_stream)
        self.postbox.opened.release(envelope)

    def _leave(self, error: Exception | None) -> None:
        """The launch of a batch that was to fetch the data is done, or has failed."""
        self._error = self._error or error
        if self._start_event is not None:
            self._end_event = self._event_on(self._kernel_stream)
        if self._has_opened and self.envelope is not None:
            self._release(self.envelope)

    # The end

    def is_over(self) -> bool:
        """Whether its kernel is launched; of one that has left its stream, whether it has ended."""
        return self.launched and (self._end_event is None or self._end_event.is_over())

    def finish(self, stream: Any) -> None:
        """Make `stream` wait for the data. The host waits for the envelope only."""
        if not self.launched:
            self.await_message()
        device, last = self.endpoint.device, self._kernel_stream
        if self.postbox.opened.is_full and not device.is_capturing(stream):
            self.postbox.make_room()
        if isinstance(self.buffer, TypedBuffer) and self._error is None:
            last = self._unpack()
        if last is not stream:
            device.order(last, stream)
        if self.endpoint.broken and self.envelope is not None and self._error is None:
            self.endpoint.check_data(self.operation, self.status.source, self.envelope.clock)
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def post(self) -> None:
        """Let it go on whatever this process waits for."""
        self.postbox.receives.post(self)

    def abandon(self) -> None:
        """Let it go on without a call that finishes it."""
        with LOCK:
            if self.launched:
                self._finish_alone()
            elif not self.is_abandoned:
                self.is_abandoned, self.is_awaited = True, False
                self.post()

    @property
    def is_inline(self) -> bool:
        """Whether MPI has transferred the data: with its envelope, or of a host array."""
        return self.launched and (self.envelope is None or self.envelope.transport == INLINE)

    @property
    def peer(self) -> int:
        """The rank that sent it; MPI.ANY_SOURCE before it has arrived."""
        return self.status.source


def _launch_together(receives: Sequence[Incoming]) -> None:
    """Launch receives of one endpoint and stream: one kernel fetches what kernels have to fetch."""
    batch, fetched = Batch(receives[0].endpoint, "Irecv"), []
    error: Exception | None = None
    for each in receives:
        envelope = each.envelope
        if envelope is None or envelope.transport in (INLINE, EMPTY):
            each.launch()
            continue
        try:
            ready, done, data, buffer, nbytes, clock, peer, tag = each._begin_pull(envelope)
        except Exception as raised:
            each._leave(raised)
            each._end_launch()
            continue
        words = {"ready": ready, "done": done, "clock": clock, "peer": peer, "tag": tag}
        batch.add(PULL_MESSAGE, **words, data=data, buffer=buffer, nbytes=nbytes)
        fetched.append(each)
    try:
        if fetched:
            batch.launch(fetched[0]._kernel_stream)
    except Exception as raised:
        error = raised
    for each in fetched:
        if error is not None or each._start_event is not None or each._has_opened:
            each._leave(error)
        each._end_launch()
