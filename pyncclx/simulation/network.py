"""What messages cost in the simulation, and MPI's collectives made of messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mpi_bootstrap import waiting

_CONTEXT_NBYTES = 8  # that ranks agree on before they have a communicator
_CONTEXT_ROUNDS = 3  # in which they do: Open MPI takes the highest free one, looks whether all have it, and begins


class Pattern(NamedTuple):
    """The messages of one collective.

    Attributes
    ----------
    name : str
    hops : int
        Messages that follow each other.
    messages, nbytes : int
        Sent by the rank that sends most.
    moved, combined : int
        Bytes that pass a link, and bytes that are reduced, one after the other.
    """

    name: str
    hops: int
    messages: int
    nbytes: int = 0
    moved: int = 0
    combined: int = 0


def rounds(size: int) -> int:
    """Return the rounds in which what doubles reaches so many ranks.

    Examples
    --------
    >>> [rounds(size) for size in (1, 2, 3, 8, 9)]
    [0, 1, 2, 3, 4]
    """
    return (size - 1).bit_length()


def barrier(size: int) -> Pattern:
    """Dissemination: in each round every rank sends to one twice as far away."""
    return Pattern("barrier", rounds(size), rounds(size))


def broadcast(size: int, nbytes: int) -> Pattern:
    """A binomial tree."""
    steps = rounds(size)
    return Pattern("broadcast", steps, steps, steps * nbytes, steps * nbytes)


def allreduce(size: int, nbytes: int) -> Pattern:
    """A binomial tree up, and one down, as Open MPI's that does not block and reduces in place."""
    steps = rounds(size)
    return Pattern("allreduce", 2 * steps, steps, steps * nbytes, 2 * steps * nbytes, steps * nbytes)


def duplicate(size: int) -> tuple[Pattern, ...]:
    """MPI_Comm_dup, and MPI_Comm_create_group of so many ranks: they agree on a context."""
    return (allreduce(size, _CONTEXT_NBYTES),) * _CONTEXT_ROUNDS


@dataclass(frozen=True)
class Network:
    """What messages cost. The defaults are assumptions on a large cluster, on the slow side.

    `message_s` was measured: MPI_Comm_dup took 20 to 34 us of processors for each message, on 2 to 16 processes of two
    processors that others used, too (24 November 2026).

    Attributes
    ----------
    latency_s : float
        From one end to the other.
    message_s : float
        Of a processor's time, at each end.
    connection_s : float
        More for the first message between two ranks.
    bandwidth, reduction : float
        Bytes that a rank moves and combines in a second.
    """

    latency_s: float = 5e-6
    message_s: float = 10e-6
    connection_s: float = 1e-3
    bandwidth: float = 10e9
    reduction: float = 2e9

    def seconds(self, pattern: Pattern, *, asleep: bool, connects: bool = False) -> float:
        """Return how long a collective takes.

        Ranks that wait in `mpi_bootstrap.waiting` are `asleep`: a message that has come is taken up at the end of a
        pause, which counts in full at every hop.
        """
        hop = self.latency_s + 2 * self.message_s + (self.connection_s if connects else 0.0)
        data = pattern.moved / self.bandwidth + pattern.combined / self.reduction
        passed = 0.0
        for _ in range(pattern.hops):
            passed += hop + data / pattern.hops
            passed += pause(passed) if asleep else 0.0
        return passed


def pause(waited_s: float) -> float:
    """Return the pause in which a rank is that has waited so long; at first it looks without one."""
    return waiting.pause_after(waited_s) if waited_s > waiting.SPIN_S else 0.0
