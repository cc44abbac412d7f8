"""The clock of one simulated rank: what it has sent and waited for, and what its Python has computed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from .network import Network, Pattern


@dataclass
class Stage:
    """What one part of the work has taken.

    Attributes
    ----------
    name : str
    network_s, computed_s : float
        By the model, and measured.
    rounds, messages, nbytes : int
        Messages that followed each other; sent by the rank that sends most, and their bytes.
    """

    name: str
    network_s: float = 0.0
    computed_s: float = 0.0
    rounds: int = 0
    messages: int = 0
    nbytes: int = 0

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.network_s + self.computed_s


@dataclass
class Clock:
    """Adds up what a rank does, by stages."""

    network: Network
    stages: list[Stage] = field(default_factory=list)
    _connected: set[tuple[str, str]] = field(default_factory=set)

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Do a part of the work; what the thread computes meanwhile is added."""
        stage = Stage(name)
        self.stages.append(stage)
        began = time.thread_time()
        yield stage
        stage.computed_s += time.thread_time() - began

    def pass_by(self, ranks: str, pattern: Pattern, *, asleep: bool) -> None:
        """Let the time of a collective among some `ranks`, which have a name, pass."""
        stage = self.stages[-1]
        connects = (ranks, pattern.name) not in self._connected
        self._connected.add((ranks, pattern.name))
        stage.network_s += self.network.seconds(pattern, asleep=asleep, connects=connects)
        stage.rounds += pattern.hops
        stage.messages += pattern.messages
        stage.nbytes += pattern.nbytes
