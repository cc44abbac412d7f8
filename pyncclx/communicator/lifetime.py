"""The end of a communicator: what releases it, and what it holds on the device."""

from __future__ import annotations

from typing import TypeVar, cast

from mpi4py import MPI

from ..team.base import Base
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
        state = state_of(self)
        if state.team is None:
            state.close()
        elif state.team.has_failed:
            state.abandon()
        else:
            state.team.leave(cast(MPI.Intracomm, self))
            state.close()

    def _give_up(self, shrunk: MPI.Comm) -> None:
        """Wait no more for the ranks that are not in the shrunk communicator, when memory is given back."""
        team = state_of(self).team
        if team is not None:
            own, survivors = self.Get_group(), shrunk.Get_group()
            ranks = own.Translate_ranks(None, survivors)
            own.Free()
            survivors.Free()
            gone = [member.uid for member, rank in zip(team.members, ranks, strict=True) if rank == MPI.UNDEFINED]
            team.heap.failed.update(gone)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        # Freeing waits for all ranks. A rank that raises must not: the others may never come here.
        if kind is None:
            self.free()
