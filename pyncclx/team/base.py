"""What all our communicators have beyond MPI's: options, a team, and memory that all ranks have mapped."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from mpi4py import MPI

import mpi_bootstrap

from .. import backends
from ..arrays.buffers import Buffer, resolve
from ..backends import Device
from ..errors import NotSupported
from ..memory.heap import HEAP
from ..memory.layout import MAX_RANKS
from ..recording.calls import Begun
from ..recording.dump import PROGRESSING
from . import dropped
from .compare import compare
from .options import Options
from .plans import Producer
from .registration import Registration
from .scratch import Scratch
from .state import State, state_of
from .streams import current_stream, wait_for_program
from .team import Team

T = TypeVar("T")


class Base(Options):
    """What all our communicators have beyond MPI's; the base of every family of methods."""

    @property
    def team(self) -> Team:
        """The device side of this communicator, made at the first use, which is collective."""
        state = state_of(self)
        team = state.team
        if team is None:
            with mpi_bootstrap.interrupts_deferred():
                with state.waiting(self, "the other ranks", "to make the communicator's memory together"):
                    team = state.team = self._make_team(state)
                team.caller = state
                dropped.remember(state)
                if (calls := state.calls(self)) is not None:
                    PROGRESSING[team] = calls
                for attachment in state.attachments.values():
                    attachment.join(team)
        else:
            team.errors.check()
        return team

    def meet(self, check: Callable[[Team], T]) -> tuple[Team, T]:
        """Return the team, and what `check` returns on this rank. Collective.

        All ranks raise what `check` raises on one, or what a kernel has recorded there: none goes on alone.
        """
        team = state_of(self).team or self.team

        def checked() -> T:
            team.errors.check()
            return check(team)

        return team, mpi_bootstrap.agree(cast(MPI.Intracomm, self), checked)

    def _make_team(self, state: State) -> Team:
        if self.is_inter:
            raise NotSupported("kernels do not work between the two groups of an intercommunicator; Merge it")
        if state.loss is not None:
            raise state.loss.exception()
        if state.refusal is not None and self.staging:  # as before: nothing has changed since
            raise NotSupported(str(state.refusal))
        comm, have_met = cast(MPI.Intracomm, self), state.topology is None  # to find out where they are
        if self.node_topology.node_count > 1:
            raise NotSupported(
                f"ranks on several nodes ({self.node_topology.node_count}, of at most {MAX_RANKS} ranks each): this "
                "works inside one node; Split it by node"
            )
        if not have_met:
            state.meet(comm)
        try:
            return dropped.take_over(comm, self._device_of_team) or Team(comm, backends.select(), HEAP.get())
        except NotSupported as refusal:
            state.refusal = refusal
            raise

    def _device_of_team(self) -> Device:
        """Return the device; families that need more of this process before its kernels wait make it here."""
        return backends.select()

    @property
    def node_topology(self) -> mpi_bootstrap.Topology:
        """The nodes of the communicator, none with more ranks than a Team can have. Collective at the first use.

        Raises
        ------
        RanksMissing
            Some rank has not come within PYNCCLX_TIMEOUT.
        """
        state = state_of(self)
        if state.topology is None:
            state.topology = nodes_of(cast(MPI.Intracomm, self), state)
        return state.topology

    def by_nodes(
        self, make: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], begun: Begun | None
    ) -> bool | None:
        """Do an operation over several nodes; None if its ranks are on one, or its arrays on the host. Collective.

        `begun` is its entry in the flight recorder.
        """
        return None

    def by_nodes_again(self, make: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Do so if an equal operation came before; else return False."""
        return False

    @property
    def scratch(self) -> Scratch:
        """Memory for copies of arguments. Collective at the first use."""
        return self.team.scratch

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
        place = mpi_bootstrap.topology(cast(MPI.Intracomm, self), pretended=False)  # GPUs are the machine's
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
        with state.waiting(self, "the device"):
            for attachment in state.attachments.values():
                attachment.drain()
            if state.team is not None:
                if state.team.order.is_unused:  # the program's own kernels may have used the team's memory
                    wait_for_program(state.team.device, state)
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
        TypeError, ValueError, MemoryError
            On all ranks: some rank's shape or dtype is none, or it has not so much memory. Nothing is kept then.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> x = comm.Alloc((2, 3), "i4")
        >>> x.shape
        (2, 3)
        """
        if self.checking:
            compare(self, "Alloc")
        with state_of(self).recorded(self, "Alloc"):
            team, (lengths, datatype) = self.meet(lambda _: _checked_shape(shape, dtype))
            return team.add_window(cast(MPI.Intracomm, self), lengths, datatype)

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
        if self.checking:
            compare(self, "Register")
        comm = cast(MPI.Intracomm, self)
        with state_of(self).recorded(self, "Register"):
            team, buffer = self.meet(
                lambda team: resolve(array, "Register: array", writable=False, device=team.device)
            )
            return Registration(comm, team, team.register(comm, buffer))


def wait_for_calls(comm: Base, buffers: Collection[Buffer | Producer] = ()) -> None:
    """Wait on the host for the stream on which the program continues, and raise what kernels have recorded.

    `buffers` are those of the call, if it was on the stream of their library.

    Nonblocking calls under way are on other streams: a peer may begin its part only after this rank's next call.
    """
    state, device = state_of(comm), backends.select()
    stream = current_stream(device, buffers, state)
    if not device.is_capturing(stream):
        device.synchronize(stream)
    for attachment in state.attachments.values():
        attachment.check()
    if state.team is not None:
        state.team.errors.check()


def nodes_of(comm: MPI.Intracomm, state: State) -> mpi_bootstrap.Topology:
    """Find out where the ranks of a communicator are, once they have all come. Collective."""
    mpi_bootstrap.check_launch(comm)
    state.meet(comm)
    return mpi_bootstrap.topology(comm, most=MAX_RANKS)


def _checked_shape(shape: int | tuple[int, ...], dtype: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape as a tuple, and the datatype; raise what NumPy would for an array of them."""
    lengths = tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))
    if min(lengths, default=0) < 0:
        raise ValueError(f"Alloc: shape is {shape}; no length can be negative")
    datatype = np.dtype(dtype)
    if datatype.hasobject:
        raise TypeError(f"Alloc: dtype is {datatype}; Python objects have no place on a device")
    return lengths, datatype


if TYPE_CHECKING:

    class IntraBase(MPI.Intracomm, Base):
        """`Base` of families that belong to intracommunicators."""
else:
    IntraBase = Base
