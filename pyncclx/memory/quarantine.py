"""Memory of communicators that were freed without a meeting of their ranks: it stays until the ranks have met.

MPI frees a communicator through a handle of mpi4py's without this library. Then a rank does not know when the others
stop writing to its memory. At the next meeting of ranks, for a new communicator or to free one, each sends which
communicators it has left.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mpi4py import MPI

import mpi_bootstrap


@dataclass(frozen=True, slots=True)
class Lease:
    """A region of this process's heap, `nbytes` long, from `offset`."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Abandoned:
    """What a rank holds of a communicator that it has left, and whose other ranks may still write to it.

    Attributes
    ----------
    team_id : bytes
        The same on all ranks, and no other communicator's.
    uids : frozenset of bytes
        The heaps of the ranks.
    lease : Lease
    memory : tuple of object
        Kept until the ranks have met: windows and the like.
    nbytes : int
        Of all of it.
    """

    team_id: bytes
    uids: frozenset[bytes]
    lease: Lease
    memory: tuple[object, ...]
    nbytes: int


def left_by_all(
    comm: MPI.Intracomm, uid: bytes, abandoned: Mapping[bytes, Abandoned], failed: Iterable[bytes]
) -> list[Abandoned]:
    """Return those of `abandoned` that all their ranks have left, but for the failed ones. Collective.

    Parameters
    ----------
    comm : Intracomm
        Its ranks meet.
    uid : bytes
        Of this rank's heap.
    abandoned : dict of bytes to Abandoned
        By `team_id`. This rank's kernels in them have ended.
    failed : iterable of bytes
        Heaps of processes that have ended.
    """
    gathered = mpi_bootstrap.allgather_bytes(comm, pickle.dumps((uid, list(abandoned))))
    left: dict[bytes, list[bytes]] = dict(map(pickle.loads, gathered))
    return [
        each
        for each in abandoned.values()
        if all(each.team_id in left.get(member, ()) for member in each.uids.difference(failed))
    ]
