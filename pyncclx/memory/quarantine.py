"""Memory of communicators that were freed without a meeting of their ranks: it stays until the ranks have met.

MPI frees a communicator through a handle of mpi4py's without this library. Then a rank does not know when the others
stop writing to its memory. At the next meeting of ranks, for a new communicator or to free one, each sends in which
communicators it still is. It does not matter how the others have left: of one whose ranks met to free it, some may have
waited too long for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Lease:
    """A region of this process's heap, `nbytes` long, from `offset`.

    `is_beside`: it belongs to a track of a communicator that has another lease.
    """

    offset: int
    nbytes: int
    is_beside: bool = False


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


class Dropped(NamedTuple):
    """A communicator that the program of a rank cannot call any more.

    Attributes
    ----------
    reached : (int, int)
        How many operations have ended, and the hash of their calls: the same on ranks that have made the same calls.
    is_as_good : bool
        Whether a new communicator would have its settings, and no more memory.
    """

    reached: tuple[int, int]
    is_as_good: bool


@dataclass(frozen=True, slots=True)
class Present:
    """What each rank sends to a meeting.

    Attributes
    ----------
    uid : bytes
        Of its heap.
    living : tuple of bytes
        The `team_id` of each communicator that it is in.
    dropped : dict of bytes to Dropped
        Those that its program cannot call any more, by `team_id`.
    """

    uid: bytes
    living: tuple[bytes, ...]
    dropped: Mapping[bytes, Dropped]


def left_by_all(
    present: Sequence[Present], abandoned: Mapping[bytes, Abandoned], failed: Iterable[bytes]
) -> list[Abandoned]:
    """Return those of `abandoned` that all their ranks have left, but for the failed ones.

    Parameters
    ----------
    present : sequence of Present
        Of the ranks that meet.
    abandoned : dict of bytes to Abandoned
        By `team_id`. This rank's kernels in them have ended.
    failed : iterable of bytes
        Heaps of processes that have ended.
    """
    living_of = {each.uid: each.living for each in present}

    def is_left(each: Abandoned) -> bool:
        members = each.uids.difference(failed)
        return all(member in living_of and each.team_id not in living_of[member] for member in members)

    return list(filter(is_left, abandoned.values()))
