"""The work behind a persistent collective's request: a launch to repeat."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from mpi_bootstrap.own_errors import own_error

from ..arrays.readers import places_of
from ..backends import Repeated
from ..recording.calls import Begun
from ..requests.work import Startable
from ..team.base import IntraBase
from ..team.compare import compare
from ..team.state import state_of
from ..team.streams import current_stream, is_of_current, stream_for
from ..team.team import Team
from .call import Call, plan_of
from .launched import KernelWork, keep
from .run import describe

_serials = itertools.count()


def start_several(works: Sequence[Prepared]) -> None:
    """Start several works, with one launch for each communicator where possible.

    This is possible if each work launches one kernel and nothing else, and if all starts wait for the same stream.
    """
    streams = [work.stream() for work in works if work.is_only_a_launch]
    if len(works) > 1 and len(streams) == len(works) and all(stream == streams[0] for stream in streams):
        works[0].start_with(works[1:], streams[0])
    else:
        for work in works:
            work.start()


class Prepared(KernelWork, Startable):
    """A call whose kernel is loaded and whose parameters are packed.

    It is active from `start` to `finish`. `on` is the communicator, or its twin that uses a track (`team/tracks.py`).

    Attributes
    ----------
    stream : callable
        Returns the stream whose work a start waits for.
    """

    starter = staticmethod(start_several)
    stream: Callable[[], Any]
    _record: Callable[[], None] | None = None  # writes a start's entry in the flight recorder

    def __init__(self, comm: IntraBase, call: Call, on: IntraBase) -> None:
        super().__init__(state_of(comm))
        self._owner = on.state
        self._serial = next(_serials)
        self._together: dict[tuple[int, ...], Repeated] = {}  # joint launches, by the works' serial numbers
        self.name, self._buffers = f"{call.operation}_init", call.buffers
        self._before, self._after = call.before, call.after
        self.places = places_of(buffer.owner for buffer in call.buffers)
        calls = on.state.calls(on)
        begun = None if calls is None else calls.begin(call.operation)
        if begun is not None:
            describe(begun, call)
        if comm.checking:
            compare(comm, call.operation, call.signature)
        self._team = on.team
        self._prepare(on, self._team, call, begun)

    def _prepare(self, comm: IntraBase, team: Team, call: Call, begun: Begun | None) -> None:
        device = team.device
        self._plan = plan_of(comm, team, call)
        _, function, grid, threads, _, kernel = self._plan
        parameters = team.parameters(self._plan, call.buffers, call.called, call.arguments)
        self._device, self._event = device, device.event()
        self._launch = device.repeated(function, grid, threads, parameters, self._event)
        if begun is not None:
            self._record = begun.prepared(kernel, beside=call.load is not None)
        # Make the stream wait for the arrays' producers now, but not at each start: before a start, the program must
        # make the arrays ready on the current stream.
        stream_for(device, call.buffers, self._state)
        of_torch = any(buffer.of_torch for buffer in call.buffers)
        self.stream = functools.partial(current_stream, device, call.buffers) if of_torch else device.current_stream
        self._user_stream = self.stream
        if self._state.blocking == "host" or self._state.stream is not None:
            known = is_of_current(call.buffers)
            self.stream = functools.partial(stream_for, device, call.buffers, self._state, known)
            self._user_stream = functools.partial(current_stream, device, call.buffers, self._state)

    @property
    def is_only_a_launch(self) -> bool:
        """Whether a start launches one kernel and does nothing else."""
        return self._before is None and self._after is None

    def check_owner(self) -> None:
        """Raise if the communicator has been freed, or if kernels have recorded errors."""
        if self._owner.background is not None:
            self._owner.settle()
        if self._owner.team is not self._team:
            raise self.freed()
        self._team.errors.check()

    def start(self) -> None:
        """Launch on the communicator's own stream, after the current stream's work so far."""
        if self._record is not None:
            self._record()
        self._began_on = self.stream()
        self._launch.begun[0] = False
        try:
            if self.is_only_a_launch:
                self._team.order.repeat_aside(self._launch, self._began_on)
            else:
                self._start_between(self._team, self._team.order.aside(self._began_on))
            self.active = True
        except BaseException as error:
            if self._launch.begun[0] and own_error(error) is None:
                self._end_start()
            raise

    def _end_start(self) -> None:
        """Complete a start that was interrupted after the launch."""
        self.active = True
        order = self._team.order
        if self._after is not None:
            stream = order.aside(self._began_on)
            self._after(self._team, self._plan, stream)
            order.extend(stream)
        order.record_aside(self._event)

    def _start_between(self, team: Team, stream: Any) -> None:
        """Enqueue `before`, the kernel and `after` on a stream."""
        if self._before is not None:
            self._before(team, stream)
        team.order.repeat(self._launch, stream)
        if self._after is not None:
            self._after(team, self._plan, stream)
            team.order.extend(stream)
            self._event.record(stream)

    def start_with(self, others: Sequence[Prepared], stream: Any) -> None:
        """Start this work, then others, with one launch for each communicator."""
        works = self, *others
        by_team: dict[int, list[Prepared]] = {}
        for work in works:
            by_team.setdefault(id(work._team), []).append(work)
        for first, *rest in by_team.values():
            first._launch_with(rest, stream)

    def _launch_with(self, others: Sequence[Prepared], stream: Any) -> None:
        """Start this work and others of its communicator with one launch."""
        works = self, *others
        for work in works:
            work._began_on, work._launch.begun[0] = stream, False
            if work._record is not None:
                work._record()
        key, launch = tuple(work._serial for work in works), self._launch
        if others:
            if key not in self._together:
                self._together[key] = self._device.together([work._launch for work in works])
            launch = self._together[key]
        launch.begun[0] = False
        try:
            self._team.order.repeat_aside(launch, stream)
            for work in works:
                work.active = True
        except BaseException as error:
            for work in works:
                if own_error(error) is None and (launch.begun[0] or work._launch.begun[0]):
                    work._end_start()
            raise

    def finish(self) -> None:
        """Make the current stream wait for the kernel; raise errors that kernels recorded.

        The host waits too if the communicator's calls block.
        """
        try:
            active, self.active = self.active, False
            if active:
                self._wait(self._team, self._event, self._user_stream(), self._buffers)
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        keep(self._team, self._event, self._buffers)

    def is_over(self) -> bool:
        """Return whether the kernel has ended, or was not started."""
        return not self.active or self._event.is_over()
