"""Make, cache and launch calls of communicators over several nodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, cast

from mpi4py import MPI

import mpi_bootstrap

from .. import events
from ..arrays.places import on_host
from ..arrays.specs import arrays_of
from ..collectives.neighbors import edges_of
from ..collectives.over_nodes import NEIGHBORS, OVER_NODES
from ..launch.call import facts_of
from ..launch.keys import key_of_call
from ..nodes.dropped import span_next
from ..nodes.program import Program, SpanningCall
from ..nodes.requests import SpanningWork, launched_again
from ..nodes.run import run, run_call
from ..nodes.spanning import NAME, Spanning, spanning_of
from ..recording.calls import Begun
from ..team.background import NotYet, alone
from ..team.base import IntraBase
from ..team.compare import compare
from ..team.kept import Scratch
from ..team.state import State, state_of
from ..team.windows import Registration


class OverNodes(IntraBase):
    """Base class of communicators: methods that run calls over several nodes in steps."""

    @property
    def spanning(self) -> Spanning | None:
        """State of a communicator whose ranks are on several nodes; otherwise None.

        None also for intercommunicators. (Ranks of one node have a `Team` as their GPU state instead.) The first use
        is collective, because it creates the state on all ranks.
        """
        state = self._settled()
        if state.team is not None or self.is_inter:
            return None
        made = spanning_of(self)
        if made is not None:
            return made
        if state.comm_failure is not None:
            raise state.comm_failure.exception()
        topology = self.node_topology
        if topology.node_count == 1:
            return None
        return self._unless_refused(lambda: span_next(self, topology))

    def spanning_for(self, make: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Spanning | None:
        """Return the state with which a call runs over several nodes. Collective.

        Return None if all ranks are on one node, or if the arrays of the call are on the host. `make`, `args` and
        `options` are the function that makes the call inside a node, and its arguments.
        """
        if state_of(self).team is not None or self.is_inter:
            return None
        if make in NEIGHBORS and edges_of(self) is None:  # a rank without neighbours passes no array
            return None
        if on_host(*args, *options.values()) and not options.get("device"):
            return None
        if not state_of(self).checking:
            return self.spanning
        self._compare_first(make, args, options)
        spanning = self.spanning
        # On one node, make the memory for packed copies now, on all ranks. (Over nodes it exists already.) Later only
        # the ranks that pack would make it, while the others compare their calls.
        if spanning is None:
            _ = self.team
        return spanning

    def _compare_first(self, make: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Compare the ranks' first calls before the first rendezvous.

        `make` may communicate only if it does so on all ranks, as with some values of `algorithm`.
        """
        if state_of(self).topology is None:
            call = None
            with suppress(NotYet):
                call = make(alone(self), *args, **options)
            call = call or make(self, *args, **options)
            if call is not None:
                compare(cast(MPI.Intracomm, self), call.operation, call.signature)

    def by_nodes(
        self,
        make: Callable[..., Any],
        args: tuple[Any, ...],
        options: dict[str, Any],
        begun: Begun | None,
        key: Hashable | None,
    ) -> bool | None:
        """Run a collective call over several nodes, and return True if it has run.

        Return None if `spanning_for` returns None: the caller must run the call in another way. Return False if MPI
        must run the call, because its arrays are on the host. For `make`, `args` and `options` see `spanning_for`.
        `begun` is the call's entry in the flight recorder. The call is cached under `key`, if there is one.
        """
        spanning = self.spanning_for(make, args, options)
        if spanning is None:
            return None
        state = state_of(self)
        try:
            if not state.checking:
                # This may raise. The call has no number yet, so the program may repeat it.
                spanning.look()
            call = OVER_NODES[make](self, *args, **options)
            if begun is not None:
                _describe(begun, make.__name__.capitalize(), call)
            if call is None:
                return False
            if events.listeners:
                events.start(call.operation, events.now(), self)
            program = run_call(self, state, spanning, call, key)
        except BaseException:
            if begun is not None:
                begun.refused()
            raise
        if begun is not None:
            program.facts = begun.by_steps()
        _keep(state, spanning, args)
        return True

    def by_nodes_again(self, state: State, key: Hashable, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Enqueue the cached call over nodes with this key; return whether there is one.

        `state` is the state of this communicator.
        """
        spanning: Any = state.attachments.get(NAME)
        program: Program | None = None if spanning is None else spanning.cached(key)
        if program is None:
            return False
        # This may raise. The call has no number yet, so the program may repeat it.
        spanning.look()
        if events.listeners:
            events.start(program.operation, events.now(), self)
        calls, facts = state.calls(self), program.facts
        if calls is None or facts is None:
            run(state, spanning, program, (*args, *options.values()))
        else:
            sequence = calls.again(facts)
            try:
                run(state, spanning, program, (*args, *options.values()))
            finally:
                calls.end(sequence)
        if state.stream is not None:
            _keep(state, spanning, args)
        return True

    def key_over_nodes(self, kind: Hashable, args: tuple[Any, ...], options: dict[str, Any]) -> Hashable | None:
        """Return the key of a call over nodes; None if it cannot be cached.

        `kind` is the first part of the key. Calls with equal keys run the same program.
        """
        state = state_of(self)
        if state.checking:
            return None
        key = key_of_call(kind, args, options)
        return None if key is None else (key, state.deterministic)

    def launched_over_nodes(
        self, key: Hashable | None, args: tuple[Any, ...], options: dict[str, Any]
    ) -> SpanningWork | None:
        """Begin a nonblocking call with its cached program; None if none is cached."""
        spanning = spanning_of(self)
        program = None if spanning is None or key is None else spanning.cached(key)
        if spanning is None or program is None:
            return None
        return launched_again(self, spanning, program, arrays_of(*args, *options.values()))

    @mpi_bootstrap.interrupts_deferred()
    def Alloc(self, shape: int | tuple[int, ...], dtype: Any = "f4") -> Any:
        """Allocate an array that all ranks of this node have mapped. Collective.

        See `Base.Alloc` for parameters and exceptions.
        """
        spanning = self.spanning
        if spanning is None:
            return super().Alloc(shape, dtype)
        self.state.meet(cast(MPI.Intracomm, self))  # otherwise only the ranks of its node would wait for a late rank
        local, team = spanning.local, spanning.team
        number = team.windows.next_number

        def undo(_: Any) -> None:
            team.deregister(local, team.windows[number])

        return mpi_bootstrap.agree(cast(MPI.Intracomm, self), lambda: local.Alloc(shape, dtype), undo=undo)

    @mpi_bootstrap.interrupts_deferred()
    def Register(self, array: Any) -> Registration:
        """Map an array's memory into all ranks of this node. Collective.

        See `Base.Register` for parameters and exceptions.
        """
        spanning = self.spanning
        if spanning is None:
            return super().Register(array)
        comm = cast(MPI.Intracomm, self)
        self.state.meet(comm)
        own: Registration = mpi_bootstrap.agree(comm, lambda: spanning.local.Register(array), undo=Registration.Free)
        return own

    @property
    def scratch(self) -> Scratch:
        """Memory for copies of arguments; over nodes, it belongs to the node's Team."""
        if self.channel is not None:
            return super().scratch
        spanning = self.spanning
        return self.team.scratch if spanning is None else spanning.team.scratch


def _keep(state: State, spanning: Spanning, args: tuple[Any, ...]) -> None:
    """Keep a call's arrays while the communicator's `stream` may use them; see `Kept`."""
    if state.stream is not None and state.blocking != "host":
        order = spanning.team.order
        order.kept.keep(order.mark(state.stream), arrays_of(*args))


def _describe(begun: Begun, operation: str, call: SpanningCall | None) -> None:
    """Describe a call in its flight recorder entry; `call` is None for host arrays."""
    if call is None:
        begun.of_host_arrays(operation)
    else:
        begun.describe(operation=call.operation, signature=call.signature, **facts_of(call.buffers))
