"""What all our communicators have beyond MPI's: a state on the handle, and the device side that hangs on it."""

from __future__ import annotations

import math
import os
import sys
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from mpi4py import MPI

import mpi_bootstrap

from . import devices
from .arrays import host_arrays
from .collectives import MODULES, blocking_form, copy_engine, neighbors
from .errors import MPIError, NotSupported
from .heap import memory_held
from .messages import postbox
from .messages.endpoint import Endpoint
from .messages.probe import Held
from .mpi_library import is_cuda_aware
from .staging.operations import OPERATIONS
from .team import Team

_BLOCKING = ("stream", "host")


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
        endpoint, self.endpoint = self.endpoint, None
        if endpoint is not None:
            endpoint.close()


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


# Families of methods are classes of their own, which the communicators inherit. At run time they must be plain
# Python classes: only one base of a class may come from mpi4py's line. To the type checker they are communicators.
if TYPE_CHECKING:
    _Comm = MPI.Comm
else:
    _Comm = object


class Base(_Comm):
    """What all our communicators have beyond MPI's; the base of every family of methods."""

    _state: State | None = None

    @property
    def state(self) -> State:
        """What the communicator carries."""
        return state_of(self)

    @property
    def team(self) -> Team:
        """The device side of this communicator, made at the first use. Collective then."""
        state = state_of(self)
        team = state.team
        if team is None:
            team = state.team = self._make_team(state)
        else:
            team.check()
        return team

    def _make_team(self, state: State) -> Team:
        if self.is_inter:
            raise NotSupported("kernels do not work between the two groups of an intercommunicator; Merge it")
        if state.refusal is not None and self.staging:  # told once, and nothing has changed
            raise NotSupported(str(state.refusal))
        mpi_bootstrap.check_launch(cast(MPI.Intracomm, self))
        try:
            return Team(cast(MPI.Intracomm, self), devices.select())
        except NotSupported as refusal:
            state.refusal = refusal
            raise

    @property
    def endpoint(self) -> Endpoint:
        """This communicator's messages with device arrays, made at the first one. Not collective."""
        state = state_of(self)
        if state.endpoint is None:
            mpi_bootstrap.check_launch(cast(MPI.Intracomm, self))
            state.endpoint = Endpoint(self, devices.select())
        state.endpoint.team = state.team
        return state.endpoint

    @property
    def blocking(self) -> str:
        """When a call on device arrays returns: "stream" (at once, default) or "host" (when the result is there).

        The environment variable PYNCCLX_BLOCKING sets what new communicators begin with.
        """
        return state_of(self).blocking

    @blocking.setter
    def blocking(self, value: str) -> None:
        if value not in _BLOCKING:
            raise ValueError(f"blocking is {value!r}; it can be 'stream' or 'host'")
        state_of(self).blocking = value

    @property
    def checking(self) -> bool:
        """Whether calls are compared between the ranks: PYNCCLX_CHECK=1 when the communicator was first used."""
        return state_of(self).checking

    @property
    def staging(self) -> bool:
        """Whether MPI may do, on copies in host memory, what no kernel does with device arrays.

        False by default, and such calls raise NotSupported: a hidden copy is correct and slow. True for a program that
        has imported `pyncclx.MPI`, or runs under ``python -m pyncclx run``, since such programs expect every call of
        MPI to work. What is made of a communicator begins with its setting. Set it alike on all ranks.
        """
        chosen = state_of(self).staging
        return stages_by_default() if chosen is None else chosen

    @staging.setter
    def staging(self, value: bool) -> None:
        state_of(self).staging = bool(value)

    @property
    def sm_free(self) -> bool:
        """Whether Allgather, Alltoall and Bcast leave long messages to the copy engines, where windows allow it.

        The multiprocessors are then free for other kernels, but for two barriers of one warp. False by default. What
        is received must be in windows (`Alloc`) on all ranks, else kernels move the data as ever; the ranks tell each
        other on the host, at each call. Set it alike on all ranks.
        """
        return state_of(self).sm_free

    @sm_free.setter
    def sm_free(self, value: bool) -> None:
        state_of(self).sm_free = bool(value)

    @property
    def device(self) -> str:
        """Where operations on device arrays run: "gpu", or "host" under PYNCCLX_DEVICE=host."""
        return devices.select().name

    def select_device(self) -> int:
        """Make the GPU with this rank's local rank current and return its number; call it before the first array.

        On the host device there is nothing to choose; it returns 0. Collective.
        """
        return devices.make_current(mpi_bootstrap.topology(cast(MPI.Intracomm, self)).local_rank)

    def synchronize(self) -> None:
        """Wait on the host until every operation on device arrays so far is over, and raise what went wrong in them."""
        state = state_of(self)
        if state.endpoint is not None:
            state.endpoint.drain()
        if state.team is not None:
            state.team.drain()

    def memory_report(self) -> dict[str, int]:
        """Bytes of device memory that this process holds for communication, by holder.

        Returns
        -------
        dict
            "heap": the symmetric heap, shared by all communicators of the process; "leased": its leased part;
            "this communicator": its lease; "windows": what `Alloc` has given; "packed": copies of what derived
            datatypes name, and of results on their way; "messages": what short messages are copied to, shared by all
            communicators; "shuffles": rows and workspaces of token shuffles; "device teams": signals and barriers of
            the program's own kernels, and the workspace of collectives in Python. All 0 before the first operation on
            device arrays.
        """
        team = state_of(self).team
        mine = {
            "this communicator": team.lease.nbytes if team else 0,
            "windows": sum(window.memory.nbytes for window in team.windows) if team else 0,
            "packed": team.scratch_nbytes if team else 0,
            "shuffles": sum(dependent.nbytes for dependent in team.dependents) if team else 0,
            "device teams": sum(device_team.nbytes for device_team in team.device_teams) if team else 0,
        }
        return memory_held() | mine | {"messages": postbox.memory_held()}

    def Alloc(self, shape: int | tuple[int, ...], dtype: Any = "f4") -> Any:
        """Allocate an array that every rank has mapped: operations on it move data without a copy on the way.

        What matters is where an operation writes, and for reductions where it reads, too; any part of the array will
        do. Large messages gain, small ones are as fast elsewhere. Collective; shapes may differ between ranks.

        Parameters
        ----------
        shape : int or tuple of int
        dtype : NumPy dtype, default float32

        Returns
        -------
        array
            CuPy's, zeroed; NumPy's on the host device. Its memory is given back when the communicator has been freed
            and the last view of it has gone; between the two it is an ordinary array.
        """
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        team = self.team
        return team.device.array(team.add_window(cast(MPI.Intracomm, self), nbytes).owner, shape, dtype)

    def explain(self, operation: str, nbytes: int = 0) -> str:
        """Say in a sentence how a method would run on device arrays. Collective at the first use.

        Parameters
        ----------
        operation : str
            Name of the method, such as "Allreduce".
        nbytes : int
            Of the message; where there is a block for each rank, of the longest.

        Returns
        -------
        str
            Begins with "native" (a kernel), "staged" (MPI on copies in pinned host memory), "host" (a method of
            mpi4py's and nothing else) or "refused".
        """
        operation = blocking_form(operation)
        if operation not in MODULES or (operation in neighbors.CALLS and not isinstance(self, MPI.Topocomm)):
            return self._explain_without_kernel(operation)
        try:
            team = self.team
        except NotSupported as refusal:
            if not self.staging:
                raise
            return f"staged: {operation} goes through pinned host memory and MPI, because: {refusal}"
        choice = MODULES[operation].choose(team.layout, nbytes)
        place = "the host device" if team.device.name == "host" else f"GPUs ({team.device.architecture})"
        how = f"kernel {choice.kernel} on {choice.grid} channels; {choice.why}"
        if self.sm_free and operation in copy_engine.OPERATIONS and nbytes > team.layout.packet_nbytes:
            how = f"copy engines where all that is received lies in windows, else {how}"
        return f"native: {operation} of {nbytes} bytes among {team.size} ranks on {place}: {how}"

    def _explain_without_kernel(self, operation: str) -> str:
        if operation.startswith("_") or not callable(getattr(type(self), operation, None)):
            raise ValueError(f"operation is {operation!r}; it can be a method's name, such as {', '.join(MODULES)}")
        if operation not in OPERATIONS:
            return f"host: {operation} is mpi4py's and moves no device arrays"
        if host_arrays():
            return f"host: {operation} is mpi4py's, and the host device's arrays are in host memory"
        if self.staging:
            return f"staged: {operation} has no kernel; device arrays go through pinned host memory and MPI"
        aware = is_cuda_aware()
        if aware is False:
            return f"refused: {operation} has no kernel, and MPI takes no device arrays; comm.staging = True allows it"
        return (
            f"host: {operation} is mpi4py's; MPI {'takes' if aware else 'does not say whether it takes'} device arrays"
        )


if TYPE_CHECKING:

    class IntraBase(MPI.Intracomm, Base):
        """`Base` of families that belong to intracommunicators."""
else:
    IntraBase = Base
