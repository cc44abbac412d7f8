"""What ranks tell each other before they share memory: bytes, file descriptors, and whether all succeeded."""

import array
import os
import pickle
import socket
from collections.abc import Callable, Collection
from typing import NamedTuple, TypeVar

from mpi4py import MPI

from .mailbox import Address, Mailbox, close_all, deliver

T = TypeVar("T")


def allgather_bytes(comm: MPI.Intracomm, data: bytes) -> list[bytes]:
    """Give every rank the bytes of all ranks, in rank order; lengths may differ. Collective."""
    # mpi4py's own methods: a subclass may send buffers elsewhere, and its set-up comes through here.
    counts = array.array("q", bytes(8 * comm.size))
    MPI.Comm.Allgather(comm, array.array("q", [len(data)]), counts)
    gathered = bytearray(sum(counts))
    MPI.Comm.Allgatherv(comm, [data, MPI.BYTE], [gathered, counts.tolist(), MPI.BYTE])
    ends = [sum(counts[: rank + 1]) for rank in range(comm.size)]
    return [bytes(gathered[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def agree(comm: MPI.Intracomm, operation: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    """Run `operation` on every rank; it succeeds on all of them, or all raise the same error. Collective.

    Parameters
    ----------
    comm : MPI.Intracomm
    operation : callable without arguments
        May communicate, but must not wait for a rank that has raised.
    undo : callable, optional
        Called with the operation's result on the ranks that succeeded while another one failed.

    Returns
    -------
    The result of `operation` on this rank.

    Raises
    ------
    Exception
        That of the lowest failing rank; the text says which ranks failed. An exception that does not
        survive pickling becomes a RuntimeError with its text. A rank that failed itself finds its own
        exception as the cause.
    """
    failure: Exception | None = None
    try:
        result = operation()
    except Exception as error:
        failure = error
    verdicts = allgather_bytes(comm, b"" if failure is None else _pack(failure))
    failed = [rank for rank, verdict in enumerate(verdicts) if verdict]
    if not failed:
        return result
    if failure is None and undo is not None:
        undo(result)
    raise _naming_ranks(_unpack(verdicts[failed[0]]), failed, comm.size) from failure


def allgather_fds(comm: MPI.Intracomm, fd: int, wanted: Collection[int], *, timeout: float = 30.0) -> dict[int, int]:
    """Hand this rank's file descriptor to the ranks that want it, and get those this rank wants. Collective.

    Parameters
    ----------
    comm : MPI.Intracomm
    fd : int
        What this rank offers; it stays the caller's.
    wanted : collection of int
        Ranks whose descriptor this rank needs; may be empty, may contain itself, may differ between ranks.
    timeout : float, seconds
        Bound on the delivery.

    Returns
    -------
    dict of rank to descriptor
        One for each rank in `wanted`, in rank order, not inherited by children. The caller closes them.

    Raises
    ------
    ValueError
        On all ranks, if one wants a rank that does not exist or that its descriptors cannot come from
        (another node, another container).
    TimeoutError, OSError
        On all ranks; whatever was received is closed.
    """
    mine, mailbox = agree(comm, lambda: (frozenset(wanted), Mailbox(fd)), undo=lambda opened: opened[1].close())
    try:
        request = pickle.dumps(_request(mailbox, mine))
        requests = [pickle.loads(data) for data in allgather_bytes(comm, request)]
        _check(requests)
        takers = {rank: request.address for rank, request in enumerate(requests) if comm.rank in request.wanted}
        received = agree(
            comm,
            lambda: deliver(mailbox, comm.rank, takers, set(mine), timeout),
            undo=lambda descriptors: close_all(descriptors.values()),
        )
    finally:
        mailbox.close()  # nobody writes to it any more: agree() has heard from every rank
    return dict(sorted(received.items()))


class _Request(NamedTuple):
    """What a rank says before descriptors are exchanged."""

    address: Address
    hostname: str
    machine: str
    namespace: int  # of the network: abstract socket names are known inside of one only
    wanted: frozenset[int]


def _request(mailbox: Mailbox, wanted: frozenset[int]) -> _Request:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            machine = file.read().strip()
        namespace = os.stat("/proc/self/ns/net").st_ino
    except OSError:  # /proc may be hidden; then the host's name has to do
        machine, namespace = socket.gethostname(), 0
    return _Request(mailbox.address, socket.gethostname(), machine, namespace, wanted)


def _check(requests: list[_Request]) -> None:
    """Raise what is wrong with the first bad request: the same on every rank, as all see all requests."""
    size = len(requests)
    for rank, request in enumerate(requests):
        for source in sorted(request.wanted):
            if not 0 <= source < size:
                raise ValueError(f"rank {rank} wants a file descriptor of rank {source}, but there are {size} ranks")
            other = requests[source]
            if (other.machine, other.namespace) != (request.machine, request.namespace):
                what = "nodes" if other.machine != request.machine else "containers (network namespaces)"
                raise ValueError(
                    f"rank {rank} wants a file descriptor of rank {source}, but they run on different "
                    f"{what}, {request.hostname} and {other.hostname}; descriptors do not travel between them"
                )


def _pack(error: Exception) -> bytes:
    """An exception as bytes, never empty: itself if it survives pickling, else its text."""
    text = f"{type(error).__name__}: {error}"
    try:
        pickled = pickle.dumps(error)
        copy = pickle.loads(pickled)
        faithful = type(copy) is type(error) and str(copy) == str(error)
    except Exception:  # pickling calls code of the exception's class: anything may come
        faithful = False
    return pickle.dumps((pickled if faithful else b"", text))


def _unpack(verdict: bytes) -> Exception:
    pickled, text = pickle.loads(verdict)
    try:
        error = pickle.loads(pickled) if pickled else None
    except Exception:  # the class may exist on the failing rank only
        error = None
    return error if isinstance(error, Exception) else RuntimeError(text)


def _naming_ranks(error: Exception, failed: list[int], size: int) -> Exception:
    """Append which ranks failed to the text of an error, or a note where its text is not its argument."""
    where = f"[failed on rank{'s' * (len(failed) > 1)} {', '.join(map(str, failed))} of {size}]"
    before = str(error)
    if isinstance(error, OSError) and error.strerror:
        error.strerror = f"{error.strerror} {where}"
    elif error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]} {where}", *error.args[1:])
    if str(error) == before:
        error.__notes__ = [*getattr(error, "__notes__", []), where]
    return error
