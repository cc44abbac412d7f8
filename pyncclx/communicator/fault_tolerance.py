"""What is left to do when ranks have failed: MPI's methods for that, on communicators with device memory."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, cast

from mpi4py import MPI

import mpi_bootstrap

from ..errors import PeerTimeout, RankFailed, Revoked
from ..memory.heap import HEAP
from ..nodes.spanning import spanning_of
from ..recovery import ulfm
from ..recovery.detector import DETECTOR
from ..recovery.losses import REVOKED, Loss
from ..recovery.meetings import explained
from ..team.base import IntraBase
from ..team.state import state_of
from .lifetime import Lifetime

_FOR_MPI_S = 1.0  # until MPI has found the failures that the detector has, of processes that may be alive
_FOR_DEAD_S = 30.0  # the same, of processes that are gone: MPI finds those for certain, late on a busy machine


class FaultTolerance(Lifetime):
    """Methods for failed ranks. They take an MPI that goes on when ranks fail, as Open MPI does with ULFM."""

    def _adopted(self, made: MPI.Comm) -> Any:
        """Return a communicator of mpi4py's that was made from this one as one of ours."""
        raise NotImplementedError

    def Revoke(self) -> None:
        """End all that goes on in this communicator, on all ranks. Local. As mpi4py's Revoke.

        Kernels that wait leave within milliseconds, those of captured graphs too. From then on calls raise `Revoked`
        on all ranks, but for `Shrink`, `Agree` and `Free`.

        Raises
        ------
        NotSupported
            MPI has no such thing.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF).Dup()
        >>> comm.Revoke()  # doctest: +SKIP
        """
        ulfm.require("Revoke")
        state, spanning = state_of(self), spanning_of(cast(IntraBase, self))
        loss = Loss(note=ulfm.revoked_note(self.rank))
        for team in state.teams:
            team.errors.give_up(REVOKED)
        if spanning is not None:
            spanning.lookout.lose(loss)
        super().Revoke()
        if state.loss is None:
            state.loss = loss

    def Is_revoked(self) -> bool:
        """Return whether a rank has revoked this communicator. Local. As mpi4py's Is_revoked."""
        return ulfm.is_possible() and super().Is_revoked()

    def Get_failed(self) -> MPI.Group:
        """Return the group of the ranks that are known to have failed. Local. As mpi4py's Get_failed.

        It has all those that exceptions have named.
        """
        if not ulfm.is_possible():
            own = self.Get_group()
            return own.Incl(sorted(self._known_failures()))
        self._failures_unknown_to_mpi()
        return super().Get_failed()

    def Ack_failed(self, num_to_ack: int | None = None) -> int:
        """Acknowledge failed ranks: receives from any rank go on without them. Local. As mpi4py's Ack_failed."""
        ulfm.require("Ack_failed")
        return super().Ack_failed(num_to_ack)

    def Agree(self, flag: int) -> int:
        """Return the bitwise AND of the living ranks' flags, the same on all of them. Collective. As mpi4py's Agree."""
        ulfm.require("Agree")
        try:
            return super().Agree(flag)
        except MPI.Exception as error:
            raise explained(self, error, "Agree") from error

    def Iagree(self, flag: Any) -> MPI.Request:
        """Begin what `Agree` does, and return a request. As mpi4py's Iagree."""
        ulfm.require("Iagree")
        return super().Iagree(flag)

    def Shrink(self) -> Any:
        """Make a communicator of the ranks that have not failed. Collective over them. As mpi4py's Shrink.

        What this communicator has on the device is released, if ranks have failed: the new one can have all of it at
        once. Arrays from its `Alloc` become ordinary arrays; windows, shuffles and persistent requests are to be made
        anew. Messages between living ranks may go on here; `Free` it when they are over.

        Returns
        -------
        Comm
            With the settings of this one.

        Raises
        ------
        NotSupported
            MPI does not go on when ranks fail.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> shrunk = comm.Shrink()  # doctest: +SKIP
        """
        self._check_shrinkable("Shrink")
        made, spanning = self._adopted(super().Shrink()), spanning_of(cast(IntraBase, self))
        self._give_up(self._ranks_outside(made))
        heap = HEAP.made
        with suppress(RankFailed, Revoked, PeerTimeout):  # else the memory goes back at the next meeting
            there = mpi_bootstrap.allgather_objects(made, heap.present() if heap is not None else None)
            if heap is not None:
                heap.meet([each for each in there if each is not None])
            if spanning is not None and spanning.closed:
                spanning.rails.free()
        return made

    def Ishrink(self) -> tuple[Any, MPI.Request]:
        """Begin what `Shrink` does; return the communicator, and the request after which it can be used."""
        self._check_shrinkable("Ishrink")
        failed = ulfm.failed_ranks(self)
        made, request = super().Ishrink()
        self._give_up(failed)
        return self._adopted(made), request

    def _check_shrinkable(self, operation: str) -> None:
        """Raise if a rank has failed that MPI takes for a living one, and would wait for."""
        ulfm.require(operation)
        left = self._failures_unknown_to_mpi()
        if left:
            worlds = ulfm.world_ranks(self)
            text = "its program has ended, but its process is alive in MPI_Finalize, for which Shrink would wait"
            ranks = tuple(sorted(left))
            raise RankFailed(ranks, tuple(worlds[rank] for rank in ranks), text, operation=operation)

    def _failures_unknown_to_mpi(self) -> set[int]:
        """Wait until MPI has found the failures that the detector has; return those that it has not in time."""
        known, began = self._known_failures(), time.monotonic()
        while left := known.difference(ulfm.failed_ranks(self)):
            waited = time.monotonic() - began
            if waited > _FOR_DEAD_S or (waited > _FOR_MPI_S and not self._are_dead(left)):
                break
            time.sleep(0.005)
        return left

    def _are_dead(self, ranks: set[int]) -> bool:
        """Whether the processes of all of these ranks are gone."""
        worlds = ulfm.world_ranks(self)
        return DETECTOR.made is not None and DETECTOR.made.are_gone([worlds[rank] for rank in ranks])

    def _known_failures(self) -> set[int]:
        """Return the ranks that the failure detector has found."""
        detector = DETECTOR.made
        return set(detector.failed_among(ulfm.world_ranks(self))) if detector is not None else set()

    def _ranks_outside(self, shrunk: MPI.Comm) -> tuple[int, ...]:
        own, survivors = self.Get_group(), shrunk.Get_group()
        ranks = own.Translate_ranks(None, survivors)
        own.Free()
        survivors.Free()
        return tuple(rank for rank, new in enumerate(ranks) if new == MPI.UNDEFINED)

    def _give_up(self, failed: tuple[int, ...]) -> None:
        """Release the memory on the device, once nothing of the failed ranks writes to it; calls raise from now on."""
        state = state_of(self)
        worlds = ulfm.world_ranks(self)
        failed_worlds = tuple(worlds[rank] for rank in failed)
        if failed:
            state.loss = Loss(failed, failed_worlds, "found by Shrink to have died")
        team, spanning = state.team, spanning_of(cast(IntraBase, self))
        if team is None and (failed or (spanning is not None and spanning.has_failed)):
            state.abandon_device(failed_worlds)
        if team is None or not (failed or team.errors.has_failed):
            return
        if state.loss is not None:
            team.errors.lose(state.loss)
        state.loss = team.errors.loss or state.loss
        uids = {team.members[rank].uid for rank in failed}
        state.abandon_device(failed_worlds)
        if DETECTOR.made is not None:
            DETECTOR.made.await_end(uids)
