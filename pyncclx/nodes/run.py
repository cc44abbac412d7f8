"""What a call over nodes does: enqueue the program of an equal call that came before, or compose one."""

from __future__ import annotations

from collections.abc import Hashable

from ..team.base import IntraBase
from ..team.compare import compare
from ..team.state import State
from ..team.streams import stream_for
from .call import SpanningCall
from .composition import Composition
from .program import Program
from .spanning import Spanning


def run(state: State, spanning: Spanning, program: Program) -> None:
    """Enqueue a program on the current stream; the host waits if the communicator blocks."""
    spanning.check()
    spanning.wait_for_thread()
    spanning.enqueue(program, stream_for(spanning.team.device, program.producers))
    if state.blocking == "host":
        spanning.drain()


def run_call(comm: IntraBase, state: State, spanning: Spanning, call: SpanningCall, key: Hashable) -> None:
    """Do a call on the current stream, and remember its program under the key, unless that is None."""
    program = prepare(comm, state, spanning, call)
    if program is None:
        return
    if key is not None and (call.is_again or (call.before is None and call.after is None)):
        spanning.remember(key, program)
    run(state, spanning, program)


def prepare(comm: IntraBase, state: State, spanning: Spanning, call: SpanningCall) -> Program | None:
    """Compose the program of a call; None if there is nothing to do. Collective at the first use of a kernel."""
    if state.checking:
        compare(comm, call.operation, call.signature)
    if call.empty:
        return None
    spanning.check()
    composition = Composition(spanning, call.operation, call.signature)
    call.compose(composition)
    program = composition.program(call.buffers)
    program.before, program.after = call.before, call.after
    return program
