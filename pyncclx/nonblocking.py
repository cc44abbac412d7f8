"""The nonblocking collectives: a kernel is enqueued at once, and a request says how far it is."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from mpi4py import MPI

from .arrays import torch_stream
from .base import IntraBase
from .buffers import Buffer
from .collectives import blocking_form
from .collectives.allgather import allgather
from .collectives.allgatherv import allgatherv
from .collectives.allreduce import allreduce
from .collectives.alltoall import alltoall
from .collectives.alltoallv import alltoallv
from .collectives.alltoallw import alltoallw
from .collectives.barrier import barrier
from .collectives.bcast import bcast
from .collectives.exscan import exscan
from .collectives.gather import gather
from .collectives.gatherv import gatherv
from .collectives.launch import Call, enqueue
from .collectives.reduce import reduce
from .collectives.reduce_scatter import reduce_scatter
from .collectives.reduce_scatter_block import reduce_scatter_block
from .collectives.scan import scan
from .collectives.scatter import scatter
from .collectives.scatterv import scatterv
from .devices import Device
from .messages.open_receives import make_way
from .messages.request import request_of
from .state import state_of

_Class = TypeVar("_Class", bound=type)

#: What makes the call of each nonblocking method.
CALLS: dict[str, Callable[..., Call | None]] = {
    "Ibarrier": barrier,
    "Ibcast": bcast,
    "Ireduce": reduce,
    "Iallreduce": allreduce,
    "Iallgather": allgather,
    "Ireduce_scatter_block": reduce_scatter_block,
    "Ialltoall": alltoall,
    "Ialltoallv": alltoallv,
    "Ialltoallw": alltoallw,
    "Igather": gather,
    "Igatherv": gatherv,
    "Iscatter": scatter,
    "Iscatterv": scatterv,
    "Iallgatherv": allgatherv,
    "Ireduce_scatter": reduce_scatter,
    "Iscan": scan,
    "Iexscan": exscan,
}


class Launched:
    """What the request of a collective stands for: the end of its kernel."""

    def __init__(self, comm: IntraBase, call: Call) -> None:
        self._state = state_of(comm)
        team = self._team = enqueue(comm, self._state, call)
        self._event = None if team is None else team.mark()
        self._buffers = call.buffers  # keep the arrays

    def finish(self) -> None:
        """Make the current stream wait, and the host if the communicator blocks; raises what kernels recorded."""
        team, event, buffers = self._team, self._event, self._buffers
        self._team, self._event, self._buffers = None, None, ()
        if team is None or event is None:
            return
        make_way()
        event.order(current_stream(team.device, buffers))
        if self._state.blocking == "host":
            event.synchronize()
        if self._state.team is team:  # a communicator that has been freed has drained, and has no record
            team.check()

    def is_over(self) -> bool:
        """Whether the kernel has ended."""
        return self._event is None or self._event.is_over()

    def fill(self, status: MPI.Status) -> None:
        """There is no message."""
        fill_empty(status)


def fill_empty(status: MPI.Status) -> None:
    """Make a status MPI's empty one."""
    status.Set_source(MPI.ANY_SOURCE)
    status.Set_tag(MPI.ANY_TAG)
    status.Set_error(MPI.SUCCESS)
    status.Set_elements(MPI.BYTE, 0)


def current_stream(device: Device, buffers: tuple[Buffer, ...]) -> Any:
    """The stream that its user goes on with: CuPy's current one, for PyTorch's tensors PyTorch's."""
    if any(buffer.of_torch for buffer in buffers):
        return device.external_stream(torch_stream(device.ordinal))
    return device.current_stream()


def adds_nonblocking(calls: dict[str, Callable[..., Call | None]]) -> Callable[[_Class], _Class]:
    """Give a class nonblocking methods, by what makes the call of each."""

    def add(cls: _Class) -> _Class:
        for name, make in calls.items():
            setattr(cls, name, _method(cls, name, make))
        return cls

    return add


def _method(cls: type, name: str, make: Callable[..., Call | None]) -> Callable[..., Any]:
    original = getattr(MPI.Cartcomm, name)
    known = inspect.signature(original).parameters

    def method(self: IntraBase, *args: Any, **kwargs: Any) -> MPI.Request:
        call = make(self, *args, **kwargs)
        if call is not None:
            return request_of(Launched(self, call))
        request: MPI.Request = getattr(super(cls, self), name)(
            *args, **{key: value for key, value in kwargs.items() if key in known}
        )
        return request

    functools.update_wrapper(method, original)
    method.__doc__ = (
        f"Begin what `{blocking_form(name)}` does, with its arguments, and return a request.\n\n"
        "On device arrays the kernel is enqueued on the current stream. `Wait` makes the stream that is current then\n"
        'wait for it, and the host only if `blocking` is "host"; `Test` says whether it has ended. The first call\n'
        "with a new kernel compiles it, and is collective."
    )
    return method


@adds_nonblocking(CALLS)
class Nonblocking(IntraBase):
    """The nonblocking forms of the collectives that have kernels."""
