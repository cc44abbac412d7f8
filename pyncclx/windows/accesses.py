"""How a call of a one-sided operation goes: to device memory that this rank reaches, or to MPI."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mpi4py import MPI

from .. import events
from ..arrays import places
from ..errors import MPIError, NotSupported
from ..recording.calls import Calls, calls_of
from ..recording.facts import place, records_calls
from ..recording.identity import identity_of_window
from ..recording.layout import ACCESS, ANY
from ..requests.request import request_of
from ..requests.work import Work
from ..staging.operations import Argument, argument, device_buffers
from ..staging.windows import ACCESSES, Origins
from ..system.mpi_library import is_cuda_aware
from ..team.state import STAGES_BY_DEFAULT, State
from ..team.streams import ANY_CALLER, Caller
from .atomics import OF_ONE_ELEMENT
from .exposed import Exposed
from .reach import Reach

_Method = TypeVar("_Method", bound=Callable[..., Any])


class Accesses(MPI.Win):
    """Base of the families of methods of `pyncclx.Win`: what they reach, and what they have begun."""

    _reach: Reach | None = None  # None: the window is MPI's in everything
    _origins: Origins | None = None  # host copies of device arrays, once there are some
    _staging: bool | None = None  # the communicator's setting, if the window was made from one of ours
    _caller: Caller = ANY_CALLER  # its state then
    _recording: Calls | None = None

    def _calls(self) -> Calls | None:
        """What records the window's calls; None if none are recorded."""
        if self._recording is None and records_calls():
            identity = identity_of_window(self)
            self._recording = calls_of(identity, self.Get_name(), identity.world.index(place()[0]))
        return self._recording

    def _record(self, operation: str, rank: int, nbytes: int = 0, tag: int = ANY) -> int:
        """Write the entry of a call that is not collective; return its number."""
        calls = self._calls()
        return 0 if calls is None else calls.one(operation, ACCESS, peer=rank, tag=tag, nbytes=nbytes)

    def _reach_now(self) -> Reach:
        """The device memory, if it is still there; raises the errors of kernels that ran before."""
        reach = self._reach
        assert reach is not None
        team = reach.team
        if not team.windows.by_number:
            raise MPIError(MPI.ERR_WIN, "the window's communicator has been freed, and its memory with it")
        team.errors.check()
        return reach

    def _exposed(self, operation: str) -> Exposed:
        """The memory of a window that was made of device arrays."""
        if not isinstance(self._reach, Exposed):
            raise self._not_mapped(operation)
        self._reach_now()
        return self._reach

    def _not_mapped(self, operation: str) -> NotSupported:
        """The refusal of what needs memory that all ranks have mapped."""
        if self._node_count() > 1:
            return NotSupported(
                f"{operation}: signals and mapped memory work inside one node, and the window's ranks are on "
                f"{self._node_count()}; Split by node, or Put, Flush and Send a message"
            )
        return NotSupported(f"{operation}: the window was not made of device memory from comm.Alloc; use such arrays")

    def _node_count(self) -> int:
        """The number of nodes of the window's ranks; 1 if its communicator has no topology."""
        topology = self._caller.topology if isinstance(self._caller, State) else None
        return 1 if topology is None else topology.node_count

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


def on_device(method: _Method) -> _Method:
    """Make a method that of device memory at the target; mpi4py's is called for host memory, with host copies."""
    name = method.__name__
    original = getattr(MPI.Win, name)
    buffers, position = ACCESSES[name]
    rank_argument = Argument("target_rank", position, False)
    target_argument = Argument("target_disp" if name in OF_ONE_ELEMENT else "target", position + 1, False)

    @functools.wraps(method)
    def either(self: Accesses, *args: Any, **kwargs: Any) -> Any:
        began = events.begin(name) if events.listeners else None
        rank, target = (argument(each, args, kwargs) for each in (rank_argument, target_argument))
        self._record(name, rank, getattr(args[0], "nbytes", 0) if args else 0)
        if self._reach is not None and self._reach.holds(rank, target):
            result, how = method(self, *args, **kwargs), events.NATIVE
        else:
            on_host = places.host_arrays() or rank == MPI.PROC_NULL  # MPI does not access the memory then
            found = [] if on_host else device_buffers(f"Win.{name}", buffers, args, kwargs)
            if found and self._may_stage(name, found):
                self._origins = self._origins or Origins(self._caller)
                return self._origins.stage(name, functools.partial(original, self), found, args, kwargs)
            result, how = original(self, *args, **kwargs), events.HOST
        if began is not None:
            events.emit(name, how, events.longest_nbytes([*args, *kwargs.values()]), began, peer=rank)
        return result

    return either  # type: ignore[return-value]


class Enqueued(Work):
    """A copy or a kernel on a stream, and the work that its request stands for: the end of it."""

    def __init__(self, reach: Reach, stream: Any, arrays: Sequence[Any]) -> None:
        team = reach.team
        self._device, self._stream, self._arrays, caller = team.device, stream, arrays, team.caller
        if arrays and (caller.stream is not None or caller.blocking == "host"):  # it may be another than the arrays'
            team.order.kept.keep(team.order.mark(stream), arrays)

    def request(self) -> MPI.Request:
        """A request that is over when the stream has come to here."""
        self._event = self._device.event()
        self._event.record(self._stream)
        return request_of(self)

    def finish(self) -> None:
        """Wait on the host."""
        self.active = False
        self._event.synchronize()
        self._arrays = ()

    def is_over(self) -> bool:
        """Whether it is done."""
        return self._event.is_over()
