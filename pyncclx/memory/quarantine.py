"""Memory of communicators that were freed without a meeting of their ranks: it stays until the ranks have met.

MPI frees a communicator through a handle of mpi4py's without this library. Then a rank does not know when the others
stop writing to its memory. At the next meeting of ranks, for a new communicator or to free one, each sends in which
communicators it still is. It does not matter how the others have left: of one whose ranks met to free it, some may have
waited too long for the others.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterable, Mapping
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
    comm: MPI.Intracomm,
    uid: bytes,
    living: Collection[bytes],
    abandoned: Mapping[bytes, Abandoned],
    failed: Iterable[bytes],
) -> list[Abandoned]:
    """Return those of `abandoned` that all their ranks have left, but for the failed ones. Collective.

    Parameters
    ----------
    comm : Intracomm
        Its ranks meet.
    uid : bytes
        Of this rank's heap.
    living : collection of bytes
        The `team_id` of each communicator that this rank is in.
    abandoned : dict of bytes to Abandoned
        By `team_id`. This rank's kernels in them have ended.
    failed : iterable of bytes
        Heaps of processes that have ended.
    """
    gathered = mpi_bootstrap.allgather_bytes(comm, pickle.dumps((uid, list(living))))
    living_of: dict[bytes, list[bytes]] = dict(map(pickle.loads, gathered))

    def is_left(each: Abandoned) -> bool:
        members = each.uids.difference(failed)
        return all(member in living_of and each.team_id not in living_of[member] for member in members)

    return list(filter(is_left, abandoned.values()))
