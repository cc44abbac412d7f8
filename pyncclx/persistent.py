"""The persistent collectives: everything is decided once, and each start is one launch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mpi4py import MPI

from .base import IntraBase
from .collectives import blocking_form
from .collectives.launch import Call, compare, prepare, stream_for
from .errors import MPIError
from .messages.request import Request
from .nonblocking import CALLS, current_stream, fill_empty
from .state import state_of

_Class = TypeVar("_Class", bound=type)


class Prepared:
    """What a persistent request stands for: a launch that has been made ready. It is active from start to finish."""

    def __init__(self, comm: IntraBase, call: Call) -> None:
        self.active = False
        self.operation, self._state, self._buffers = call.operation, state_of(comm), call.buffers
        self._ready, self._settle = call.ready, call.settle
        if comm.checking:
            compare(comm, call.operation, call.signature)
        self._team = None if call.empty else comm.team
        if self._team is None:
            return
        team, device = self._team, self._team.device
        number, function, grid, threads = self._plan = prepare(comm, team, call)
        parameters = team.packed[number] + team.places(call.buffers) + call.arguments
        self._event = device.event()
        self._launch = device.repeated(function, grid, threads, parameters, self._event)
        stream_for(device, call.buffers)  # producers on other streams are known now, not later
        of_torch = any(type(buffer.owner).__module__.startswith("torch") for buffer in call.buffers)
        self._stream = functools.partial(current_stream, device, call.buffers) if of_torch else device.current_stream

    def start(self) -> None:
        """Launch on the current stream."""
        if self.active:
            raise MPIError(MPI.ERR_REQUEST, f"{self.operation}_init: the request has been started; Wait for it first")
        team = self._team
        if team is not None:
            if self._state.team is not team:
                raise MPIError(MPI.ERR_REQUEST, f"{self.operation}_init: the request's communicator has been freed")
            team.check()
            stream = self._stream()
            if self._ready is not None:
                self._ready(team, stream)
            team.repeat(self._launch, stream)
            if self._settle is not None:
                self._settle(team, self._plan, stream)
                self._event.record(stream)
        self.active = True

    def finish(self) -> None:
        """Make the current stream wait, and the host if the communicator blocks; raises what kernels recorded."""
        active, self.active = self.active, False
        team = self._team
        if not active or team is None:
            return
        self._event.order(self._stream())
        if self._state.blocking == "host":
            self._event.synchronize()
        if self._state.team is team:  # a communicator that has been freed has drained, and has no record
            team.check()

    def is_over(self) -> bool:
        """Whether the kernel has ended, or none was started."""
        return not self.active or self._team is None or self._event.is_over()

    def fill(self, status: MPI.Status) -> None:
        """There is no message."""
        fill_empty(status)


class Prequest(MPI.Prequest, Request):
    """A persistent request of a collective on device arrays, which it keeps.

    `Start` launches the kernel on the current stream. `Wait` makes the stream that is current then wait, and `Test`
    asks whether the kernel has ended; so do the calls for many requests of `pyncclx.Request` and `pyncclx.MPI.Request`.
    mpi4py's own do not see that it was started: its handle is that of a request of MPI's with nothing to do.
    """

    _work: Prepared

    def __new__(cls, work: Prepared) -> Prequest:
        """Make the request of a call."""
        request = super().__new__(cls, MPI.COMM_SELF.Send_init([None, 0, MPI.BYTE], MPI.PROC_NULL))
        request._work = work
        return request

    @property
    def is_active(self) -> bool:
        """Whether it was started and not yet waited for."""
        return self._work.active

    def Start(self) -> None:
        """Launch the kernel.

        Raises
        ------
        MPI.Exception
            Class ERR_REQUEST, if it is active or was freed, or its communicator was.
        """
        if not self:
            raise MPIError(MPI.ERR_REQUEST, "Start: the request has been freed")
        self._work.start()

    @classmethod
    def Startall(cls, requests: Sequence[MPI.Prequest]) -> None:
        """Start all, in the order of the list; ours and mpi4py's."""
        for request in requests:
            request.Start()

    def Free(self) -> None:
        """Let go of the arrays; of an active request once its kernel has ended.

        Raises
        ------
        MPI.Exception
            Class ERR_REQUEST, if the kernel has not ended.
        """
        if not self._is_over():
            raise MPIError(MPI.ERR_REQUEST, "Free: the request is active; Wait for it first")
        self._finish()
        MPI.Prequest.Free(self)
        del self._work


def adds_persistent(calls: dict[str, Callable[..., Call | None]]) -> Callable[[_Class], _Class]:
    """Give a class the persistent forms of nonblocking methods, by what makes the call of each."""

    def add(cls: _Class) -> _Class:
        for name, make in calls.items():
            operation = blocking_form(name)
            setattr(cls, f"{operation}_init", _method(cls, operation, make))
        return cls

    return add


def _method(cls: type, operation: str, make: Callable[..., Call | None]) -> Callable[..., Any]:
    name = f"{operation}_init"
    original = getattr(MPI.Cartcomm, name)
    known = [parameter for parameter in inspect.signature(original).parameters if parameter != "self"]
    before_info = known.index("info")  # the last; a kernel has no use for it

    def method(self: IntraBase, *args: Any, **kwargs: Any) -> MPI.Prequest:
        ours = {key: value for key, value in kwargs.items() if key != "info"}
        call = make(self, *args[:before_info], **ours)
        if call is not None:
            return Prequest(Prepared(self, call))
        theirs = {key: value for key, value in kwargs.items() if key in known}
        request: MPI.Prequest = getattr(super(cls, self), name)(*args, **theirs)
        return request

    functools.update_wrapper(method, original)
    method.__doc__ = (
        f"Prepare what `{operation}` does, with its arguments, and return a request to start again and again.\n\n"
        "Collective on device arrays: the kernel is chosen and compiled, and its parameters are packed, so that\n"
        "a start is only a launch. `Start` works on the stream that is current then, where the arrays are to be ready."
    )
    return method


@adds_persistent(CALLS)
class Persistent(IntraBase):
    """The persistent forms of the collectives that have kernels."""
