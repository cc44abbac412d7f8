"""Methods of all communicators beyond MPI's: options, a Team, memory to share."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Hashable, Iterable
from functools import partial
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
from .background import scratch_alone
from .compare import compare
from .handlers import Handled
from .kept import Scratch
from .options import Options
from .plans import Producer
from .state import State, state_of
from .streams import current_stream, wait_for_program
from .team import Team
from .windows import Registration

T = TypeVar("T")


class Base(Handled, Options):
    """The base of every family of methods of a communicator."""

    @property
    def team(self) -> Team:
        """The device side of this communicator. Collective at the first use."""
        state = self._settled()
        team = state.team
        if team is None:
            with mpi_bootstrap.interrupts_deferred():
                with state.waiting(self, "the other ranks", "to make the communicator's memory together"):
                    team = state.team = self._make_team(state)
                team.caller = state
                dropped.register(state)
                if (calls := state.calls(self)) is not None:
                    PROGRESSING[team] = calls
                for attachment in list(state.attachments.values()):
                    attachment.join(team)
        else:
            team.errors.check()
        return team

    def meet(self, check: Callable[[Team], T]) -> tuple[Team, T]:
        """Return the Team, and the result of `check` on this rank. Collective.

        If `check` raises on one rank, or a kernel has recorded an error there, all ranks raise it.
        """
        team = self._settled().team or self.team

        def checked() -> T:
            team.errors.check()
            return check(team)

        return team, mpi_bootstrap.agree(cast(MPI.Intracomm, self), checked)

    def _make_team(self, state: State) -> Team:
        if self.is_inter:
            raise NotSupported("kernels do not work between the two groups of an intercommunicator; Merge it")
        if state.comm_failure is not None:
            raise state.comm_failure.exception()
        have_met = state.topology is None  # its first use is a rendezvous
        if self.node_topology.node_count > 1:
            raise NotSupported(
                f"ranks on several nodes ({self.node_topology.node_count}, of at most {MAX_RANKS} ranks each): this "
                "works inside one node; Split it by node"
            )

        def make() -> Team:
            comm = cast(MPI.Intracomm, self)
            if not have_met:
                state.meet(comm)
            return dropped.take_over(comm, self._device_of_team) or Team(comm, backends.select(), HEAP.get())

        return self._unless_refused(make)

    def _device_of_team(self) -> Device:
        """Return the device; subclasses may prepare the process here."""
        return backends.select()

    @property
    def node_topology(self) -> mpi_bootstrap.Topology:
        """The communicator's nodes, of at most MAX_RANKS ranks. Collective at first use.

        Raises
        ------
        RanksMissing
            If some rank has not made this call within PYNCCLX_TIMEOUT.
        """
        state = self._settled()
        if state.topology is None:
            state.topology = nodes_of(cast(MPI.Intracomm, self), state)
        return state.topology

    # `OverNodes` overrides the next methods. Here all ranks are on one node.
    def by_nodes(
        self,
        make: Callable[..., Any],
        args: tuple[Any, ...],
        options: dict[str, Any],
        begun: Begun | None,
        key: Hashable | None,
    ) -> bool | None:
        """Return None, because no call runs over several nodes."""
        return None

    def key_over_nodes(self, kind: Hashable, args: tuple[Any, ...], options: dict[str, Any]) -> Hashable | None:
        """Return None, because no call over nodes is cached."""
        return None

    def by_nodes_again(self, state: State, key: Hashable, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Return False, because no call over nodes is cached."""
        return False

    @property
    def scratch(self) -> Scratch:
        """Scratch memory for copies of arguments. Collective at the first use."""
        return self.team.scratch if self.channel is None else scratch_alone(self.state)

    @property
    def device(self) -> str:
        """Where operations on device arrays run: "gpu", or "host" (PYNCCLX_DEVICE=host)."""
        return backends.select().name

    def select_device(self) -> int:
        """Make the GPU for this rank's local rank current. Collective.

        Call it before you make the first array.

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
        place = mpi_bootstrap.topology(cast(MPI.Intracomm, self), pretended=False)  # local rank on the real node
        return backends.make_current(place.local_rank, place.local_size)

    def synchronize(self) -> None:
        """Wait on the host until all operations on device arrays so far have ended.

        Raises
        ------
        PeerTimeout, Aborted, CapacityExceeded, MPI.Exception
            If a kernel has recorded that an operation failed.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> x = comm.Alloc(4)
        >>> comm.Allreduce(MPI.IN_PLACE, x)
        >>> comm.synchronize()
        """
        state = self._settled()
        with state.waiting(self, "the device"):
            for attachment in list(state.attachments.values()):
                attachment.drain()
            if state.team is not None:
                if state.team.order.is_unused:  # the program's own kernels may use the team's memory
                    wait_for_program(state.team.device, state)
                state.team.drain()

    @mpi_bootstrap.interrupts_deferred()
    def Alloc(self, shape: int | tuple[int, ...], dtype: Any = "f4") -> Any:
        """Allocate an array that all ranks map, so operations move data without copies.

        Operations write to such an array, or to a part of it, without a copy; reductions also read from it without a
        copy. This makes large messages faster, but not small ones. Collective; shapes may differ between ranks.

        Parameters
        ----------
        shape : int or tuple of int
        dtype : NumPy dtype, default float32

        Returns
        -------
        array
            A CuPy array of zeros; a NumPy array on the host device. Its memory is released when the communicator has
            been freed and the last view of the array is gone. After `Free` it is an ordinary array.

        Raises
        ------
        NotSupported
            On all ranks, if the kernels of some ranks cannot access the memory of other ranks.
        TypeError, ValueError, MemoryError
            On all ranks, if a rank's shape or dtype is invalid, or a rank has too little memory. Nothing is allocated.

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

    @mpi_bootstrap.interrupts_deferred()
    def Register(self, array: Any) -> Registration:
        """Map an existing array's memory into all ranks, as if it came from `Alloc`.

        The whole allocation that contains the array is mapped; in a memory pool it may contain other arrays, too.
        Collective; each rank passes an array of its own, of any length. Do not call it while a stream is being
        captured.

        Parameters
        ----------
        array : device array

        Returns
        -------
        Registration
            Holds the array until the registration or the communicator is freed.

        Raises
        ------
        NotSupported
            On all ranks, if other processes cannot open some rank's memory. On GPUs it must come from cudaMalloc, as
            CuPy's and PyTorch's arrays do by default.

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
            team, buffer = self.meet(lambda team: resolve(array, "Register: array", writable=False, device=team.device))
            return Registration(team.register(comm, buffer), team.windows, partial(team.deregister, comm))


def wait_for_calls(comm: Base, buffers: Collection[Buffer | Producer] = ()) -> None:
    """Wait on the host for the program's stream, and raise what kernels have recorded.

    Pass the call's `buffers` if it was enqueued on the stream of their library. This does not wait for nonblocking
    calls, which run on other streams: a peer may begin its part of them only after this rank's next call.
    """
    state, device = state_of(comm), backends.select()
    stream = current_stream(device, buffers, state)
    if not device.is_capturing(stream):
        device.synchronize(stream)
    for attachment in list(state.attachments.values()):
        attachment.check()
    if state.team is not None:
        state.team.errors.check()


def nodes_of(comm: MPI.Intracomm, state: State) -> mpi_bootstrap.Topology:
    """Return the nodes of a communicator, after all its ranks have met. Collective."""
    mpi_bootstrap.check_launch(comm)
    state.meet(comm)
    return mpi_bootstrap.topology(comm, most=MAX_RANKS)


def _checked_shape(shape: int | tuple[int, ...], dtype: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and datatype for `Alloc`, or raise NumPy's error."""
    lengths = tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))
    if min(lengths, default=0) < 0:
        raise ValueError(f"Alloc: shape is {shape}; no length can be negative")
    datatype = np.dtype(dtype)
    if datatype.hasobject:
        raise TypeError(f"Alloc: dtype is {datatype}; Python objects have no place on a device")
    return lengths, datatype


if TYPE_CHECKING:

    class IntraBase(MPI.Intracomm, Base):
        """`Base` for methods of intracommunicators only."""
else:
    IntraBase = Base
