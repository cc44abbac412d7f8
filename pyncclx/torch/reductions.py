"""Collectives that reduce, as methods of a process group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mpi4py import MPI

from ..operators.ops import AVG, AnyOp
from .calls import DEFAULTS, Calls
from .tensors import Result, Tensor, Tensors, counts_of, flat, packed
from .work import Work, joined

__all__ = ["Reductions"]

# By the names of PyTorch's operators. Of truth values NCCL's backend, too, takes the sum for "any".
OF_NUMBERS: dict[str, AnyOp] = {"SUM": MPI.SUM, "PREMUL_SUM": MPI.SUM, "AVG": AVG, "PRODUCT": MPI.PROD}
OF_NUMBERS |= {"MIN": MPI.MIN, "MAX": MPI.MAX, "BAND": MPI.BAND, "BOR": MPI.BOR, "BXOR": MPI.BXOR}
OF_TRUTH: dict[str, AnyOp] = dict.fromkeys(("SUM", "MAX", "BOR"), MPI.LOR)
OF_TRUTH |= dict.fromkeys(("PRODUCT", "MIN", "BAND"), MPI.LAND) | {"BXOR": MPI.LXOR}


class Reductions(Calls):
    """Reductions of a process group, by the names and arguments that PyTorch calls."""

    def allreduce(self, tensors: Tensors, opts: Any = DEFAULTS) -> Work:
        """Reduce each tensor over all ranks, in place."""
        results = [Result(tensor, is_filled=True) for tensor in tensors]
        return joined([self._begin(opts, "Allreduce", *_in_place(each, opts), _op(opts, each)) for each in results])

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any = DEFAULTS) -> Work:
        """Reduce a tensor over all ranks, in place at the root."""
        result, root = Result(*tensors, is_filled=True), opts.rootRank
        buffers = _in_place(result, opts) if self.comm.rank == root else (_scaled(result.memory, opts), None)
        return self._begin(opts, "Reduce", *buffers, _op(opts, result), root)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = DEFAULTS) -> Work:
        """Reduce a tensor over all ranks; each rank receives its block."""
        result = Result(output)
        return self._begin(opts, "Reduce_scatter_block", _scaled(flat(input), opts), result, _op(opts, result))

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
        result, send = Result(output), _scaled(packed(parts), opts)
        return self._begin(opts, "Reduce_scatter", send, result, counts, _op(opts, result))

    # The names of PyTorch before 2.14.
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def _name(opts: Any) -> str:
    """Return the name of the operator in PyTorch's options."""
    return str(getattr(opts.reduceOp, "op", opts.reduceOp).name)


def _op(opts: Any, result: Result) -> AnyOp:
    """Return the operator for the elements of a result, or raise ValueError."""
    dtype = result.memory.dtype
    found = (OF_TRUTH if dtype == torch.bool else OF_NUMBERS).get(_name(opts))
    if found is None:
        raise ValueError(f"tensors of {dtype} cannot be reduced by {_name(opts)}")
    return found


def _scaled(send: Tensor, opts: Any) -> Tensor:
    """Return what a rank contributes: for PREMUL_SUM, its elements by a factor."""
    return send * opts.reduceOp.__getstate__()[1] if _name(opts) == "PREMUL_SUM" else send


def _in_place(result: Result, opts: Any) -> tuple[Any, Result]:
    """Return send and receive buffer of a reduction in place."""
    send = _scaled(result.memory, opts)
    return MPI.IN_PLACE if send is result.memory else send, result
