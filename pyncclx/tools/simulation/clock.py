"""The clock of one simulated rank: its messages, waits and computing time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from .network import Network, Pattern


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
