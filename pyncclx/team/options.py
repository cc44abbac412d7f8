"""Options of a communicator: blocking, stream, checks, staging and others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from mpi4py import MPI

from .. import backends
from ..errors import NotSupported
from .background import check_channel
from .state import BLOCKING, STAGES_BY_DEFAULT, Hold, State, state_of

_Made = TypeVar("_Made")

# Families of methods are classes of their own, which the communicators inherit. At run time they must be plain Python
# classes: only one base of a class may derive from mpi4py's. To the type checker they are communicators.
if TYPE_CHECKING:
    _Comm = MPI.Comm
else:
    _Comm = object


class Options(_Comm):
    """A communicator's options, as attributes that are stored in its state.

    Attributes
    ----------
    channel : mpi_bootstrap.Channel or None
        The channel on which ranks meet. None: they meet by MPI's collectives on the communicator. See `background.py`.
    """

    _state: State | None = None
    _hold: Hold | None = None
    channel: Any = None

    def _settled(self) -> State:
        """Return the state, after a thread has made the communicator's earlier calls."""
        state = state_of(self)
        if self.channel is not None:
            check_channel(self.channel)
        elif state.background is not None:
            state.settle()
        return state

    def _unless_refused(self, make: Callable[[], _Made]) -> _Made:
        """Return the memory that `make` returns. Collective at the first call.

        If `make` has raised NotSupported, and `staging` is true, later calls raise it again without meeting the other
        ranks: the reason has not changed, MPI runs the operations, and nonblocking ones must not wait.
        """
        state = state_of(self)
        if state.refusal is not None and self.staging:
            raise NotSupported(str(state.refusal))
        try:
            return make()
        except NotSupported as refusal:
            state.refusal = refusal
            raise

    @property
    def state(self) -> State:
        """The state that the communicator carries."""
        return state_of(self)

    @property
    def blocking(self) -> str:
        """When calls on device arrays return: "stream" (at once) or "host" (with results).

        "stream" is the default. A new communicator takes the value of its parent, and other communicators take that of
        the environment variable PYNCCLX_BLOCKING.

        Raises
        ------
        ValueError
            If any other value is set.

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
    def stream(self) -> Any:
        """Stream on which calls on device arrays are enqueued; None: the current stream.

        None is the default. Set it to a CUDA handle as an integer, a CuPy stream, or any object with
        ``__cuda_stream__``, such as streams of other libraries. Calls wait for the work on the stream and for the
        arrays' producers; results are ready for its subsequent work. A new communicator takes the stream of its parent.
        Existing requests keep their streams.

        Without a stream, calls that block the host (`blocking`) use one of pyncclx's own streams, if the program has
        not chosen a current stream. Such calls wait for their arrays, but not for other work of the program.

        Raises
        ------
        TypeError
            If the value is not a stream.

        Examples
        --------
        >>> stream = cupy.cuda.Stream(non_blocking=True)  # doctest: +SKIP
        >>> comm.stream = stream  # doctest: +SKIP
        """
        return state_of(self).stream

    @stream.setter
    def stream(self, value: Any) -> None:
        state_of(self).stream = None if value is None else backends.select().named_stream(value)

    @property
    def checking(self) -> bool:
        """Whether ranks compare their calls: PYNCCLX_CHECK was 1 at the first use."""
        return state_of(self).checking

    @property
    def staging(self) -> bool:
        """Whether calls without a kernel may use MPI on copies in host memory.

        False by default; such calls then raise NotSupported, because a hidden copy is correct but slow. True for a
        program that has imported `pyncclx.MPI` or runs under ``python -m pyncclx run``, since such programs expect
        every MPI call to work. A communicator takes the setting of its parent. Set it alike on all ranks.

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
    def deterministic(self) -> bool:
        """Whether reductions give the same bits in each run, by a fixed order of ranks.

        True by default. If False, NCCL may add floating-point numbers in its own order where that is faster: over more
        than two nodes, each with one rank of the communicator. A new communicator takes the value of its parent. Set
        the same value on all ranks; existing requests keep the earlier value.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF).Dup()
        >>> comm.deterministic = False
        """
        return state_of(self).deterministic

    @deterministic.setter
    def deterministic(self, value: bool) -> None:
        state_of(self).deterministic = bool(value)

    @property
    def ordered_starts(self) -> bool:
        """Whether all ranks start persistent collectives in the same order.

        Set it to the same value on all ranks, before you prepare requests: it does not change existing ones. A new
        communicator takes the value of its parent.

        If False, the default, each rank may start requests in any order, as MPI allows. This takes memory and a stream
        for each request, for up to 16 requests at a time and as long as the heap has room. If True, requests share the
        communicator's memory and run one after the other, and `Prequest.Startall` starts several by one launch. A start
        in a different order than on the other ranks then raises `CollectiveMismatch`.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF).Dup()
        >>> comm.ordered_starts = True
        """
        return state_of(self).ordered_starts

    @ordered_starts.setter
    def ordered_starts(self, value: bool) -> None:
        state_of(self).ordered_starts = bool(value)

    @property
    def sm_free(self) -> bool:
        """Whether copy engines move long messages of Allgather, Alltoall and Bcast.

        False by default. If True, the multiprocessors are free for other kernels, except for barriers of one warp. The
        receiving arrays must be in windows (`Alloc`) on all ranks; otherwise kernels move the data. At each call the
        ranks exchange the arrays' positions in the windows on the host. Set it alike on all ranks.

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
