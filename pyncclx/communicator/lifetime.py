"""The end of a communicator: what releases it, and what it holds on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from mpi4py import MPI

import mpi_bootstrap

from ..nodes.spanning import spanning_of
from ..recovery import ulfm
from ..team.base import Base, IntraBase
from ..team.state import state_of

_Self = TypeVar("_Self", bound="Lifetime")


class Lifetime(Base):
    """Methods that end communicators."""

    @property
    def _is_constant(self) -> bool:
        """Whether it is an object that exists once, as COMM_WORLD does."""
        raise NotImplementedError

    def Free(self) -> None:
        """Release the communicator, and the device memory it holds. Collective.

        MPI.COMM_WORLD and MPI.COMM_SELF cannot be freed; `free` releases their memory.

        Raises
        ------
        CapacityExceeded, ValueError, MPI.Exception
            After it is freed: what a kernel of an earlier call has refused, and no call has raised.
        """
        if self in (MPI.COMM_WORLD, MPI.COMM_SELF):
            super().Free()  # which raises
            return
        refusal = self._leave(super().Free)
        if refusal is not None:
            raise refusal

    def free(self) -> None:
        """As `Free`, if there is something to free. Of COMM_WORLD and COMM_SELF only the memory; they stay usable."""
        refusal = self._leave() if self in (MPI.COMM_WORLD, MPI.COMM_SELF) else None
        if not self._is_constant:
            super().free()
        if refusal is not None:
            raise refusal

    def Disconnect(self) -> None:
        """As `Free`, once pending communication is over. Collective."""
        refusal = self._leave(super().Disconnect)
        if refusal is not None:
            raise refusal

    def _leave(self, free: Callable[[], None] | None = None) -> Exception | None:
        """Release the memory on the device, after all ranks' kernels; return what one here has refused.

        `free` frees the communicator then. MPI keeps one that has failed, unless it was revoked: late ranks may call
        it.
        """
        state, comm, spanning = state_of(self), cast(MPI.Intracomm, self), spanning_of(cast(IntraBase, self))
        team, refusal = state.team, None
        if team is None:
            have_met = not (mpi_bootstrap.has_given_up(comm) or (spanning is not None and spanning.has_failed))
        else:
            with state.recorded(comm, "Free"):
                have_met = state.part(comm, team.errors, lambda: team.leave(comm))
            refusal = team.errors.refusal() if have_met else None
        if team is None or have_met:
            state.close()
        else:  # some rank will never come: what it may write to stays
            state.abandon()
        if free is not None:
            if have_met or (ulfm.is_possible() and ulfm.is_revoked(comm)):
                free()
            else:
                state.current = False
                mpi_bootstrap.forget(comm)
        return refusal

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        # Freeing waits for all ranks. A rank that raises must not: the others may never come here.
        if kind is None:
            self.free()
