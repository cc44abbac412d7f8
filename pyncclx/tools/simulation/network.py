"""The cost of collectives' messages in the simulation, and the clock of a rank."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from mpi_bootstrap import waiting

_CONTEXT_NBYTES = 8  # bytes of the number (context) on which the ranks of a new communicator agree
# Rounds of the agreement: Open MPI proposes the highest free context, checks that it is free on all ranks, and begins.
_CONTEXT_ROUNDS = 3


class Pattern(NamedTuple):
    """The messages of one collective.

    Attributes
    ----------
    name : str
    hops : int
        Number of consecutive messages.
    messages, nbytes : int
        Messages and bytes of the rank that sends most.
    moved, combined : int
        Bytes that pass over links one after the other, and bytes that are reduced one after the other.
    """

    name: str
    hops: int
    messages: int
    nbytes: int = 0
    moved: int = 0
    combined: int = 0


def rounds(size: int) -> int:
    """Return the number of rounds in which doubling reaches `size` ranks.

    Examples
    --------
    >>> [rounds(size) for size in (1, 2, 3, 8, 9)]
    [0, 1, 2, 3, 4]
    """
    return (size - 1).bit_length()


def barrier(size: int) -> Pattern:
    """Return the pattern of a dissemination barrier.

    In each round every rank sends to a rank twice as far away.
    """
    return Pattern("barrier", rounds(size), rounds(size))


def broadcast(size: int, nbytes: int) -> Pattern:
    """Return the pattern of a broadcast by a binomial tree."""
    steps = rounds(size)
    return Pattern("broadcast", steps, steps, steps * nbytes, steps * nbytes)


def allreduce(size: int, nbytes: int) -> Pattern:
    """Return the pattern of an Allreduce by two binomial trees, up and down.

    Open MPI's nonblocking Allreduce in place works like this.
    """
    steps = rounds(size)
    return Pattern("allreduce", 2 * steps, steps, steps * nbytes, 2 * steps * nbytes, steps * nbytes)


def duplicate(size: int) -> tuple[Pattern, ...]:
    """Return the patterns of the messages of MPI_Comm_dup or MPI_Comm_create.

    The `size` ranks agree on the number of the new communicator, by several `Allreduce` calls of one number.
    """
    return (allreduce(size, _CONTEXT_NBYTES),) * _CONTEXT_ROUNDS


@dataclass(frozen=True)
class Network:
    """Cost of messages. The defaults assume a large cluster, on the slow side.

    `message_s` was measured: MPI_Comm_dup took 20 to 34 us of processor time for each message, with 2 to 16 processes
    on two processors that others used too (24 November 2026).

    Attributes
    ----------
    latency_s : float
        Time of a message from one rank to another.
    message_s : float
        Processor time at each end.
    connection_s : float
        Additional time of the first message between two ranks.
    bandwidth, reduction : float
        Bytes that a rank moves and reduces per second.
    """

    latency_s: float = 5e-6
    message_s: float = 10e-6
    connection_s: float = 1e-3
    bandwidth: float = 10e9
    reduction: float = 2e9

    def seconds(self, pattern: Pattern, *, asleep: bool, connects: bool = False) -> float:
        """Return the time of a collective in seconds.

        Ranks that wait in `mpi_bootstrap.waiting` are `asleep`. They notice a message at the end of a pause, and every
        hop is charged a whole pause.
        """
        hop = self.latency_s + 2 * self.message_s + (self.connection_s if connects else 0.0)
        data = pattern.moved / self.bandwidth + pattern.combined / self.reduction
        passed = 0.0
        for _ in range(pattern.hops):
            passed += hop + data / pattern.hops
            passed += pause(passed) if asleep else 0.0
        return passed


def pause(waited_s: float) -> float:
    """Return the pause of a rank after waiting `waited_s`; at first it only spins."""
    return waiting.pause_after(waited_s) if waited_s > waiting.SPIN_S else 0.0


@dataclass
class Stage:
    """The time and messages of one part of the work.

    Attributes
    ----------
    name : str
    network_s, computed_s : float
        Modelled time, and measured time of Python.
    rounds, messages, nbytes : int
        Messages that follow each other; messages and bytes of the rank that sends most.
    """

    name: str
    network_s: float = 0.0
    computed_s: float = 0.0
    rounds: int = 0
    messages: int = 0
    nbytes: int = 0

    @property
    def seconds(self) -> float:
        """Modelled and measured time together."""
        return self.network_s + self.computed_s


@dataclass
class Clock:
    """Time and messages of one simulated rank, summed for each stage of its work."""

    network: Network
    stages: list[Stage] = field(default_factory=list)
    _connected: set[tuple[str, str]] = field(default_factory=set)

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Run a part of the work in the block, and add the time that the thread computes."""
        stage = Stage(name)
        self.stages.append(stage)
        began = time.thread_time()
        yield stage
        stage.computed_s += time.thread_time() - began

    def pass_by(self, ranks: str, pattern: Pattern, *, asleep: bool) -> None:
        """Add the time of a collective; `ranks` is the name of its group of ranks."""
        stage = self.stages[-1]
        connects = (ranks, pattern.name) not in self._connected
        self._connected.add((ranks, pattern.name))
        stage.network_s += self.network.seconds(pattern, asleep=asleep, connects=connects)
        stage.rounds += pattern.hops
        stage.messages += pattern.messages
        stage.nbytes += pattern.nbytes
