"""The exceptions that pyncclx raises beside TypeError, ValueError, KeyError and BufferError."""

from __future__ import annotations

from mpi4py import MPI

__all__ = [
    "Aborted",
    "CapacityExceeded",
    "CollectiveMismatch",
    "DerivedDatatype",
    "MPIError",
    "NotSupported",
    "PeerTimeout",
    "RanksMissing",
]


class NotSupported(RuntimeError):
    """A call that is legal in MPI but not possible here; the text has the reason and what to do instead."""


class DerivedDatatype(NotSupported):
    """A derived MPI datatype where elements of one type are needed."""


class Aborted(RuntimeError):
    """The communicator was aborted while an operation waited; its contents are undefined from then on."""


class CollectiveMismatch(RuntimeError):
    """Ranks of one communicator called different operations, or one operation with different arguments."""


class MPIError(MPI.Exception):
    """An `MPI.Exception` whose text is a sentence about what was wrong.

    Caught by ``except MPI.Exception``; `Get_error_class` and comparison with a code work as usual.

    Parameters
    ----------
    code : int
        An MPI error class such as ``MPI.ERR_OP``.
    text : str
        Operation, argument, its value and what to do.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code)
        self.text = text

    def __str__(self) -> str:
        return f"{super().__str__()}: {self.text}"

    def __repr__(self) -> str:
        return f"MPIError({int(self)}, {self.text!r})"

    def __reduce__(self) -> tuple[type[MPIError], tuple[int, str]]:
        # MPI.Exception keeps the code alone in args, and unpickling calls the class with args.
        return type(self), (int(self), self.text)


class PeerTimeout(RuntimeError):
    """A peer did not arrive in time; the kernel stopped waiting and recorded what it had read.

    Parameters
    ----------
    operation : str
        The operation that waited, such as ``"Allreduce"``, or the device function.
    epoch : int
        The operation's number on its communicator; 0 for a device function.
    rank, peer : int
        The rank that waited, and the one that it waited for; -1: any rank.
    expected, seen : int
        The value of the signal that `rank` waited for, and the last one it read.
    """

    def __init__(self, operation: str, epoch: int, rank: int, peer: int, expected: int, seen: int) -> None:
        # The fields are the args, so that the exception survives pickling between ranks.
        super().__init__(operation, epoch, rank, peer, expected, seen)
        self.operation = operation
        self.epoch = epoch
        self.rank = rank
        self.peer = peer
        self.expected = expected
        self.seen = seen

    def __str__(self) -> str:
        peer = f"rank {self.peer}" if self.peer >= 0 else "any rank"
        epoch = f"epoch {self.epoch}, " if self.epoch else ""
        return (
            f"{self.operation}: rank {self.rank} waited in vain for {peer} ({epoch}"
            f"expected signal {self.expected}, saw {self.seen}); see whether {peer} died, is slow, "
            "or made another call, be it by type or count; PYNCCLX_CHECK=1 compares calls"
        )


class RanksMissing(PeerTimeout):
    """Ranks did not come where all ranks of a communicator make something together, before any kernel.

    Parameters
    ----------
    rank : int
        A rank that waited.
    missing : tuple of int
        The ranks that it waited for.
    """

    def __init__(self, rank: int, missing: tuple[int, ...]) -> None:
        super().__init__("the first call of a kind on device arrays", 0, rank, missing[0] if missing else -1, 0, 0)
        self.missing = missing
        self.args = rank, missing

    def __str__(self) -> str:
        ranks = f"rank{'s' * (len(self.missing) > 1)} {', '.join(map(str, self.missing)) or 'unknown'}"
        return (
            f"{self.operation}: rank {self.rank} waited in vain for {ranks}. All ranks make such a call together, with "
            "device arrays; a rank does not come that passes a host array, makes another call, is slow, or is plain "
            "mpi4py, as processes are that a program spawns without `-m pyncclx run`. PYNCCLX_CHECK=1 compares calls"
        )


class CapacityExceeded(RuntimeError):
    """A rank sent more than the receiver made room for; nothing was written past the room there was.

    Parameters
    ----------
    rank, source : int
        The receiver, and the sender whose block did not fit.
    wanted, capacity : int
        Rows that `source` sent, and rows that the receiver has room for.
    """

    def __init__(self, rank: int, source: int, wanted: int, capacity: int) -> None:
        super().__init__(rank, source, wanted, capacity)
        self.rank = rank
        self.source = source
        self.wanted = wanted
        self.capacity = capacity

    def __str__(self) -> str:
        return (
            f"rank {self.rank} has room for {self.capacity} rows from rank {self.source}, which sent {self.wanted} in "
            "an earlier call; enlarge recvbuf, or the shuffle's capacity, or send less"
        )
