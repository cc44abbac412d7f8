"""Keep the memory of communicators that were freed without a rendezvous.

If a program frees a communicator through mpi4py's handle, this library is not called on the other ranks. They may still
write to the communicator's memory on this rank. The same is true if the rendezvous to free a communicator has timed
out. So the memory is kept until the ranks' next rendezvous, when they create or free another communicator. There each
rank sends a list of the communicators that it is still in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Lease:
    """A region of this process's heap, `nbytes` long, beginning at `offset`.

    `is_beside`: the lease belongs to a track of a communicator that has another lease.
    """

    offset: int
    nbytes: int
    is_beside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Abandoned:
    """Memory of a communicator that this rank has left, but others may still write to.

    Attributes
    ----------
    team_id : bytes
        Identifier of the communicator, equal on all of its ranks.
    uids : frozenset of bytes
        Heaps of its ranks.
    lease : Lease
    memory : tuple of object
        Windows and other memory to keep until the ranks' next rendezvous.
    nbytes : int
        Bytes of all this memory.
    """

    team_id: bytes
    uids: frozenset[bytes]
    lease: Lease
    memory: tuple[object, ...]
    nbytes: int


class Dropped(NamedTuple):
    """Communicator that a rank's program can no longer call.

    Attributes
    ----------
    reached : (int, int)
        Number of operations that have ended, and a hash of their calls: equal on ranks that have made the same calls.
    is_reusable : bool
        Whether its memory can be used instead of that of a new communicator: it has the settings that a new one would
        have, and at least as much memory.
    """

    reached: tuple[int, int]
    is_reusable: bool


@dataclass(frozen=True, slots=True)
class Present:
    """Data that each rank sends to a rendezvous.

    Attributes
    ----------
    uid : bytes
        Identifier of its heap.
    living : tuple of bytes
        The `team_id` of each communicator that the rank is in.
    dropped : dict of bytes to Dropped
        Communicators that its program can no longer call, by `team_id`.
    """

    uid: bytes
    living: tuple[bytes, ...]
    dropped: Mapping[bytes, Dropped]


def left_by_all(
    present: Sequence[Present], abandoned: Mapping[bytes, Abandoned], failed: Iterable[bytes]
) -> list[Abandoned]:
    """Return the abandoned communicators that none of their living ranks is still in.

    Parameters
    ----------
    present : sequence of Present
        Data of the ranks at the rendezvous.
    abandoned : dict of bytes to Abandoned
        Abandoned communicators by `team_id`. This rank's kernels in them have ended.
    failed : iterable of bytes
        Uids of the heaps of processes that have ended.
    """
    living_of = {each.uid: each.living for each in present}

    def is_left(each: Abandoned) -> bool:
        members = each.uids.difference(failed)
        return all(member in living_of and each.team_id not in living_of[member] for member in members)

    return list(filter(is_left, abandoned.values()))
