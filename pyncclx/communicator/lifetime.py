"""The end of a communicator: methods that free it and its device memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar, cast

from mpi4py import MPI

import mpi_bootstrap
from mpi_bootstrap.own_errors import own_errors_suppressed
from mpi_bootstrap.polls import WHILE_FREED_S, polls_stopped

from ..failures import ulfm
from ..nodes.spanning import spanning_of
from ..staging.stand_ins import WithConstants
from ..system.mpi_library import has_ulfm
from ..team.base import Base, IntraBase
from ..team.ending import abandon_late, part
from ..team.state import State
from ..team.team import Team

_Self = TypeVar("_Self", bound="Lifetime")


class Lifetime(WithConstants, Base):
    """Methods that free communicators."""

    def Free(self) -> None:
        """Free the communicator and its device memory. Collective.

        Inside a node the call waits for no other rank, unless the communicator has windows (`Alloc`, `Register`). The
        memory is released when all ranks have made this call.

        MPI.COMM_WORLD and MPI.COMM_SELF cannot be freed; `free` releases their device memory.

        Raises
        ------
        CapacityExceeded, ValueError, MPI.Exception
            If a kernel of an earlier call has recorded an error that no call has raised yet. The exception is raised
            after the memory has been released.
        """
        if self in (MPI.COMM_WORLD, MPI.COMM_SELF):
            super().Free()  # raises
            return
        refusal = self._leave(polls_stopped(WHILE_FREED_S)(super().Free))
        if refusal is not None:
            raise refusal

    def free(self) -> None:
        """Free the communicator and its device memory, unless already freed. Collective.

        MPI.COMM_WORLD and MPI.COMM_SELF stay usable: only their device memory is released. Raises what `Free` raises.
        """
        refusal = self._leave() if self in (MPI.COMM_WORLD, MPI.COMM_SELF) else None
        if not self._is_constant:
            with polls_stopped(WHILE_FREED_S):
                super().free()
        if refusal is not None:
            raise refusal

    def Disconnect(self) -> None:
        """Wait for pending communication, then free the communicator. Collective.

        Its device memory is released too. Raises what `Free` raises.
        """
        refusal = self._leave(super().Disconnect)
        if refusal is not None:
            raise refusal

    @mpi_bootstrap.interrupts_deferred()
    def _leave(self, free: Callable[[], None] | None = None) -> BaseException | None:
        """Release the device memory, then free the communicator; return an error, if any.

        Inside a node this waits for kernels of this rank alone, because MPI expects `Free` to be local. If the
        communicator has windows, it waits for all ranks, because messages read windows. `free` is the function that
        frees the communicator in MPI. A failed communicator is freed in MPI only if it was revoked, because late ranks
        may still use it. The result is an error that a kernel of this rank has recorded and no call has raised, or a
        signal handler's exception that ended a wait for other ranks.
        """
        state, comm, spanning = self._settled(), cast(MPI.Intracomm, self), spanning_of(cast(IntraBase, self))
        team = state.team
        refusal: BaseException | None = None
        abandon_late()
        is_sound = not (mpi_bootstrap.has_left(comm) or (spanning is not None and spanning.has_failed))
        if team is None:
            state.close()
        else:
            try:
                with state.recorded(comm, "Free"):
                    is_sound = self._finish(state, comm, team) and is_sound and not team.errors.has_failed
                refusal = team.errors.refusal() if is_sound else None
            except BaseException as error:
                if not team.errors.has_failed:
                    raise
                is_sound, refusal = False, error
            if is_sound:
                state.leave()
                team.heap.await_others(team.id)
            else:
                state.abandon()
        if free is not None:
            if is_sound or (has_ulfm() and ulfm.is_revoked(comm)):
                free()
            else:
                state.current = False
                mpi_bootstrap.forget(comm)
        return refusal

    def _finish(self, state: State, comm: MPI.Intracomm, team: Team) -> bool:
        """Wait until no kernel uses the communicator's memory; return whether that is so."""
        if not len(team.windows):
            team.finish()
            return True

        def finish() -> None:
            team.finish()
            for each in list(state.attachments.values()):
                if each.is_of_messages:
                    with own_errors_suppressed():  # their own calls raise them
                        each.drain()

        meet = functools.partial(state.meet, comm, of_part=team.errors)
        return part(meet, comm, team.errors, lambda: mpi_bootstrap.agree(comm, finish))

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        # Freeing may wait for all ranks. After an exception the other ranks may never call this.
        if kind is None:
            self.free()
