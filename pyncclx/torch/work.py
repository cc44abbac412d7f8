"""What asynchronous calls return."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from mpi4py import MPI
from torch._C import _distributed_c10d as c10d

from .tensors import Result, Tensors

__all__ = ["Work", "joined"]


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

        On the CPU the host waits for the call. On a GPU it does not, nor does the current stream: the future's events
        follow the call.
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
