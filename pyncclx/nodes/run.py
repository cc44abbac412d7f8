"""Calls over nodes: enqueue the cached program, or compose one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from mpi_bootstrap.own_errors import own_error

from ..arrays.specs import arrays_of
from ..team.base import IntraBase
from ..team.compare import Comparison, compare
from ..team.state import State
from ..team.streams import current_stream, stream_for
from .composition import Composition
from .host_exchange import label_of
from .mpi_engine import keep_left
from .program import Program, SpanningCall
from .spanning import Spanning


def run(state: State, spanning: Spanning, program: Program, arguments: Sequence[Any]) -> None:
    """Enqueue a cached program on the call's stream; wait if calls block the host.

    The caller must have checked for errors of earlier calls. `arguments` are the arguments of the call.
    """
    try:
        device = spanning.team.device
        stream = stream_for(device, program.producers, state, program.of_current)
        capturing = device.is_capturing(stream)
        if capturing:
            spanning.enter_graph(program)
        else:
            spanning.comparison.add(program.label, later=True)
        spanning.thread.wait()
        spanning.enqueue(program, stream, capturing=capturing)
    except BaseException as error:
        spanning.left_by(program.operation, error)
        _keep_left(state, spanning, arrays_of(*arguments))
        raise
    if state.blocking == "host":
        spanning.wait()


def run_call(comm: IntraBase, state: State, spanning: Spanning, call: SpanningCall, key: Hashable) -> Program:
    """Run a call on its stream, and return its program.

    The program is cached under `key`, unless `key` is None.
    """
    try:
        with spanning.entering(call.operation):
            program = prepare(comm, state, spanning, call, key)
            device = spanning.team.device
            stream = stream_for(device, program.producers, state, program.of_current)
            spanning.thread.wait()
            spanning.enqueue(program, stream, capturing=device.is_capturing(stream))
    except BaseException:
        _keep_left(state, spanning, call.buffers)
        raise
    if state.blocking == "host":
        spanning.wait()
    return program


def _keep_left(state: State, spanning: Spanning, arrays: Sequence[Any]) -> None:
    """Keep the arrays of a call that has raised for as long as its steps may use them."""
    keep_left(arrays)
    if state.stream is not None:
        spanning.team.order.keep_left(state.stream, arrays)


def prepare(comm: IntraBase, state: State, spanning: Spanning, call: SpanningCall, key: Hashable = None) -> Program:
    """Compose the program of a call; see `compose`.

    Under PYNCCLX_CHECK=1, compare the call with the calls of the other ranks first.
    """
    if state.checking:
        compare(comm, call.operation, call.signature)
    return compose(state, spanning, call, key)


def begin_comparison(comm: IntraBase, spanning: Spanning, call: SpanningCall) -> Comparison | None:
    """Begin to compare a nonblocking call with the calls of the other ranks.

    Return the comparison, which the caller has to finish. The first call of a kind needs a rendezvous to compose its
    program, so it is compared here completely, and the result is None.
    """
    comparison = Comparison(comm, call.operation, call.signature)
    if spanning.composed.get(label_of(call.operation, call.signature)) == spanning.team.generation:
        return comparison
    comparison.finish()
    return None


def compose(state: State, spanning: Spanning, call: SpanningCall, key: Hashable = None) -> Program:
    """Compose the program of a call. Collective at the first use of a kernel.

    A call with nothing to do has no steps. The program is cached under `key`, unless `key` is None.
    """
    spanning.check()
    device = spanning.team.device
    capturing = device.is_capturing(current_stream(device, call.buffers, state))
    composition = Composition(spanning, call.operation, call.signature)
    with spanning.entering(call.operation):
        if not capturing:
            spanning.comparison.add(composition.label)
        try:
            if not call.empty:
                with spanning.comparison.explaining():
                    call.compose(composition)
        except BaseException as error:
            own = own_error(error)
            if own is not None and not capturing:
                spanning.refuse(call.operation, own)
            raise
        program = composition.program(call.buffers)
        program.before, program.after = call.before, call.after
        if state.checking:
            spanning.composed[composition.label] = spanning.team.generation
        if key is not None and call.may_be_known:
            spanning.programs[key] = program
        if capturing:
            spanning.enter_graph(program)
    return program
