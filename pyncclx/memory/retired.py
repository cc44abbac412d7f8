"""Keep memory that is no longer needed until no rank and no kernel can use it.

When a rank frees a communicator, other ranks may still write to the communicator's memory on this rank. `Free` does
not wait for them. So the memory is kept as *abandoned* until all ranks have left the communicator. Each process
lists on its page what it is in (`mpi_bootstrap/presence.py`), and at the next rendezvous, when ranks create another
communicator, each rank sends a list of those that it is still in.

Before the driver frees or unmaps memory, it may wait for all work of the process on the GPU. This work may include a
collective of another communicator, which a peer begins only after its next rendezvous with this rank. So such memory is
*retired*, and freed later, while no kernel of this library waits. Then the driver's wait is short, and kernels of the
program that used the memory have ended too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from .. import backends
from ..backends import Device
from ..failures.comm_failures import Monitored
from ..failures.detector import DETECTOR
from ..requests.open_receives import OPEN_RECEIVES
from ..system.process import PerProcess


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
    """Return the abandoned communicators that all their living ranks have left.

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


class Retired:
    """The retired memory of this process."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._waiting: deque[Callable[[], object]] = deque()

    def add(self, *frees: Callable[[], object]) -> None:
        """Add functions that a later `free` calls; any thread may call this method."""
        self._waiting.extend(frees)

    def free(self, *, at_once: bool = False, after: Monitored | None = None) -> None:
        """Free the retired memory unless a kernel of this process may wait for a peer.

        Any thread may call this method. Memory that another thread adds during the call is freed by a later call,
        because kernels that use it may have started after this call has waited for the device.

        Parameters
        ----------
        at_once : bool
            Free the memory even if a kernel may wait for a peer, because the GPU has no free memory. Without effect on
            the host device.
        after : communicator, optional
            Communicator whose kernels do not count, because the caller has already waited for them.
        """
        taken: deque[Callable[[], object]] = deque()
        try:
            with suppress(IndexError):
                while True:
                    taken.append(self._waiting.popleft())
            if taken and self._may_free(at_once, after):
                # On the host device, a wait for streams would raise the errors of other calls.
                if self._device.name != "host":
                    self._device.synchronize()
                while taken:
                    taken.popleft()()
        finally:
            self._waiting.extendleft(reversed(taken))

    def _may_free(self, at_once: bool, after: Monitored | None) -> bool:
        device = self._device
        # On the host device, memory may be in use even after a wait.
        at_once &= device.name != "host"
        return (at_once or _nothing_is_under_way(after)) and not device.is_capturing(device.current_stream())


def _nothing_is_under_way(after: Monitored | None) -> bool:
    """Return whether no receive is open and no kernel may be waiting for a peer.

    This includes kernels in graphs and kernels of the program.
    """
    return not OPEN_RECEIVES and not (DETECTOR.made is not None and DETECTOR.made.is_busy(after))


RETIRED = PerProcess(lambda: Retired(backends.select()))
