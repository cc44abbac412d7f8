"""Agreement of all ranks on success or on one error, and exchange of bytes."""

import array
import itertools
import pickle
import struct
from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

from mpi4py import MPI

from .interrupts import interrupts_allowed, interrupts_deferred
from .packed_errors import pack_error, unpack_error
from .plain import plain
from .waiting import begin, complete

T = TypeVar("T")
# `allgather_bytes` sends up to _ROOM_NBYTES bytes together with their length if at most _MOST_AT_ONCE ranks take part.
_ROOM_NBYTES, _MOST_AT_ONCE = 1016, 64


def agree(comm: MPI.Intracomm, operation: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    """Run an operation on every rank; if one raises, all raise its error. Collective.

    Parameters
    ----------
    comm : MPI.Intracomm
    operation : callable without arguments
        May communicate, but must not wait for a rank that has raised.
    undo : callable, optional
        Called with the result of `operation` on each rank where it succeeded, if another rank failed.

    Returns
    -------
    object
        The result of `operation` on this rank.

    Raises
    ------
    Exception
        The exception of the lowest failing rank; its text or notes name all failing ranks. If it cannot be pickled, a
        RuntimeError with its text. On a failing rank, that rank's own exception is the cause.
    BaseException
        KeyboardInterrupt and the like, on the rank where `operation` raised it; other ranks raise a RuntimeError that
        names it.

    Notes
    -----
    Costs one Allreduce of 8 bytes. A failure adds two broadcasts, and one or two Allreduces of one bit per rank.
    `operation` may call `agree` on some of the ranks, such as those of a node. The text then names only the ranks on
    which something failed.

    Examples
    --------
    >>> agree(MPI.COMM_SELF, lambda: open("/dev/null").name)
    '/dev/null'
    """
    with interrupts_deferred():
        result, failure = _attempt(operation)
        first = first_bytes(comm, _packed(failure))
        if first is None:
            return cast(T, result)
        failed = _ranks_with(comm, _failed_here(failure)) or _ranks_with(comm, failure is not None)
        if failure is None and undo is not None:
            undo(cast(T, result))
    raise _agreed(comm, first[1], failed, failure)


def exchange(comm: MPI.Intracomm, make: Callable[[], T], undo: Callable[[], object] | None = None) -> list[T]:
    """Return all ranks' results of `make`, or raise one error on all. Collective.

    Parameters
    ----------
    comm : MPI.Intracomm
    make : callable without arguments
        May communicate, but must not wait for a rank that has raised. Its result is pickled.
    undo : callable without arguments, optional
        Called on each rank where `make` succeeded, if another rank failed.

    Returns
    -------
    list, length ``comm.size``

    Raises
    ------
    Exception, BaseException
        See `agree`.

    Notes
    -----
    Costs one call of `allgather_bytes`. `agree` followed by `allgather_objects` would cost two exchanges.

    Examples
    --------
    >>> exchange(MPI.COMM_SELF, lambda: ("any", 1))
    [('any', 1)]
    """
    with interrupts_deferred():
        data, failure = _attempt(lambda: pickle.dumps(make()))
        own = pickle.dumps((data, _failed_here(failure), _packed(failure)))
        of_ranks: list[tuple[bytes, bool, bytes]] = [pickle.loads(each) for each in allgather_bytes(comm, own)]
        failing = [rank for rank, (_, _, packed) in enumerate(of_ranks) if packed]
        if not failing:
            return [pickle.loads(each) for each, _, _ in of_ranks]
        if failure is None and undo is not None:
            undo()
    here = [rank for rank, (_, failed_here, _) in enumerate(of_ranks) if failed_here]
    raise _agreed(comm, of_ranks[failing[0]][2], here or failing, failure)


def first_bytes(comm: MPI.Intracomm, data: bytes) -> tuple[int, bytes] | None:
    """Return the lowest rank that passes data, and the data; None if no rank does.

    Parameters
    ----------
    comm : MPI.Intracomm
    data : bytes
        Empty on ranks that pass no data.

    Returns
    -------
    tuple of int and bytes, or None
        Equal on all ranks.

    Raises
    ------
    Exception
        See `allgather_bytes`.

    Notes
    -----
    Costs an Allreduce of 8 bytes, and two broadcasts if any rank passes data. Their number of rounds grows with the
    logarithm of the number of ranks. An allgather would cost more: in Open MPI's Iallgather, every rank sends to every
    other rank.

    Examples
    --------
    >>> first_bytes(MPI.COMM_SELF, b"one rank"), first_bytes(MPI.COMM_SELF, b"")
    ((0, b'one rank'), None)
    """
    lowest = array.array("q", [comm.rank if data else comm.size])
    with interrupts_deferred():
        begin(comm)
        complete(comm, plain(comm).Iallreduce(MPI.IN_PLACE, lowest, MPI.MIN), memory=lowest)
        (rank,) = lowest
        if rank == comm.size:
            return None
        length = array.array("q", [len(data)])
        complete(comm, plain(comm).Ibcast(length, rank), memory=length)
        first = bytearray(data) if comm.rank == rank else bytearray(length[0])
        complete(comm, plain(comm).Ibcast([first, MPI.BYTE], rank), memory=first)
    return rank, bytes(first)


def _ranks_with(comm: MPI.Intracomm, value: bool) -> list[int]:
    """Return the ranks whose value is True. Collective."""
    bits = bytearray(-(-comm.size // 8))
    bits[comm.rank // 8] |= value << comm.rank % 8
    complete(comm, plain(comm).Iallreduce(MPI.IN_PLACE, [bits, MPI.BYTE], MPI.BOR), memory=bits)
    return [rank for rank in range(comm.size) if bits[rank // 8] >> rank % 8 & 1]


def allgather_bytes(comm: MPI.Intracomm, data: bytes) -> list[bytes]:
    """Return the bytes of all ranks, in rank order; lengths may differ. Collective.

    Parameters
    ----------
    comm : MPI.Intracomm
    data : bytes

    Returns
    -------
    list of bytes, length ``comm.size``

    Raises
    ------
    Exception
        Exception of the policy (`waiting.WaitPolicy`) for a rank that has not called this function in time, or never
        will.

    Notes
    -----
    Costs one Allgather if there are at most 64 ranks and each passes at most 1016 bytes, otherwise two.
    `MPI.Comm.allgather` duplicates a communicator at its first call, and mpi4py holds the GIL meanwhile. Two threads
    that do this with two communicators can deadlock their ranks. This function duplicates no communicator.

    Examples
    --------
    >>> allgather_bytes(MPI.COMM_SELF, b"one rank")
    [b'one rank']
    """
    room = _ROOM_NBYTES if comm.size <= _MOST_AT_ONCE else 0
    own = struct.pack(f"<q{room}s", len(data), data)  # truncates data to the room
    parts = bytearray(len(own) * comm.size)
    with interrupts_deferred():
        begin(comm)
        complete(comm, plain(comm).Iallgather([own, MPI.BYTE], [parts, MPI.BYTE]), memory=(own, parts))
        each = list(struct.iter_unpack(f"<q{room}s", parts))
        counts = [count for count, _ in each]
        if max(counts) <= room:
            return [part[:count] for count, part in each]
        gathered = bytearray(sum(counts))
        request = plain(comm).Iallgatherv([data, MPI.BYTE], [gathered, counts, MPI.BYTE])
        complete(comm, request, memory=(data, gathered))
    ends = itertools.accumulate(counts)
    return [bytes(gathered[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def allgather_objects(comm: MPI.Intracomm, value: T) -> list[T]:
    """Return the objects of all ranks, in rank order. Collective.

    Objects are pickled; see `allgather_bytes`.

    Examples
    --------
    >>> allgather_objects(MPI.COMM_SELF, ("any", 1))
    [('any', 1)]
    """
    return [pickle.loads(data) for data in allgather_bytes(comm, pickle.dumps(value))]


# ---- transfer of exceptions ----------------------------------------------------------------------------

_AGREED = "_agreed"  # the attribute of an exception that `agree` raises


class _Agreed(NamedTuple):
    """The failure of an `agree` that ran inside another `agree`."""

    packed: bytes  # the exception; its text does not yet name the failing ranks
    failed_here: bool


def _attempt(operation: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Run an operation; return its result and the exception that it raised, or None."""
    try:
        with interrupts_allowed():
            return operation(), None
    except BaseException as error:
        return None, error


def is_agreed(error: BaseException) -> bool:
    """Return whether `agree` or `exchange` raised this exception, on all ranks."""
    return _inner(error) is not None


def _inner(failure: BaseException | None) -> _Agreed | None:
    """Return what an inner `agree` recorded in the exception; None if none raised it."""
    return getattr(failure, _AGREED, None)


def _failed_here(failure: BaseException | None) -> bool:
    """Return whether this rank's own work failed, alone or in an inner `agree`."""
    inner = _inner(failure)
    return failure is not None and (inner is None or inner.failed_here)


def _packed(failure: BaseException | None) -> bytes:
    """Return an exception as bytes to send to other ranks; empty for None."""
    inner = _inner(failure)
    return b"" if failure is None else pack_error(failure) if inner is None else inner.packed


def _agreed(comm: MPI.Intracomm, packed: bytes, failed: list[int], failure: BaseException | None) -> BaseException:
    """Return the exception to raise: this rank's KeyboardInterrupt, or the packed one."""
    if failure is not None and not isinstance(failure, Exception):
        vars(failure)[_AGREED] = _Agreed(packed, True)
        return failure
    agreed = unpack_error(packed, failed, comm.size)
    agreed.__dict__[_AGREED] = _Agreed(packed, comm.rank in failed)
    agreed.__cause__ = failure if failure is None or _inner(failure) is None else failure.__cause__
    return agreed
