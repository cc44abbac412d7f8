"""Token shuffles of communicators over several nodes."""

from __future__ import annotations

from typing import Any, cast

from ...nodes.spanning import Spanning, spanning_of
from ...team.state import state_of
from ...team.streams import stream_for
from ..launch import OF_CURRENT, Move
from ..shuffle import TokenShuffle
from .memory import SpanningMemory
from .programs import PADDED_NBYTES, is_padded, programs_of


class SpanningShuffle(TokenShuffle):
    """A `TokenShuffle` over several nodes, with the same methods and results.

    Only the order of sums differs: see `combine`. A dispatch applies a transform before it sends tokens to other nodes.
    Either all ranks capture a call in a CUDA graph, or none does. A captured call sends `max_tokens` rows to each node,
    because the host cannot read the number of rows in a capture.
    """

    def _make_memory(self) -> SpanningMemory:
        return SpanningMemory(self, self._spanning)

    @property
    def _spanning(self) -> Spanning:
        spanning = spanning_of(self.comm) or cast(Any, self.comm).spanning
        return cast(Spanning, spanning)

    def explain(self) -> str:
        """Describe how dispatch and combine run. Collective at the first use."""
        memory = self.memory()
        places, row = self._spanning.places, memory.row_nbytes
        how = (
            f"all {self.max_tokens} rows that there can be, since they have no more than {PADDED_NBYTES} bytes"
            if is_padded(memory, row)
            else "the rows that there are, which the host counts, since all could have more than "
            f"{PADDED_NBYTES} bytes; in a CUDA graph all that there can be"
        )
        return (
            f"{places.size} ranks on {places.count} nodes: all ranks get all choices, and compute the rows of their "
            f"node; a token crosses once to each node that needs it, and one sum comes back ({how}); kernels dispatch "
            f"and combine inside the node on {memory.inner.blocks} blocks, in {memory.inner.nbytes} bytes of memory "
            f"that its ranks have mapped, and {memory.nbytes} of its own; {self._spanning.rails.why}"
        )

    def _enqueue(self, move: Move, phases: int, record: object) -> None:
        memory, spanning, state = self.memory(), self._spanning, state_of(self.comm)
        spanning.check()
        spanning.thread.wait()
        stream = stream_for(spanning.team.device, move.buffers, state, OF_CURRENT)
        capturing = spanning.team.device.is_capturing(stream)
        with spanning.entering(move.operation):
            for program in programs_of(memory, move, phases, capturing=capturing):
                if capturing:
                    program.check_graph()
                spanning.enqueue(program, stream, capturing=capturing)

    def _drain(self) -> None:
        self._spanning.drain()

    def combine(
        self, expert_out: Any, handle: Any, *, out: Any = None, weighted: bool = True, transform: Any = None
    ) -> Any:
        """Return the sum of the experts' results for each token. Collective.

        Parameters, result and exceptions are those of `TokenShuffle.combine`. The sum is computed in two steps, both in
        single precision. First each node adds up the results of its ranks, in rank order, and rounds the sum to
        `dtype`. Then the nodes' sums are added in the order of the nodes, and rounded to `dtype`.
        """
        return super().combine(expert_out, handle, out=out, weighted=weighted, transform=transform)
