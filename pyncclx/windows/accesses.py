"""What is done to the memory of a rank in a window of device memory: copies, and atomic changes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

from mpi4py import MPI

from .. import events
from ..arrays import readers
from ..arrays.buffers import Buffer
from ..arrays.vectors import integer
from ..errors import MPIError, NotSupported
from ..requests.request import request_of
from ..requests.status import fill_empty
from ..staging.operations import Argument, argument, device_buffers
from ..staging.windows import ACCESSES, Origins
from ..system.mpi_library import is_cuda_aware
from ..team.state import STAGES_BY_DEFAULT
from ..team.streams import stream_for
from ..team.team import Team
from . import rma
from .exposed import Exposed

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _on_device(method: _Method) -> _Method:
    """Make a method that of device memory at the target; to host memory goes mpi4py's, from copies of device arrays."""
    name = method.__name__
    original = getattr(MPI.Win, name)
    buffers, position = ACCESSES[name]
    rank_argument = Argument("target_rank", position, False)
    alone = name in ("Fetch_and_op", "Compare_and_swap")
    target_argument = Argument("target_disp" if alone else "target", position + 1, False)

    @functools.wraps(method)
    def either(self: Accesses, *args: Any, **kwargs: Any) -> Any:
        began = events.now() if events.listeners else None
        rank, target = (argument(each, args, kwargs) for each in (rank_argument, target_argument))
        if self._exposed is not None and self._exposed.holds(rank, target):
            result, how = method(self, *args, **kwargs), events.NATIVE
        else:
            on_host = readers.host_arrays() or rank == MPI.PROC_NULL  # MPI does not access the memory then
            found = [] if on_host else device_buffers(f"Win.{name}", buffers, args, kwargs)
            if found and self._may_stage(name, found):
                self._origins = self._origins or Origins()
                return self._origins.stage(name, functools.partial(original, self), found, args, kwargs)
            result, how = original(self, *args, **kwargs), events.HOST
        if began is not None:
            events.emit(name, how, events.longest_nbytes([*args, *kwargs.values()]), began, peer=rank)
        return result

    return either  # type: ignore[return-value]


class Accesses:
    """The methods of `pyncclx.Win` that reach into a rank's memory."""

    _exposed: rma.Reach | None = None
    _origins: Origins | None = None  # once there are some
    _staging: bool | None = None  # of the communicator that it was made from, if that is ours

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

    def Put_signal(self, origin: Any, target_rank: int, target: Any = None, signal: int = 0) -> None:
        """Copy to a rank's memory, then count a signal up there, on the current stream: no host takes part.

        Not MPI's. The rank's `Wait_signal` makes its stream wait for that; no epoch is needed. Can be captured in a
        CUDA graph. From 16 MiB on a copy engine moves the data.

        Parameters
        ----------
        origin, target_rank, target
            As in `Put`.
        signal : int
            From 0 to 63.

        Raises
        ------
        ValueError
            There is no such signal.
        NotSupported
            The window is of host memory, or nothing is atomic in a peer's.
        MPI.Exception
            As for `Put`.
        """
        began = events.now() if events.listeners else None
        exposed = self._device_only("Put_signal")
        exposed.team.require_links("Put_signal")
        buffer, target_rank = exposed.origin(origin, "Put_signal: origin", writable=False), integer(target_rank)
        if target_rank != MPI.PROC_NULL:
            found = exposed.target("Put_signal", target_rank, target, buffer)
            exposed.signals.put(buffer, found.address, target_rank, signal)
        if began is not None:
            events.emit("Put_signal", events.NATIVE, buffer.nbytes, began, peer=target_rank)

    def Wait_signal(self, signal: int = 0, count: int = 1) -> None:
        """Make the current stream wait until `count` more have come of a signal than were waited for before.

        What runs behind it on the stream sees what was put with them. Not MPI's; the host does not wait. It waits no
        longer than `PYNCCLX_TIMEOUT`: the next operation of the communicator, or of the window, raises `PeerTimeout`.

        Raises
        ------
        ValueError
            There is no such signal, or `count` is negative.
        NotSupported
            The window is of host memory.
        """
        self._device_only("Wait_signal").signals.wait(signal, count)

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
        if op == MPI.NO_OP and result is not None and origin is not None:
            origin = result  # nobody looks at what was given
        named = {"origin": origin, "result": result, "compare": compare}
        buffers: dict[str, Buffer] = {
            name: exposed.origin(each, f"{operation}: {name}", writable=name == "result")
            for name, each in named.items()
            if each is not None or name == "origin"
        }
        if rank == MPI.PROC_NULL:
            stream = stream_for(exposed.device, tuple(buffers.values()))
            return _Enqueued(exposed.team, stream, tuple(buffers.values()))
        target = exposed.target(operation, rank, spec, buffers["origin"])
        others = buffers.get("result"), buffers.get("compare")
        stream = exposed.change(operation, op, target, buffers["origin"], *others)
        return _Enqueued(exposed.team, stream, tuple(buffers.values()))

    def _of(self) -> rma.Reach:
        exposed = cast(rma.Reach, self._exposed)
        if not exposed.team.windows:
            raise MPIError(MPI.ERR_WIN, "the window's communicator has been freed, and its memory with it")
        exposed.team.errors.check()
        return exposed

    def _device_only(self, operation: str) -> Exposed:
        if not isinstance(self._exposed, Exposed):
            raise NotSupported(f"{operation}: the window was not made of device memory; use arrays from comm.Alloc")
        self._of()
        return self._exposed

    def _may_stage(self, operation: str, found: list[Argument]) -> bool:
        """Whether host copies replace the device arrays of a call; if not, MPI itself takes device arrays."""
        stages = STAGES_BY_DEFAULT.get() if self._staging is None else self._staging
        if not stages and is_cuda_aware() is False:
            raise NotSupported(
                f"Win.{operation}: {found[0].name} is on the device, the window's memory is not, and the MPI "
                "library does not take device arrays; pass host arrays, or use `from pyncclx import MPI`"
            )
        return stages

    def _copy_back(self, rank: int | None = None) -> None:
        """Take the results of staged operations with a rank, or with all, to the device: they are complete."""
        if self._origins is not None:
            self._origins.copy_back(rank)


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
