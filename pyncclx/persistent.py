"""The persistent collectives: everything is decided once, and each start is one launch."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from mpi4py import MPI

from .arrays import teller_of
from .base import IntraBase
from .collectives import blocking_form
from .collectives.launch import Call, compare, prepare, stream_for
from .devices import Repeated
from .errors import MPIError
from .messages.request import Request
from .nonblocking import CALLS, current_stream, fill_empty
from .state import state_of

_Class = TypeVar("_Class", bound=type)
_serials = itertools.count()


class Prepared:
    """What a persistent request stands for: a launch that has been made ready. It is active from start to finish."""

    stream: Callable[[], Any]  # the current one

    def __init__(self, comm: IntraBase, call: Call) -> None:
        self.active, self._serial = False, next(_serials)
        self._together: dict[tuple[int, ...], Repeated] = {}  # by the serial numbers of all who start with it
        self.operation, self._state, self._buffers = call.operation, state_of(comm), call.buffers
        self._ready, self._settle = call.ready, call.settle
        tellers = filter(None, (teller_of(buffer.owner) for buffer in call.buffers))
        self._places = [(place, place()) for place in tellers]  # of the arrays, then and now
        if comm.checking:
            compare(comm, call.operation, call.signature)
        self._team = None if call.empty else comm.team
        if self._team is None:
            return
        team, device = self._team, self._team.device
        number, function, grid, threads = self._plan = prepare(comm, team, call)
        parameters = team.packed[number] + team.places(call.buffers) + call.arguments
        self._device, self._event = device, device.event()
        self._launch = device.repeated(function, grid, threads, parameters, self._event)
        stream_for(device, call.buffers)  # producers on other streams are known now, not later
        of_torch = any(type(buffer.owner).__module__.startswith("torch") for buffer in call.buffers)
        self.stream = functools.partial(current_stream, device, call.buffers) if of_torch else device.current_stream

    @property
    def is_only_a_launch(self) -> bool:
        """Whether a start has nothing else to do."""
        return self._team is not None and self._ready is None and self._settle is None

    def check(self) -> None:
        """Raise what forbids a start."""
        if self.active:
            raise MPIError(MPI.ERR_REQUEST, f"{self.operation}_init: the request has been started; Wait for it first")
        if self._team is None:
            return
        if self._state.team is not self._team:
            raise MPIError(MPI.ERR_REQUEST, f"{self.operation}_init: the request's communicator has been freed")
        self._team.check()
        for place, first in self._places:
            if place() != first:
                text = "an array has other memory than when the request was made; make a new request"
                raise MPIError(MPI.ERR_BUFFER, f"{self.operation}_init: {text}")

    def start(self) -> None:
        """Launch on the current stream."""
        self.check()
        team = self._team
        if team is not None:
            stream = self.stream()
            if self._ready is not None:
                self._ready(team, stream)
            team.repeat(self._launch, stream)
            if self._settle is not None:
                self._settle(team, self._plan, stream)
                self._event.record(stream)
        self.active = True

    def start_with(self, others: Sequence[Prepared], stream: Any) -> None:
        """Launch this one and others after it, by one launch."""
        works = self, *others
        key = tuple(work._serial for work in works)
        if len(set(key)) < len(key):
            raise MPIError(MPI.ERR_REQUEST, "Startall: a request is there twice")
        for work in works:
            work.check()
        if key not in self._together:
            self._together[key] = self._device.together([work._launch for work in works])
        for team in filter(None, (work._team for work in works)):
            team.follow(stream)
        self._together[key].launch(stream)
        for work in works:
            work.active = True

    def finish(self) -> None:
        """Make the current stream wait, and the host if the communicator blocks; raises what kernels recorded."""
        active, self.active = self.active, False
        team = self._team
        if not active or team is None:
            return
        self._event.order(self.stream())
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


def start_all(works: Sequence[Prepared]) -> None:
    """Start several in their order, by one launch if nothing else has to be done between them."""
    streams = [work.stream() for work in works if work.is_only_a_launch]
    if len(works) > 1 and len(streams) == len(works) and all(stream == streams[0] for stream in streams):
        works[0].start_with(works[1:], streams[0])
    else:
        for work in works:
            work.start()


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
            Class ERR_REQUEST, if it is active or was freed, or its communicator was; ERR_BUFFER, if an array, PyTorch's
            or NumPy's on the host device, has been given other memory since the request was made.
        """
        if not self:
            raise MPIError(MPI.ERR_REQUEST, "Start: the request has been freed")
        self._work.start()

    @classmethod
    def Startall(cls, requests: Sequence[MPI.Prequest]) -> None:
        """Start all, in the order of the list; ours and mpi4py's. Ours that follow each other take one launch."""
        for ours, together in itertools.groupby(requests, lambda request: isinstance(request, Prequest)):
            if ours:
                cls._start_ours(cast(Iterable[Prequest], together))
            else:
                MPI.Prequest.Startall(list(together))

    @staticmethod
    def _start_ours(requests: Iterable[Prequest]) -> None:
        works = []
        for request in requests:
            if not request:
                raise MPIError(MPI.ERR_REQUEST, "Startall: a request has been freed")
            works.append(request._work)
        start_all(works)

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
