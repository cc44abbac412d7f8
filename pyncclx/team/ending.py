"""The end of a Team: the wait for its own kernels, and what it gives back then."""

from __future__ import annotations

import weakref
from collections.abc import Hashable

from mpi4py import MPI

import mpi_bootstrap

from ..backends import Device
from ..memory.heap import Heap
from ..memory.quarantine import Abandoned, Lease
from ..recovery.detector import DETECTOR
from ..system.bounded import BoundedCache
from .dependents import Dependent, KernelTeam
from .error_record import ErrorRecord
from .launch_order import LaunchOrder
from .plans import RememberedLaunch
from .scratch import Scratch
from .windows import TeamWindows


class Ending:
    """The part of a Team that ends it.

    Attributes
    ----------
    dependents, device_teams : list
        What is closed with it.
    tracks : set of Ending
        The Teams beside it, which have its windows.
    """

    device: Device
    heap: Heap
    id: bytes
    lease: Lease
    errors: ErrorRecord
    windows: TeamWindows
    scratch: Scratch
    order: LaunchOrder
    remembered: BoundedCache[Hashable, RememberedLaunch]

    def __init__(self) -> None:
        self.dependents: list[Dependent] = []
        self.device_teams: list[KernelTeam] = []
        self.tracks: weakref.WeakSet[Ending] = weakref.WeakSet()

    @property
    def uids(self) -> list[bytes]:
        """The names of the ranks' heaps."""
        raise NotImplementedError

    def may_launch(self) -> bool:
        """Return whether the program may launch kernels that use the communicator: its own, or those of graphs."""
        return self.order.has_graphs or any(each.for_program for each in self.device_teams)

    def finish(self) -> None:
        """Wait on the host until nothing of this communicator runs: a kernel of another one may wait for a peer.

        A program's own kernels may be on any stream; where it has launched some, the whole device is waited for.
        """
        if any(each.for_program for each in self.device_teams):
            self.device.synchronize()
            return
        for team in (self, *self.tracks):
            team.order.finish()

    def leave(self, comm: MPI.Intracomm) -> None:
        """Wait until the kernels of all ranks have ended. Collective."""
        mpi_bootstrap.agree(comm, self.finish)
        self.heap.meet(mpi_bootstrap.allgather_objects(comm, self.heap.present()))

    def close(self) -> None:
        """Give the lease back. Not collective: the ranks have met since their last kernel ended."""
        self._close_own()
        self.heap.release(self.lease, self.id)

    def abandon(self) -> None:
        """Close, but leave the lease and other memory that peers may write to until the ranks have met."""
        memory = (*self.dependents, *self.device_teams, *self.windows.held())
        nbytes = self.lease.nbytes + sum(window.memory.nbytes for window in self.windows if window.owner is not None)
        nbytes += sum(dependent.nbytes for dependent in (*self.dependents, *self.device_teams))
        uids = frozenset(self.uids)
        try:
            self.finish()
            self._close_own()
        finally:
            self.heap.abandon(Abandoned(team_id=self.id, uids=uids, lease=self.lease, memory=memory, nbytes=nbytes))

    def _close_own(self) -> None:
        """Release what this rank alone uses, and unmap the peers' memory; kernels of this rank have ended."""
        self.remembered.clear()
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
