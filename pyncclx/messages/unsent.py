"""What MPI has still to do inside its own calls: messages to send, and the program's requests of MPI's own.

Messages that no call ends are kept here, with the memory that MPI, a receiver or a stream still uses.

MPI cannot take any number of envelopes before their receiver looks for them, and sends the others inside its own calls.
There it also moves long messages of host memory, and does the later steps of nonblocking collectives. This rank may
make no such call until then, for it waits in a kernel, or computes. So the watcher lets MPI go on meanwhile.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakSet, ref

from mpi4py import MPI

from mpi_bootstrap.waiting import let_go_on

from ..backends import Device, Event
from ..requests.open_receives import LOCK
from ..system.process import held
from .watcher import Watcher

_Begun = TypeVar("_Begun", bound=MPI.Request)
MOST_NEW = 64  # requests: of many more objects the garbage collector would take note
STEPS = 16  # of MPI's at a look: the receiver may take as little as one message between two (MPICH)
_AT_A_LOOK = 64  # kept messages that are asked whether they have ended
_FOR_ONE = 2  # of them when another one comes: more than one, so that those that have ended become fewer


class Kept(Protocol):
    """A message that the library keeps, with its memory: no call of the program ends it."""

    @property
    def nbytes(self) -> int:
        """How long it is in device memory."""

    def has_ended(self) -> bool:
        """Whether nothing uses its memory any more; an exception says that nothing ever will."""


class _Sent(NamedTuple):
    """A message that MPI has still to send."""

    request: MPI.Request
    memory: Any
    nbytes: int = 0

    def has_ended(self) -> bool:
        return self.request.Test()


class Used(NamedTuple):
    """Memory that a stream uses."""

    end: Event
    memory: Any
    nbytes: int = 0

    def has_ended(self) -> bool:
        return self.end.is_over()


class Follows(ref[Any]):
    """A reference to a part of a request of MPI's own that has something to do while the request is under way."""

    __slots__ = ()

    @property
    def is_under_way(self) -> bool:
        """Whether the program has still to complete the request. Python clears the callback when the part ends."""
        return self.__callback__ is not None

    def go_on(self) -> None:
        """Do what other ranks may wait for, without waiting."""


class Unsent:
    """What MPI may still have to do for this process.

    Attributes
    ----------
    new : deque of weak references
        To requests of MPI's own that the program has begun and that are not counted yet.
    begun : int
        How many there were before.
    dropped : deque
        Of requests' works: the program has dropped the requests. Appended to at any time, by destructors.
    may_have_more : bool
        Whether MPI may have messages to send that no request stands for: buffered ones, or those whose requests the
        program has freed or dropped. MPI does not say when it has sent them.
    """

    may_have_more = False

    def __init__(self, watcher: Watcher) -> None:
        self.new: deque[ref[Any]] = deque()
        self.begun = 0
        self.dropped: deque[Any] = deque()
        self._watcher = watcher
        self._followed: list[ref[Any]] = []  # requests that the program has still to complete
        self._open = WeakSet[Any]()  # those that a call will end
        self._kept: deque[Kept] = deque()  # those that no call waits for

    def __bool__(self) -> bool:
        return self._follows() or bool(self._open or self._kept or self.dropped)

    def _follows(self) -> bool:
        """Whether the program has still to complete a request. Completed ones are null; only the program asks MPI.

        To be asked at each look: it takes note of new requests.
        """
        with LOCK:
            self._count_new()
            self._followed = [reference for reference in self._followed if _is_under_way(reference)]
            return bool(self._followed)

    def note_new(self) -> None:
        """Take note of new requests: wake the watcher for the first, forget those of many that are over."""
        with LOCK:
            if len(self.new) > MOST_NEW:
                self._count_new()
            self._watcher.wake()

    def _count_new(self) -> None:
        new = [self.new.popleft() for _ in range(len(self.new))]
        self.begun += len(new)
        self.may_have_more |= not all(isinstance(reference, Follows) for reference in new)
        self._followed += [reference for reference in new if _is_under_way(reference)]

    def note_buffered(self) -> None:
        """Let MPI go on from now on."""
        with LOCK:
            if not self.may_have_more:
                self.may_have_more = True
                self._watcher.wake()

    def add(self, message: Any) -> None:
        """Let MPI go on until the message is discarded."""
        with LOCK:
            self._open.add(message)
            self._watcher.wake()

    def discard(self, message: Any) -> None:
        """MPI has sent it, or a call waits for that."""
        with LOCK:
            self._open.discard(message)

    def keep(self, request: MPI.Request, memory: Any) -> None:
        """Keep a message that no call waits for until MPI has sent it; most have gone already."""
        try:
            has_ended = request.Test()
        except MPI.Exception:  # its receiver has failed, and no call waits for it
            has_ended = True
        if has_ended and not self._kept and not self.dropped:
            return
        with LOCK:
            if not has_ended:
                self._kept.appendleft(tuple.__new__(_Sent, (request, memory, 0)))
                if self._watcher.asleep:
                    self._watcher.wake()
            if len(self._kept) > 1 or self.dropped:
                self.sweep(_FOR_ONE)

    def keep_for(self, device: Device, stream: Any, memory: Any) -> None:
        """Keep memory until a stream has done what it has by now; in a capture its graph's owner keeps it."""
        if not device.is_capturing(stream):
            end = device.event()
            end.record(stream)
            self.keep_message(Used(end, memory))

    def keep_message(self, message: Kept) -> None:
        """Keep a message that no call waits for until nothing uses its memory."""
        with LOCK:
            self._kept.appendleft(message)
            self.sweep(1 + _FOR_ONE)
            if self._kept:
                self._watcher.wake()

    def has_room(self, nbytes: int, most: int) -> bool:
        """Drop kept messages that have ended; return whether one more makes no more than `most` bytes, or is alone."""
        with LOCK:
            for number in (_FOR_ONE, len(self._kept)):
                self.sweep(number)
                kept_nbytes = sum(message.nbytes for message in self._kept)
                if not kept_nbytes or kept_nbytes + nbytes <= most:
                    return True
            return False

    def go_on(self) -> None:
        """Let MPI send what it can, and fetch what host arrays are to receive and senders may wait for."""
        if self or self.may_have_more:
            with LOCK:
                for _ in range(STEPS):
                    let_go_on()
                self.sweep()
                for reference in self._followed:
                    if isinstance(reference, Follows):
                        reference.go_on()

    def take_dropped(self) -> None:
        """Let messages go on whose requests the program has dropped."""
        with LOCK:
            while self.dropped:
                self.dropped.popleft().abandon()

    def give_back(self, message: Any) -> None:
        """Keep a message no longer, if it is kept: a call completes it, in which no other thread may test it."""
        with LOCK, suppress(ValueError):
            self._kept.remove(message)

    def sweep(self, most: int = _AT_A_LOOK) -> None:
        """Drop kept messages that have ended: ask the next ones, wherever they are in the queue."""
        if self.dropped:
            self.take_dropped()
        with LOCK:
            for _ in range(min(most, len(self._kept))):
                try:
                    has_ended = self._kept[0].has_ended()
                except Exception:  # it never will: its receiver has failed, and no call waits for it
                    has_ended = True
                if has_ended:
                    self._kept.popleft()
                else:
                    self._kept.rotate(-1)


#: That of the process, once it has any and if a thread may call MPI for it.
OF_PROCESS: list[Unsent] = held([])


def going_on(request: _Begun) -> _Begun:
    """Return a request of MPI's own; MPI goes on with it from now on, whatever this process waits for."""
    follow(ref(request))
    return request


def note_buffered() -> None:
    """Let MPI go on, whatever this process waits for: it has a buffered message to send."""
    if OF_PROCESS:
        OF_PROCESS[0].note_buffered()


def follow(reference: ref[Any]) -> None:
    """Let MPI go on with what is referred to, until it is complete: a request of MPI's own, or a part of it."""
    if OF_PROCESS:
        new = OF_PROCESS[0].new
        new.append(reference)
        if not 1 < len(new) <= MOST_NEW:
            OF_PROCESS[0].note_new()


def _is_under_way(reference: ref[Any]) -> bool:
    return reference.is_under_way if isinstance(reference, Follows) else bool(reference())
