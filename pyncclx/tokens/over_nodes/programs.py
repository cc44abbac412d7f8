"""Dispatch, combine and collect over nodes as programs of steps.

Rows that are sent between nodes are contiguous. An engine needs their length on the host. So the host either reads the
number of rows from the device, or sends the largest possible number of rows (*padded*). Captured calls always pad,
because the host cannot read from the device in a capture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from ...collectives.over_nodes import allgather
from ...collectives.over_nodes.inside import blocks
from ...launch import kernels
from ...launch.sources import file_of
from ...memory.cstruct import CStruct
from ...memory.parameters import TransformedRows
from ...nodes.composition import Composition
from ...nodes.engine import Transfer
from ...nodes.program import Program
from ...operators.row_transform import template_for
from ..launch import Move
from ..parameters import RECEIVE, SEND, CombineArgs, DispatchArgs
from ..settings import CXX
from .memory import VALUE_NBYTES, SpanningHandle, SpanningMemory

# If at most this many bytes go to another node, they are padded. Not measured.
PADDED_NBYTES = 64 << 10
_THREADS = 256  # threads per block of kernels that do not wait
_TOKEN_THREADS = 32  # threads per token that is moved

_Add = Callable[[Composition], None]


def programs_of(memory: SpanningMemory, move: Move, phases: int, *, capturing: bool) -> Iterator[Program]:
    """Yield the programs of a dispatch, combine or collect, in the order to enqueue.

    `phases` selects the halves of the move: the sends, the receives, or both.

    With `capturing`, the streams of all ranks are being captured.
    """
    for parts in _parts_of(memory, move, phases, capturing):
        composition = Composition(memory.spanning, move.operation)
        for add in parts:
            add(composition)
        yield composition.program(move.buffers)


def is_padded(memory: SpanningMemory, row_nbytes: int) -> bool:
    """Return whether calls outside captures are padded too."""
    return memory.settings.max_tokens * row_nbytes <= PADDED_NBYTES


def _parts_of(memory: SpanningMemory, move: Move, phases: int, capturing: bool) -> list[list[_Add]]:
    """Return, for each program of a move, the functions that add its steps."""
    arguments = move.arguments
    if isinstance(arguments, DispatchArgs):
        return _Dispatch(memory, move, arguments, memory.row_nbytes, capturing).programs(phases)
    if isinstance(arguments, CombineArgs):
        return _Combine(memory, move, arguments, memory.row_nbytes, capturing).programs(phases)
    return _Collect(memory, move, arguments, VALUE_NBYTES * memory.settings.k, capturing).programs()


@dataclass(frozen=True)
class _Moving:
    """A move over nodes. Its methods add steps to a composition."""

    memory: SpanningMemory
    move: Move
    arguments: Any
    row_nbytes: int  # bytes of a row that is exchanged
    capturing: bool

    @property
    def handle(self) -> SpanningHandle:
        """The handle of the move's routing."""
        return cast(SpanningHandle, self.move.handle)

    def of_call(self) -> dict[str, int]:
        """Return the kernels' arguments that differ between calls."""
        handle = self.handle
        outputs = {name: value for name, value in handle.outputs._asdict().items() if name != "token_counts"}
        sizes = {"token_count": self.arguments.token_count, "row_nbytes": self.row_nbytes}
        return outputs | sizes | {"where": handle.where, "crossing": handle.crossing}

    def run(self, composition: Composition, kernel: str, threads: int, of_call: dict[str, int], *template: str) -> None:
        """Add a step with a kernel on this rank only, for `threads` threads if possible."""
        spanning, device = self.memory.spanning, self.memory.team.device
        function = kernels.get(spanning.local, spanning.team, file_of(kernel), kernel, *template)
        grid = max(1, min(-(-threads // _THREADS), device.max_channels))
        parameters = self.memory.pack(self.move.operation, **of_call)
        composition.launch(function, grid, min(_THREADS, device.threads), parameters)

    def run_inside(self, composition: Composition, arguments: CStruct, *template: str) -> None:
        """Add a step with the kernel that runs the move among the node's ranks."""
        spanning, inner, name = self.memory.spanning, self.memory.inner, self.move.operation.lower()
        function = kernels.get(spanning.local, spanning.team, f"tokens/{name}.cu", name, *template)
        parameters = inner.packed[self.move.operation] + arguments.pack()
        composition.launch(function, inner.blocks, inner.threads, parameters, early=inner.early)

    def to_inbox(self, composition: Composition, *template: str) -> None:
        """Add the move's kernel inside the node, for all slots; it writes the inbox."""
        out, tokens = self.memory.constants.inbox, self.memory.inner.settings.max_tokens
        inside = replace(self.arguments, out=out, token_count=tokens, phases=SEND | RECEIVE)
        self.run_inside(composition, inside, *template)

    def exchange(self, composition: Composition, *, backwards: bool) -> None:
        """Add the step that moves rows between this node and others.

        A rank sends its rows to its proxy on each other node, and receives the rows of the ranks whose proxy it is.
        With `backwards` the rows move the other way.
        """
        memory = self.memory
        places, proxies = memory.spanning.places, memory.proxies
        on_rail, name = places.is_even, "sums to their ranks" if backwards else "tokens to their nodes"
        length = places.count + proxies.slots
        if self.capturing or is_padded(memory, self.row_nbytes):
            sends, receives = self._transfers([memory.settings.max_tokens] * length, backwards=backwards)
            composition.exchange(name, sends, receives, on_rail=on_rail)
            return

        def look(inner: Composition, stream: Any) -> None:
            found = np.frombuffer(memory.team.device.peek(self.handle.crossing, 8 * length), np.int64)
            sends, receives = self._transfers(found.tolist(), backwards=backwards)
            inner.exchange(name, sends, receives, on_rail=on_rail)

        peers = proxies.elsewhere.values() if backwards else proxies.sources[1:]
        composition.on_host(look, on_rail=on_rail, peers=peers)

    def _transfers(self, counts: list[int], *, backwards: bool) -> tuple[list[Transfer], list[Transfer]]:
        """Return this rank's sends and receives; `counts` are `CrossingArgs.crossing`."""
        memory, row_nbytes = self.memory, self.row_nbytes
        places, proxies, slot_nbytes = memory.spanning.places, memory.proxies, memory.settings.max_tokens * row_nbytes
        outbox, inbox = memory.constants.outbox, memory.constants.inbox
        own = [
            Transfer(proxy, outbox + (node - (node > places.node)) * slot_nbytes, counts[node] * row_nbytes)
            for node, proxy in proxies.elsewhere.items()
        ]
        of_others = [
            Transfer(source, inbox + slot * slot_nbytes, counts[places.count + slot] * row_nbytes)
            for slot, source in enumerate(proxies.sources)
            if slot > 0
        ]
        return (of_others, own) if backwards else (own, of_others)


class _Dispatch(_Moving):
    """A dispatch.

    All ranks receive all choices, and compute the rows' places. Then tokens are sent to their nodes, which dispatch
    them.
    """

    def programs(self, phases: int) -> list[list[_Add]]:
        """Return, for each program of a move, the functions that add its steps."""
        spread = partial(self._spread, phases=phases)
        if not phases & SEND:
            return [[spread]]
        if self.arguments.reuse:
            return [[self._cross, spread]]
        return [[self._announce], [self._share_words], [self._number, self._cross, spread]]

    def of_call(self) -> dict[str, int]:
        """Return the kernels' arguments that differ between calls."""
        given = self.arguments
        chosen = {"chosen": given.experts, "weights": given.weights, "expert_nbytes": given.expert_nbytes}
        return super().of_call() | chosen | {"tokens": given.tokens}

    def _announce(self, composition: Composition) -> None:
        choices = self.arguments.token_count * self.memory.settings.k
        self.run(composition, "announce_choices", choices, self.of_call())

    def _share_words(self, composition: Composition) -> None:
        """Add a step that sends numbers of tokens and choices from all ranks to all ranks.

        See `SpanningMemory.words_nbytes`.
        """
        places, words, nbytes = self.memory.spanning.places, self.memory.constants.words, self.memory.words_nbytes
        own = words + places.rank * nbytes
        allgather.compose(composition, own=own, recv=words, spans=blocks(nbytes, places.size))

    def _number(self, composition: Composition) -> None:
        for kernel in ("number_choices", "place_choices"):
            self.run(composition, kernel, self.memory.spanning.places.size * _THREADS, self.of_call())

    def _cross(self, composition: Composition) -> None:
        of_call = self.of_call()
        if self.move.applied.name:
            of_call["tokens"] = self._transformed(composition)
        threads = self.memory.spanning.places.count * self.arguments.token_count * _TOKEN_THREADS
        self.run(composition, "pack_tokens", threads, of_call)
        self.exchange(composition, backwards=False)

    def _transformed(self, composition: Composition) -> int:
        """Add a transform of this rank's tokens; return the address of its results."""
        settings, applied = self.memory.settings, self.move.applied
        nbytes, element = self.arguments.token_count * self.row_nbytes, CXX[settings.dtype]
        (made,) = composition.memory(nbytes)
        columns, arrays = settings.hidden, applied.addresses
        rows = TransformedRows(send=self.arguments.tokens, recv=made, nbytes=nbytes, columns=columns, arrays=arrays)
        composition.transform(template_for(applied, (element, element)), rows)
        return made

    def _spread(self, composition: Composition, *, phases: int) -> None:
        settings, tokens = self.memory.settings, self.memory.inner.settings.max_tokens
        given = {"tokens": self.memory.constants.inbox, "experts": 0, "weights": 0, "token_count": tokens}
        inside = replace(self.arguments, **given, reuse=True, phases=phases)
        self.run_inside(composition, inside, CXX[settings.dtype], CXX[settings.rows_dtype])


class _Combine(_Moving):
    """A combine.

    Each node adds up its results of a token and sends the sum back. The token's rank adds the sums of all nodes.
    """

    def programs(self, phases: int) -> list[list[_Add]]:
        """Return, for the only program, the functions that add its steps."""
        sends: list[_Add] = [self._add_inside, partial(self.exchange, backwards=True)]
        return [[*(sends if phases & SEND else ()), *([self._add] if phases & RECEIVE else ())]]

    def _add_inside(self, composition: Composition) -> None:
        element = self.move.applied.template[0]
        self.to_inbox(composition, *template_for(self.move.applied, (element, element)))

    def _add(self, composition: Composition) -> None:
        threads, of_call = self.arguments.token_count * _TOKEN_THREADS, self.of_call() | {"out": self.arguments.out}
        self.run(composition, "add_nodes", threads, of_call, *self.move.applied.template[:2])


class _Collect(_Moving):
    """A collect: nodes collect their numbers and send them back."""

    def programs(self) -> list[list[_Add]]:
        """Return, for the only program, the functions that add its steps."""
        return [[self.to_inbox, partial(self.exchange, backwards=True), self._join]]

    def _join(self, composition: Composition) -> None:
        choices, of_call = self.arguments.token_count * self.memory.settings.k, self.of_call()
        self.run(composition, "join_values", choices, of_call | {"out": self.arguments.out})
