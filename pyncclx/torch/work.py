"""The work objects of asynchronous calls, and tensors as arguments and results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from mpi4py import MPI
from torch._C import _distributed_c10d as c10d

__all__ = ["Result", "Tensor", "Tensors", "Work", "counts_of", "counts_of_rows", "flat", "joined", "packed"]

Tensor = Any
Tensors = Sequence[Tensor]


def flat(tensor: Tensor) -> Tensor:
    """Return a contiguous, resolved tensor without gradient; a copy if necessary."""
    if _is_dense(tensor):
        return _without_gradient(tensor)
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor is contiguous and resolved."""
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def _without_gradient(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


def packed(tensors: Tensors) -> Tensor:
    """Return the elements of several tensors in one, one tensor behind the other."""
    return torch.cat([flat(tensor).reshape(-1) for tensor in tensors])


class Result:
    """Contiguous memory for a call's result, and tensors that `store` copies it to.

    If there is one tensor and it is contiguous, it is the memory itself.

    Parameters
    ----------
    tensors : torch.Tensor
        The result, in this order.
    counts : sequence of int, optional
        Elements that each rank sends, for calls that need them.
    is_filled : bool
        Whether the memory begins with the tensors' elements, because the call reads it.
    """

    def __init__(self, *tensors: Tensor, counts: Sequence[int] | None = None, is_filled: bool = False) -> None:
        first, self.tensors = tensors[0], tensors
        self._is_copy = len(tensors) > 1 or not _is_dense(first)
        if not self._is_copy:
            self.memory = _without_gradient(first)
        else:
            self.memory = packed(tensors) if is_filled else first.new_empty(sum(counts_of(tensors)))
        #: The buffer argument for calls.
        self.argument = self.memory if counts is None else [self.memory, counts]

    def store(self) -> None:
        """Copy the result to the tensors, unless it is there already."""
        if self._is_copy:
            for tensor, part in zip(self.tensors, self.memory.split(counts_of(self.tensors)), strict=True):
                tensor.detach().copy_(part.view(tensor.shape))


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
    """A call that has begun, or that has been enqueued on the current stream.

    Parameters
    ----------
    requests : sequence of mpi4py.MPI.Request
        Empty if the call is over or enqueued.
    results : sequence of Result
        Stored when the call has ended.
    buffers : sequence
        Arguments of the call: tensors, lists that begin with a tensor, and others.
    """

    _future: Any = None

    def __init__(self, requests: Sequence[MPI.Request], results: Sequence[Result], buffers: Sequence[Any]) -> None:
        super().__init__()
        self.requests, self.results, self.buffers = requests, results, buffers
        # `results` is empty once they are stored.
        self._stored, self._status = results, MPI.Status()

    @property
    def _used(self) -> Tensors:
        """The tensors of the call, those of the results first."""
        parts = [each[0] if isinstance(each, list) and each else each for each in self.buffers]
        return [*chain(*(each.tensors for each in self._stored)), *filter(torch.is_tensor, parts)]

    def wait(self, timeout: Any = None) -> bool:
        """Make the current stream wait for the results, and return True.

        On the CPU the host waits. `timeout` has no effect: PYNCCLX_TIMEOUT bounds the wait.
        """
        if self._future is not None:
            self._future.wait()
        else:
            self._finish()
        return True

    def _finish(self) -> None:
        requests, results, self.requests, self.results = self.requests, self.results, (), ()
        for request in requests:
            request.Wait(self._status)
        for result in results:
            result.store()

    def is_completed(self) -> bool:
        """Return whether the call has ended; if it has, its results are complete."""
        return all(request.Get_status() for request in self.requests) and self.wait()

    def get_future(self) -> Any:
        """Return a future of the results.

        On the CPU the host waits for the call. On a GPU neither the host nor the current stream waits: the future's
        events are recorded after the call.
        """
        if self._future is None:
            devices = sorted({each.device for each in self._used if each.is_cuda}, key=str)
            future = torch.futures.Future(devices=devices)
            if devices:
                self._finish_beside(devices[0], future)
            else:
                self._finish()
                future.set_result(self.result())
            self._future = future
        return self._future

    def _finish_beside(self, device: Any, future: Any) -> None:
        """Complete a future on another stream than the current one."""
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            self._finish()
            future.set_result(self.result())
        for tensor in self._used:
            tensor.record_stream(side)

    def result(self) -> list[Any]:
        """Return the tensors of the result, which are complete after `wait`."""
        return list(chain(*(each.tensors for each in self._stored))) or list(self._used)

    def _source_rank(self) -> int:
        return int(self._status.source)


def joined(works: Iterable[Work]) -> Work:
    """Return one work for several calls."""
    first, *others = works
    if not others:
        return first
    parts = [(work.requests, work.results, work.buffers) for work in (first, *others)]
    return Work(*(list(chain(*each)) for each in zip(*parts, strict=True)))
