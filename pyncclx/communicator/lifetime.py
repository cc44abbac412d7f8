"""The end of a communicator: what releases it, and what it holds on the device."""

from __future__ import annotations

from typing import TypeVar, cast

from mpi4py import MPI

from ..errors import RankFailed, RanksMissing, Revoked
from ..team.base import Base
from ..team.state import state_of

_Self = TypeVar("_Self", bound="Lifetime")
_CLOSE_S = 2.0  # that the ranks of a communicator that has failed wait for each other to release its memory


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
        refusal = None if self in (MPI.COMM_WORLD, MPI.COMM_SELF) else self._leave()
        super().Free()
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
        refusal = self._leave()
        super().Disconnect()
        if refusal is not None:
            raise refusal

    def _leave(self) -> Exception | None:
        """Release the memory on the device, after all ranks' kernels; return what one here has refused."""
        state, comm = state_of(self), cast(MPI.Intracomm, self)
        if state.team is None:
            state.close()
            return None
        try:
            with state.recorded(comm, "Free"):
                state.meet(comm, _CLOSE_S if state.team.errors.has_failed else None)
                state.team.leave(comm)
        except (RankFailed, Revoked, RanksMissing):  # some rank will never come: what it may write to stays
            state.abandon()
            return None
        refusal = state.team.errors.refusal()
        state.close()
        return refusal

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        # Freeing waits for all ranks. A rank that raises must not: the others may never come here.
        if kind is None:
            self.free()
