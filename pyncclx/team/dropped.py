"""Communicators that a program has dropped without freeing them: the next one of the same ranks takes over their Team.

mpi4py frees no communicator by itself, and programs often free none either: a function splits one, uses it and returns.
Its memory would be lost, and with it room for others. So ranks that meet to make a communicator's Team look for one
that none of them can call any more, and in which no kernel runs. If its ranks are theirs they take it over, with the
kernels that it has loaded; if there is none, those that they have found are closed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

from mpi4py import MPI

import mpi_bootstrap

from ..backends import Device
from ..memory.heap import HEAP, Heap
from ..memory.quarantine import Present
from ..recovery import ulfm
from ..system.process import held
from . import members
from .state import State
from .team import Team

_STATES: WeakValueDictionary[bytes, State] = held(WeakValueDictionary[bytes, State]())  # with a Team, by its id
_OFFERED: set[bytes] = held(set())  # to ranks that meet now: two threads may make communicators
_LOCK = threading.Lock()


def remember(state: State) -> None:
    """Look at a communicator that has a Team when others are made."""
    if state.team is not None:
        _STATES[state.team.id] = state


def take_over(comm: MPI.Intracomm, select: Callable[[], Device]) -> Team | None:
    """Meet for a new communicator, and return the Team of a dropped one of the same ranks, if there is one. Collective.

    If there is none, the dropped ones that have been found are closed. `select` makes the device ready; all ranks raise
    what it raises on one.
    """
    own = _Offer()
    try:
        present = mpi_bootstrap.exchange(comm, lambda: own.make(comm, select))
        HEAP.get().meet(present)
        found = [state for state, team in own.teams.values() if _is_common(team, present)]
        team = _taken(found, present)
        if team is not None:
            team.belong_to(comm, own.in_world)
        elif any(each.dropped for each in present):
            mpi_bootstrap.agree(comm, lambda: _close(found))
        return team
    finally:
        own.withdraw()


class _Offer:
    """What this rank's program has dropped, and nobody uses, by the ids of the Teams."""

    def __init__(self) -> None:
        self.teams: dict[bytes, tuple[State, Team]] = {}
        self.in_world: tuple[int, ...] = ()  # the ranks that meet, in MPI.COMM_WORLD

    def make(self, comm: MPI.Intracomm, select: Callable[[], Device]) -> Present:
        """Find it; return what the others need to have of it. It is in no other offer then."""
        select()
        heap, self.in_world = HEAP.get(), ulfm.world_ranks(comm)
        with _LOCK:
            for name, state in list(_STATES.items()):
                team = state.team
                if team is not None and name not in _OFFERED and _is_unused(state, team, heap):
                    self.teams[name] = state, team
            _OFFERED.update(self.teams)
        return heap.present({name: _reached(team) for name, (_, team) in self.teams.items()})

    def withdraw(self) -> None:
        """Let others have it."""
        with _LOCK:
            _OFFERED.difference_update(self.teams)


def _is_unused(state: State, team: Team, heap: Heap) -> bool:
    """Whether nobody uses a communicator's Team, or will: no object, kernel, graph, window nor message."""
    if not state.is_dropped or state.attachments or team.heap is not heap or not team.is_idle():
        return False
    return members.has_settings_of_now(team.members[team.rank], team.device)


def _reached(team: Team) -> tuple[int, int]:
    """How many operations have ended, and the hash of their calls: of ranks that have made the same calls the same."""
    progress = team.progress()
    return progress["epoch"], progress["hash"]


def _is_common(team: Team, present: Sequence[Present]) -> bool:
    """Whether all ranks of a Team are here, and have dropped it after the same calls."""
    dropped = {each.uid: each.dropped for each in present}
    of_ranks = {dropped.get(member.uid, {}).get(team.id) for member in team.members}
    return len(of_ranks) == 1 and None not in of_ranks


def _taken(found: Sequence[State], present: Sequence[Present]) -> Team | None:
    """The Team with the most memory of those of the ranks here, taken from its communicator; None if there is none."""
    here = [each.uid for each in present]
    fitting = {state.team: state for state in found if state.team is not None and state.team.uids == here}
    if not fitting:
        return None
    team = max(fitting, key=lambda each: (each.layout.nbytes, each.id))
    fitting[team].team = None
    fitting[team].close()  # what it has beside
    return team


def _close(found: Sequence[State]) -> None:
    for state in found:
        state.close()
