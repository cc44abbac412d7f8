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
        """
        if self not in (MPI.COMM_WORLD, MPI.COMM_SELF):
            self._leave()
        super().Free()

    def free(self) -> None:
        """As `Free`, if there is something to free. Of COMM_WORLD and COMM_SELF only the memory; they stay usable."""
        if self in (MPI.COMM_WORLD, MPI.COMM_SELF):
            self._leave()
        if not self._is_constant:
            super().free()

    def Disconnect(self) -> None:
        """As `Free`, once pending communication is over. Collective."""
        self._leave()
        super().Disconnect()

    def _leave(self) -> None:
        """Release the memory on the device, after all ranks' kernels that may write to it."""
        state, comm = state_of(self), cast(MPI.Intracomm, self)
        if state.team is None:
            state.close()
            return
        try:
            with state.recorded(comm, "Free"):
                state.meet(comm, _CLOSE_S if state.team.errors.has_failed else None)
                state.team.leave(comm)
        except (RankFailed, Revoked, RanksMissing):  # some rank will never come: what it may write to stays
            state.abandon()
        else:
            state.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        # Freeing waits for all ranks. A rank that raises must not: the others may never come here.
        if kind is None:
            self.free()
