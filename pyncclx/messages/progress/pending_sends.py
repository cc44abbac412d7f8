"""Pending sends, and other work that MPI does only inside its own calls.

MPI buffers a limited number of envelopes, and sends the others inside later calls. In these calls it also moves long
messages of host memory, and runs later steps of nonblocking collectives. A rank that computes or waits for a kernel
makes no such call, so the monitor thread calls MPI in the meantime. Messages that no call completes are kept here, with
the memory that MPI, a receiver or a stream still uses.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet, ref

from mpi4py import MPI

from mpi_bootstrap.own_errors import own_error
from mpi_bootstrap.waiting import let_go_on

from ...backends import Device
from ...requests.open_receives import LOCK
from ...system.process import held
from . import Kept
from .monitor import MessageMonitor

_Begun = TypeVar("_Begun", bound=MPI.Request)
# Most new requests before they are counted. With many more objects the garbage collector would start.
MOST_NEW = 64
STEPS = 16  # progress steps of MPI in one poll; in one step, a receiver may accept as little as one message (MPICH)
_AT_A_LOOK = 64  # kept messages that are tested in one poll
_FOR_ONE = 2  # kept messages that are tested when one is added; more than one, so that ended ones do not accumulate
# If this many messages have no receiver yet, kernels move further ones, so that copies take little memory (number not
# measured).
_MOST_COPIES = 256
# Memory of transfers whose requests are lost; MPI may use it at any time.
_LOST: list[Any] = held([])


class Follows(ref[Any]):
    """Weak reference to a part of an MPI request for which `go_on` must be called."""

    __slots__ = ()

    @property
    def is_under_way(self) -> bool:
        """Whether the program has not completed the request yet.

        When the request is complete, mpi4py destroys the part that this weak reference refers to. Python then clears
        the callback of the reference.
        """
        return self.__callback__ is not None

    def go_on(self) -> None:
        """Run work of the request that other ranks may wait for, without waiting."""


class PendingSends:
    """Work that MPI may still have to do for this process.

    Attributes
    ----------
    new : deque of weak references
        MPI requests that the program has begun and that `begun` does not count yet.
    begun : int
        Number of MPI requests that the program has begun.
    kept : deque
        Messages that no call waits for, until they have ended.
    dropped : deque
        Messages of requests that the program has dropped. Destructors may append to it at any time.
    may_have_more : bool
        Whether MPI may have messages to send that have no request, because they are buffered, or because the program
        has freed or dropped their requests. MPI does not report when it has sent them.
    """

    may_have_more = False

    def __init__(self, monitor: MessageMonitor) -> None:
        self.new: deque[ref[Any]] = deque()
        self.begun = 0
        self.dropped: deque[Any] = deque()
        self._monitor = monitor
        # MPI requests that the program still has to complete.
        self._followed: list[ref[Any]] = []
        # Sends that a call will complete.
        self._open = WeakSet[Any]()
        self.kept: deque[Any] = deque()

    def __bool__(self) -> bool:
        return self._follows() or bool(self._open or self.kept or self.dropped)

    def _follows(self) -> bool:
        """Count new requests; return whether the program has MPI requests to complete.

        Completed requests are null; only the program tests requests with MPI. Call this in each poll.
        """
        with LOCK:
            self._count_new()
            followed, self._followed = self._followed, []  # a signal handler's requests go to the new list
            self._followed.extend([reference for reference in followed if is_under_way(reference)])
            return bool(self._followed)

    @property
    def takes_copies(self) -> bool:
        """Whether the monitor thread completes sends of copies, and few are pending."""
        return bool(OF_PROCESS) and len(self.kept) + len(self._open) < _MOST_COPIES

    def note_new(self) -> None:
        """Wake the monitor thread for new requests. If there are many, count them."""
        with LOCK:
            if len(self.new) > MOST_NEW:
                self._count_new()
            self._monitor.wake()

    def _count_new(self) -> None:
        new = list[ref[Any]]()
        while self.new:
            new.append(self.new.popleft())
        self.begun += len(new)
        self.may_have_more |= not all(isinstance(reference, Follows) for reference in new)
        self._followed.extend([reference for reference in new if is_under_way(reference)])

    def note_buffered(self) -> None:
        """Have MPI make progress from now on, because it has a buffered message to send."""
        with LOCK:
            if not self.may_have_more:
                self.may_have_more = True
                self._monitor.wake()

    def add(self, message: Any) -> None:
        """Have MPI make progress for a message until `discard`."""
        with LOCK:
            self._open.add(message)
            self._monitor.wake()

    def discard(self, message: Any) -> None:
        """Remove a message that MPI has sent or that a call waits for."""
        with LOCK:
            self._open.discard(message)

    def keep(self, request: MPI.Request, memory: Any) -> None:
        """Keep a message's memory until MPI has sent it. No call waits for the message.

        MPI has already sent most of these messages.
        """
        try:
            has_ended = request.Test()
        # The receiver has failed, and no call waits for the message.
        except MPI.Exception:
            has_ended = True
        if has_ended and not self.kept and not self.dropped:
            return
        with LOCK:
            if not has_ended:
                self.kept.appendleft(tuple.__new__(Kept, (request.Test, memory, 0)))
                if self._monitor.asleep:
                    self._monitor.wake()
            if len(self.kept) > _AT_A_LOOK or self.dropped:
                self.sweep(_FOR_ONE)

    def keep_lost(self, memory: Any) -> None:
        """Keep the memory of a transfer forever, because an interrupt lost its request."""
        _LOST.append(memory)
        self.note_buffered()

    def keep_for(self, device: Device, stream: Any, memory: Any) -> None:
        """Keep memory until the work enqueued so far on a stream has ended.

        In a capture, do nothing: the graph's owner keeps the memory.
        """
        if not device.is_capturing(stream):
            end = device.event()
            end.record(stream)
            self.keep_message(Kept(end.is_over, memory))

    def keep_message(self, message: Any) -> None:
        """Keep a message, for which no call waits, until its memory is unused."""
        with LOCK:
            self.kept.appendleft(message)
            self.sweep(1 + _FOR_ONE)
            if self.kept:
                self._monitor.wake()

    def has_room(self, nbytes: int, most: int) -> bool:
        """Return whether one more message of `nbytes` may be kept until it has ended.

        The kept messages together may have `most` bytes; a single one may have more. This call first releases the
        memory of messages that have ended.
        """
        with LOCK:
            for number in (_FOR_ONE, len(self.kept)):
                self.sweep(number)
                kept_nbytes = sum([message.nbytes for message in list(self.kept)])  # it may grow: see `sweep`
                if not kept_nbytes or kept_nbytes + nbytes <= most:
                    return True
            return False

    def go_on(self) -> None:
        """Let MPI make progress, and fetch data for host arrays whose senders may wait."""
        if self or self.may_have_more:
            with LOCK:
                for _ in range(STEPS):
                    let_go_on()
                self.sweep()
                for reference in self._followed:
                    if isinstance(reference, Follows):
                        reference.go_on()

    def take_dropped(self) -> None:
        """Abandon the messages of requests that the program has dropped."""
        with LOCK:
            # Empty `dropped` first: `abandon` calls `sweep`, which would otherwise call this function recursively.
            taken = deque[Any]()
            while self.dropped:
                taken.append(self.dropped.popleft())
            try:
                while taken:
                    taken.popleft().abandon()
            finally:
                self.dropped.extend(taken)

    def give_back(self, message: Any) -> None:
        """Stop keeping a message; on return, no other thread is testing it."""
        with LOCK, suppress(ValueError):
            self.kept.remove(message)

    def sweep(self, most: int = _AT_A_LOOK) -> None:
        """Test the next `most` kept messages, and drop those that have ended."""
        if self.dropped:
            self.take_dropped()
        with LOCK:
            # A handler or destructor may call this method inside this loop, so it uses no iterator.
            for _ in range(min(most, len(self.kept))):
                if not self.kept:
                    return
                message = self.kept[0]
                try:
                    has_ended = message.has_ended()
                except BaseException as error:
                    # The receiver has failed, so the message never completes, and no call waits for it.
                    has_ended = own_error(error) is not None
                    if not has_ended:
                        raise
                if has_ended:
                    self.give_back(message)
                elif self.kept and self.kept[0] is message:
                    self.kept.rotate(-1)


#: The pending sends of this process: one item after they are created, if the monitor thread may call MPI.
OF_PROCESS: list[PendingSends] = held([])
#: MPI requests that no thread follows: the program began them before the pending sends were created, or the monitor
#: thread may not call MPI.
UNFOLLOWED: list[ref[Any]] = held([])


def going_on(request: _Begun) -> _Begun:
    """Have the monitor thread make progress for an MPI request, and return it."""
    follow(ref(request))
    return request


def begin_to_follow(pending_sends: PendingSends) -> None:
    """Follow this process's requests from now on, also those already begun."""
    OF_PROCESS.append(pending_sends)
    before, UNFOLLOWED[:] = list(UNFOLLOWED), ()
    for reference in filter(is_under_way, before):
        follow(reference)


def note_buffered() -> None:
    """Have MPI make progress from now on, because it has a buffered message to send."""
    if OF_PROCESS:
        OF_PROCESS[0].note_buffered()


def follow(reference: ref[Any]) -> None:
    """Have MPI make progress until an MPI request, or a part of one, is complete."""
    if not OF_PROCESS:
        UNFOLLOWED.append(reference)
        if not len(UNFOLLOWED) % MOST_NEW:
            UNFOLLOWED[:] = filter(is_under_way, UNFOLLOWED)
    else:
        new = OF_PROCESS[0].new
        new.append(reference)
        if not 1 < len(new) <= MOST_NEW:
            OF_PROCESS[0].note_new()


def follow_later(reference: Follows) -> None:
    """Have MPI make progress for the rest of a receive that was followed until now.

    Destructors may call this.
    """
    # The monitor thread does not sleep, because it has followed the receive.
    (OF_PROCESS[0].new if OF_PROCESS else UNFOLLOWED).append(reference)


def is_under_way(reference: ref[Any]) -> bool:
    return reference.is_under_way if isinstance(reference, Follows) else bool(reference())
