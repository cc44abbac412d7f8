"""Collectives that reduce, as methods of a process group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mpi4py import MPI
from torch import distributed

from ..operators.ops import AVG, AnyOp
from .calls import DEFAULTS, Calls
from .tensors import Result, Tensor, Tensors, counts_of, flat, packed
from .work import Work, joined

__all__ = ["Reductions"]

_Kind = distributed.ReduceOp.RedOpType
# By the numbers of PyTorch's operators, which cost less than their names. Of truth values NCCL's backend, too, takes
# the sum for "any".
OF_NUMBERS: dict[int, AnyOp] = {_Kind.SUM.value: MPI.SUM, _Kind.PREMUL_SUM.value: MPI.SUM, _Kind.AVG.value: AVG}
OF_NUMBERS |= {_Kind.PRODUCT.value: MPI.PROD, _Kind.MIN.value: MPI.MIN, _Kind.MAX.value: MPI.MAX}
OF_NUMBERS |= {_Kind.BAND.value: MPI.BAND, _Kind.BOR.value: MPI.BOR, _Kind.BXOR.value: MPI.BXOR}
OF_TRUTH: dict[int, AnyOp] = {kind.value: MPI.LOR for kind in (_Kind.SUM, _Kind.MAX, _Kind.BOR)}
OF_TRUTH |= {kind.value: MPI.LAND for kind in (_Kind.PRODUCT, _Kind.MIN, _Kind.BAND)} | {_Kind.BXOR.value: MPI.LXOR}


class Reductions(Calls):
    """Reductions of a process group, by the names and arguments that PyTorch calls."""

    def allreduce(self, tensors: Tensors, opts: Any = DEFAULTS) -> Work:
        """Reduce each tensor over all ranks, in place."""
        return joined([self._allreduce(Result(tensor, is_filled=True), opts) for tensor in tensors])

    def _allreduce(self, result: Result, opts: Any) -> Work:
        op, send = _operation(opts, result.memory)
        return self._begin(opts, "Allreduce", MPI.IN_PLACE if send is result.memory else send, result, op)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any = DEFAULTS) -> Work:
        """Reduce a tensor over all ranks, in place at the root."""
        result, root = Result(*tensors, is_filled=True), opts.rootRank
        op, send = _operation(opts, result.memory)
        if self.comm.rank != root:
            return self._begin(opts, "Reduce", send, None, op, root)
        return self._begin(opts, "Reduce", MPI.IN_PLACE if send is result.memory else send, result, op, root)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = DEFAULTS) -> Work:
        """Reduce a tensor over all ranks; each rank receives its block."""
        op, send = _operation(opts, flat(input))
        return self._begin(opts, "Reduce_scatter_block", send, Result(output), op)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = DEFAULTS) -> Work:
        """Reduce and scatter several tensors."""
        return joined([self.reduce_scatter_single(*each, opts) for each in zip(outputs, inputs, strict=True)])

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = DEFAULTS) -> Work:
        """Reduce lists of tensors over all ranks; rank r receives the r-th tensor."""
        return joined([self._reduce_scatter(*each, opts) for each in zip(outputs, inputs, strict=True)])

    def _reduce_scatter(self, output: Tensor, parts: Tensors, opts: Any) -> Work:
        counts = counts_of(parts)
        if len(set(counts)) == 1:
            return self.reduce_scatter_single(output, packed(parts), opts)
        op, send = _operation(opts, packed(parts))
        return self._begin(opts, "Reduce_scatter", send, Result(output), counts, op)

    # The names of PyTorch before 2.14.
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def _operation(opts: Any, send: Tensor) -> tuple[AnyOp, Tensor]:
    """Return the operator and this rank's contribution.

    With PREMUL_SUM, the contribution is the tensor times the operator's factor. If the operator is not defined on the
    elements, raise ValueError.
    """
    op = opts.reduceOp
    kind = getattr(op, "op", op)
    number = kind.value
    found = (OF_TRUTH if send.dtype == torch.bool else OF_NUMBERS).get(number)
    if found is None:
        raise ValueError(f"tensors of {send.dtype} cannot be reduced by {kind.name}")
    return found, send * op.__getstate__()[1] if number == _Kind.PREMUL_SUM.value else send
