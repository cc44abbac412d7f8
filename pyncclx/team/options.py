"""The options of a communicator: when calls return, whether they are compared, and ways beside kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .. import backends
from .state import BLOCKING, STAGES_BY_DEFAULT, Hold, State, state_of

# Families of methods are classes of their own, which the communicators inherit. At run time they must be plain
# Python classes: only one base of a class may come from mpi4py's line. To the type checker they are communicators.
if TYPE_CHECKING:
    _Comm = MPI.Comm
else:
    _Comm = object


class Options(_Comm):
    """What a communicator's state holds of options, as attributes of the communicator."""

    _state: State | None = None
    _hold: Hold | None = None

    @property
    def state(self) -> State:
        """What the communicator carries."""
        return state_of(self)

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
    def stream(self) -> Any:
        """The stream on which calls on device arrays are enqueued; None (default) for the one that is current.

        A handle of CUDA's as an integer, a stream of CuPy's, or any object with ``__cuda_stream__``, as streams of
        other libraries have. Calls come after the work on it, and after the arrays' producers; results are ready for
        what it is given next. A new communicator begins with the stream of the one that it was made from; requests
        that exist keep theirs.

        Without one, calls that block the host (`blocking`) have a stream of pyncclx's own if the program has not
        chosen a current one: they wait for their arrays, and not for what else the program computes.

        Raises
        ------
        TypeError
            Set to what is no stream.

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
    def deterministic(self) -> bool:
        """Whether reductions have the same bits in each run: the ranks' elements are folded in a fixed order.

        True by default. If it is False, NCCL may add floating-point numbers in its own order where that is faster: over
        more than two nodes, each with one rank of the communicator. A new communicator begins with the value of the one
        that it was made from. Set it alike on all ranks; requests that exist keep what was set.

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
        """Whether the ranks start the persistent collectives that they prepare from now on in the same order.

        False by default: MPI lets each rank start them in an order of its own. Each then has memory and a stream of
        its own, for up to 16 at a time, while the heap has room. True saves that memory: they share the communicator's,
        run one after the other, and `Prequest.Startall` starts several by one launch. A start in another order than on
        the other ranks then raises `CollectiveMismatch`. A new communicator begins with the value of the one that it
        was made from. Set it alike on all ranks.

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
