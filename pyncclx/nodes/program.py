"""The program of a call over nodes: steps on one stream or on two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..backends import Event
from ..errors import NotSupported
from ..team.plans import Producer
from ..team.team import Team
from .steps import CollectiveStep, ExchangeStep, HostStep, ShareStep, Step


class Placed(NamedTuple):
    """A step and where it runs."""

    step: Step
    aside: bool = False  # on a second stream, beside the steps that follow
    after: tuple[int, ...] = ()  # places of the steps on the other stream that it waits for


class Program:
    """The steps of one call, which can be enqueued repeatedly.

    Attributes
    ----------
    operation : str
    waits : str
        Names of the steps that wait for ranks of other nodes, for messages.
    producers : tuple of Producer
        The streams that the call's buffers name.
    of_current : bool
        Whether the current stream may still be writing one of the buffers.
    follows_streams : bool
        Whether all steps are enqueued like kernels.
    label : bytes
        Label of the call from `label_of`, the same on all ranks.
    is_watched : bool
        Whether the watchdog watches it. It does if the host does not wait for a step, or if a kernel may wait for a
        rank; a rank that `is_alone` on its node has no such kernel.
    watched : tuple of Engine
        The engines whose steps the host does not wait for.
    peers : tuple of int
        The ranks of other nodes that the program waits for.
    before, after : callable or None
        `SpanningCall.before` and `after`.
    facts : bytes or None
        The flight recorder's entry of this call, for cached calls.
    """

    def __init__(
        self,
        operation: str,
        steps: Sequence[Placed],
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
        exchanges = [step.step for step in steps if isinstance(step.step, (ExchangeStep, CollectiveStep, HostStep))]
        used = [each.engine for each in exchanges if each.engine is not None]
        engines = {id(engine): engine for engine in used if engine.follows_streams}
        self.watched = tuple(engines.values())
        has_kernels = not is_alone and bool(steps) and not any(isinstance(step.step, ShareStep) for step in steps)
        self.is_watched = bool(self.watched) or has_kernels
        names = dict.fromkeys(each.name for each in exchanges if not isinstance(each, HostStep))
        self.waits = " or ".join(names) or f"{operation}, between nodes"
        self.peers = tuple(sorted({peer for each in exchanges for peer in each.peers}))
        self._awaited = {place for step in steps for place in step.after}
        self._in_order = [step.step for step in steps]
        self._forks = any(step.aside for step in steps)

    def check_graph(self) -> None:
        """Raise NotSupported if no CUDA graph can hold the steps."""
        if self.follows_streams:
            return
        if any(isinstance(step, HostStep) for step in self._in_order):
            why, way = "the host reads numbers that are on the device", ""
        elif any(isinstance(step, ShareStep) for step in self._in_order):
            why = "its data goes through the host's memory"
            way = '; with NCCL, comm.blocking = "stream" before the communicator\'s first call helps'
        else:
            why, way = "MPI moves the data between nodes", ""
        raise NotSupported(f"{self.operation}: no CUDA graph can hold it, since {why}; call it outside{way}")

    def enqueue(self, team: Team, stream: Any, aside: Any, call: int) -> None:
        """Enqueue all steps; subsequent work on `stream` waits for them.

        `aside` is the second stream, `call` the number of the call, the same on all ranks.
        """
        team.order.follow(stream)
        if self.before is not None:
            self.before(team, stream)
        if self._forks:
            team.device.fork(stream, aside)
            self._enqueue_on_both(team, stream, aside, call)
            team.device.order(aside, stream)
        else:
            for step in self._in_order:
                step.run(team, stream, call)
        if self.after is not None:
            self.after(team, None, stream)
        team.order.extend(stream)

    def _enqueue_on_both(self, team: Team, stream: Any, aside: Any, call: int) -> None:
        ends: dict[int, Event] = {}
        for place, (step, is_aside, after) in enumerate(self._steps):
            on = aside if is_aside else stream
            for before in after:
                ends[before].order(on)
            step.run(team, on, call)
            if place in self._awaited:
                ends[place] = team.order.mark(on)
