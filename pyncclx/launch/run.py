"""What every operation does: launch an equal call that came before, or make the call and launch its kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import events
from ..errors import NotSupported
from ..team.compare import compare
from ..team.plans import Producer, RememberedLaunch
from ..team.state import State, state_of
from ..team.streams import stream_for
from ..team.team import Team
from .call import Call
from .keys import NoKey, key_of
from .plan import MOST_KEPT, plan_of

if TYPE_CHECKING:
    from ..team.base import IntraBase as Intracomm


def by_kernel(comm: Intracomm, make: Callable[..., Call | None], *args: Any, **options: Any) -> bool:
    """Do an operation on the current stream by the kernel of the call that `make` returns; False if it returns None.

    The host waits if the communicator blocks. A call that came before, with arguments of the same keys, is only
    launched: so `make` must not communicate.
    """
    began = events.now() if events.listeners else None
    state = state_of(comm)
    team, key = state.team, None
    if team is not None and not (state.checking or state.sm_free):
        try:
            key = make, *map(key_of, args), *map(key_of, options.values())
        except NoKey:
            pass
        else:
            remembered = team.remembered.get(key)
            if remembered is not None:
                _launch_again(state, team, remembered)
                if began is not None:
                    _emit(comm, remembered.plan.operation, began, args)
                return True
    return _by_new_kernel(comm, state, make, args, options, key, began)


def by_new_kernel(comm: Intracomm, make: Callable[..., Call | None], *args: Any, **options: Any) -> bool:
    """As `by_kernel`, for a `make` that communicates: each call is made anew."""
    began = events.now() if events.listeners else None
    return _by_new_kernel(comm, state_of(comm), make, args, options, None, began)


def _launch_again(state: State, team: Team, remembered: RememberedLaunch) -> None:
    team.errors.check()
    (_, function, grid, threads, early), parameters, producers = remembered
    team.order.enqueue(function, grid, threads, parameters, stream_for(team.device, producers), early)
    if state.blocking == "host":
        team.drain()


def _by_new_kernel(
    comm: Intracomm,
    state: State,
    make: Callable[..., Call | None],
    args: tuple[Any, ...],
    options: dict[str, Any],
    key: Hashable,
    began: float | None,
) -> bool:
    call = make(comm, *args, **options)
    if call is None:
        if state.checking:
            compare(comm, make.__name__.capitalize(), ("host arrays",))
        return False
    launched = enqueue(comm, state, call, key)
    if launched is not None and state.blocking == "host":
        launched.team.drain()
    if began is not None:
        _emit(comm, call.operation, began, args)
    return True


class Enqueued(NamedTuple):
    """Where a kernel was launched."""

    team: Team
    current: Any
    stream: Any  # that it was launched on


def enqueue(comm: Intracomm, state: State, call: Call, key: Hashable = None, *, aside: bool = False) -> Enqueued | None:
    """Launch a call's kernel on the current stream; return where, None if there is nothing to launch.

    With `aside` it is launched on the communicator's own stream, after what the current one has now, and the caller
    compares it with those of other ranks. With a `key` the launch is remembered, if the kernel is all of the call.
    """
    if state.checking and not aside:
        compare(comm, call.operation, call.signature)
    if call.empty:
        return None
    team = state.team
    if team is None:
        team = comm.team  # made now, by all ranks
    else:
        team.errors.check()
    plan = plan_of(comm, team, call)
    current = stream_for(team.device, call.buffers)
    stream = team.order.aside(current) if aside else current
    if call.before is not None:
        try:
            call.before(team, stream)
        except NotSupported:
            team.device.order(stream, current)  # a capture that it has joined
            raise
    parameters = team.parameters(plan, call.buffers, call.arguments)
    team.order.enqueue(plan.function, plan.grid, plan.threads, parameters, stream, plan.early)
    if call.after is not None:
        call.after(team, plan, stream)
        team.order.extend(stream)
    if key is not None and call.before is None and call.after is None:
        if len(team.remembered) >= MOST_KEPT:
            team.remembered.clear()
        producers = [Producer(each.stream, each.of_torch) for each in call.buffers if each.stream is not None]
        team.remembered[key] = RememberedLaunch(plan, parameters, tuple(producers))  # without the arrays
    return Enqueued(team, current, stream)


def _emit(comm: Intracomm, operation: str, began: float, args: tuple[Any, ...]) -> None:
    events.emit(operation, events.NATIVE, events.longest_nbytes(args), began, comm=comm)
