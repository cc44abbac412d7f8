"""Dispatch, combine and collect over nodes as programs of steps.

Rows between nodes are contiguous. An engine takes lengths from the host, so either the host reads the number of rows,
or the most possible rows are sent (*padded*). Padding needs no read, so captured calls pad, whatever the size of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...collectives.over_nodes import allgather
from ...collectives.over_nodes.pieces import blocks
from ...launch import kernels
from ...launch.sources import file_of
from ...memory.parameters import TransformedRows
from ...nodes.composition import Composition
from ...nodes.engine import Transfer
from ...nodes.program import Program
from ...operators.row_transform import Applied, template_for
from ..launch import Move
from ..parameters import RECEIVE, SEND, CollectArgs, CombineArgs, DispatchArgs
from ..settings import CXX
from .memory import VALUE_NBYTES, SpanningHandle, SpanningMemory

# Up to so many bytes are sent to another node padded. Not measured.
PADDED_NBYTES = 64 << 10
_THREADS = 256  # threads per block of kernels that wait for nothing
_TOKEN_THREADS = 32  # threads per token that is moved

_Compose = Callable[[Composition], None]


def programs_of(memory: SpanningMemory, move: Move, phases: int, *, capturing: bool) -> Iterator[Program]:
    """Yield the programs of a dispatch, combine or collect, in the order to enqueue.

    `phases` selects both halves of the move, or only its sends or its receives.

    With `capturing`, the streams of all ranks are being captured.
    """
    assert isinstance(move.handle, SpanningHandle)
    arguments = move.arguments
    if isinstance(arguments, DispatchArgs):
        steps = _dispatch(memory, move, arguments, phases, capturing)
    elif isinstance(arguments, CombineArgs):
        steps = _combine(memory, move, arguments, phases, capturing)
    else:
        steps = _collect(memory, move, arguments, capturing)
    for compose in steps:
        composition = Composition(memory.spanning, move.operation)
        compose(composition)
        yield composition.program(move.buffers)


def in_turn(*composes: _Compose) -> _Compose:
    """Join several parts into one program."""

    def compose(composition: Composition) -> None:
        for each in composes:
            each(composition)

    return compose


def is_padded(memory: SpanningMemory, row_nbytes: int) -> bool:
    """Return whether calls that are not captured also send the most possible rows."""
    return memory.settings.max_tokens * row_nbytes <= PADDED_NBYTES


def _dispatch(
    memory: SpanningMemory, move: Move, arguments: DispatchArgs, phases: int, capturing: bool
) -> list[_Compose]:
    """Return the parts of a dispatch.

    All ranks get all choices, and compute the rows' places. Then tokens go to their nodes, which dispatch them.
    """
    settings, handle, inner = memory.settings, move.handle, memory.inner
    assert isinstance(handle, SpanningHandle)
    of_call = _of_handle(handle) | {
        "chosen": arguments.experts,
        "weights": arguments.weights,
        "tokens": arguments.tokens,
        "token_count": arguments.token_count,
        "expert_nbytes": arguments.expert_nbytes,
        "row_nbytes": memory.row_nbytes,
    }
    choices, ranks = arguments.token_count * settings.k, memory.spanning.places.size
    run = partial(_run, memory, move.operation, of_call)

    def number(composition: Composition) -> None:
        run(composition, kernel="number_choices", threads=ranks * _THREADS)
        run(composition, kernel="place_choices", threads=ranks * _THREADS)

    def cross(composition: Composition) -> None:
        nodes, packed = memory.spanning.places.count, of_call
        if move.applied.name:
            packed = of_call | {"tokens": _transformed(memory, composition, move.applied, arguments)}
        threads = nodes * arguments.token_count * _TOKEN_THREADS
        _run(memory, move.operation, packed, composition, kernel="pack_tokens", threads=threads)
        _exchange(memory, composition, handle, memory.row_nbytes, capturing)

    def spread(composition: Composition) -> None:
        inside = replace(
            arguments,
            tokens=memory.constants.inbox,
            experts=0,
            weights=0,
            token_count=inner.settings.max_tokens,
            reuse=True,
            phases=phases,
        )
        template = CXX[settings.dtype], CXX[settings.rows_dtype]
        _run_inside(memory, composition, move.operation, inside.pack(), template)

    if not phases & SEND:
        return [spread]
    if arguments.reuse:
        return [in_turn(cross, spread)]
    announce = partial(run, kernel="announce_choices", threads=choices)
    return [announce, partial(_share_words, memory), in_turn(number, cross, spread)]


def _transformed(memory: SpanningMemory, composition: Composition, applied: Applied, arguments: DispatchArgs) -> int:
    """Add a transform of this rank's tokens; return the address of its results."""
    nbytes, element = arguments.token_count * memory.row_nbytes, CXX[memory.settings.dtype]
    (made,) = composition.memory(nbytes)
    columns, arrays = memory.settings.hidden, applied.addresses
    rows = TransformedRows(send=arguments.tokens, recv=made, nbytes=nbytes, columns=columns, arrays=arrays)
    composition.transform(template_for(applied, (element, element)), rows)
    return made


def _combine(
    memory: SpanningMemory, move: Move, arguments: CombineArgs, phases: int, capturing: bool
) -> list[_Compose]:
    """Return the parts of a combine.

    Each node adds up its results of a token and sends the sum back. The token's rank adds the sums of all nodes.
    """
    handle = move.handle
    assert isinstance(handle, SpanningHandle)
    element, result = move.applied.template[:2]
    of_call = _of_handle(handle) | {
        "out": arguments.out,
        "token_count": arguments.token_count,
        "row_nbytes": memory.row_nbytes,
    }

    def add_inside(composition: Composition) -> None:
        _to_inbox(memory, composition, move.operation, arguments, template_for(move.applied, (element, element)))

    def cross(composition: Composition) -> None:
        _exchange(memory, composition, handle, memory.row_nbytes, capturing, backwards=True)

    def add(composition: Composition) -> None:
        threads, template = arguments.token_count * _TOKEN_THREADS, (element, result)
        _run(memory, move.operation, of_call, composition, kernel="add_nodes", threads=threads, template=template)

    return [in_turn(*([add_inside, cross] if phases & SEND else []), *([add] if phases & RECEIVE else []))]


def _collect(memory: SpanningMemory, move: Move, arguments: CollectArgs, capturing: bool) -> list[_Compose]:
    """Return the parts of a collect: nodes collect their numbers and send them back."""
    handle, row_nbytes = move.handle, VALUE_NBYTES * memory.settings.k
    assert isinstance(handle, SpanningHandle)
    of_call = _of_handle(handle) | {
        "out": arguments.out,
        "token_count": arguments.token_count,
        "row_nbytes": row_nbytes,
    }

    def collect_inside(composition: Composition) -> None:
        _to_inbox(memory, composition, move.operation, arguments, ())

    def cross(composition: Composition) -> None:
        _exchange(memory, composition, handle, row_nbytes, capturing, backwards=True)

    def join(composition: Composition) -> None:
        choices = arguments.token_count * memory.settings.k
        _run(memory, move.operation, of_call, composition, kernel="join_values", threads=choices)

    return [in_turn(collect_inside, cross, join)]


def _of_handle(handle: SpanningHandle) -> dict[str, int]:
    """Return the arguments of kernels that a handle has."""
    outputs = {name: value for name, value in handle.outputs._asdict().items() if name != "token_counts"}
    return outputs | {"where": handle.where, "crossing": handle.crossing}


def _run(
    memory: SpanningMemory,
    operation: str,
    of_call: dict[str, int],
    composition: Composition,
    *,
    kernel: str,
    threads: int,
    template: tuple[str, ...] = (),
) -> None:
    """Add a step with a kernel of this rank alone, on at least `threads` threads."""
    spanning, device = memory.spanning, memory.team.device
    function = kernels.get(spanning.local, spanning.team, file_of(kernel), kernel, *template)
    grid = max(1, min(-(-threads // _THREADS), device.max_channels))
    composition.launch(function, grid, min(_THREADS, device.threads), memory.pack(operation, **of_call))


def _run_inside(
    memory: SpanningMemory, composition: Composition, operation: str, arguments: bytes, template: tuple[str, ...]
) -> None:
    """Add a step with the kernel by which the node's ranks dispatch or combine."""
    spanning, inner, name = memory.spanning, memory.inner, operation.lower()
    function = kernels.get(spanning.local, spanning.team, f"tokens/{name}.cu", name, *template)
    parameters = inner.packed[operation] + arguments
    composition.launch(function, inner.blocks, inner.threads, parameters, early=inner.early)


def _to_inbox(
    memory: SpanningMemory,
    composition: Composition,
    operation: str,
    arguments: CombineArgs | CollectArgs,
    template: tuple[str, ...],
) -> None:
    """Add the operation's kernel inside the node, for all slots; it writes the inbox."""
    inside = replace(
        arguments, out=memory.constants.inbox, token_count=memory.inner.settings.max_tokens, phases=SEND | RECEIVE
    )
    _run_inside(memory, composition, operation, inside.pack(), template)


def _share_words(memory: SpanningMemory, composition: Composition) -> None:
    """Add a step in which all ranks get each other's numbers of tokens and choices.

    See `SpanningMemory.words_nbytes`.
    """
    words, nbytes, rank = memory.constants.words, memory.words_nbytes, memory.spanning.places.rank
    spans = blocks(nbytes, memory.spanning.places.size)
    allgather.compose(composition, own=words + rank * nbytes, recv=words, spans=spans)


def _exchange(
    memory: SpanningMemory,
    composition: Composition,
    handle: SpanningHandle,
    row_nbytes: int,
    capturing: bool,
    *,
    backwards: bool = False,
) -> None:
    """Add the step that moves rows between this node and others.

    A rank sends its rows to its proxy on each other node, and receives the rows of the ranks that it is a proxy of.
    With `backwards` the rows move the other way.
    """
    places, proxies, most = memory.spanning.places, memory.proxies, memory.settings.max_tokens
    on_rail, name = places.is_even, "sums to their ranks" if backwards else "tokens to their nodes"
    if capturing or is_padded(memory, row_nbytes):
        counts = [most] * (places.count + proxies.slots)
        sends, receives = _transfers(memory, row_nbytes, counts, backwards=backwards)
        composition.exchange(name, sends, receives, on_rail=on_rail)
        return

    def look(inner: Composition, stream: Any) -> None:
        found = memory.team.device.peek(handle.crossing, 8 * (places.count + proxies.slots))
        sends, receives = _transfers(memory, row_nbytes, np.frombuffer(found, np.int64).tolist(), backwards=backwards)
        inner.exchange(name, sends, receives, on_rail=on_rail)

    peers = proxies.elsewhere.values() if backwards else proxies.sources[1:]
    composition.on_host(look, on_rail=on_rail, peers=peers)


def _transfers(
    memory: SpanningMemory, row_nbytes: int, counts: list[int], *, backwards: bool
) -> tuple[list[Transfer], list[Transfer]]:
    """Return this rank's sends and receives; `counts` are `CrossingArgs.crossing`."""
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
