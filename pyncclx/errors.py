"""Exceptions of pyncclx, besides TypeError, ValueError, KeyError and BufferError."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI


class NotSupported(RuntimeError):
    """A call is legal in MPI but not possible here; the text says why, and what to do."""


class DerivedDatatype(NotSupported):
    """A derived MPI datatype was passed where elements of one type are needed."""


class Aborted(RuntimeError):
    """The communicator was aborted while an operation waited.

    The results of its unfinished operations are undefined.
    """


class CollectiveMismatch(RuntimeError):
    """The ranks of a communicator made calls that differ in operation or arguments."""


class MPIError(MPI.Exception):
    """An `MPI.Exception` whose text is a sentence about the error.

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

    def __reduce__(self) -> tuple[type[MPIError], tuple[Any, ...]]:
        # MPI.Exception keeps only the code in args, and unpickling calls the class with args.
        return type(self), (int(self), self.text)


def out_of_range(code: int, value: int, text: str) -> Exception:
    """Return mpi4py's kind of error for a rank, root or tag that is out of range."""
    is_int = -(1 << 31) <= value < 1 << 31
    return MPIError(code, text) if is_int else OverflowError(f"value too large to convert to int: {text}")


class RankFailed(MPIError):
    """Ranks of the communicator have died, or ended while others needed them.

    An `MPI.Exception` of class ``MPI.ERR_PROC_FAILED``, where MPI has it. From then on, calls that need all ranks raise
    it. Messages between living ranks continue.

    Parameters
    ----------
    ranks, world_ranks : tuple of int
        The failed ranks, as ranks of the communicator, and of MPI.COMM_WORLD (-1: of another world).
    reason : str
        How they failed, and how this was detected.
    host : str
        Their node.
    operation : str
        The operation in which this rank waited for them, or "".
    epoch : int
        The number of that operation on the communicator; 0: unknown.
    """

    def __init__(
        self,
        ranks: tuple[int, ...],
        world_ranks: tuple[int, ...],
        reason: str,
        host: str = "",
        operation: str = "",
        epoch: int = 0,
    ) -> None:
        self.ranks, self.world_ranks, self.reason, self.host = tuple(ranks), tuple(world_ranks), reason, host
        self.operation, self.epoch = operation, epoch
        super().__init__(MPI.ERR_PROC_FAILED, self._sentence())

    def _sentence(self) -> str:
        s = "s" * (len(self.ranks) != 1)
        ranks = ", ".join(map(str, self.ranks)) or "unknown"
        world = f" ({', '.join(map(str, self.world_ranks))} in MPI.COMM_WORLD)" * (self.world_ranks != self.ranks)
        where = f" on {self.host}" * bool(self.host)
        doing = f"{self.operation}{f' (epoch {self.epoch})' * (self.epoch > 0)}: " * bool(self.operation)
        return (
            f"{doing}rank{s} {ranks}{world}{where} failed: {self.reason}. Calls that need all ranks are over on this "
            "communicator: Shrink it, if MPI tolerates failures (Open MPI: mpirun --with-ft ulfm), or Free it"
        )

    def __str__(self) -> str:
        return self.text  # MPI's text for the class would only repeat it

    def __repr__(self) -> str:
        return f"RankFailed(ranks={self.ranks}, world_ranks={self.world_ranks}, reason={self.reason!r})"

    def __reduce__(self) -> tuple[type[MPIError], tuple[Any, ...]]:
        fields = self.ranks, self.world_ranks, self.reason, self.host, self.operation, self.epoch
        return type(self), fields


class Revoked(MPIError):
    """The communicator was revoked: calls raise on all ranks.

    Only `Shrink`, `Agree` and `Free` still work. An `MPI.Exception` of class ``MPI.ERR_REVOKED``, where MPI has it.

    Parameters
    ----------
    text : str
    """

    def __init__(self, text: str) -> None:
        super().__init__(MPI.ERR_REVOKED, text)

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[type[MPIError], tuple[Any, ...]]:
        return type(self), (self.text,)


class PeerTimeout(RuntimeError):
    """A kernel timed out while it waited for a peer.

    Parameters
    ----------
    operation : str
        The operation that waited, such as ``"Allreduce"``, or the device function.
    epoch : int
        The operation's number on its communicator; 0 for a device function.
    rank, peer : int
        The rank that waited, and the rank that it waited for; -1: any rank.
    expected, seen : int
        The value of the signal that `rank` waited for, and the last value that it read.

    Attributes
    ----------
    detail : str
        What is known about the late process.
    """

    def __init__(self, operation: str, epoch: int, rank: int, peer: int, expected: int, seen: int) -> None:
        # The args are the fields, so that the exception survives pickling between ranks.
        super().__init__(operation, epoch, rank, peer, expected, seen)
        self.operation = operation
        self.epoch = epoch
        self.rank = rank
        self.peer = peer
        self.expected = expected
        self.seen = seen
        self.detail = ""

    def __str__(self) -> str:
        peer = f"rank {self.peer}" if self.peer >= 0 else "any rank"
        epoch = f"epoch {self.epoch}, " if self.epoch else ""
        return (
            f"{self.operation}: rank {self.rank} timed out waiting for {peer} ({epoch}"
            f"expected signal {self.expected}, saw {self.seen}); "
            + (
                self.detail
                or f"see whether {peer} is slow, passed a host array, or made another call (operation, type or "
                "count); PYNCCLX_CHECK=1 compares calls"
            )
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, {"detail": self.detail, "peer": self.peer}


class RanksMissing(PeerTimeout):
    """Some ranks were too late for a call that all ranks must prepare together.

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
            f"{self.operation}: rank {self.rank} timed out waiting for {ranks}. All ranks have to make such a call "
            "together, with device arrays. A rank does not take part if it passes a host array, makes another call, "
            "is slow, or uses plain mpi4py, as processes do that a program spawns without `-m pyncclx run`. "
            "PYNCCLX_CHECK=1 compares calls"
        )


class StepTimeout(PeerTimeout):
    """A step between nodes timed out.

    Parameters
    ----------
    operation : str
        The operation and its step, such as ``"Allreduce, exchange over the rail"``.
    rank : int
        The rank that waited.
    peers : tuple of int
        The ranks that have not begun the call. If these are unknown, all ranks that `rank` waited for.
    """

    def __init__(self, operation: str, rank: int, peers: tuple[int, ...]) -> None:
        super().__init__(operation, 0, rank, peers[0] if peers else -1, 0, 0)
        self.peers = peers
        self.args = operation, rank, peers

    def __str__(self) -> str:
        ranks = f"rank{'s' * (len(self.peers) > 1)} {', '.join(map(str, self.peers)) or 'unknown'}"
        return (
            f"{self.operation}: rank {self.rank} timed out waiting for {ranks}; see whether they died, are slow, or "
            "made another call (operation, type or count); PYNCCLX_CHECK=1 compares calls"
        )


class SendTimeout(PeerTimeout):
    """A message sent through MPI, for example to another node, was received too late.

    Parameters
    ----------
    operation : str
        The operation and its tag, such as ``"Send with tag 3"``.
    rank, peer : int
        The rank that waited, and the one that did not receive.
    """

    def __init__(self, operation: str, rank: int, peer: int) -> None:
        super().__init__(operation, 0, rank, peer, 0, 0)
        self.args = operation, rank, peer

    def __str__(self) -> str:
        return (
            f"{self.operation}: rank {self.rank} timed out waiting for rank {self.peer} to receive the message; see "
            "whether it died, is slow, or receives with another source or tag, or on another communicator"
        )


class CapacityExceeded(RuntimeError):
    """A rank sent more rows than the receiver has room for; the excess was dropped.

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
