"""Run an operation: launch a cached kernel, or check the arguments and launch one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import events
from ..arrays.specs import arrays_of
from ..backends import Event
from ..errors import NotSupported
from ..recording import layout
from ..recording.calls import Begun
from ..team.compare import compare
from ..team.plans import CachedLaunch, Plan, producers_of
from ..team.state import State, state_of
from ..team.streams import is_of_current, stream_for
from ..team.team import Team
from .call import Call, facts_of, plan_of
from .keys import MovableKey, key_of_call, movable
from .moved import find, keep
from .time_slicing import leave_to_host

if TYPE_CHECKING:
    from ..team.base import IntraBase as Intracomm


def by_kernel(comm: Intracomm, make: Callable[..., Call | None], *args: Any, **options: Any) -> bool:
    """Run an operation on the current stream; return False for host arrays.

    ``make(comm, *args, **options)`` checks the arguments and returns the `Call`, or None for host arrays. `make` must
    not communicate, because it is not called if the launch of an equal call is cached. If ``comm.blocking`` is "host",
    the call waits for the kernel.
    """
    began = events.now() if events.listeners else None
    state = state_of(comm)
    if state.background is not None:
        state.settle()
    team = state.team
    key: Any = None
    if team is not None and not (state.checking or state.sm_free):
        key = key_of_call(make, args, options)
        cached = None if key is None else team.cached_launches.get(key)
        if cached is None and key is not None:
            key = movable(key, (*args, *options.values()))
            cached = find(team, key)
        if cached is not None:
            if began is not None:
                events.start(cached.plan.operation, began, comm)
            _launch_again(state, team, cached, args)
            if began is not None:
                _emit(comm, cached.plan.operation, began, args)
            return True
    if state.first_calls is not None and state.first_calls(comm, make, args, options, is_cached=True):
        return True
    return _by_new_kernel(comm, state, make, args, options, key, began, may_stage=True, is_cached=True)


def by_new_kernel(
    comm: Intracomm, make: Callable[..., Call | None], *args: Any, may_stage: bool = False, **options: Any
) -> bool:
    """Run an operation like `by_kernel`, but uncached, so that `make` may communicate.

    With `may_stage`, MPI may run the operation on copies in host memory instead.
    """
    began = events.now() if events.listeners else None
    state = state_of(comm)
    if state.first_calls is not None and state.first_calls(comm, make, args, options, is_cached=False):
        return True
    return _by_new_kernel(comm, state, make, args, options, None, began, may_stage=may_stage)


def _launch_again(state: State, team: Team, cached: CachedLaunch, args: tuple[Any, ...]) -> None:
    team.errors.check()
    (_, function, grid, threads, early, _), parameters, producers, of_current, around, record = cached
    if record is not None:
        record()
    stream = stream_for(team.device, producers, state, of_current)
    try:
        if around is None:
            team.order.enqueue(function, grid, threads, parameters, stream, early)
        else:
            _launch_with(team, cached.plan, parameters, *around, stream)
        if state.blocking == "host":
            team.drain()
        elif state.stream is not None:
            team.order.kept.keep(team.order.mark(stream), arrays_of(*args))
    except BaseException:
        if state.stream is not None:
            team.order.keep_left(stream, arrays_of(*args))
        raise


def enqueue_again(state: State, team: Team, cached: CachedLaunch) -> Enqueued:
    """Launch a cached nonblocking call on the communicator's own stream."""
    team.errors.check()
    plan, parameters, producers, of_current, around, record = cached
    if record is not None:
        record()
    current = stream_for(team.device, producers, state, of_current)
    stream = team.order.aside(current)
    _launch_after_joining(team, plan, parameters, around, stream, current)
    return Enqueued(team, current, stream)


def _launch_after_joining(
    team: Team, plan: Plan, parameters: bytes, around: tuple[Any, Any] | None, stream: Any, current: Any
) -> None:
    """Launch a kernel on a stream, between `before` and `after` of `around`, if any.

    If the launch raises NotSupported, make `current` wait for the stream. The stream may have been added to the capture
    of `current`, and a capture cannot end before `current` waits for all streams added to it.
    """
    try:
        if around is None:
            team.order.enqueue(plan.function, plan.grid, plan.threads, parameters, stream, plan.early)
        else:
            _launch_with(team, plan, parameters, *around, stream)
    except NotSupported:
        # Without this join the capture could not end.
        team.device.order(stream, current)
        raise


def _launch_with(team: Team, plan: Plan, parameters: bytes, before: Any, after: Any, stream: Any) -> None:
    """Enqueue `before`, the kernel and `after`; either may be None."""
    if before is not None:
        before(team, stream)
    team.order.enqueue(plan.function, plan.grid, plan.threads, parameters, stream, plan.early)
    if after is not None:
        after(team, plan, stream)
        team.order.extend(stream)


def _by_new_kernel(
    comm: Intracomm,
    state: State,
    make: Callable[..., Call | None],
    args: tuple[Any, ...],
    options: dict[str, Any],
    key: MovableKey | None,
    began: float | None,
    *,
    may_stage: bool = False,
    is_cached: bool = False,
) -> bool:
    """Run a call that has no cached launch; cache its launch under `key`, if any.

    With `is_cached`, calls over nodes are cached too.
    """
    if state.background is not None:
        state.settle()
    operation, calls = make.__name__.capitalize(), state.calls(comm)
    over_nodes = comm.key_over_nodes(make, args, options) if is_cached and state.team is None else None
    again = over_nodes is not None and comm.by_nodes_again(state, over_nodes, args, options)
    begun = None if again or calls is None else calls.begin(operation)
    if state.team is None:
        done = again or comm.by_nodes(make, args, options, begun, over_nodes)
        if done is not None:
            if done and began is not None:
                _emit(comm, operation, began, args)
            return done
    try:
        call = make(comm, *args, **options)
        # MPI has none of the options. Options may be arrays, which have no truth value.
        if may_stage and call is not None and all(each is None or each is False for each in options.values()):
            leave_to_host(comm, call)
    except BaseException:
        if begun is not None:
            begun.refused()
        raise
    if call is None:
        if begun is not None:
            begun.of_host_arrays(operation)
        if state.checking:
            compare(comm, operation, ("host arrays",))
        return False
    if began is not None:
        events.start(operation, began, comm)
    _enqueue_and_complete(comm, state, call, key, begun)
    if began is not None:
        _emit(comm, call.operation, began, args)
    return True


def _enqueue_and_complete(
    comm: Intracomm, state: State, call: Call, key: MovableKey | None, begun: Begun | None
) -> None:
    """Launch a call's kernel; wait for it if ``comm.blocking`` is "host".

    Otherwise, if ``comm.stream`` is set, keep the arrays until the kernel has ended.
    """
    try:
        team, _, stream = enqueue(comm, state, call, key, begun)
        if state.blocking == "host":
            team.drain()
        elif state.stream is not None:
            team.order.kept.keep(team.order.mark(stream), call.buffers)
    except BaseException:
        if state.stream is not None and state.team is not None:
            state.team.order.keep_left(state.stream, call.buffers)
        raise


class Enqueued(NamedTuple):
    """Streams of a launch: the caller's current stream, and the kernel's stream."""

    team: Team
    current: Any
    stream: Any


class Began(NamedTuple):
    """The start of a call that a thread launches: the current stream, an event on it."""

    stream: Any
    event: Event


def enqueue(
    comm: Intracomm,
    state: State,
    call: Call,
    key: MovableKey | None = None,
    begun: Begun | None = None,
    *,
    aside: bool = False,
    began: Began | None = None,
) -> Enqueued:
    """Launch a call's kernel on the current stream; return the streams used.

    With `aside`, launch it on the communicator's own stream, after the work that is now on the current stream, or after
    the event in `began`. In this case, under PYNCCLX_CHECK, the caller has to compare the call with those of the other
    ranks. With a `key`, cache the launch if `call.may_be_known`.
    """
    if begun is None and (calls := state.calls(comm)) is not None:
        begun = calls.begin(call.operation, flags=layout.ASIDE)
    try:
        if state.team is not None and not state.checking:
            # This may raise. The call has no number yet, so the program may repeat it.
            state.team.errors.check()
        if begun is not None:
            describe(begun, call)
        return _enqueue(comm, state, call, key, begun, aside=aside, began=began)
    except BaseException:
        if begun is not None:
            begun.refused()
        raise


def _enqueue(
    comm: Intracomm,
    state: State,
    call: Call,
    key: MovableKey | None,
    begun: Begun | None,
    *,
    aside: bool,
    began: Began | None,
) -> Enqueued:
    if state.checking and not aside:
        compare(comm, call.operation, call.signature)
    team = state.team
    if team is None:
        team = comm.team  # collective at the first use
    elif state.checking:
        team.errors.check()
    plan = plan_of(comm, team, call)
    if began is None:
        current = stream_for(team.device, call.buffers, state)
        stream = team.order.aside(current) if aside else current
    else:
        current, stream = began.stream, team.order.aside_after(began.event)
    parameters = team.parameters(plan, call.buffers, call.called, call.arguments)
    beside = call.load is not None
    # Streams of the host device have no handle.
    record = None if begun is None else begun.launched(plan.kernel, int(getattr(stream, "ptr", 0)), beside=beside)
    _launch_after_joining(team, plan, parameters, (call.before, call.after), stream, current)
    if key is not None and call.may_be_known:
        around = (call.before, call.after) if call.is_again else None
        of_current = is_of_current(call.buffers)
        launch = CachedLaunch(plan, parameters, producers_of(call.buffers), of_current, around, record)  # no arrays
        keep(team, key, call, launch)
    return Enqueued(team, current, stream)


def describe(begun: Begun, call: Call) -> None:
    """Write a call's operation, arguments and sizes to its flight recorder entry."""
    begun.describe(
        operation=call.operation,
        signature=call.signature,
        **facts_of(call.buffers),
        reduction=call.template[1].upper() if len(call.template) == 2 else "",
        root=call.root,
    )


def _emit(comm: Intracomm, operation: str, began: float, args: tuple[Any, ...]) -> None:
    events.emit(operation, events.NATIVE, events.longest_nbytes(args), began, comm=comm)
