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
from .work import Copy, Tensor, Tensors, Work, begun, counts_of, counts_of_rows, flat, joined, memory_of, packed

#: The options of calls for which PyTorch gives none.
DEFAULTS = SimpleNamespace(asyncOp=True, reduceOp=distributed.ReduceOp.SUM, rootRank=0)

_Kind = distributed.ReduceOp.RedOpType
# Keys are the numbers of PyTorch's operators, which cost less than their names. For truth values SUM means "any", as in
# PyTorch's NCCL backend.
SCALED_SUM = _Kind.PREMUL_SUM.value
OF_NUMBERS: dict[int, AnyOp] = {_Kind.SUM.value: MPI.SUM, _Kind.PREMUL_SUM.value: MPI.SUM, _Kind.AVG.value: AVG}
OF_NUMBERS |= {_Kind.PRODUCT.value: MPI.PROD, _Kind.MIN.value: MPI.MIN, _Kind.MAX.value: MPI.MAX}
OF_NUMBERS |= {_Kind.BAND.value: MPI.BAND, _Kind.BOR.value: MPI.BOR, _Kind.BXOR.value: MPI.BXOR}
OF_TRUTH: dict[int, AnyOp] = {kind.value: MPI.LOR for kind in (_Kind.SUM, _Kind.MAX, _Kind.BOR)}
OF_TRUTH |= {kind.value: MPI.LAND for kind in (_Kind.PRODUCT, _Kind.MIN, _Kind.BAND)} | {_Kind.BXOR.value: MPI.LXOR}


class Calls:
    """How a process group begins and coalesces calls of its communicator; messages."""

    comm: Intracomm
    _coalesced: list[Work] | None = None

    def _begin(
        self, options: Any, name: str, arguments: Sequence[Any], outputs: Tensors, copies: Sequence[Copy] = ()
    ) -> Work:
        """Make a collective call of the communicator, and return its work.

        Parameters
        ----------
        options : object
            PyTorch's options of the call. With `asyncOp` false, the call is the blocking one, on the current stream.
        name : str
            The blocking method.
        arguments : sequence
            The arguments of the method.
        outputs, copies : sequence
            The tensors of the result, and copies to make when the call has ended.
        """
        if getattr(options, "asyncOp", True):
            return self._noted([getattr(self.comm, "I" + name.lower())(*arguments)], outputs, copies, arguments)
        getattr(self.comm, name)(*arguments)
        return self._noted((), outputs, copies, arguments)

    def _noted(self, requests: Any, outputs: Tensors, copies: Sequence[Copy], arguments: Sequence[Any]) -> Work:
        work = begun(requests, outputs, copies, arguments)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Work:
        """Begin to send a tensor to a rank of the group."""
        sent = flat(tensors[0])
        return self._noted([self.comm.Isend(sent, dst, tag)], (), (), [sent])

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Work:
        """Begin to receive a tensor from a rank of the group."""
        memory, copies = memory_of(tensors)
        return self._noted([self.comm.Irecv(memory, src, tag)], tensors, copies, [memory])

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        """Begin to receive a tensor from any rank of the group."""
        return self.recv(tensors, MPI.ANY_SOURCE, tag)

    def start_coalescing(self, device: Any = None) -> None:
        """Collect the works of the following calls, until `end_coalescing`."""
        self._coalesced = []

    def end_coalescing(self, device: Any = None) -> Work:
        """Return one work for all calls since `start_coalescing`."""
        works, self._coalesced = self._coalesced or [], None
        return joined(works) if works else Work()

    # PyTorch calls these methods of a process group, and those above of a backend.
    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing


class Moves(Calls):
    """Data movement of a process group, with PyTorch's method names and arguments."""

    def broadcast(self, tensors: Tensors, opts: Any = DEFAULTS) -> Work:
        """Send the root's tensors to all ranks."""
        return joined([self._broadcast(tensor, opts) for tensor in tensors])

    def _broadcast(self, tensor: Tensor, opts: Any) -> Work:
        root = opts.rootRank
        memory, copies = memory_of((tensor,), is_filled=self.comm.rank == root)
        return self._begin(opts, "Bcast", (memory, root), (tensor,), copies)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = DEFAULTS) -> Work:
        """Gather all ranks' tensors in one."""
        if output.dtype != input.dtype:
            raise ValueError(f"all_gather: the output is a tensor of {output.dtype}, the input one of {input.dtype}")
        memory, copies = memory_of((output,))
        return self._begin(opts, "Allgather", (flat(input), memory), (output,), copies)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = DEFAULTS) -> Work:
        """Gather several tensors of all ranks."""
        return joined([self.all_gather_single(*each, opts) for each in zip(outputs, inputs, strict=True)])

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = DEFAULTS) -> Work:
        """Gather all ranks' tensors in lists; the ranks' tensors may differ in length."""
        return joined([self._allgather(*each, opts) for each in zip(outputs, inputs, strict=True)])

    def _allgather(self, parts: Tensors, tensor: Tensor, opts: Any) -> Work:
        counts, (memory, copies) = counts_of(parts), memory_of(parts)
        if len(set(counts)) == 1:
            return self._begin(opts, "Allgather", (flat(tensor), memory), parts, copies)
        return self._begin(opts, "Allgatherv", (flat(tensor), [memory, counts]), parts, copies)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = DEFAULTS) -> Work:
        """Gather several tensors of all ranks in lists, one for each rank."""
        return self.allgather(list(zip(*outputs, strict=True)), inputs, opts)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = DEFAULTS) -> Work:
        """Gather all ranks' tensors in a list at the root."""
        root = opts.rootRank
        parts: Tensors = outputs[0] if self.comm.rank == root else ()
        memory, copies = memory_of(parts) if parts else (None, ())
        return self._begin(opts, "Gather", (flat(inputs[0]), memory, root), parts, copies)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = DEFAULTS) -> Work:
        """Send each rank its tensor of the root's list."""
        root = opts.rootRank
        whole = packed(inputs[0]) if self.comm.rank == root else None
        memory, copies = memory_of(outputs)
        return self._begin(opts, "Scatter", (whole, memory, root), outputs, copies)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_splits: Any, input_splits: Any, opts: Any = DEFAULTS
    ) -> Work:
        """Exchange blocks of rows: of equal length, or of the lengths in the splits."""
        sends = counts_of_rows(input, input_splits, self.comm.size)
        receives = counts_of_rows(output, output_splits, self.comm.size)
        # Alltoallv also for equal blocks: ranks with and without splits may meet in one call.
        memory, copies = memory_of((output,))
        return self._begin(opts, "Alltoallv", ([flat(input), sends], [memory, receives]), (output,), copies)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = DEFAULTS) -> Work:
        """Exchange lists of tensors of any length."""
        memory, copies = memory_of(outputs)
        arguments = [packed(inputs), counts_of(inputs)], [memory, counts_of(outputs)]
        return self._begin(opts, "Alltoallv", arguments, outputs, copies)

    def barrier(self, opts: Any = DEFAULTS) -> Work:
        """Wait on the host for all ranks: in the call, or in `wait` if asynchronous."""
        work = self._noted([self.comm.Ibarrier()], (), (), ())
        if not getattr(opts, "asyncOp", True):
            work.wait()
        return work

    # The names of PyTorch before 2.14.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    alltoall_base = all_to_all_single


class Reductions(Calls):
    """Reductions of a process group, with PyTorch's method names and arguments."""

    def allreduce(self, tensors: Tensors, opts: Any = DEFAULTS) -> Work:
        """Reduce each tensor over all ranks, in place."""
        return joined([self._allreduce(tensor, opts) for tensor in tensors])

    def _allreduce(self, tensor: Tensor, opts: Any) -> Work:
        memory, copies = memory_of((tensor,), is_filled=True)
        op, send = _operation(opts, memory)
        arguments = MPI.IN_PLACE if send is memory else send, memory, op
        return self._begin(opts, "Allreduce", arguments, (tensor,), copies)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any = DEFAULTS) -> Work:
        """Reduce a tensor over all ranks, in place at the root."""
        memory, copies = memory_of(tensors, is_filled=True)
        op, send = _operation(opts, memory)
        root = opts.rootRank
        if self.comm.rank != root:
            return self._begin(opts, "Reduce", (send, None, op, root), ())
        arguments = MPI.IN_PLACE if send is memory else send, memory, op, root
        return self._begin(opts, "Reduce", arguments, tensors, copies)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = DEFAULTS) -> Work:
        """Reduce a tensor over all ranks; each rank receives its block."""
        op, send = _operation(opts, flat(input))
        memory, copies = memory_of((output,))
        return self._begin(opts, "Reduce_scatter_block", (send, memory, op), (output,), copies)

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
        memory, copies = memory_of((output,))
        return self._begin(opts, "Reduce_scatter", (send, memory, counts, op), (output,), copies)

    # The names of PyTorch before 2.14.
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def _operation(opts: Any, send: Tensor) -> tuple[AnyOp, Tensor]:
    """Return the operator and this rank's contribution.

    With PREMUL_SUM, the contribution is the tensor times the operator's factor. If the operator is not defined on the
    elements, raise ValueError.
    """
    op = opts.reduceOp  # read once, because PyTorch makes a new object each time
    kind = getattr(op, "op", op)
    number = kind.value
    found = (OF_TRUTH if send.dtype is torch.bool else OF_NUMBERS).get(number)
    if found is None:
        raise ValueError(f"tensors of {send.dtype} cannot be reduced by {kind.name}")
    return found, send * op.__getstate__()[1] if number == SCALED_SUM else send
