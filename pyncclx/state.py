"""What a communicator carries on its handle: settings, and the device side once there is one."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, cast

from mpi4py import MPI

from .errors import MPIError, NotSupported
from .messages.endpoint import Endpoint
from .messages.probe import Held
from .team import Team

if TYPE_CHECKING:
    from .base import Base


class State:
    """What a communicator carries; every object with the same handle sees it, through an MPI attribute."""

    def __init__(self, parent: State | None = None) -> None:
        self.blocking: str = parent.blocking if parent else os.environ.get("PYNCCLX_BLOCKING", "stream")
        self.staging: bool | None = parent.staging if parent else None
        self.sm_free: bool = parent.sm_free if parent else False
        self.checking = os.environ.get("PYNCCLX_CHECK") == "1"
        self.team: Team | None = None
        self.refusal: NotSupported | None = None
        self.current = True  # until MPI deletes it with its communicator
        self.endpoint: Endpoint | None = None
        self.held: list[Held] = []  # messages that probes have found
        self.edges: tuple[object] | None = None  # of the topology, once known; see collectives/neighbors.py

    def close(self) -> None:
        """Release what the communicator holds on the device."""
        team, self.team = self.team, None
        if team is not None:
            team.device.synchronize()
            team.close()
        if self.endpoint is not None:
            postbox, self.endpoint = self.endpoint.postbox, None  # messages that are on their way keep it
            postbox.reclaim()


def _copy_state(comm: MPI.Comm, keyval: int, state: State) -> State:
    return State(state)


def _close_state(comm: MPI.Comm, keyval: int, state: State) -> None:
    state.close()
    state.current = False


# Made at the first use: creating a keyval needs MPI to be initialised, and nothing happens at import.
_keyval = MPI.KEYVAL_INVALID


def state_of(comm: Base, parent: Base | None = None) -> State:
    """The state of a communicator, made at the first use with the settings of the communicator it was made from.

    MPI itself copies it to duplicates. An object remembers its communicator's: asking MPI takes a microsecond.
    """
    global _keyval
    known = comm._state
    if known is not None:
        if not known.current:
            raise MPIError(MPI.ERR_COMM, "the communicator has been freed")
        return known
    if _keyval == MPI.KEYVAL_INVALID:
        _keyval = MPI.Comm.Create_keyval(_copy_state, _close_state)
    state: Any = comm.Get_attr(_keyval)
    if state is None:
        state = State(None if parent is None else state_of(parent))
        comm.Set_attr(_keyval, state)
    comm._state = cast(State, state)
    return comm._state


def stages_by_default() -> bool:
    """Whether MPI may work on host copies where nobody has said: a program that imports `pyncclx.MPI` expects it."""
    return "pyncclx.MPI" in sys.modules
