"""Collectives that move data, and barriers, as methods of a process group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .calls import DEFAULTS, Calls
from .tensors import Result, Tensor, Tensors, counts_of, counts_of_rows, flat, packed
from .work import Work, joined

__all__ = ["Moves"]


class Moves(Calls):
    """The moves of a process group, by the names and arguments that PyTorch calls."""

    def broadcast(self, tensors: Tensors, opts: Any = DEFAULTS) -> Work:
        """Send the root's tensors to all ranks."""
        root = opts.rootRank
        results = [Result(tensor, is_filled=self.comm.rank == root) for tensor in tensors]
        return joined([self._begin(opts, "Bcast", result, root) for result in results])

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = DEFAULTS) -> Work:
        """Gather all ranks' tensors in one."""
        return self._begin(opts, "Allgather", flat(input), Result(output))

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = DEFAULTS) -> Work:
        """Gather several tensors of all ranks."""
        return joined([self.all_gather_single(*each, opts) for each in zip(outputs, inputs, strict=True)])

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = DEFAULTS) -> Work:
        """Gather all ranks' tensors in lists; the ranks' tensors may differ in length."""
        return joined([self._allgather(*each, opts) for each in zip(outputs, inputs, strict=True)])

    def _allgather(self, parts: Tensors, tensor: Tensor, opts: Any) -> Work:
        counts = counts_of(parts)
        if len(set(counts)) == 1:
            return self._begin(opts, "Allgather", flat(tensor), Result(*parts))
        return self._begin(opts, "Allgatherv", flat(tensor), Result(*parts, counts=counts))

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = DEFAULTS) -> Work:
        """Gather several tensors of all ranks in lists, one for each rank."""
        return self.allgather(list(zip(*outputs, strict=True)), inputs, opts)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = DEFAULTS) -> Work:
        """Gather all ranks' tensors in a list at the root."""
        result = Result(*outputs[0]) if self.comm.rank == opts.rootRank else None
        return self._begin(opts, "Gather", flat(inputs[0]), result, opts.rootRank)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = DEFAULTS) -> Work:
        """Send each rank its tensor of the root's list."""
        whole = packed(inputs[0]) if self.comm.rank == opts.rootRank else None
        return self._begin(opts, "Scatter", whole, Result(*outputs), opts.rootRank)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_splits: Any, input_splits: Any, opts: Any = DEFAULTS
    ) -> Work:
        """Exchange blocks of rows: equally many, or as many as the splits say."""
        sends = counts_of_rows(input, input_splits, self.comm.size)
        receives = counts_of_rows(output, output_splits, self.comm.size)
        # Alltoallv also for equal blocks: ranks with and without splits may meet in one call.
        return self._begin(opts, "Alltoallv", [flat(input), sends], Result(output, counts=receives))

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = DEFAULTS) -> Work:
        """Exchange lists of tensors of any length."""
        result = Result(*outputs, counts=counts_of(outputs))
        return self._begin(opts, "Alltoallv", [packed(inputs), counts_of(inputs)], result)

    def barrier(self, opts: Any = DEFAULTS) -> Work:
        """Wait on the host for all ranks."""
        return self._begin(opts, "Barrier")

    # The names of PyTorch before 2.14.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    alltoall_base = all_to_all_single
