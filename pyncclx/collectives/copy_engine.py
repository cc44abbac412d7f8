"""Collectives by the copy engines: the multiprocessors stay free, but for a barrier before the copies and one after.

A rank copies to its peers, beginning with the next one, so that each receives from one peer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import mpi_bootstrap

from ..arrays.buffers import Buffer
from ..errors import NotSupported
from ..launch.call import Call
from ..launch.choice import Choice
from ..memory.called import describe, pack_call
from ..memory.layout import Layout
from ..team.base import IntraBase as Intracomm
from ..team.plans import Plan
from ..team.team import Team
from . import barrier

COPY_ENGINE = "copy_engine"  # name of the algorithm
OPERATIONS = ("Allgather", "Alltoall", "Bcast")


class Copy(NamedTuple):
    """One copy between two addresses."""

    to: int
    source: int
    nbytes: int


Rounds = list[list[Copy]]  # no copy of a round begins before all of the round before, on all ranks, are over


def copy_engine_call(
    comm: Intracomm,
    operation: str,
    algorithm: str | None,
    *,
    nbytes: int,
    buffers: tuple[Buffer, ...],
    rounds_of: Callable[[list[int]], Rounds],
    also_equal: tuple[str, ...] = (),
) -> Call | None:
    """The call of an operation by the copy engines; None if a kernel is to do it.

    The copy engines do it if `algorithm` is their name, or if it is None, the communicator has `sm_free`, and a message
    of `nbytes` is long enough; then the call is collective, and None if some rank's last buffer is in no window.

    Parameters
    ----------
    buffers : tuple of Buffer
        The last is the one that peers write.
    rounds_of : callable
        Returns this rank's copies, given the addresses of all ranks' last buffers as mapped here.
    also_equal : tuple of str
        What else must be equal on all ranks.

    Raises
    ------
    NotSupported
        On all ranks, if `algorithm` is their name and some rank's last buffer is in no window.
    """
    if algorithm not in (COPY_ENGINE, None) or nbytes == 0:
        return None
    if algorithm is None and not (comm.sm_free and nbytes > comm.team.layout.packet_nbytes):
        return None
    places = mpi_bootstrap.allgather_objects(comm, _place(comm.team, buffers[-1].address))
    windows = comm.team.windows
    bases = [windows[place[0]].bases[rank] + place[1] for rank, place in enumerate(places) if place is not None]
    if len(bases) < comm.size:
        if algorithm is None:
            return None
        raise NotSupported(
            f"{operation}: algorithm={COPY_ENGINE!r} writes to the ranks' arrays, and rank {places.index(None)}'s "
            "is in no window; make it with comm.Alloc"
        )
    signature = f"{nbytes} bytes", *also_equal, COPY_ENGINE
    return Call(
        operation=operation,
        choose=_choose,
        sized=(COPY_ENGINE,),
        arguments=b"",
        buffers=buffers,
        signature=signature,
        after=_copying(rounds_of(bases), pack_call(describe(operation, signature))),
    )


def piece_of(nbytes: int, pieces: int, index: int) -> tuple[int, int]:
    """Where a piece of a message begins, and its length, in bytes: multiples of 16 but for the end."""
    each = -(-nbytes // (16 * pieces)) * 16
    begin = min(index * each, nbytes)
    return begin, min(each, nbytes - begin)


def peers_of(comm: Intracomm) -> Iterable[int]:
    """The other ranks, from the next one on."""
    return ((comm.rank + j) % comm.size for j in range(1, comm.size))


def _place(team: Team, address: int) -> tuple[int, int] | None:
    """The number of the window that an address is in, and the offset there in bytes."""
    window = team.windows.at(address)
    return None if window is None else (window.number, address - window.memory.address)


def _choose(layout: Layout, name: str) -> Choice:
    return barrier.choose(layout, 0)


def _copying(rounds: Rounds, called: bytes) -> Callable[[Team, Plan, Any], None]:
    def copy_all(team: Team, plan: Plan, stream: Any) -> None:
        for copies in rounds:
            for copy in copies:
                team.device.copy(*copy, stream)
            team.launch(plan, (), called, b"", stream)

    return copy_all
