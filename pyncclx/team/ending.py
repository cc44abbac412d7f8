"""The end of a Team: it waits for its kernels, and releases its memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Protocol

from mpi4py import MPI

import mpi_bootstrap
from mpi_bootstrap.own_errors import own_error, own_errors_suppressed

from ..backends import Device
from ..errors import Aborted, RankFailed, RanksMissing, Revoked
from ..failures.detector import DETECTOR
from ..failures.error_record import ErrorRecord
from ..memory.heap import Heap
from ..memory.retired import Abandoned, Lease
from ..system.process import BoundedCache, held
from .kept import Scratch
from .launch_order import LaunchOrder
from .plans import CachedLaunch, MovableLaunch
from .windows import TeamWindows


def part(meet: Callable[[], object], comm: MPI.Intracomm, errors: ErrorRecord, leave: Callable[[], object]) -> bool:
    """Wait for all ranks by `meet`, then call `leave` to release memory. Collective.

    Return whether all ranks have come, and `leave` has been called. Return False at once if `errors` shows a failed
    communicator, or if an earlier rendezvous has timed out here: other ranks may still wait in it.
    """
    if errors.has_failed or mpi_bootstrap.has_left(comm):
        return False
    try:
        meet()
        leave()
    except Exception as error:
        is_failure = errors.has_failed and own_error(error) is not None
        if not (is_failure or isinstance(error, (RankFailed, Revoked, RanksMissing, Aborted))):
            raise
        return False
    return True


def abandon_late() -> None:
    """Abandon Teams of freed communicators whose windows are no longer read."""
    for late in list(_LATE):
        team, is_over = late
        if is_over() and late in _LATE:
            _LATE.remove(late)
            with own_errors_suppressed():  # its communicator's calls have raised them
                team.abandon()


class Dependent(Protocol):
    """Memory outside the lease; `close` removes it from `Team.dependents`."""

    nbytes: int

    def close(self) -> None: ...


class KernelTeam(Dependent, Protocol):
    """Memory for a program's own kernels; `close` removes it from `Team.device_teams`.

    Attributes
    ----------
    for_program : bool
        Whether the program itself launches the kernels, on any streams. If False, they serve a window's signals.
    """

    for_program: bool

    def update_window(self, number: int) -> None: ...


class Ending:
    """The part of a Team that waits for its kernels and releases its memory.

    Attributes
    ----------
    dependents, device_teams : list
        Memory that is closed with it.
    tracks : set of Ending
        The Teams of tracks, which share its windows.
    """

    device: Device
    heap: Heap
    id: bytes
    lease: Lease
    errors: ErrorRecord
    windows: TeamWindows
    scratch: Scratch
    order: LaunchOrder
    cached_launches: BoundedCache[Hashable, CachedLaunch]
    movable_launches: BoundedCache[Hashable, MovableLaunch]

    def __init__(self) -> None:
        self.dependents: list[Dependent] = []
        self.device_teams: list[KernelTeam] = []
        self.tracks: weakref.WeakSet[Ending] = weakref.WeakSet()

    def forget_launches(self) -> None:
        """Drop cached launches."""
        self.cached_launches.clear()
        self.movable_launches.clear()

    @property
    def uids(self) -> list[bytes]:
        """The uids of the ranks' heaps."""
        raise NotImplementedError

    def may_launch(self) -> bool:
        """Return whether the program may launch kernels of its own or graphs."""
        return self.order.has_graphs or any(each.for_program for each in self.device_teams)

    def finish(self) -> None:
        """Wait on the host until no kernel of this communicator runs.

        A kernel of another communicator may wait for a peer, so the device is not synchronized. If the program has
        launched kernels of its own, on any stream, this waits for the whole device.
        """
        if any(each.for_program for each in self.device_teams):
            self.device.synchronize()
            return
        for team in (self, *self.tracks):
            team.order.finish()

    def close(self) -> None:
        """Return the lease. Not collective: ranks have met since their last kernel ended."""
        self._close_own()
        self.heap.release(self.lease, self.id)

    def abandon(self) -> None:
        """Close, but keep memory that peers may write to until all ranks have left."""
        memory = (*self.dependents, *self.device_teams, *self.windows.held())
        nbytes = self.lease.nbytes + sum(window.memory.nbytes for window in self.windows if window.owner is not None)
        nbytes += sum(dependent.nbytes for dependent in (*self.dependents, *self.device_teams))
        uids = frozenset(self.uids)
        try:
            self.finish()
            self._close_own()
        finally:
            self.heap.abandon(Abandoned(team_id=self.id, uids=uids, lease=self.lease, memory=memory, nbytes=nbytes))

    def abandon_after(self, is_over: Callable[[], bool]) -> None:
        """Abandon once `is_over()` is true: now, or in a later call of `abandon_late`."""
        if DETECTOR.made is not None:
            DETECTOR.made.forget(self.errors)  # its communicator is being freed
        _LATE.append((self, is_over))
        abandon_late()

    def _close_own(self) -> None:
        """Release what only this rank uses, after its kernels ended; unmap peers' memory."""
        self.forget_launches()
        for holders in (self.dependents, self.device_teams):
            while holders:
                holders[-1].close()
        self._close_record(self.errors)
        self.windows.close()
        self.scratch.close()

    def _close_record(self, errors: ErrorRecord) -> None:
        self.heap.part(self.uids)
        if DETECTOR.made is not None:
            DETECTOR.made.forget(errors)
        errors.close()


_LATE: list[tuple[Ending, Callable[[], bool]]] = held([])
