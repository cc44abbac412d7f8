"""What all our communicators have beyond MPI's: settings, a team, and memory that all ranks have mapped."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from mpi4py import MPI

import mpi_bootstrap

from .. import backends
from ..arrays.buffers import resolve
from ..errors import NotSupported
from .registration import Registration
from .state import BLOCKING, STAGES_BY_DEFAULT, State, state_of
from .team import Team

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
            for attachment in state.attachments.values():
                attachment.join(team)
        else:
            team.errors.check()
        return team

    def _make_team(self, state: State) -> Team:
        if self.is_inter:
            raise NotSupported("kernels do not work between the two groups of an intercommunicator; Merge it")
        if state.refusal is not None and self.staging:  # told once, and nothing has changed
            raise NotSupported(str(state.refusal))
        mpi_bootstrap.check_launch(cast(MPI.Intracomm, self))
        try:
            return Team(cast(MPI.Intracomm, self), backends.select())
        except NotSupported as refusal:
            state.refusal = refusal
            raise

    @property
    def blocking(self) -> str:
        """When a call on device arrays returns: "stream" (at once, default) or "host" (when the result is there).

        A new communicator begins with the value of the one that it was made from, and the others with that of the
        environment variable PYNCCLX_BLOCKING.

        Raises
        ------
        ValueError
            Any other value is set.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF).Dup()
        >>> comm.blocking = "host"
        """
        return state_of(self).blocking

    @blocking.setter
    def blocking(self, value: str) -> None:
        if value not in BLOCKING:
            raise ValueError(f"blocking is {value!r}; it can be 'stream' or 'host'")
        state_of(self).blocking = value

    @property
    def checking(self) -> bool:
        """Whether calls are compared between the ranks: PYNCCLX_CHECK=1 when the communicator was first used."""
        return state_of(self).checking

    @property
    def staging(self) -> bool:
        """Whether calls for which there is no kernel may go through MPI, on copies of device arrays in host memory.

        False by default, and such calls raise NotSupported: a hidden copy is correct and slow. True for a program that
        has imported `pyncclx.MPI`, or runs under ``python -m pyncclx run``, since such programs expect every call of
        MPI to work. A communicator begins with the setting of the one that it was made from. Set it alike on all ranks.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF).Dup()
        >>> comm.staging = True
        """
        chosen = state_of(self).staging
        return STAGES_BY_DEFAULT.get() if chosen is None else chosen

    @staging.setter
    def staging(self, value: bool) -> None:
        state_of(self).staging = bool(value)

    @property
    def sm_free(self) -> bool:
        """Whether Allgather, Alltoall and Bcast leave long messages to the copy engines, where windows allow it.

        The multiprocessors are then free for other kernels, but for two barriers of one warp. False by default. The
        arrays that receive must be in windows (`Alloc`) on all ranks, else kernels move the data; the ranks exchange
        where they are on the host, at each call. Set it alike on all ranks.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF).Dup()
        >>> comm.sm_free = True
        >>> x = comm.Alloc(1 << 20)
        >>> comm.Bcast(x)
        """
        return state_of(self).sm_free

    @sm_free.setter
    def sm_free(self, value: bool) -> None:
        state_of(self).sm_free = bool(value)

    @property
    def device(self) -> str:
        """Where operations on device arrays run: "gpu", or "host" under PYNCCLX_DEVICE=host."""
        return backends.select().name

    def select_device(self) -> int:
        """Make the GPU with this rank's local rank current; call it before the first array is made. Collective.

        Returns
        -------
        int
            The number of the GPU; 0 on the host device.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> comm.select_device()
        0
        """
        place = mpi_bootstrap.topology(cast(MPI.Intracomm, self))
        return backends.make_current(place.local_rank, place.local_size)

    def synchronize(self) -> None:
        """Wait on the host until every operation on device arrays so far is over.

        Raises
        ------
        PeerTimeout, Aborted, CapacityExceeded, MPI.Exception
            A kernel has recorded that an operation failed.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> x = comm.Alloc(4)
        >>> comm.Allreduce(MPI.IN_PLACE, x)
        >>> comm.synchronize()
        """
        state = state_of(self)
        for attachment in state.attachments.values():
            attachment.drain()
        if state.team is not None:
            state.team.drain()

    def Alloc(self, shape: int | tuple[int, ...], dtype: Any = "f4") -> Any:
        """Allocate an array that every rank has mapped: operations on it move data without a copy on the way.

        This is so where an operation writes to the array, or any part of it, and for reductions also where it reads.
        Large messages gain, small ones are as fast elsewhere. Collective; shapes may differ between ranks.

        Parameters
        ----------
        shape : int or tuple of int
        dtype : NumPy dtype, default float32

        Returns
        -------
        array
            CuPy's, zeroed; NumPy's on the host device. Its memory is released when the communicator has been freed
            and the last view of the array is gone; between the two it is an ordinary array.

        Raises
        ------
        NotSupported
            On all ranks: their kernels cannot reach each other's memory.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> x = comm.Alloc((2, 3), "i4")
        >>> x.shape
        (2, 3)
        """
        shape = tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        team = self.team
        return team.device.array(team.add_window(cast(MPI.Intracomm, self), nbytes).owner, shape, dtype)

    def Register(self, array: Any) -> Registration:
        """Map the memory of an existing array into all ranks: from now on operations treat it like one from `Alloc`.

        The whole allocation that the array is in is mapped; with a memory pool it holds other arrays too. Collective;
        each rank passes an array of its own, of any length. Not while a stream is being captured.

        Parameters
        ----------
        array : device array

        Returns
        -------
        Registration
            Holds the array until it is freed, or the communicator is.

        Raises
        ------
        NotSupported
            On all ranks: some rank's memory cannot be opened by other processes. On GPUs it must come from
            cudaMalloc, as CuPy's and PyTorch's arrays do by default.

        Examples
        --------
        NumPy's arrays on the host device cannot be registered, so this needs a GPU:

        >>> x = cupy.zeros(1 << 20, "f4")  # doctest: +SKIP
        >>> with comm.Register(x):  # doctest: +SKIP
        ...     comm.Allreduce(MPI.IN_PLACE, x)
        """
        team = self.team
        buffer = resolve(array, "Register: array", writable=False, device=team.device)
        return Registration(cast(MPI.Intracomm, self), team, team.register(cast(MPI.Intracomm, self), buffer))


if TYPE_CHECKING:

    class IntraBase(MPI.Intracomm, Base):
        """`Base` of families that belong to intracommunicators."""
else:
    IntraBase = Base
