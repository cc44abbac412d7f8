"""Second half of a send: launch the sender's kernel, and wait for the receiver."""

from __future__ import annotations

import os
import time
from threading import get_ident
from typing import Any

from mpi4py import MPI

from mpi_bootstrap.own_errors import own_errors_suppressed

from ..errors import MPIError, SendTimeout
from ..recording.failures import noted
from ..system.threads import has_begun
from .arguments import OFFER, PUT, PUT_MESSAGE, SIGNAL_MESSAGE
from .departure import Departure
from .memory.bounce import words_of
from .persistent.starts import Message

# Bytes that a thread of `put_eager` copies: four packs, whose loads overlap (not measured).
_THREAD_NBYTES = 64


class Outgoing(Departure):
    """A message whose envelope has been sent.

    The buffer of a short message can be reused without waiting for the receiver. The buffer of a long message is in use
    until the receiver has read it. `finish` makes a stream wait for this. If no call will finish the message, `abandon`
    keeps the buffer alive until the receiver has read it. The envelope is sent before the kernel is launched that
    copies the message or sets its ready word. So the hosts of sender and receiver launch their kernels at the same
    time.
    """

    # Whether the monitor thread makes progress for the message.
    _is_open = False
    # Whether the ready word of an offered message is set, or a kernel that sets it is launched.
    _is_signalled = False

    @property
    def nbytes(self) -> int:
        """Length of the data in bytes."""
        return self.plan.nbytes

    # MPI's progress while this process waits

    def post(self) -> None:
        """Have MPI make progress for the message if MPI has not sent it yet."""
        pending_sends = self.context.receives.pending_sends
        if pending_sends.dropped:
            pending_sends.take_dropped()
        # Get_status leaves an error for the call that waits.
        if not (self.plan.is_free_at_once or self._request.Get_status()):
            self._is_open = True
            pending_sends.add(self)

    def _close(self) -> None:
        """Undo `post`."""
        self._is_open = False
        self.context.receives.pending_sends.discard(self)

    # The sender's kernels

    def signal_ready(self, *, wait: bool = False) -> None:
        """Signal the receiver, in stream order and only once, that the data can be read.

        With `wait`, make the stream wait until the receiver has read it. Use it only while no receive is open;
        otherwise the two ranks could deadlock.
        """
        endpoint, plan = self.endpoint, self.plan
        if self.put:
            threads = min(-(-plan.nbytes // (_THREAD_NBYTES * 32)) * 32, endpoint.device.threads)
            has_launched = False
            try:
                endpoint.launch(plan.operation, "put_eager", 1, threads, self.put, self.stream)
                has_launched = True
            finally:
                if has_launched or has_begun(self.put):
                    self.put = b""
        if plan.is_free_at_once:
            # These are the steps of `PendingSends.keep`, inlined to save each send a function call. Most messages are
            # already sent.
            pending_sends = self.context.receives.pending_sends
            try:
                is_sent = self._request.Test()
            # The message's receiver has failed, and no call waits for the message, so nothing raises.
            except MPI.Exception:
                is_sent = True
            if not is_sent or pending_sends.dropped:
                pending_sends.keep(self._request, self.message)
        elif wait:
            # Wait for MPI first. MPI may need calls of this rank to transfer the envelope, and the receiver waits for
            # the envelope.
            self._leave_to_mpi()
        if self._offered is not None and not self._is_signalled:
            self._launch_offer(self.stream, ready=True, wait=wait)

    def signal_ready_by(self, batch: list[Message]) -> None:
        """Append to a batch the signal that the receiver can read the data."""
        plan = self.plan
        if self.put:
            data, slot, ready, nbytes, clock = PUT.unpack(self.put)
            entry = PUT_MESSAGE, data, slot, nbytes, ready, 0, clock, 0, 0, 0, plan.rank, plan.tag
            # No signal handler runs between this assignment and the call.
            self.put = b""
            batch.append(entry)
        if plan.is_free_at_once:
            self.context.receives.pending_sends.keep(self._request, self.message)
        if self._offered is not None:
            ready, _ = words_of(self.context.bounce.address, self._offered)
            entry = SIGNAL_MESSAGE, 0, 0, 0, ready, 0, self.clock, 0, 0, 0, plan.rank, plan.tag
            self._is_signalled = True
            batch.append(entry)

    def _launch_offer(self, stream: Any, *, ready: bool, wait: bool) -> None:
        assert self._offered is not None
        ready_word, done_word = words_of(self.context.bounce.address, self._offered)
        done_word = done_word if wait else 0
        arguments = OFFER.pack(ready_word, done_word, self.clock, self.peer, self.plan.tag, ready, 0)
        if wait:
            self.context.waits[self._offered] = self.clock, get_ident()
        has_launched = False
        try:
            self.endpoint.launch(self.plan.operation, "offer", 1, 1, arguments, stream)
            has_launched = True
        finally:
            if has_launched or has_begun(arguments):
                self._is_signalled |= ready
                if wait:
                    self._offered = None
            elif wait:
                del self.context.waits[self._offered]

    # The end

    def finish(self, stream: Any) -> None:
        """Make `stream` wait until the buffer can be reused.

        A receive that is launched later on `stream` would wait too, and the peer may wait for that receive first. So
        the host waits until no receive is open, or the message has ended, but not longer than PYNCCLX_TIMEOUT. If a
        kernel copies the message on its own stream, `stream` waits for that stream.
        """
        if self.is_copied and stream is not self.stream:
            self.endpoint.device.order(self.stream, stream)
        if self.plan.is_free_at_once:
            return
        receives, end_s = self.context.receives, time.monotonic() + self.endpoint.timeout_s
        while not (self._offered is None or receives.idle or self.is_over() or time.monotonic() > end_s):
            receives.launch_arrived()
            os.sched_yield()
        # Wait for MPI first; see `signal_ready`.
        self._leave_to_mpi()
        if self._offered is not None:
            self._launch_offer(stream, ready=False, wait=True)

    def _leave_to_mpi(self) -> None:
        """Wait until MPI has sent its part of the message."""
        endpoint, operation = self.endpoint, self.plan.operation
        if self._is_open:
            self._close()
        try:
            self.context.receives.wait(self._request, self._hopeless)
        except Exception as error:
            # MPI may still read the message.
            self.context.receives.pending_sends.keep(self._request, self.message)
            if not isinstance(error, MPI.Exception) or isinstance(error, MPIError):
                raise
            raise endpoint.explained(error, operation) from error
        endpoint.check_peer(operation, self.peer)
        if endpoint.ring is not None:
            endpoint.ring.end(self._entry)

    def _hopeless(self, waited_s: float) -> Exception | None:
        """Return the error if the receiver failed or timed out; None to keep waiting."""
        if waited_s <= self.endpoint.timeout_s:
            return self.endpoint.failure_of(self.peer, self.plan.operation)
        operation = f"{self.plan.operation} with tag {self.plan.tag}"
        failure = self.endpoint.failure = noted(SendTimeout(operation, self.endpoint.rank, self.peer))
        return failure

    def is_over(self) -> bool:
        """Return whether the buffer can be reused, also by the host, without waiting."""
        return self.plan.is_free_at_once or self.has_ended()

    def has_ended(self) -> bool:
        """Return whether the receiver has read the buffer and MPI has sent its part."""
        # The place may have a later message by now, whose clock is larger.
        if self._offered is not None and self.context.bounce.done_words(self._offered, 1)[0] >= self.clock:
            self._offered = None
        try:
            is_over = self._offered is None and bool(self._request.Test())
        except MPI.Exception as error:
            raise self.endpoint.explained(error, self.plan.operation) from error
        if is_over and self._is_open:
            self._close()
        return is_over

    def leave(self) -> None:
        """Let the message of a call that has raised complete without the call.

        Call this after any exception, also of a signal handler. A message whose envelope MPI has sent arrives
        completely; an unsent message frees its place.
        """
        if not self.is_sent:
            self.withdraw()
            return
        self.keep_lost()
        try:
            # Raise only the exception of the call. After a timeout the program may overwrite the buffer.
            if self.endpoint.failure is None:
                with own_errors_suppressed():
                    self.signal_ready()
        finally:
            with own_errors_suppressed():
                self.abandon()

    @property
    def has_begun(self) -> bool:
        """Whether MPI may have its part of the message."""
        return self.is_sent

    def keep_lost(self) -> None:
        """Keep MPI's part of the message, because an interrupt may have lost its request."""
        if self._request is MPI.REQUEST_NULL:
            self.context.receives.pending_sends.keep_lost(self.message)

    def abandon(self) -> None:
        """Let the message complete without a call; the library keeps it until then."""
        if self._is_open:
            self._close()
        self.keep_memory()
        self.context.receives.pending_sends.keep_message(self)

    def keep_memory(self) -> None:
        """Keep the array alive until the work enqueued so far on its stream has ended."""
        memory = self.buffer, self.owner
        self.context.receives.pending_sends.keep_for(self.endpoint.device, self.stream, memory)
