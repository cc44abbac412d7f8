"""The nonblocking collectives: a kernel is enqueued at once, and a request says how far it is."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from mpi4py import MPI

from ..collectives import blocking_form
from ..collectives.allgather import allgather
from ..collectives.allgatherv import allgatherv
from ..collectives.allreduce import allreduce
from ..collectives.alltoall import alltoall
from ..collectives.alltoallv import alltoallv
from ..collectives.alltoallw import alltoallw
from ..collectives.barrier import barrier
from ..collectives.bcast import bcast
from ..collectives.exscan import exscan
from ..collectives.gather import gather
from ..collectives.gatherv import gatherv
from ..collectives.reduce import reduce
from ..collectives.reduce_scatter import reduce_scatter
from ..collectives.reduce_scatter_block import reduce_scatter_block
from ..collectives.scan import scan
from ..collectives.scatter import scatter
from ..collectives.scatterv import scatterv
from ..launch.call import Call
from ..launch.launched import Launched
from ..requests.request import request_of
from ..team.base import IntraBase

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
