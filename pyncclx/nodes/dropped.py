"""Communicators over nodes that a program has dropped without freeing them: their ranks close them for the next one.

`team/dropped.py` does so inside a node. It cannot find the Team of a node's ranks: what the communicator has over nodes
holds that. So the ranks that meet to make another communicator over nodes look for those that none of them can call any
more, in which nothing is under way, and close them together.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple, cast
from weakref import WeakValueDictionary

from mpi4py import MPI

import mpi_bootstrap

from ..recovery import ulfm
from ..system.process import held
from ..team.base import IntraBase
from ..team.dropped import is_of_this_thread
from ..team.state import State, state_of
from .spanning import NAME, Spanning, span


class _Name(NamedTuple):
    """The name of a communicator, the same on all its ranks."""

    world_ranks: tuple[int, ...]
    number: int  # among those of the same ranks, in the order in which they were made


_STATES: WeakValueDictionary[_Name, State] = held(WeakValueDictionary[_Name, State]())
_made: dict[tuple[int, ...], int] = held({})  # how many there were of the same ranks


@mpi_bootstrap.interrupts_deferred()
def span_next(comm: IntraBase, topology: mpi_bootstrap.Topology) -> Spanning:
    """Close dropped communicators, then make what one over several nodes has. Collective."""
    world_ranks = ulfm.world_ranks(cast(MPI.Comm, comm))
    _close_dropped(cast(MPI.Intracomm, comm), world_ranks)
    spanning, state = span(comm, topology), state_of(comm)
    state.maker = threading.get_ident()
    _made[world_ranks] = _made.get(world_ranks, 0) + 1
    _STATES[_Name(world_ranks, _made[world_ranks])] = state
    return spanning


def _close_dropped(comm: MPI.Intracomm, world_ranks: tuple[int, ...]) -> None:
    """Close the communicators that all their ranks have dropped after the same calls, if all are here. Collective."""
    own = {name: state for name, state in list(_STATES.items()) if _is_dropped(state)}
    if mpi_bootstrap.first_bytes(comm, b"dropped" if own else b"") is None:
        return
    called = {name: cast(Spanning, state.attachments[NAME]).number for name, state in own.items()}
    of_ranks = dict(zip(world_ranks, mpi_bootstrap.allgather_objects(comm, called), strict=True))
    common = sorted(
        {
            name
            for one in of_ranks.values()
            for name, number in one.items()
            if all(of_ranks.get(rank, {}).get(name) == number for rank in name.world_ranks)
        }
    )
    if common:  # the same on all ranks, which close them in one order
        mpi_bootstrap.agree(comm, lambda: _close([own[name] for name in common if name in own]))


def _close(states: Sequence[State]) -> None:
    for state in states:
        state.close()
        state.attachments.clear()  # MPI keeps the state as long as the communicator, which the program has not freed


def _is_dropped(state: State) -> bool:
    """Whether no object, kernel, graph, window, message, nor request needs it, and this thread has made it."""
    spanning = state.attachments.get(NAME)
    if not (isinstance(spanning, Spanning) and state.is_dropped):
        return False
    if not all(each.is_idle() for each in state.attachments.values() if each is not spanning):
        return False
    if spanning.closed or spanning.thread.is_busy or spanning.rails.has_failed:
        return False
    return is_of_this_thread(state) and spanning.team.is_idle()
