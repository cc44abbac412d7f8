"""Collectives on the copy engines.

The only kernels are barriers: one before the copies, and one after each round of copies. A rank copies to its peers one
after the other, starting with the next rank. So each rank receives from one peer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import mpi_bootstrap

from ..arrays.buffers import Buffer
from ..errors import NotSupported
from ..launch.call import Call, Choice
from ..memory.called import describe, pack_call
from ..memory.layout import Layout
from ..team.base import IntraBase as Intracomm
from ..team.plans import Plan
from ..team.team import Team
from . import barrier

COPY_ENGINE = "copy_engine"  # name of the algorithm
OPERATIONS = ("Allgather", "Alltoall", "Bcast")  # those whose lowering calls `copy_engine_call`


class Copy(NamedTuple):
    """One copy between two addresses."""

    to: int
    source: int
    nbytes: int


# A round's copies begin after all ranks have finished the previous round.
Rounds = list[list[Copy]]


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
    """Return an operation's call on the copy engines; None if a kernel should run it.

    If `algorithm` is COPY_ENGINE, the copy engines run the operation. If it is None, they run it on three conditions:
    `sm_free` is set, messages are too long for packets, and every rank's last buffer is in a window. In both cases this
    function is collective: the ranks exchange the places of their last buffers.

    Parameters
    ----------
    buffers : tuple of Buffer
        Peers write to the last of them.
    rounds_of : callable
        Returns this rank's copies. Its argument is the list of all ranks' last buffers, by address in this process.
    also_equal : tuple of str
        Further values that must be equal on all ranks.

    Raises
    ------
    NotSupported
        On all ranks, if `algorithm` is COPY_ENGINE and some rank's last buffer is not in a window.
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
        buffers=buffers,
        signature=signature,
        after=_copying(rounds_of(bases), pack_call(describe(operation, signature))),
    )


def piece_of(nbytes: int, pieces: int, index: int) -> tuple[int, int]:
    """Return offset and length of a piece of a message, in bytes.

    Both are multiples of 16, except at the message's end.
    """
    each = -(-nbytes // (16 * pieces)) * 16
    begin = min(index * each, nbytes)
    return begin, min(each, nbytes - begin)


def peers_of(comm: Intracomm) -> Iterable[int]:
    """Return the other ranks, beginning with the next one."""
    return ((comm.rank + j) % comm.size for j in range(1, comm.size))


def _place(team: Team, address: int) -> tuple[int, int] | None:
    """Return the number of the window with an address, and the offset in it in bytes."""
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
