"""What every operation does alike: compare notes if asked, find the stream, launch."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .. import events
from ..errors import CollectiveMismatch
from ..operators import user_op
from ..team.plans import Plan, Producer, RememberedLaunch
from ..team.state import State, state_of
from ..team.streams import stream_for
from ..team.team import Team
from . import kernels
from .call import Call
from .choice import MOST_EARLY
from .keys import NoKey, key_of
from .sources import check_records, file_of

if TYPE_CHECKING:
    from ..team.base import IntraBase as Intracomm

MOST_PLANS = 1024  # of a communicator; a program with more different calls than that makes them anew


def by_kernel(comm: Intracomm, make: Callable[..., Call | None], *args: Any, **options: Any) -> bool:
    """Do an operation on the current stream by the kernel of the call that `make` makes; False if it makes none.

    The host waits if the communicator blocks. A call that came before, with arguments of the same keys, is only
    launched: `make` must have nothing to ask the other ranks.
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
    call = make(comm, *args, **options)
    if call is None:
        return False
    run(comm, call)
    if began is not None:
        _emit(comm, call.operation, began, args)
    if key is not None and team is not None:
        _remember(team, key, call)
    return True


def by_new_kernel(comm: Intracomm, make: Callable[..., Call | None], *args: Any, **options: Any) -> bool:
    """As `by_kernel`, for a `make` that asks the other ranks: each call is made anew."""
    began = events.now() if events.listeners else None
    call = make(comm, *args, **options)
    if call is None:
        return False
    run(comm, call)
    if began is not None:
        _emit(comm, call.operation, began, args)
    return True


def _emit(comm: Intracomm, operation: str, began: float, args: tuple[Any, ...]) -> None:
    events.emit(operation, events.NATIVE, events.longest_nbytes(args), began, comm=comm)


def _launch_again(state: State, team: Team, remembered: RememberedLaunch) -> None:
    team.errors.check()
    team.launch_again(remembered, stream_for(team.device, remembered.producers))
    if state.blocking == "host":
        team.drain()


def _remember(team: Team, key: Hashable, call: Call) -> None:
    """Have a call known that is one launch and no more; the arrays are not held."""
    if call.empty or call.ready is not None or call.settle is not None:
        return
    plan = team.plans[call.operation, call.template, call.sized]
    producers = [Producer(each.stream, each.of_torch) for each in call.buffers if each.stream is not None]
    if len(team.remembered) >= MOST_PLANS:
        team.remembered.clear()
    team.remembered[key] = RememberedLaunch(plan, team.parameters(plan, call.buffers, call.arguments), tuple(producers))


def run(comm: Intracomm, call: Call) -> None:
    """Launch a call's kernel on the current stream; wait for it if the communicator blocks."""
    state = state_of(comm)
    team = enqueue(comm, state, call)
    if team is not None and state.blocking == "host":
        team.drain()


def enqueue(comm: Intracomm, state: State, call: Call) -> Team | None:
    """Launch a call's kernel on the current stream; returns the team it runs in, None if there was nothing to do."""
    if state.checking:
        compare(comm, call.operation, call.signature)
    if call.empty:
        return None
    team = comm.team
    plan = team.plans.get((call.operation, call.template, call.sized)) or prepare(comm, team, call)
    stream = stream_for(team.device, call.buffers)
    if call.ready is not None:
        call.ready(team, stream)
    team.launch(plan, call.buffers, call.arguments, stream)
    if call.settle is not None:
        call.settle(team, plan, stream)
    return team


def prepare(comm: Intracomm, team: Team, call: Call) -> Plan:
    """Choose how a call runs and get its kernel. Collective at the first use of a kernel."""
    choice = call.choose(user_op.fitting(team.layout, call.template), *call.sized)
    if call.load is None:
        check_records(call.operation, choice.kernel, call.template)
        function = kernels.get(comm, team, file_of(choice.kernel), choice.kernel, *call.template)
    else:
        function = call.load(comm, team, choice.kernel, call.template)
    threads = min(choice.threads or team.threads, team.threads)
    most_early = MOST_EARLY // team.layout.sharing * team.device.blocks_per_multiprocessor(function, threads)
    early = call.load is None and choice.grid <= most_early
    plan = Plan(call.operation, function, choice.grid, threads, early)
    if len(team.plans) >= MOST_PLANS:
        team.plans.clear()
    team.plans[call.operation, call.template, call.sized] = plan
    return plan


def compare(comm: Intracomm, operation: str, signature: tuple[Any, ...]) -> None:
    """Raise on all ranks if they called different operations, or with different arguments."""
    calls = MPI.Comm.allgather(comm, (operation, *signature))
    if any(call != calls[0] for call in calls):
        said = "; ".join(f"rank {rank}: {call[0]}{call[1:]}" for rank, call in enumerate(calls))
        raise CollectiveMismatch(f"ranks disagree about the call: {said}")
