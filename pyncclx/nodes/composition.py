"""Composition of a call's program: each method adds a step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..arrays.buffers import Buffer
from ..backends import Function
from ..launch import kernels
from ..launch.call import Call, plan_of
from ..memory.cstruct import I32, U64, CStruct
from ..memory.parameters import TransformedRows
from ..team.plans import producers_of
from ..team.streams import is_of_current
from ..team.team import Team
from .engine import Transfer
from .host_exchange import Block, Share, label_of
from .program import Program, Step
from .rails import NodeMap, without_empty
from .spanning import Spanning

# Bytes of a vector or of results that each thread gets before more blocks are used. Not measured.
_THREAD_NBYTES = 64


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors in this rank's memory, at a fixed distance from each other."""

    address: int
    count: int
    stride: int  # bytes from one to the next
    own: tuple[int, int] = (-1, 0)  # number of a vector that lies elsewhere, and its address


class Composition:
    """The steps of one call so far.

    Each method returns its step's index, for the `after` of later steps.

    Steps run one after the other. Those marked `aside` run on a second stream, in their order. Only `after` orders
    steps of the two streams.

    Attributes
    ----------
    spanning : Spanning
    places : NodeMap
    operation : str
    label : bytes
        Label of the call, the same on all ranks.
    """

    def __init__(self, spanning: Spanning, operation: str, signature: tuple[Any, ...] = ()) -> None:
        self.spanning, self.operation, self.label = spanning, operation, label_of(operation, signature)
        self.places: NodeMap = spanning.places
        self._steps: list[Step] = []
        self._follows_streams = True
        self._kept: list[object] = []

    def memory(self, *lengths: int) -> list[int]:
        """Return addresses of scratch memory. Call it once per composition.

        A second call may return the same addresses.
        """
        return self.spanning.scratch.addresses(*lengths)

    def kernel(self, call: Call, after: tuple[int, ...] = ()) -> int:
        """Add the kernel of a call among this node's ranks. Collective among them."""
        spanning = self.spanning
        plan = plan_of(spanning.local, spanning.team, call)
        parameters = spanning.team.parameters(plan, call.buffers, call.called, call.arguments)
        return self.launch(plan.function, plan.grid, plan.threads, parameters, early=plan.early, after=after)

    def fold(
        self,
        template: tuple[str, ...],
        vectors: Vectors,
        nbytes: int,
        result: int,
        *,
        finish_as: int | None = None,
        alone: bool = False,
        after: tuple[int, ...] = (),
    ) -> int:
        """Add a step that reduces vectors in this rank's memory to one at `result`.

        The length of the result is `nbytes`, which may be 0. `template` names element type and operator, as for the
        kernels of a reduction. pyncclx.AVG divides by `finish_as`; the default is the number of all ranks. All ranks of
        the node must add this step, to load its kernel together. With `alone`, this rank loads it by itself.
        """
        spanning, kernel = self.spanning, ("collectives/fold.cu", "fold", *template)
        if alone:
            function = kernels.load_template(spanning.team.device, *kernel)
        else:
            function = kernels.get(spanning.local, spanning.team, *kernel)
        args = FoldArgs(
            vectors=vectors.address,
            own=vectors.own[1],
            result=result,
            nbytes=nbytes,
            stride=vectors.stride,
            vector_count=vectors.count,
            own_index=vectors.own[0],
            size=finish_as or self.places.size,
        )
        return self.launch(function, self._blocks_for(nbytes), spanning.team.device.threads, args.pack(), after=after)

    def transform(self, template: tuple[str, ...], rows: TransformedRows) -> int:
        """Add a row transform of an array in this rank's memory. Collective in the node.

        `template` names the elements that are read and written, and the transform.
        """
        spanning, kernel = self.spanning, ("collectives/transform_rows.cu", "transform_rows", *template)
        function = kernels.get(spanning.local, spanning.team, *kernel)
        return self.launch(function, self._blocks_for(rows.nbytes), spanning.team.device.threads, rows.pack())

    def _blocks_for(self, nbytes: int) -> int:
        """Return the number of blocks of a kernel that waits for no peer.

        `nbytes` is the length of the kernel's result.
        """
        device = self.spanning.team.device
        return max(1, min(-(-nbytes // (device.threads * _THREAD_NBYTES)), device.max_channels))

    def launch(
        self,
        function: Function,
        grid: int,
        threads: int,
        parameters: bytes,
        *,
        early: bool = False,
        after: tuple[int, ...] = (),
    ) -> int:
        """Add a kernel with packed parameters; for `early` see `Kernels.launch`."""

        def run(team: Team, stream: Any, call: int) -> None:
            team.device.launch(function, grid, threads, parameters, stream, early)

        return self._add(Step(run, after=after))

    def copy(self, to: int, source: int, nbytes: int, after: tuple[int, ...] = ()) -> int:
        """Add a copy in this rank's memory."""

        def run(team: Team, stream: Any, call: int) -> None:
            team.device.copy(to, source, nbytes, stream)

        return self._add(Step(run, after=after))

    def exchange(
        self,
        name: str,
        sends: Iterable[Transfer],
        receives: Iterable[Transfer],
        *,
        on_rail: bool,
        aside: bool = False,
        after: tuple[int, ...] = (),
    ) -> int:
        """Add an exchange with ranks of other nodes. All ranks add it.

        With `on_rail`, each rank exchanges with ranks of its own local index only.
        """
        engine = self.spanning.rails.engine_for(on_rail)
        self._follows_streams &= engine.follows_streams
        leaving, coming, failure_words = without_empty(sends), without_empty(receives), self.spanning.failure_words
        leaving += failure_words.sends(leaving)
        coming += failure_words.receives(coming)
        name, peers = f"{self.operation}, {name}", tuple(each.peer for each in coming)

        def run(team: Team, stream: Any, call: int) -> None:
            engine.exchange(name, leaving, coming, stream, call)

        return self._add(Step(run, name, engine, peers, aside=aside, after=after))

    @property
    def has_collectives(self) -> bool:
        """Whether NCCL can do the collectives: each rank is alone on its node."""
        return self.spanning.rails.has_collectives

    def collective(self, method: str, *arguments: Any, peers: Iterable[int] | None = None) -> int:
        """Add an NCCL collective, if `has_collectives`. All ranks must add it.

        `method` is the name of a method of `NcclEngine`, called with the arguments and the stream. `peers` are the
        ranks that this rank waits for, by default all others.
        """
        engine = self.spanning.rails.rail()
        enqueue = getattr(engine, method)
        name = f"{self.operation}, NCCL's {method.replace('_', '-')}"

        def run(team: Team, stream: Any, call: int) -> None:
            enqueue(*arguments, stream)

        return self._add(Step(run, name, engine, tuple(self.places.away if peers is None else peers)))

    def share(
        self,
        name: str,
        source: int,
        nbytes: int,
        *,
        to: Iterable[int],
        sources: Iterable[int],
        blocks: Sequence[Block] = (),
    ) -> None:
        """Add steps that send this rank's bytes to some ranks, and receive other ranks'.

        All ranks call this, with a number of bytes for which `Spanning.is_short` is true. After the steps, the bytes of
        rank r, also of this rank, are at ``Spanning.host_exchange.address_of(r)``. In addition, the `blocks`, which are
        parts of the ranks' bytes, are packed at `Spanning.host_exchange.gathered`. The blocks together are not longer
        than the bytes of all ranks.
        """
        exchange, me = self.spanning.host_exchange, self.places.rank
        if nbytes:
            self.copy(exchange.address_of(me), source, nbytes)
        receivers, senders = ([rank for rank in ranks if rank != me] for ranks in (to, sources))
        share = Share(f"{self.operation}, {name}", self.label, nbytes, receivers, senders, blocks)

        def run(team: Team, stream: Any, call: int) -> None:
            exchange.run(share, stream, call)

        self._follows_streams = False
        self._add(Step(run, through_host=True))

    def on_host(
        self,
        function: Callable[[Composition, Any], None],
        *,
        on_rail: bool | None = None,
        peers: Iterable[int] = (),
        after: tuple[int, ...] = (),
    ) -> int:
        """Add a host function that composes further steps, which then run immediately.

        The function is called with another composition, to which it adds the steps, and with their stream. All earlier
        steps have ended, so the function can read their results. `on_rail` is True if it adds exchanges over the rail,
        False if among all ranks, None if it adds none. `peers` are the ranks from which the exchanges receive.
        """
        engine = None if on_rail is None else self.spanning.rails.engine_for(on_rail)

        def compose_and_run(stream: Any, call: int) -> None:
            inner = Composition(self.spanning, self.operation)
            function(inner, stream)
            for step in inner._steps:
                step.run(self.spanning.team, stream, call)

        def run(team: Team, stream: Any, call: int) -> None:
            # On the host device, this runs in the thread of the stream, so the steps run on stream None: immediately.
            inner = None if team.device.name == "host" else stream
            team.device.call_between(stream, partial(compose_and_run, inner, call))

        self._follows_streams = False
        return self._add(Step(run, engine=engine, peers=tuple(peers), on_host=True, after=after))

    def keep(self, memory: object) -> None:
        """Keep memory alive for as long as this composition."""
        self._kept.append(memory)

    def program(self, buffers: Collection[Buffer]) -> Program:
        """Return the program of the steps; `buffers` are the buffers of the call."""
        return Program(
            *(self.operation, self._steps, producers_of(buffers)),
            of_current=is_of_current(buffers),
            is_alone=self.places.local_size == 1,
            follows_streams=self._follows_streams,
            label=self.label,
        )

    def _add(self, step: Step) -> int:
        self._steps.append(step)
        return len(self._steps) - 1


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
