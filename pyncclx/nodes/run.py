"""What a call over nodes does: enqueue the program of an equal call that came before, or compose one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from ..team.base import IntraBase
from ..team.compare import compare
from ..team.state import State
from ..team.streams import current_stream, stream_for
from .call import SpanningCall
from .composition import Composition
from .program import Program
from .spanning import Spanning


def run(state: State, spanning: Spanning, program: Program) -> None:
    """Enqueue a known program on the stream of the call; the host waits if the communicator blocks.

    The caller has looked for what has gone wrong in earlier calls.
    """
    with spanning.entering(program.operation):
        device = spanning.team.device
        stream = stream_for(device, program.producers, state, program.of_current)
        capturing = device.is_capturing(stream)
        if capturing:
            spanning.enter_graph(program)
        else:
            spanning.comparison.add(program.label, later=True)
        _enqueue(spanning, program, stream, capturing=capturing)
    if state.blocking == "host":
        spanning.wait()


def run_call(comm: IntraBase, state: State, spanning: Spanning, call: SpanningCall, key: Hashable) -> Program:
    """Do a call on its stream, and remember its program under the key, unless that is None; return it."""
    with spanning.entering(call.operation):
        program = prepare(comm, state, spanning, call, key)
        device = spanning.team.device
        stream = stream_for(device, program.producers, state, program.of_current)
        _enqueue(spanning, program, stream, capturing=device.is_capturing(stream))
    if state.blocking == "host":
        spanning.wait()
    return program


def _enqueue(spanning: Spanning, program: Program, stream: Any, *, capturing: bool) -> None:
    spanning.thread.wait()
    spanning.enqueue(program, stream, capturing=capturing)


def prepare(comm: IntraBase, state: State, spanning: Spanning, call: SpanningCall, key: Hashable = None) -> Program:
    """Compose the program of a call, without steps if it has nothing to do. Collective at the first use of a kernel.

    The call is compared with those of other ranks. The program is remembered under the key, if there is one.
    """
    if state.checking:
        compare(comm, call.operation, call.signature)
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
        except Exception as error:
            if not capturing:
                spanning.refuse(call.operation, error)
            raise
        program = composition.program(call.buffers)
        program.before, program.after = call.before, call.after
        if key is not None and call.may_be_known:
            spanning.programs[key] = program
        if capturing:
            spanning.enter_graph(program)
    return program
