"""Steps of a call over nodes: kernels, copies, exchanges, host functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from ..backends import Function
from ..memory.cstruct import I32, U64, CStruct
from ..team.plans import Plan
from ..team.team import Team
from .engine import Engine, Transfer
from .short_exchange import Share, ShortExchange


class Step(Protocol):
    """A part of a call, enqueued on a stream.

    The stream is in the order of the team's launches (`LaunchOrder.following`).
    """

    def run(self, team: Team, stream: Any, call: int) -> None:
        """Enqueue the step; `team` is the node's, `call` the number of the call."""


@dataclass(frozen=True, slots=True)
class KernelStep:
    """The kernel of a collective among the ranks of the node."""

    plan: Plan
    parameters: bytes

    def run(self, team: Team, stream: Any, call: int) -> None:
        """Launch the kernel on `stream`."""
        _, function, grid, threads, early, _ = self.plan
        team.device.launch(function, grid, threads, self.parameters, stream, early)


@dataclass(slots=True, kw_only=True)
class FoldArgs(CStruct):
    """`FoldArgs` of cuda/collectives/fold.cu."""

    vectors: U64
    own: U64
    result: U64
    nbytes: U64
    stride: U64
    vector_count: I32
    own_index: I32
    size: I32


@dataclass(frozen=True, slots=True)
class LaunchStep:
    """A kernel with its parameters, such as a fold of vectors in this rank's memory."""

    function: Function
    grid: int
    threads: int
    parameters: bytes
    early: bool = False

    def run(self, team: Team, stream: Any, call: int) -> None:
        """Launch the kernel on `stream`."""
        team.device.launch(self.function, self.grid, self.threads, self.parameters, stream, self.early)


@dataclass(frozen=True, slots=True)
class CopyStep:
    """A copy in this rank's memory."""

    to: int
    source: int
    nbytes: int

    def run(self, team: Team, stream: Any, call: int) -> None:
        """Enqueue the copy on `stream`."""
        team.device.copy(self.to, self.source, self.nbytes, stream)


@dataclass
class Traffic:
    """Bytes that this rank has sent to other nodes; replays of graphs are not counted."""

    sent_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class ExchangeStep:
    """The sends and receives of an engine."""

    engine: Engine
    name: str  # for messages
    sends: Sequence[Transfer]
    receives: Sequence[Transfer]
    traffic: Traffic

    @property
    def peers(self) -> tuple[int, ...]:
        """The ranks that it receives from."""
        return tuple(transfer.peer for transfer in self.receives)

    def run(self, team: Team, stream: Any, call: int) -> None:
        """Count the bytes, and run the exchange on `stream`."""
        self.traffic.sent_nbytes += sum(each.nbytes for each in self.sends)
        self.engine.exchange(self.name, self.sends, self.receives, stream, call)


@dataclass(frozen=True, slots=True)
class CollectiveStep:
    """A collective of an engine among all its ranks."""

    engine: Engine
    name: str  # for messages
    enqueue: Callable[[Any], None]  # called with the stream
    peers: tuple[int, ...]  # the ranks that it receives from
    sent_nbytes: int
    traffic: Traffic

    def run(self, team: Team, stream: Any, call: int) -> None:
        """Count the bytes, and enqueue the collective on `stream`."""
        self.traffic.sent_nbytes += self.sent_nbytes
        self.enqueue(stream)


@dataclass(frozen=True, slots=True)
class ShareStep:
    """A host exchange of records."""

    exchange: ShortExchange
    share: Share
    leaving_nbytes: int  # bytes to other nodes
    traffic: Traffic

    def run(self, team: Team, stream: Any, call: int) -> None:
        """Count the bytes, and exchange the records on `stream`."""
        self.traffic.sent_nbytes += self.leaving_nbytes
        self.exchange.run(self.share, stream)


@dataclass(frozen=True, slots=True)
class HostStep:
    """A host function between two steps.

    It reads results of the steps before it, and may run further steps.
    """

    function: Callable[[Any, int], None]  # called with the stream for these steps and the call's number
    engine: Engine | None  # engine of its exchanges
    peers: tuple[int, ...]  # the ranks that it receives from

    def run(self, team: Team, stream: Any, call: int) -> None:
        """Run the function between the steps; raise NotSupported during a capture."""
        device = team.device
        inner = None if device.name == "host" else stream  # a thread of the host device is itself the stream
        device.call_between(stream, partial(self.function, inner, call))
