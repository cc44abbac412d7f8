"""A checked call over nodes, and its program: steps on one stream or on two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..arrays.buffers import Buffer
from ..backends import Event
from ..errors import NotSupported
from ..team.plans import Plan, Producer
from ..team.team import Team
from .engine import Engine


@dataclass(slots=True, kw_only=True, eq=False)
class SpanningCall:
    """A call over nodes: checked arguments, and a function that composes its program.

    It is the counterpart of `launch.Call`, which describes a call inside one node.

    Attributes
    ----------
    operation : str
        The method's name.
    compose : callable
        Adds the steps to the `Composition` that it gets. All ranks add steps of the same kinds in the same order.
    buffers : tuple of Buffer
    signature : tuple
        Values that must be equal on all ranks; PYNCCLX_CHECK=1 compares them.
    empty : bool
        Whether there is nothing to do, on all ranks.
    before, after : callable, optional
        Enqueue work before and after the program, such as the packing of a derived datatype.
    is_again : bool
        Whether `before` and `after` do the same for every equal call.
    """

    operation: str
    compose: Callable[[Any], None]
    buffers: tuple[Buffer, ...] = ()
    signature: tuple[Any, ...] = ()
    empty: bool = False
    before: Callable[[Team, Any], None] | None = None
    after: Callable[[Team, Plan | None, Any], None] | None = None
    is_again: bool = False

    @property
    def may_be_known(self) -> bool:
        """Whether the program can be cached and enqueued again for an equal call."""
        return self.is_again or (self.before is None and self.after is None)


class Step(NamedTuple):
    """A part of a call on a stream: a kernel, copy, exchange or host function.

    Attributes
    ----------
    run : callable
        Enqueues the step, given the node's Team, the stream, and the number of the call. The caller has ordered the
        stream with the Team's launches (`LaunchOrder.following`).
    name : str
        Name of an exchange, for error messages.
    engine : Engine or None
        The engine of its exchanges.
    peers : tuple of int
        The ranks that it receives from.
    on_host, through_host : bool
        Whether the step is a host function; whether its data goes through host memory.
    aside : bool
        Whether the step runs on a second stream, beside the steps that follow.
    after : tuple of int
        Indices of the steps on the other stream that the step waits for.
    """

    run: Callable[[Team, Any, int], None]
    name: str = ""
    engine: Engine | None = None
    peers: tuple[int, ...] = ()
    on_host: bool = False
    through_host: bool = False
    aside: bool = False
    after: tuple[int, ...] = ()


class Program:
    """The steps of one call, which can be enqueued repeatedly.

    Attributes
    ----------
    operation : str
    waits : str
        Names of the steps that wait for ranks of other nodes, for error messages.
    producers : tuple of Producer
        The streams that the call's buffers name.
    of_current : bool
        Whether the current stream may still be writing one of the buffers.
    follows_streams : bool
        Whether all steps are enqueued like kernels.
    label : bytes
        Label of the call from `label_of`, the same on all ranks.
    is_watched : bool
        Whether the monitor watches the program. This is necessary if the host does not wait for some step, or if a
        kernel may wait for a rank; on a node with one rank (`is_alone`), no kernel does.
    watched : tuple of Engine
        The engines whose steps the host does not wait for.
    peers : tuple of int
        The ranks of other nodes that the program waits for.
    forks : bool
        Whether some steps are on a second stream.
    before, after : callable or None
        `SpanningCall.before` and `after`.
    facts : bytes or None
        The flight recorder's entry of this call, for cached calls.
    """

    def __init__(
        self,
        operation: str,
        steps: Sequence[Step],
        producers: tuple[Producer, ...],
        *,
        of_current: bool = False,
        is_alone: bool = False,
        follows_streams: bool,
        label: bytes = b"",
    ) -> None:
        self.before: Callable[[Team, Any], None] | None = None
        self.after: Callable[[Team, Any, Any], None] | None = None
        self.operation, self.producers, self.follows_streams = operation, producers, follows_streams
        self.of_current, self.label = of_current, label
        self.facts: bytes | None = None
        self._steps = steps
        engines = {id(each.engine): each.engine for each in steps if each.engine is not None}
        self.watched = tuple(engine for engine in engines.values() if engine.follows_streams)
        has_kernels = not is_alone and bool(steps) and not any(each.through_host for each in steps)
        self.is_watched = bool(self.watched) or has_kernels
        names = dict.fromkeys(each.name for each in steps if each.name)
        self.waits = " or ".join(names) or f"{operation}, between nodes"
        self.peers = tuple(sorted({peer for each in steps for peer in each.peers}))
        self._awaited = {place for step in steps for place in step.after}
        self.forks = any(step.aside for step in steps)

    def check_graph(self) -> None:
        """Raise NotSupported if no CUDA graph can hold the steps."""
        if self.follows_streams:
            return
        if any(step.on_host for step in self._steps):
            why, way = "the host reads numbers that are on the device", ""
        elif any(step.through_host for step in self._steps):
            why = "its data goes through the host's memory"
            way = '; with NCCL, comm.blocking = "stream" before the communicator\'s first call helps'
        else:
            why, way = "MPI moves the data between nodes", ""
        raise NotSupported(f"{self.operation}: no CUDA graph can hold it, since {why}; call it outside{way}")

    def enqueue(self, team: Team, stream: Any, aside: Any, call: int) -> None:
        """Enqueue all steps; subsequent work on `stream` waits for them.

        `aside` is the second stream, if the program `forks`; `call` is the number of the call, the same on all ranks.
        """
        team.order.follow(stream)
        if self.before is not None:
            self.before(team, stream)
        if self.forks:
            team.device.fork(stream, aside)
            self._enqueue_on_both(team, stream, aside, call)
            team.device.order(aside, stream)
        else:
            for step in self._steps:
                step.run(team, stream, call)
        if self.after is not None:
            self.after(team, None, stream)
        team.order.extend(stream)

    def _enqueue_on_both(self, team: Team, stream: Any, aside: Any, call: int) -> None:
        ends: dict[int, Event] = {}
        for place, step in enumerate(self._steps):
            on = aside if step.aside else stream
            for before in step.after:
                ends[before].order(on)
            step.run(team, on, call)
            if place in self._awaited:
                ends[place] = team.order.mark(on)
