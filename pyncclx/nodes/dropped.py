"""Close the communicators over nodes that a program has dropped.

For communicators inside a node, `team/dropped.py` does this. It does not find the Team that a `Spanning` has for the
ranks of its node, because the `Spanning` refers to the Team. So when ranks make another communicator over nodes, they
look for communicators that no rank can call any more and in which no work is in progress. They close these together.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple, cast
from weakref import WeakValueDictionary

from mpi4py import MPI

import mpi_bootstrap

from ..failures import ulfm
from ..system.process import held
from ..team.base import IntraBase
from ..team.dropped import is_of_this_thread
from ..team.state import State, state_of
from .spanning import NAME, Spanning, span


class _Name(NamedTuple):
    """The name of a communicator, the same on all its ranks."""

    world_ranks: tuple[int, ...]
    number: int  # among the communicators of the same ranks, in the order of creation


_STATES: WeakValueDictionary[_Name, State] = held(WeakValueDictionary[_Name, State]())
_made: dict[tuple[int, ...], int] = held({})  # number of communicators so far, by their ranks


@mpi_bootstrap.interrupts_deferred()
def span_next(comm: IntraBase, topology: mpi_bootstrap.Topology) -> Spanning:
    """Close dropped communicators, then make the `Spanning` of this one. Collective."""
    world_ranks = ulfm.world_ranks(cast(MPI.Comm, comm))
    _close_dropped(cast(MPI.Intracomm, comm), world_ranks)
    spanning, state = span(comm, topology), state_of(comm)
    state.maker = threading.get_ident()
    _made[world_ranks] = _made.get(world_ranks, 0) + 1
    _STATES[_Name(world_ranks, _made[world_ranks])] = state
    return spanning


def _close_dropped(comm: MPI.Intracomm, world_ranks: tuple[int, ...]) -> None:
    """Close each communicator that all of its ranks have dropped. Collective.

    A communicator is closed only if all of its ranks are in `comm`, and have made the same number of calls on it.
    """
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
    # `common` is the same on all ranks, so they close in one order.
    if common:
        mpi_bootstrap.agree(comm, lambda: _close([own[name] for name in common if name in own]))


def _close(states: Sequence[State]) -> None:
    for state in states:
        state.close()
        # MPI keeps the state as long as the communicator, which the program has not freed.
        state.attachments.clear()


def _is_dropped(state: State) -> bool:
    """Return whether this thread made the communicator, and nothing uses it now.

    Users are objects, kernels, graphs, windows, messages and requests. A closed or failed communicator does not count.
    """
    spanning = state.attachments.get(NAME)
    if not (isinstance(spanning, Spanning) and state.is_dropped):
        return False
    if not all(each.is_idle() for each in list(state.attachments.values()) if each is not spanning):
        return False
    if spanning.closed or spanning.thread.is_busy or spanning.rails.has_failed:
        return False
    return is_of_this_thread(state) and spanning.team.is_idle()
