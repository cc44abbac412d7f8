"""Calls of a communicator for a process group: messages, moves and reductions."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from mpi4py import MPI
from torch import distributed

from ..communicator.communicator import Intracomm
from ..operators.ops import AVG, AnyOp
from .work import Result, Tensor, Tensors, Work, counts_of, counts_of_rows, flat, joined, packed

__all__ = ["DEFAULTS", "Calls", "Moves", "Reductions"]

#: The options of calls for which PyTorch gives none.
DEFAULTS = SimpleNamespace(asyncOp=True, reduceOp=distributed.ReduceOp.SUM, rootRank=0)

_Kind = distributed.ReduceOp.RedOpType
# Keys are the numbers of PyTorch's operators, which cost less than their names. For truth values SUM means "any", as in
# PyTorch's NCCL backend.
OF_NUMBERS: dict[int, AnyOp] = {_Kind.SUM.value: MPI.SUM, _Kind.PREMUL_SUM.value: MPI.SUM, _Kind.AVG.value: AVG}
OF_NUMBERS |= {_Kind.PRODUCT.value: MPI.PROD, _Kind.MIN.value: MPI.MIN, _Kind.MAX.value: MPI.MAX}
OF_NUMBERS |= {_Kind.BAND.value: MPI.BAND, _Kind.BOR.value: MPI.BOR, _Kind.BXOR.value: MPI.BXOR}
OF_TRUTH: dict[int, AnyOp] = {kind.value: MPI.LOR for kind in (_Kind.SUM, _Kind.MAX, _Kind.BOR)}
OF_TRUTH |= {kind.value: MPI.LAND for kind in (_Kind.PRODUCT, _Kind.MIN, _Kind.BAND)} | {_Kind.BXOR.value: MPI.LXOR}


class Calls:
    """How a process group begins and coalesces calls of its communicator; messages."""

    comm: Intracomm
    _coalesced: list[Work] | None = None

    def _begin(self, options: Any, name: str, *arguments: Any) -> Work:
        """Make a collective call of the communicator, and return its work.

        Parameters
        ----------
        options : object
            PyTorch's options of the call. With `asyncOp` false, the call is the blocking one, on the current stream.
        name : str
            The blocking method.
        arguments
            The arguments of the method. A `Result` is stored when the call has ended.
        """
        results = [each for each in arguments if type(each) is Result]
        buffers = [each.argument if type(each) is Result else each for each in arguments]
        if getattr(options, "asyncOp", True):
            return self._noted(Work([getattr(self.comm, "I" + name.lower())(*buffers)], results, buffers))
        getattr(self.comm, name)(*buffers)
        return self._noted(Work((), results, buffers))

    def _noted(self, work: Work) -> Work:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Work:
        """Begin to send a tensor to a rank of the group."""
        sent = flat(tensors[0])
        return self._noted(Work([self.comm.Isend(sent, dst, tag)], (), [sent]))

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Work:
        """Begin to receive a tensor from a rank of the group."""
        result = Result(*tensors)
        request = self.comm.Irecv(result.argument, src, tag)
        return self._noted(Work([request], [result], [result.memory]))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        """Begin to receive a tensor from any rank of the group."""
        return self.recv(tensors, MPI.ANY_SOURCE, tag)

    def start_coalescing(self, device: Any = None) -> None:
        """Collect the works of the following calls, until `end_coalescing`."""
        self._coalesced = []

    def end_coalescing(self, device: Any = None) -> Work:
        """Return one work for all calls since `start_coalescing`."""
        works, self._coalesced = self._coalesced or [], None
        return joined(works) if works else Work((), (), ())

    # PyTorch calls these methods of a process group, and those above of a backend.
    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing


class Moves(Calls):
    """Data movement of a process group, with PyTorch's method names and arguments."""

    def broadcast(self, tensors: Tensors, opts: Any = DEFAULTS) -> Work:
        """Send the root's tensors to all ranks."""
        root = opts.rootRank
        results = [Result(tensor, is_filled=self.comm.rank == root) for tensor in tensors]
        return joined([self._begin(opts, "Bcast", result, root) for result in results])

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = DEFAULTS) -> Work:
        """Gather all ranks' tensors in one."""
        if output.dtype != input.dtype:
            raise ValueError(f"all_gather: the output is a tensor of {output.dtype}, the input one of {input.dtype}")
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
        """Exchange blocks of rows: of equal length, or of the lengths in the splits."""
        sends = counts_of_rows(input, input_splits, self.comm.size)
        receives = counts_of_rows(output, output_splits, self.comm.size)
        # Alltoallv also for equal blocks: ranks with and without splits may meet in one call.
        return self._begin(opts, "Alltoallv", [flat(input), sends], Result(output, counts=receives))

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = DEFAULTS) -> Work:
        """Exchange lists of tensors of any length."""
        result = Result(*outputs, counts=counts_of(outputs))
        return self._begin(opts, "Alltoallv", [packed(inputs), counts_of(inputs)], result)

    def barrier(self, opts: Any = DEFAULTS) -> Work:
        """Wait on the host for all ranks: in the call, or in `wait` if asynchronous."""
        work = Work([self.comm.Ibarrier()], (), ())
        if not getattr(opts, "asyncOp", True):
            work.wait()
        return self._noted(work)

    # The names of PyTorch before 2.14.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    alltoall_base = all_to_all_single


class Reductions(Calls):
    """Reductions of a process group, with PyTorch's method names and arguments."""

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
