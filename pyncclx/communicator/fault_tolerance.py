"""MPI's methods for failed ranks, on communicators with device memory."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, cast

from mpi4py import MPI

import mpi_bootstrap

from ..errors import PeerTimeout, RankFailed, Revoked
from ..failures import ulfm
from ..failures.comm_failures import REVOKED, CommFailure, ended_by
from ..failures.detector import DETECTOR
from ..failures.policy import explained
from ..memory.heap import HEAP
from ..nodes.spanning import spanning_of
from ..system.mpi_library import has_ulfm
from ..team.base import IntraBase
from ..team.state import state_of
from .lifetime import Lifetime

# Seconds that MPI may take to find a failure that the detector has found. MPI always finds a dead process, but late on
# a busy machine. If a program has failed and its process is still alive, MPI may never find the failure.
_FOR_MPI_S = 1.0
_FOR_DEAD_S = 30.0


class FaultTolerance(Lifetime):
    """Methods for failed ranks.

    They need an MPI that continues when ranks fail, such as Open MPI with ULFM.
    """

    def _adopted(self, made: MPI.Comm) -> Any:
        """Return the pyncclx communicator for one of mpi4py's made from this one."""
        raise NotImplementedError

    def Revoke(self) -> None:
        """Abort all operations of this communicator on all ranks. Local.

        Waiting kernels end within milliseconds, also those of captured graphs. From then on calls raise `Revoked` on
        all ranks, except `Shrink`, `Agree` and `Free`.

        Raises
        ------
        NotSupported
            If the MPI library cannot revoke communicators.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF).Dup()
        >>> comm.Revoke()  # doctest: +SKIP
        """
        ulfm.require("Revoke")
        state, spanning = state_of(self), spanning_of(cast(IntraBase, self))
        failure = ended_by(self.rank, REVOKED)
        for team in state.teams:
            team.errors.give_up(REVOKED)
        if spanning is not None:
            spanning.elsewhere.fail(failure)
        super().Revoke()
        if state.comm_failure is None:
            state.comm_failure = failure

    def Is_revoked(self) -> bool:
        """Return whether any rank has revoked this communicator. Local."""
        return has_ulfm() and super().Is_revoked()

    def Get_failed(self) -> MPI.Group:
        """Return the group of the ranks that are known to have failed. Local.

        It includes every rank that exceptions have named.
        """
        if not has_ulfm():
            own = self.Get_group()
            return own.Incl(sorted(self._known_failures()))
        self._failures_unknown_to_mpi()
        return super().Get_failed()

    def Ack_failed(self, num_to_ack: int | None = None) -> int:
        """Acknowledge failed ranks, so that receives from any source ignore them. Local.

        `num_to_ack` limits how many are acknowledged. Returns the number of acknowledged failures.
        """
        ulfm.require("Ack_failed")
        return super().Ack_failed(num_to_ack)

    def Agree(self, flag: int) -> int:
        """Return the bitwise AND of the living ranks' flags, equal on all of them.

        Collective over the living ranks.
        """
        ulfm.require("Agree")
        try:
            return super().Agree(flag)
        except MPI.Exception as error:
            raise explained(self, error, "Agree") from error

    def Iagree(self, flag: Any) -> MPI.Request:
        """Begin to compute the bitwise AND of the living ranks' flags; return a request.

        When it completes, the buffer `flag` holds the result; see `Agree`.
        """
        ulfm.require("Iagree")
        return super().Iagree(flag)

    def Shrink(self) -> Any:
        """Create a communicator of the ranks that have not failed. Collective over them.

        If ranks have failed, this communicator's device memory is released, and the new one can use it at once. Arrays
        from `Alloc` of the old communicator become ordinary arrays. Create windows, shuffles and persistent requests
        again on the new communicator. Messages between living ranks may still use the old communicator; `Free` it after
        they have completed.

        Returns
        -------
        Comm
            The new communicator, with the settings of the old one.

        Raises
        ------
        NotSupported
            If the MPI library does not continue when ranks fail.
        RankFailed
            If the program of a rank has failed but its process is still alive. `Shrink` would wait for it.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> shrunk = comm.Shrink()  # doctest: +SKIP
        """
        self._check_shrinkable("Shrink")
        made, spanning = self._adopted(super().Shrink()), spanning_of(cast(IntraBase, self))
        self._give_up(self._ranks_outside(made))
        heap = HEAP.made
        # If this rendezvous fails, the memory is released at the next rendezvous of the ranks.
        with suppress(RankFailed, Revoked, PeerTimeout):
            there = mpi_bootstrap.allgather_objects(made, heap.present() if heap is not None else None)
            if heap is not None:
                heap.meet([each for each in there if each is not None])
            if spanning is not None and spanning.closed:
                spanning.rails.free()
        return made

    def Ishrink(self) -> tuple[Any, MPI.Request]:
        """Begin to create a communicator of the ranks that have not failed.

        Returns the communicator and a request; use the communicator after the request completes. See `Shrink`.
        """
        self._check_shrinkable("Ishrink")
        failed = ulfm.failed_ranks(self)
        made, request = super().Ishrink()
        self._give_up(failed)
        return self._adopted(made), request

    def _check_shrinkable(self, operation: str) -> None:
        """Raise RankFailed if MPI would wait for a failed rank whose process is alive."""
        ulfm.require(operation)
        left = self._failures_unknown_to_mpi()
        if left:
            worlds = ulfm.world_ranks(self)
            text = "its program has ended, but its process is alive in MPI_Finalize, for which Shrink would wait"
            ranks = tuple(sorted(left))
            raise RankFailed(ranks, tuple(worlds[rank] for rank in ranks), text, operation=operation)

    def _failures_unknown_to_mpi(self) -> set[int]:
        """Return the failures that the detector has found, but MPI does not find in time."""
        known, began = self._known_failures(), time.monotonic()
        while left := known.difference(ulfm.failed_ranks(self)):
            waited = time.monotonic() - began
            if waited > _FOR_DEAD_S or (waited > _FOR_MPI_S and not self._are_dead(left)):
                break
            time.sleep(0.005)
        return left

    def _are_dead(self, ranks: set[int]) -> bool:
        """Return whether the processes of all these ranks are gone."""
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
        """Release the device memory after ranks failed; later calls raise.

        Then wait for the end of the failed ranks' processes, which may write to that memory until then.
        """
        state = self._settled()
        worlds = ulfm.world_ranks(self)
        failed_worlds = tuple(worlds[rank] for rank in failed)
        if failed:
            state.comm_failure = CommFailure(failed, failed_worlds, "found by Shrink to have died")
        team, spanning = state.team, spanning_of(cast(IntraBase, self))
        if team is None and (failed or (spanning is not None and spanning.has_failed)):
            state.abandon_device(failed_worlds)
        if team is None or not (failed or team.errors.has_failed):
            return
        if state.comm_failure is not None:
            team.errors.fail(state.comm_failure)
        state.comm_failure = team.errors.comm_failure or state.comm_failure
        uids = {team.members[rank].uid for rank in failed}
        state.abandon_device(failed_worlds)
        if DETECTOR.made is not None:
            DETECTOR.made.await_end(uids)
