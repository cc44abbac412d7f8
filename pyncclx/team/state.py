"""What a communicator carries on its handle: options, the device side once it is made, and attachments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from mpi4py import MPI

import mpi_bootstrap

from ..errors import MPIError, NotSupported, RanksMissing
from ..system import settings
from ..system.process import PerProcess
from .team import Team

BLOCKING = ("stream", "host")


class Attachment:
    """Base of what rooms above keep with a communicator."""

    def join(self, team: Team) -> None:
        """Called once the communicator has a team."""

    def drain(self) -> None:
        """Wait on the host for everything launched so far, and check it; called by `synchronize`."""

    def close(self) -> None:
        """Called when the communicator has been freed, or gives its memory back."""


class Carrier(Protocol):
    """A communicator that carries a state."""

    _state: State | None

    def Get_attr(self, keyval: int, /) -> Any:
        """As mpi4py's."""

    def Set_attr(self, keyval: int, attrval: Any, /) -> None:
        """As mpi4py's."""


class State:
    """What a communicator carries: all objects with its handle share it, through an MPI attribute."""

    def __init__(self, parent: State | None = None) -> None:
        self.blocking: str = parent.blocking if parent else settings.BLOCKING.get()
        self.staging: bool | None = parent.staging if parent else None
        self.sm_free: bool = parent.sm_free if parent else False
        self.checking = settings.CHECK.get()
        self.team: Team | None = None
        self.refusal: NotSupported | None = None
        self.meeting = mpi_bootstrap.Meeting()
        self.current = True  # until MPI deletes it with its communicator
        self.attachments: dict[str, Attachment] = {}  # by the name of the room that has them

    def meet(self, comm: MPI.Intracomm) -> None:
        """Wait for all ranks to come here, before they make something together. Collective.

        Raises
        ------
        RanksMissing
            Some have not come within PYNCCLX_TIMEOUT.
        """
        missing = self.meeting.missing(comm, settings.TIMEOUT.get())
        if missing:
            raise RanksMissing(comm.rank, tuple(missing))

    def close(self) -> None:
        """Release what the communicator holds on the device: its ranks have met since their last kernel ended."""
        self._end(Team.close)

    def abandon(self) -> None:
        """Release what no other rank uses; the rest is kept until the ranks have met."""
        self._end(Team.abandon)

    def _end(self, end: Callable[[Team], None]) -> None:
        team, self.team = self.team, None
        if team is not None:
            end(team)
        for attachment in self.attachments.values():
            attachment.close()


class _Attribute:
    """The value of the MPI attribute. When MPI deletes the communicator, the last reference to this goes.

    A callback for deletion would be simpler, but fails with MPICH: before a callback, mpi4py asks MPI for the topology
    of the communicator, which MPICH looks for among the attributes. Its list still has those that it has just freed.
    """

    def __init__(self, state: State) -> None:
        self.state = state

    def __del__(self) -> None:
        self.state.current = False
        self.state.abandon()  # of a communicator that `Free` of pyncclx has closed, nothing is left


def _copy(comm: MPI.Comm, keyval: int, attribute: _Attribute) -> _Attribute:
    return _Attribute(State(attribute.state))


# Made at the first use: creating a keyval needs MPI to be initialised, and nothing happens at import.
_KEYVAL = PerProcess(lambda: MPI.Comm.Create_keyval(_copy), lasting=True)


def state_of(comm: Carrier, parent: Carrier | None = None) -> State:
    """Return the state of a communicator, made at the first use with the options of `parent`.

    MPI copies it to duplicates. The object keeps it, since MPI takes a microsecond to look it up.
    """
    state = comm._state
    if state is not None:
        if not state.current:
            raise MPIError(MPI.ERR_COMM, "the communicator has been freed")
        return state
    keyval = _KEYVAL.get()
    attribute = cast("_Attribute | None", comm.Get_attr(keyval))
    if attribute is None:
        attribute = _Attribute(State(None if parent is None else state_of(parent)))
        comm.Set_attr(keyval, attribute)
    comm._state = attribute.state
    return comm._state


#: Whether MPI may work on host copies where `comm.staging` has not been set; `pyncclx.MPI` sets it when it is imported.
STAGES_BY_DEFAULT = PerProcess(lambda: False)
