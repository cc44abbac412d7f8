"""The work behind a collective's request: a kernel on another stream."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any

from ..arrays.buffers import Buffer
from ..arrays.specs import arrays_of
from ..backends import Event
from ..requests.open_receives import OPEN_RECEIVES, let_receives_leave
from ..requests.work import Work
from ..team.base import IntraBase
from ..team.compare import Comparison
from ..team.kept import End
from ..team.plans import Producer
from ..team.state import State, state_of
from ..team.streams import current_stream
from ..team.team import Team
from .call import Call, is_planned
from .keys import movable
from .moved import find
from .run import Enqueued, enqueue, enqueue_again


def keep(team: Team | None, end: End | None, arrays: Any) -> None:
    """Keep the arrays of a kernel whose request was dropped until the kernel ends."""
    if team is not None and end is not None:
        team.order.keep(end, arrays)


class KernelWork(Work):
    """Base class of the work behind a collective's request."""

    def __init__(self, state: State) -> None:
        self._state = self._owner = state  # the owner's state has the Team
        self._hold = state.hold()
        self._began_on: Any = None  # the stream that was current at the start

    def _wait(self, team: Team, event: Event, stream: Any, arrays: Any) -> None:
        """Make a stream wait for the kernel's end; raise errors that kernels recorded.

        If the communicator's calls block, the host waits, too. The stream on which the operation began also waits,
        because a memory pool may reuse the arrays' memory on that stream from now on. If the program has set the
        communicator's `stream`, the arrays may belong to another stream, so they are kept until the kernel has ended.
        """
        if OPEN_RECEIVES:
            let_receives_leave()
        event.order(stream)
        began_on = self._began_on
        if began_on is not stream and began_on is not None and began_on != stream:
            event.order(began_on)
        if self._state.blocking == "host":
            event.synchronize()
        elif self._state.stream is not None:
            team.order.kept.keep(event, arrays)
        # A freed communicator has completed its work, and has no error record.
        if self._owner.team is team:
            team.errors.check()


class Launched(KernelWork):
    """A call whose kernel has been launched; keeps the call's arrays until `finish`."""

    def __init__(
        self,
        state: State,
        enqueued: Enqueued,
        origins: Collection[Buffer | Producer],
        arrays: Any = None,
        comparison: Comparison | None = None,
    ) -> None:
        super().__init__(state)
        self._began_on = enqueued.current
        self._team: Team | None = enqueued.team
        self._event: Event | None = enqueued.team.order.mark(enqueued.stream)
        self._origins, self._arrays, self._comparison = origins, arrays, comparison

    def finish(self) -> None:
        """Make the current stream wait for the kernel; raise errors that kernels recorded.

        The host waits too if the communicator's calls block.
        """
        team, event, arrays = self._team, self._event, (self._origins, self._arrays)
        try:
            self.active = False
            comparison, self._comparison = self._comparison, None
            if comparison is not None:
                comparison.finish()
            self._team, self._event = None, None
            if team is not None and event is not None:
                self._wait(team, event, current_stream(team.device, self._origins, self._state), arrays)
                if self._state.stream is None:
                    team.order.spare_events.append(event)
            # The arrays are released only here, because the kernel may have used them until now.
            self._origins, self._arrays = (), None
        except BaseException:
            keep(team, event, arrays)
            self._origins, self._arrays = (), None
            raise

    def drop(self) -> None:
        if self._event is not None:
            keep(self._team, _Dropped(self, self._event), ())

    def is_over(self) -> bool:
        """Return whether the kernel has ended."""
        if self._comparison is not None and not self._comparison.is_over():
            return False
        return self._event is None or self._event.is_over()


class _Dropped:
    """The work of a dropped request: it keeps the arrays until the kernel ends.

    A copy of the request's handle may still complete the work.
    """

    def __init__(self, work: Launched, event: Event) -> None:
        self._work, self._event = work, event

    def is_over(self) -> bool:
        """Return whether the kernel has ended; release its arrays if so."""
        # A call that has completed the work reuses the event.
        if self._work._event is self._event and not self._event.is_over():
            return False
        self._work._origins, self._work._arrays = (), None
        return True


def launch(comm: IntraBase, call: Call, key: Hashable, arguments: Sequence[Any]) -> Launched:
    """Launch a call's kernel on the communicator's own stream.

    Cache it under the key of its arguments, if any.
    """
    state = state_of(comm)
    if state.background is not None:
        state.settle()
    comparison = _begin_comparison(comm, state, call) if state.checking else None
    try:
        known = None if key is None else movable(key, arguments)
        enqueued = enqueue(comm, state, call, known, aside=True)
        return Launched(state, enqueued, call.buffers, comparison=comparison)
    except BaseException:
        if state.team is not None:
            state.team.order.keep_left_aside(call.buffers)
        raise


def launch_again(state: State, team: Team, key: Hashable, arguments: Sequence[Any]) -> Launched | None:
    """Launch a cached call with this key, or with equal arrays at other addresses.

    Return None if no such call is cached.
    """
    cached = team.cached_launches.get(key)
    if cached is None and key is not None:
        cached = find(team, movable(key, arguments))
    if cached is None:
        return None
    try:
        return Launched(state, enqueue_again(state, team, cached), cached.producers, arrays_of(*arguments))
    except BaseException:
        team.order.keep_left_aside(arrays_of(*arguments))
        raise


def _begin_comparison(comm: IntraBase, state: State, call: Call) -> Comparison | None:
    """Begin to compare the call with the other ranks' calls.

    If a kernel has to be prepared, wait for the other ranks' calls now and return None.
    """
    comparison, team = Comparison(comm, call.operation, call.signature), state.team
    if team is not None and is_planned(team, call):
        return comparison
    comparison.finish()
    return None
