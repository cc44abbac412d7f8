"""Agreement: an operation succeeds on all ranks, or all ranks raise the same error; exchange of bytes."""

import array
import itertools
import pickle
import struct
from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

from mpi4py import MPI

from .interrupts import interrupts_allowed, interrupts_deferred
from .plain import plain
from .waiting import begin, complete

T = TypeVar("T")
# Of `allgather_bytes`: bytes that travel with their number, and the ranks up to which they do.
_ROOM_NBYTES, _MOST_AT_ONCE = 1016, 64


def agree(comm: MPI.Intracomm, operation: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    """Run `operation` on every rank; it succeeds on all of them, or all raise the same error. Collective.

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
        That of the lowest failing rank, with all failing ranks in its text or notes. A RuntimeError with its text
        where the exception cannot be pickled. On a failing rank its own exception is the cause.
    BaseException
        KeyboardInterrupt and the like, on the rank where `operation` raised it; a RuntimeError with its name on others.

    Notes
    -----
    One Allreduce of 8 bytes where it succeeds; after a failure one of a bit a rank, and a broadcast.

    Where `operation` agrees among some of the ranks itself, as those of a node do, the ranks in the text are those of
    `comm` on which something failed, not all that have agreed on the failure.

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
    """Return what `make` returns on each rank, in rank order; if it raises on some, all raise as of `agree`.

    Collective.

    Parameters
    ----------
    comm : MPI.Intracomm
    make : callable without arguments
        As `operation` of `agree`; what it returns is pickled on the way.
    undo : callable without arguments, optional
        Called on each rank where `make` succeeded, if another rank failed.

    Returns
    -------
    list, length ``comm.size``

    Raises
    ------
    Exception, BaseException
        As `agree`.

    Notes
    -----
    One round, as `allgather_bytes`; `agree` and `allgather_objects` together take two.

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
    """Return the lowest rank that gives any bytes, and its bytes; None if no rank does. Collective.

    Parameters
    ----------
    comm : MPI.Intracomm
    data : bytes
        Empty on ranks that give none.

    Returns
    -------
    tuple of int and bytes, or None
        The same on all ranks.

    Raises
    ------
    Exception
        As `allgather_bytes`.

    Notes
    -----
    An Allreduce of 8 bytes, and two broadcasts if there is such a rank: a number of rounds that grows with the
    logarithm of the ranks. An Allgather of Open MPI's that does not block sends from each rank to each.

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
    """Return the ranks that give True; a bit a rank travels. Collective."""
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
        Some rank has not come in time, or will never come (`waiting.Judge`).

    Notes
    -----
    One Allgather where no rank of few has more than a kilobyte, otherwise two.

    At its first call on a communicator `MPI.Comm.allgather` duplicates it, and mpi4py holds the interpreter meanwhile:
    two threads that do so with two communicators can block each other's ranks. This function duplicates none.

    Examples
    --------
    >>> allgather_bytes(MPI.COMM_SELF, b"one rank")
    [b'one rank']
    """
    room = _ROOM_NBYTES if comm.size <= _MOST_AT_ONCE else 0
    own = struct.pack(f"<q{room}s", len(data), data)  # cut where it has no room
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
    """Return the objects of all ranks, pickled on the way; as `allgather_bytes`. Collective.

    Examples
    --------
    >>> allgather_objects(MPI.COMM_SELF, ("any", 1))
    [('any', 1)]
    """
    return [pickle.loads(data) for data in allgather_bytes(comm, pickle.dumps(value))]


# ---- exceptions on their way ---------------------------------------------------------------------------

_AGREED = "_agreed"  # the attribute of an exception that `agree` raises


class _Agreed(NamedTuple):
    """What an agreement among more ranks goes on with, when one among some of them has failed."""

    packed: bytes  # the exception, before ranks were named
    failed_here: bool


def _attempt(operation: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """What an operation returns, or raises."""
    try:
        with interrupts_allowed():
            return operation(), None
    except BaseException as error:
        return None, error


def _inner(failure: BaseException | None) -> _Agreed | None:
    """What a failure goes on with, if it is one on which some of the ranks have agreed."""
    return getattr(failure, _AGREED, None)


def _failed_here(failure: BaseException | None) -> bool:
    inner = _inner(failure)
    return failure is not None and (inner is None or inner.failed_here)


def _packed(failure: BaseException | None) -> bytes:
    """The bytes of a failure; none if there is none."""
    inner = _inner(failure)
    return b"" if failure is None else _pack(failure) if inner is None else inner.packed


def _agreed(comm: MPI.Intracomm, packed: bytes, failed: list[int], failure: BaseException | None) -> BaseException:
    """The error that this rank raises: the one that was packed, with the ranks that failed; `failure` is its own."""
    if failure is not None and not isinstance(failure, Exception):
        return failure
    agreed = _naming_ranks(_unpack(packed), failed, comm.size)
    agreed.__dict__[_AGREED] = _Agreed(packed, comm.rank in failed)
    agreed.__cause__ = failure if failure is None or _inner(failure) is None else failure.__cause__
    return agreed


def _pack(error: BaseException) -> bytes:
    """Bytes of an exception, never empty: its text, and the exception itself if it survives pickling."""
    text = type(error).__name__
    try:
        text += f": {error}" if str(error) else ""
        pickled = pickle.dumps(error)
        copy = pickle.loads(pickled)
        faithful = type(copy) is type(error) and str(copy) == str(error)
    except Exception:  # the text and pickling run code of the exception's class, which may raise anything
        faithful = False
    return pickle.dumps((pickled if faithful else b"", text))


def _unpack(verdict: bytes) -> Exception:
    """The exception that was packed, or a RuntimeError with its text."""
    pickled, text = pickle.loads(verdict)
    try:
        error = pickle.loads(pickled) if pickled else None
    except Exception:  # the class may exist on the failing rank only
        error = None
    return error if isinstance(error, Exception) else RuntimeError(text)


def _naming_ranks(error: Exception, failed: list[int], size: int) -> Exception:
    """Append the failing ranks to the text of an error, or as a note where its text is not its argument."""
    where = f"[failed on rank{'s' * (len(failed) > 1)} {', '.join(map(str, failed))} of {size}]"
    before = str(error)
    if isinstance(error, OSError) and error.strerror:
        error.strerror = f"{error.strerror} {where}"
    elif error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]} {where}", *error.args[1:])
    if str(error) == before:
        error.__notes__ = [*getattr(error, "__notes__", []), where]
    return error
