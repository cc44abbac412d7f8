"""Calls of a communicator for a process group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mpi4py import MPI
from torch import distributed

from ..communicator.communicator import Intracomm
from .tensors import Result, Tensors, flat
from .work import Work, joined

__all__ = ["DEFAULTS", "Calls"]

#: The options of calls for which PyTorch gives none.
DEFAULTS = SimpleNamespace(asyncOp=True, reduceOp=distributed.ReduceOp.SUM, rootRank=0)


class Calls:
    """A process group's calls of its communicator: begun, coalesced; and messages."""

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
            Those of the method. A `Result` is stored when the call has ended.
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

    # The names of a group's methods, where those above are a backend's.
    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing
