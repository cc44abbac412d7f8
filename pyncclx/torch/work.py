"""The work objects of asynchronous calls, and tensors as arguments and results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from mpi4py import MPI
from torch._C import _distributed_c10d as c10d

Tensor = Any
Tensors = Sequence[Tensor]


def flat(tensor: Tensor) -> Tensor:
    """Return a contiguous, resolved tensor without gradient; a copy if necessary."""
    if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        return tensor.detach() if tensor.requires_grad else tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def packed(tensors: Tensors) -> Tensor:
    """Return the elements of several tensors in one, one tensor behind the other."""
    return torch.cat([flat(tensor).reshape(-1) for tensor in tensors])


class Copy(NamedTuple):
    """A copy of a call's result from contiguous memory to its tensors, in this order."""

    memory: Tensor
    tensors: Tensors

    def make(self) -> None:
        """Copy the result on the current stream."""
        for tensor, part in zip(self.tensors, self.memory.split(counts_of(self.tensors)), strict=True):
            tensor.detach().copy_(part.view(tensor.shape))


def memory_of(tensors: Tensors, *, is_filled: bool = False) -> tuple[Tensor, tuple[Copy, ...]]:
    """Return contiguous memory for a call's result, and copies to make after the call.

    If there is one tensor and it is contiguous, it is the memory itself.

    Parameters
    ----------
    tensors : sequence of torch.Tensor
        The result, in this order.
    is_filled : bool
        Whether the memory begins with the tensors' elements, because the call reads it.
    """
    first = tensors[0]
    if len(tensors) == 1 and first.is_contiguous() and not (first.is_conj() or first.is_neg()):
        return first.detach() if first.requires_grad else first, ()
    memory = packed(tensors) if is_filled else first.new_empty(sum(counts_of(tensors)))
    return memory, (Copy(memory, tensors),)


def counts_of(tensors: Tensors) -> list[int]:
    """Return the numbers of elements of tensors."""
    return [tensor.numel() for tensor in tensors]


def counts_of_rows(tensor: Tensor, splits: Sequence[int], size: int) -> list[int]:
    """Return how many elements of a tensor belong to each of `size` ranks.

    `splits` are the ranks' numbers of rows (indices of the first dimension). If it is empty, all have equally many.
    Raises ValueError if the tensor's rows cannot be divided in this way.
    """
    rows = tensor.shape[0]
    if not splits and rows % size == 0:
        return [tensor.numel() // size] * size
    if len(splits) != size or sum(splits) != rows:
        how = f"as {list(splits)}" if splits else "equally"
        raise ValueError(f"all_to_all: {rows} rows cannot be divided {how} among {size} ranks")
    width = math.prod(tensor.shape[1:])
    return [width * each for each in splits]


class Work(c10d.Work):
    """A call that has begun, or is enqueued on the current stream. `begun` makes it.

    Attributes
    ----------
    requests : sequence of mpi4py.MPI.Request
        Empty if the call is over or enqueued.
    outputs : sequence of torch.Tensor
        The result.
    copies : sequence of Copy
        Made when the call has ended.
    arguments : sequence
        What the call has been given: tensors, lists that begin with a tensor, and others.
    """

    requests: Sequence[MPI.Request] = ()
    outputs: Tensors = ()
    copies: Sequence[Copy] = ()
    arguments: Sequence[Any] = ()
    _future: Any = None
    _source = MPI.ANY_SOURCE

    def wait(self, timeout: Any = None) -> bool:
        """Make the current stream wait for the results, and return True.

        On the CPU the host waits. `timeout` has no effect: PYNCCLX_TIMEOUT bounds the wait.
        """
        if self._future is not None:
            self._future.wait()
        elif self.requests or self.copies:
            self._finish()
        return True

    def _finish(self) -> None:
        requests, copies, self.requests, self.copies = self.requests, self.copies, (), ()
        status = MPI.Status()
        for request in requests:
            request.Wait(status)
            self._source = status.source
        for copy in copies:
            copy.make()

    def is_completed(self) -> bool:
        """Return whether the call has ended; if it has, its results are complete."""
        return all(request.Get_status() for request in self.requests) and self.wait()

    def get_future(self) -> Any:
        """Return a future of the results.

        On the CPU the host waits for the call. On a GPU neither the host nor the current stream waits: the future's
        events are recorded after the call.
        """
        if self._future is None:
            devices = sorted({each.device for each in self._tensors() if each.is_cuda}, key=str)
            future = torch.futures.Future(devices=devices)
            if devices:
                self._finish_beside(devices[0], future)
            else:
                self._finish()
                future.set_result(self.result())
            self._future = future
        return self._future

    def _tensors(self) -> Tensors:
        """Return the tensors that the call uses, those of the result first."""
        parts = [each[0] if isinstance(each, list) and each else each for each in self.arguments]
        return [*self.outputs, *filter(torch.is_tensor, parts)]

    def _finish_beside(self, device: Any, future: Any) -> None:
        """Complete a future on another stream than the current one."""
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            self._finish()
            future.set_result(self.result())
        for tensor in self._tensors():
            tensor.record_stream(side)

    def result(self) -> list[Any]:
        """Return the tensors of the result, which are complete after `wait`."""
        return list(self.outputs) or list(self._tensors())

    def _source_rank(self) -> int:
        return int(self._source)


def begun(
    requests: Sequence[MPI.Request], outputs: Tensors, copies: Sequence[Copy], arguments: Sequence[Any]
) -> Work:
    """Return the work of a call."""
    work = Work()  # without an `__init__` in Python, which would take as long as the rest of this function
    work.requests, work.outputs, work.copies, work.arguments = requests, outputs, copies, arguments
    return work


def joined(works: Sequence[Work]) -> Work:
    """Return one work for several calls."""
    if len(works) == 1:
        return works[0]
    parts = [(work.requests, work.outputs, work.copies, work.arguments) for work in works]
    return begun(*(list(chain(*each)) for each in zip(*parts, strict=True)))
