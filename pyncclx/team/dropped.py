"""Communicators that a program has dropped without freeing them: the next one of the same ranks takes over their Team.

mpi4py frees no communicator by itself, and programs often free none either: a function splits one, uses it and returns.
Its memory would be lost, and with it room for others. So ranks that meet to make a communicator's Team look for one
that none of them can call any more, and in which no kernel runs. If its ranks are theirs they take it over, with the
kernels that it has loaded; if there is none, those that they have found are closed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from weakref import WeakValueDictionary

from mpi4py import MPI

import mpi_bootstrap

from ..memory.heap import Heap
from ..memory.quarantine import Present
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


def take_over(comm: MPI.Intracomm, heap: Heap) -> Team | None:
    """Meet for a new communicator, and return the Team of a dropped one of the same ranks, if there is one. Collective.

    If there is none, the dropped ones that have been found are closed.
    """
    own = _offer(heap)
    try:
        present = heap.meet(comm, {name: _reached(team) for name, (_, team) in own.items()})
        if not any(each.dropped for each in present):
            return None
        found = [state for state, team in own.values() if _is_common(team, present)]
        return mpi_bootstrap.agree(comm, lambda: _settle(comm, found, present), undo=_close)
    finally:
        with _LOCK:
            _OFFERED.difference_update(own)


def _offer(heap: Heap) -> dict[bytes, tuple[State, Team]]:
    """The communicators that this rank's program has dropped and that do nothing, by the ids of their Teams."""
    with _LOCK:
        found = {}
        for name, state in list(_STATES.items()):
            team = state.team
            if team is not None and name not in _OFFERED and _is_unused(state, team, heap):
                found[name] = state, team
        _OFFERED.update(found)
    return found


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


def _settle(comm: MPI.Intracomm, found: Sequence[State], present: Sequence[Present]) -> Team | None:
    """Take over the Team with the most memory of those of the ranks here; if there is none, close all that were found.
    """
    here = [each.uid for each in present]
    teams = {state.team: state for state in found if state.team is not None}
    fitting = [team for team in teams if [member.uid for member in team.members] == here]
    if not fitting:
        for state in found:
            state.close()
        return None
    team = max(fitting, key=lambda each: (each.layout.nbytes, each.id))
    state = teams[team]
    state.team = None
    state.close()
    try:
        team.belong_to(comm)
    except BaseException:
        team.close()
        raise
    return team


def _close(team: Team | None) -> None:
    if team is not None:
        team.close()
