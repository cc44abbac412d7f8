"""Requests of calls over nodes: programs that run once, or start repeatedly.

If an engine does not follow streams, the host has to wait between steps. A thread then enqueues the steps and waits, so
the program does not have to.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from ..arrays.readers import places_of
from ..backends import Event
from ..errors import CollectiveMismatch, NotSupported
from ..launch.launched import KernelWork
from ..requests.work import Startable, check
from ..team.background import Doing
from ..team.base import IntraBase
from ..team.compare import Comparison
from ..team.state import state_of
from ..team.streams import current_stream, stream_for
from ..team.team import Team
from .mpi_engine import keep_left
from .program import Program, SpanningCall
from .run import begin_comparison, compose, prepare
from .spanning import Spanning


class _End:
    """The end of steps that no call waits for.

    Parameters
    ----------
    team : Team
    stream : Any
        The stream of the steps.
    thread : Doing or None
        The function that enqueues the steps in a thread; None if there is none.
    arrays : Any
        The arrays of the steps. If a step has failed, MPI may still use the arrays after the end of the stream's work.
    """

    def __init__(self, team: Team, stream: Any, thread: Doing | None, arrays: Any) -> None:
        self._team, self._stream, self._thread, self._arrays = team, stream, thread, arrays
        self._event: Event | None = None

    def is_over(self) -> bool:
        """Return whether the stream has run the steps; then keep arrays that MPI may use."""
        if not (self._thread is None or self._thread.done()):
            return False
        if self._event is None:
            self._event = self._team.order.mark(self._stream)
        if not self._event.is_over():
            return False
        keep_left(self._arrays)
        return True


def start_several(works: Sequence[SpanningWork]) -> None:
    """Start several pieces of work, one after the other."""
    for work in works:
        work.start()


class SpanningWork(KernelWork, Startable):
    """A program on one of the communicator's streams, run once or repeatedly.

    It keeps the arrays until it has ended.
    """

    starter = staticmethod(start_several)

    def __init__(
        self,
        comm: IntraBase,
        spanning: Spanning,
        program: Program,
        arrays: Sequence[Any],
        *,
        is_compared: bool,
        comparison: Comparison | None = None,
    ) -> None:
        super().__init__(state_of(comm))
        self._spanning, self._program = spanning, program
        self.name = f"{program.operation}_init"
        self._arrays = arrays
        self._is_compared = is_compared  # whether the call of the first start has been compared
        self._comparison = comparison
        self._event: Event | None = None
        self._thread: Doing | None = None
        self._aside: Any = None

    def start(self) -> None:
        """Enqueue the program after the work on the current stream."""
        with self._spanning.entering(self._program.operation):
            self._start(self._program, self._spanning)

    def _start(self, program: Program, spanning: Spanning) -> None:
        team = spanning.team
        began_on = stream_for(team.device, program.producers, self._state, program.of_current)
        capturing = team.device.is_capturing(began_on)
        if capturing:
            spanning.enter_graph(program)
        elif not self._is_compared:
            spanning.comparison.add(program.label, later=True)
        self._is_compared, self.active, self._began_on = False, True, began_on
        stream = team.order.aside(began_on)
        self._aside = None if capturing else stream
        event = self._event = team.device.event()
        if capturing:
            spanning.thread.wait()
        if (program.follows_streams or team.device.name == "host") and not spanning.thread.is_busy:
            self._enqueue(program, stream, event, capturing=capturing)
        else:
            self._thread = spanning.thread.do(lambda: self._enqueue(program, stream, event, capturing=capturing))

    def _enqueue(self, program: Program, stream: Any, event: Event, *, capturing: bool) -> None:
        self._spanning.enqueue(program, stream, capturing=capturing)
        event.record(stream)

    def finish(self) -> None:
        """Make the current stream wait for the result, and raise errors.

        The host waits, too, if the communicator's calls block.
        """
        event, thread = self._event, self._thread
        try:
            active, self.active = self.active, False
            self._end_comparison()
            if not active or event is None:
                return
            if thread is not None:
                thread.result()
            team = self._spanning.team
            self._wait(team, event, current_stream(team.device, self._program.producers, self._state), self._arrays)
        except BaseException:
            self.drop()
            raise
        finally:
            self._event, self._thread = None, None
        if not self._spanning.closed:  # `Free` has waited for all programs
            self._spanning.look()

    def drop(self) -> None:
        if self._aside is not None:
            team = self._spanning.team
            team.order.keep(_End(team, self._aside, self._thread, self._arrays), self._program)

    def _end_comparison(self) -> None:
        """Wait for the other ranks' calls, if PYNCCLX_CHECK=1 compares them."""
        comparison, self._comparison = self._comparison, None
        if comparison is not None:
            try:
                comparison.finish()
            except CollectiveMismatch as error:
                self._spanning.comparison.differ(error)
                raise

    def is_over(self) -> bool:
        """Return whether the program has ended or was not started."""
        if self._thread is not None and not self._thread.done():
            return False
        if self._comparison is not None and not self._comparison.is_over():
            return False
        return not self.active or self._event is None or self._event.is_over()

    # For persistent requests

    def check_owner(self) -> None:
        """Raise if the communicator has been freed, or if a rank has found an error."""
        if self._spanning.closed:
            raise self.freed()
        self._spanning.look()


def _check_threads(spanning: Spanning, operation: str) -> None:
    """Raise NotSupported if a call needs a thread that calls MPI, and MPI forbids it."""
    if spanning.has_threads or (spanning.rails.flat_uses_nccl and not spanning.host_waits):
        return
    raise NotSupported(
        f"{operation}: over nodes a thread calls MPI for nonblocking and persistent calls, and MPI was initialised "
        "without THREAD_MULTIPLE; leave mpi4py.rc.thread_level as it is, or make the blocking call"
    )


def prepared(comm: IntraBase, spanning: Spanning, call: SpanningCall) -> SpanningWork:
    """Return the work of a persistent call."""
    _check_threads(spanning, call.operation)
    program = prepare(comm, state_of(comm), spanning, call)
    work = SpanningWork(comm, spanning, program, call.buffers, is_compared=True)
    work.places = places_of(buffer.owner for buffer in call.buffers)
    return work


def launched(comm: IntraBase, spanning: Spanning, call: SpanningCall, key: Hashable | None) -> SpanningWork:
    """Start a nonblocking call and return its work; cache its program under `key`."""
    _check_threads(spanning, call.operation)
    with spanning.entering(call.operation):
        state = state_of(comm)
        comparison = begin_comparison(comm, spanning, call) if state.checking else None
        program = compose(state, spanning, call, key)
        work = SpanningWork(comm, spanning, program, call.buffers, is_compared=True, comparison=comparison)
        check((work,))
        return _started(work)


def _started(work: SpanningWork) -> SpanningWork:
    """Start a nonblocking call's work; keep its arrays if an exception ends the start."""
    try:
        work.start()
    except BaseException:
        work.drop()
        raise
    return work


def launched_again(comm: IntraBase, spanning: Spanning, program: Program, arrays: Sequence[Any]) -> SpanningWork:
    """Start a nonblocking call with a cached program and return its work."""
    with spanning.entering(program.operation):
        work = SpanningWork(comm, spanning, program, arrays, is_compared=False)
        check((work,))
        return _started(work)
