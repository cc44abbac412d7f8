"""What is done to the memory of a rank in a window of device memory: copies, and atomic changes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

from mpi4py import MPI

from . import rma
from .buffers import Buffer
from .collectives.launch import stream_for
from .errors import MPIError
from .messages.request import request_of
from .nonblocking import fill_empty
from .team import Team

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _on_device(method: _Method) -> _Method:
    """Make a method that of windows of device memory; those of host memory have mpi4py's."""
    original = getattr(MPI.Win, method.__name__)

    @functools.wraps(method)
    def either(self: Accesses, *args: Any, **kwargs: Any) -> Any:
        return (original if self._exposed is None else method)(self, *args, **kwargs)

    return either  # type: ignore[return-value]


class Accesses:
    """The methods of `pyncclx.Win` that reach into a rank's memory."""

    _exposed: rma.Exposed | None = None

    @_on_device
    def Put(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Copy to a rank's memory."""
        self._move("Put", origin, target_rank, target)

    @_on_device
    def Get(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Copy from a rank's memory."""
        self._move("Get", origin, target_rank, target)

    @_on_device
    def Rput(self, origin: Any, target_rank: int, target: Any = None) -> MPI.Request:
        """The same with a request, which is over when `origin` may be used again."""
        return request_of(self._move("Put", origin, target_rank, target))

    @_on_device
    def Rget(self, origin: Any, target_rank: int, target: Any = None) -> MPI.Request:
        """The same with a request, which is over when the data is there."""
        return request_of(self._move("Get", origin, target_rank, target))

    @_on_device
    def Accumulate(self, origin: Any, target_rank: int, target: Any = None, op: MPI.Op = MPI.SUM) -> None:
        """Fold into a rank's memory, each element atomically."""
        self._change("Accumulate", op, target_rank, target, origin)

    @_on_device
    def Get_accumulate(
        self, origin: Any, result: Any, target_rank: int, target: Any = None, op: MPI.Op = MPI.SUM
    ) -> None:
        """The same, and take the elements as they were."""
        self._change("Get_accumulate", op, target_rank, target, origin, result)

    @_on_device
    def Raccumulate(self, origin: Any, target_rank: int, target: Any = None, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """`Accumulate` with a request."""
        return request_of(self._change("Raccumulate", op, target_rank, target, origin))

    @_on_device
    def Rget_accumulate(
        self, origin: Any, result: Any, target_rank: int, target: Any = None, op: MPI.Op = MPI.SUM
    ) -> MPI.Request:
        """`Get_accumulate` with a request."""
        return request_of(self._change("Rget_accumulate", op, target_rank, target, origin, result))

    @_on_device
    def Fetch_and_op(
        self, origin: Any, result: Any, target_rank: int, target_disp: int = 0, op: MPI.Op = MPI.SUM
    ) -> None:
        """`Get_accumulate` of one element."""
        self._change("Fetch_and_op", op, target_rank, target_disp, origin, result)

    @_on_device
    def Compare_and_swap(self, origin: Any, compare: Any, result: Any, target_rank: int, target_disp: int = 0) -> None:
        """Replace an element that is equal to `compare`, and take it as it was; atomic."""
        self._change("Compare_and_swap", rma.COMPARE_AND_SWAP, target_rank, target_disp, origin, result, compare)

    def _move(self, operation: Literal["Put", "Get"], origin: Any, rank: int, spec: Any) -> _Enqueued:
        exposed = self._of()
        buffer = exposed.origin(origin, f"{operation}: origin", writable=operation == "Get")
        if rank == MPI.PROC_NULL:
            return _Enqueued(exposed.team, stream_for(exposed.device, (buffer,)), (buffer,))
        target = exposed.target(operation, rank, spec, buffer)
        stream = (exposed.put if operation == "Put" else exposed.get)(buffer, target)
        return _Enqueued(exposed.team, stream, (buffer,))

    def _change(
        self, operation: str, op: Any, rank: int, spec: Any, origin: Any, result: Any = None, compare: Any = None
    ) -> _Enqueued:
        exposed = self._of()
        named = {"origin": origin, "result": result, "compare": compare}
        buffers: dict[str, Buffer] = {
            name: exposed.origin(each, f"{operation}: {name}", writable=name == "result")
            for name, each in named.items()
            if each is not None
        }
        if rank == MPI.PROC_NULL:
            stream = stream_for(exposed.device, tuple(buffers.values()))
            return _Enqueued(exposed.team, stream, tuple(buffers.values()))
        target = exposed.target(operation, rank, spec, buffers["origin"])
        others = buffers.get("result"), buffers.get("compare")
        stream = exposed.change(operation, op, target, buffers["origin"], *others)
        return _Enqueued(exposed.team, stream, tuple(buffers.values()))

    def _of(self) -> rma.Exposed:
        exposed = cast(rma.Exposed, self._exposed)
        if not exposed.team.windows:
            raise MPIError(MPI.ERR_WIN, "the window's communicator has been freed, and its memory with it")
        return exposed


class _Enqueued:
    """What the request of an operation stands for: the end of its copy or kernel."""

    def __init__(self, team: Team, stream: Any, buffers: tuple[Buffer, ...]) -> None:
        self._event, self._buffers = team.device.event(), buffers
        self._event.record(stream)

    def finish(self) -> None:
        """Wait on the host."""
        self._event.synchronize()
        self._buffers = ()

    def is_over(self) -> bool:
        """Whether it is done."""
        return self._event.is_over()

    def fill(self, status: MPI.Status) -> None:
        """There is no message."""
        fill_empty(status)
