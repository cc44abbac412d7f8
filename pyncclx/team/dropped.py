"""Dropped communicators: the same ranks' next communicator takes over the Team.

mpi4py does not free communicators by itself, and programs often do not either: a function splits a communicator, uses
the new one and returns. Then the memory of the new one would be lost for other communicators. So when ranks meet to
make a Team, they look for communicators that no rank can call any more and in which no kernel runs. If such a
communicator has the same ranks, the new one takes over its Team and loaded kernels. Otherwise the ranks close the
communicators that they have found.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from weakref import WeakValueDictionary

from mpi4py import MPI

import mpi_bootstrap

from ..backends import Device
from ..failures import ulfm
from ..memory import layout
from ..memory.heap import HEAP, Heap
from ..memory.retired import Dropped, Present
from ..system.process import held, lock
from . import members
from .background import caller
from .state import State
from .team import Team

_STATES: WeakValueDictionary[bytes, State] = held(WeakValueDictionary[bytes, State]())  # states with a Team, by its id
_OFFERED: set[bytes] = held(set[bytes]())  # ids of Teams that a rendezvous in progress may take over or close
_OFFERING = lock()
MOST_KEPT = 4  # dropped communicators of the same ranks


def register(state: State) -> None:
    """Register a state with a Team, for rendezvous to find it once it is dropped."""
    if state.team is not None:
        _STATES[state.team.id] = state
        state.maker = caller()


def take_over(comm: MPI.Intracomm, select: Callable[[], Device]) -> Team | None:
    """Return a dropped communicator's Team for the same ranks, or None. Collective.

    If there is none, the ranks close the dropped communicators that they have found. `select` makes the device ready;
    if it raises on one rank, all ranks raise the error.
    """
    own: dict[bytes, tuple[State, Team]] = {}
    try:
        return _take_over(comm, select, own)
    finally:
        _OFFERED.difference_update(own)


def _take_over(comm: MPI.Intracomm, select: Callable[[], Device], own: dict[bytes, tuple[State, Team]]) -> Team | None:
    """Implement `take_over`; add what this rank offers to `own`."""

    def here() -> tuple[Present, tuple[int, ...]]:
        select()
        own.update(_offered(HEAP.get(), comm.size))
        dropped = {name: _described(team) for name, (_, team) in own.items()}
        return HEAP.get().present(dropped), ulfm.world_ranks(comm)

    gathered = mpi_bootstrap.exchange(comm, here)
    present = [each for each, _ in gathered]
    HEAP.get().meet(present)
    found = {team: state for state, team in own.values() if _is_common(team, present)}
    fitting = sorted((team for team in found if _fits(team, present)), key=lambda team: (-team.layout.nbytes, team.id))
    closed = fitting[MOST_KEPT:] if fitting else list(found)
    if len(fitting) > MOST_KEPT or (not fitting and any(each.dropped for each in present)):  # the same on all ranks
        mpi_bootstrap.agree(comm, lambda: _close(found[team] for team in closed))
    return _taken(found[fitting[0]], comm, gathered[comm.rank][1]) if fitting else None


def _offered(heap: Heap, size: int) -> dict[bytes, tuple[State, Team]]:
    """Return the dropped states that this rendezvous may take over or close.

    States that another rendezvous may take over are left out. Two rendezvous can run at once, because a thread may be
    making a call in place of the program's thread (`background.py`).
    """
    found = _of_this_thread(heap, size)
    with _OFFERING:
        # Another thread may have taken over a Team since the look-up.
        own = {name: each for name, each in found.items() if name not in _OFFERED and each[0].team is each[1]}
        _OFFERED.update(own)
    return own


def _taken(state: State, comm: MPI.Intracomm, in_world: Sequence[int]) -> Team | None:
    """Move the Team of a dropped state to `comm`, with ranks `in_world` in COMM_WORLD."""
    team, state.team = state.team, None
    state.close()  # its attachments
    if team is not None:
        team.belong_to(comm, in_world)
    return team


def _close(dropped: Iterable[State]) -> None:
    for state in dropped:
        state.close()


def _of_this_thread(heap: Heap, size: int) -> dict[bytes, tuple[State, Team]]:
    """Return the dropped states of this thread that nothing uses, by their Teams' ids.

    No object, kernel, graph, window or message uses them. A state belongs to the thread that made it: if two threads
    make communicators at the same time, only one of them may take the state over. The states of threads that have ended
    belong to the main thread.
    """
    found = {}
    for name, state in list(_STATES.items()):
        team = state.team
        has_use = any(not attachment.is_idle() for attachment in list(state.attachments.values()))
        if team is not None and state.is_dropped and not has_use and is_of_this_thread(state):
            if not heap.offer(layout.least_nbytes(size)):
                # The heap has no room for another Team, so wait until this one is idle.
                team.order.synchronize()
            if team.heap is heap and team.is_idle():
                found[name] = state, team
    return found


def is_of_this_thread(state: State) -> bool:
    """Return whether this thread made the Team, or is main and the maker has ended."""
    if state.maker == caller():
        return True
    is_main = caller() == threading.main_thread().ident
    return is_main and all(thread.ident != state.maker for thread in threading.enumerate())


def _described(team: Team) -> Dropped:
    progress, own = team.progress(), team.members[team.rank]
    has_settings = members.has_settings_of_now(own, team.device)
    has_memory = team.layout.nbytes >= team.heap.offer(layout.least_nbytes(team.size))
    return Dropped((progress["epoch"], progress["hash"]), has_settings and has_memory)


def _of_ranks(team: Team, present: Sequence[Present]) -> list[Dropped]:
    """Return what the present ranks have sent about a Team that they have dropped."""
    dropped = {each.uid: each.dropped for each in present}
    return [dropped[uid][team.id] for uid in team.uids if team.id in dropped.get(uid, ())]


def _is_common(team: Team, present: Sequence[Present]) -> bool:
    """Return whether all ranks of a Team are present and dropped it after equal calls."""
    of_ranks = _of_ranks(team, present)
    return len(of_ranks) == team.size and len({each.reached for each in of_ranks}) == 1


def _fits(team: Team, present: Sequence[Present]) -> bool:
    """Return whether a Team has the present ranks in order, and current settings."""
    is_reusable = all(each.is_reusable for each in _of_ranks(team, present))
    return is_reusable and team.uids == [each.uid for each in present]
