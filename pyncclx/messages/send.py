"""Sending, after MPI has the envelope: launch what the sender's stream has to do, and wait for the end."""

from __future__ import annotations

import os
from typing import Any

from mpi4py import MPI

from ..errors import MPIError, SendTimeout
from ..recording.failures import noted
from .arguments import PUT, PUT_MESSAGE, SIGNAL_MESSAGE, offer_arguments
from .batch import Message
from .bounce import words_of
from .departure import Departure

_THREAD_NBYTES = 64  # that a thread of `put_eager` copies: four packs, all on their way at once (not measured)


class Outgoing(Departure):
    """A message that was sent.

    A short one is over at once, whether its receiver comes or not. The buffer of a long one is in use until its
    receiver has read it, which `finish` makes the current stream wait for. If no call will finish it, `abandon` lets
    the library keep the buffer so long. The receiver gets the envelope before the kernel is launched that copies the
    message or sets its ready word: both hosts launch at the same time.
    """

    _is_open = False  # the watcher lets MPI go on for it

    @property
    def nbytes(self) -> int:
        """Length of the data."""
        return self.plan.nbytes

    # What MPI has to do whatever this process waits for

    def post(self) -> None:
        """Let MPI go on sending it."""
        unsent = self.postbox.receives.unsent
        if unsent.dropped:
            unsent.take_dropped()
        # Get_status leaves an error to the call that waits.
        if not (self.plan.is_free_at_once or self._request.Get_status()):
            self._is_open = True
            unsent.add(self)

    def _close(self) -> None:
        """End what `post` has begun."""
        self._is_open = False
        self.postbox.receives.unsent.discard(self)

    # What the stream has to do

    def signal_ready(self, *, wait: bool = False) -> None:
        """Let the receiver read what the stream has put into the buffer so far.

        With `wait` the stream waits until it has been read. No receive may be open: the receiver could wait for it.
        """
        endpoint, plan = self.endpoint, self.plan
        if self.put:
            threads = min(-(-plan.nbytes // (_THREAD_NBYTES * 32)) * 32, endpoint.device.threads)
            endpoint.launch(plan.operation, "put_eager", 1, threads, self.put, self.stream)
            self.put = b""
        if plan.is_free_at_once:
            self.postbox.receives.unsent.keep(self._request, self.message)
        elif wait:
            self._leave_to_mpi()  # first: MPI may need this rank to bring the envelope, for which the receiver waits
        if self._offered is not None:
            self._launch_offer(self.stream, ready=True, wait=wait)

    def signal_ready_by(self, batch: list[Message]) -> None:
        """Do what `signal_ready` does by the launch of a batch."""
        plan = self.plan
        if self.put:
            data, slot, ready, nbytes, clock = PUT.unpack(self.put)
            batch.append((PUT_MESSAGE, data, slot, nbytes, ready, 0, clock, 0, 0, 0, plan.rank, plan.tag))
            self.put = b""
        if plan.is_free_at_once:
            self.postbox.receives.unsent.keep(self._request, self.message)
        if self._offered is not None:
            ready, _ = words_of(self.postbox.bounce.address, self._offered)
            batch.append((SIGNAL_MESSAGE, 0, 0, 0, ready, 0, self.clock, 0, 0, 0, plan.rank, plan.tag))

    def _launch_offer(self, stream: Any, *, ready: bool, wait: bool) -> None:
        assert self._offered is not None
        ready_word, done_word = words_of(self.postbox.bounce.address, self._offered)
        arguments = offer_arguments(
            ready=ready_word if ready else 0,
            done=done_word if wait else 0,
            clock=self.clock,
            peer=self.peer,
            tag=self.plan.tag,
        )
        self.endpoint.launch(self.plan.operation, "offer", 1, 1, arguments, stream)
        if wait:
            self._offered = None

    # The end

    def finish(self, stream: Any) -> None:
        """Make `stream` wait for the end of the message.

        A receive whose kernel is launched later on that stream would come after it too, and the peer may wait for
        that one first. So the host stays here until no receive is open, or the message is over.
        A copy may still be to come on the stream that the message was sent on.
        """
        if self.is_copied and stream is not self.stream:
            self.endpoint.device.order(self.stream, stream)
        if self.plan.is_free_at_once:
            return
        receives = self.postbox.receives
        while not (self._offered is None or receives.idle or self.is_over()):
            receives.launch_arrived()
            os.sched_yield()
        self._leave_to_mpi()  # first, as above
        if self._offered is not None:
            self._launch_offer(stream, ready=False, wait=True)

    def _leave_to_mpi(self) -> None:
        """Wait until MPI has the message."""
        endpoint, operation = self.endpoint, self.plan.operation
        if self._is_open:
            self._close()
        try:
            self.postbox.receives.wait(self._request, self._hopeless)
        except Exception as error:
            self.postbox.receives.unsent.keep(self._request, self.message)  # MPI may still read it
            if not isinstance(error, MPI.Exception) or isinstance(error, MPIError):
                raise
            raise endpoint.explained(error, operation) from error
        endpoint.check_peer(operation, self.peer)
        if endpoint.ring is not None:
            endpoint.ring.end(self._entry)

    def _hopeless(self, waited_s: float) -> Exception | None:
        """Return why the receiver will not come, after a wait for it in MPI."""
        if waited_s <= self.endpoint.timeout_s:
            return self.endpoint.failure_of(self.peer, self.plan.operation)
        operation = f"{self.plan.operation} with tag {self.plan.tag}"
        failure = self.endpoint.failure = noted(SendTimeout(operation, self.endpoint.rank, self.peer))
        return failure

    def is_over(self) -> bool:
        """Whether `finish` would return at once: the buffer may be written again, by the host too."""
        return self.plan.is_free_at_once or self.has_ended()

    def has_ended(self) -> bool:
        """Whether nothing uses the buffer any more: its receiver has read it, and MPI has sent what it was given."""
        if self._offered is not None and self.postbox.bounce.done_words(self._offered, 1)[0] == self.clock:
            self._offered = None
        try:
            is_over = self._offered is None and bool(self._request.Test())
        except MPI.Exception as error:
            raise self.endpoint.explained(error, self.plan.operation) from error
        if is_over and self._is_open:
            self._close()
        return is_over

    def go_on(self) -> None:
        """Let it go on though a signal handler, say, has ended its call: the receiver gets the data."""
        self.signal_ready()
        self.abandon()

    def abandon(self) -> None:
        """Let it go on without a call that finishes it: the library keeps it until it has ended."""
        if self._is_open:
            self._close()
        self.keep_memory()
        self.postbox.receives.unsent.keep_message(self)

    def keep_memory(self) -> None:
        """Keep the array until its stream has done what it has by now."""
        memory = self.buffer, self.owner
        self.postbox.receives.unsent.keep_for(self.endpoint.device, self.stream, memory)
