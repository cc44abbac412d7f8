"""Make nonblocking, persistent and staged methods from an operation's function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

from mpi4py import MPI

from mpi_bootstrap import interrupts_deferred

from .. import events
from ..arrays import places
from ..collectives.over_nodes import OVER_NODES
from ..errors import NotSupported
from ..failures.policy import explained_request, raise_explained
from ..launch.call import Call
from ..launch.keys import key_of_call
from ..launch.later import is_for_later, launch_later, made_alone
from ..launch.launched import Launched, launch, launch_again
from ..launch.prepared import Prepared
from ..launch.time_slicing import leave_to_host
from ..messages.progress.pending_sends import going_on
from ..nodes.requests import SpanningWork, launched, prepared
from ..nodes.spanning import Spanning, spanning_of
from ..operations import blocking_form
from ..requests.persistent import Prequest
from ..requests.request import request_of
from ..requests.work import Startable
from ..staging.arguments import GivenCall, parameters
from ..team.state import state_of
from ..team.tracks import tracks_of
from . import mixed
from .host_first import RECEIVES, host_first, receive_by_mpi

_Function = Callable[..., Any]
_Decorated = TypeVar("_Decorated", bound=_Function)
_MakeCall = Callable[..., Call | None]

_NONBLOCKING_DOC = """Begin `{operation}`, with its arguments, and return a request.

On device arrays the kernel is enqueued on a stream of the communicator's own, after the work on the current
stream. Subsequent work on the current stream does not wait for the kernel. `Wait` makes the stream that is then
current wait for it; the host waits, too, only if `blocking` is "host". `Test` returns whether the kernel has
ended. If the call is the first with a new kernel, a thread prepares it with the other ranks and launches it, so
ranks may begin such calls of several communicators in any order; docs/reference/limits.md lists exceptions. If
you begin a call in a capture, wait for it in the capture.
"""
_PERSISTENT_DOC = """Return a persistent request of `{operation}`, with its arguments.

Collective on device arrays: the call compiles the kernel and packs its parameters, so that a start is only
a launch. `Start` launches the kernel on a stream of the request's own, after the work on the stream that is then
current. That work must make the arrays ready. Ranks may start requests in different orders unless
`ordered_starts` is true. If you start a request in a capture, wait for it in the capture.
"""


class _Method:
    """A descriptor that makes a method from its class and name, for calls of `super`."""

    def __init__(self, make: Callable[[type, str], _Function]) -> None:
        self._make = make

    def __set_name__(self, family: type, name: str) -> None:
        setattr(family, name, self._make(family, name))


def or_staged(native: _Decorated) -> _Decorated:
    """Return a method that calls MPI on host copies when `native` raises NotSupported.

    If mpi4py has no such method, the result is `native` itself. MPI is called only if `staging` is true. `native` must
    raise NotSupported on all ranks or none, before any launch.
    """
    return cast(_Decorated, _Method(lambda family, name: _or_staged(native, family, name)))


def nonblocking(make: _MakeCall, *, is_cached: bool = True) -> Callable[..., MPI.Request]:
    """Return the nonblocking form of the operation whose calls `make` returns.

    If `make` communicates, set `is_cached` to false: a rank with a cached call would skip the communication, while a
    rank without one waits in it.
    """

    def method(family: type, name: str) -> _Function:
        def begin(self: Any, *args: Any, **kwargs: Any) -> MPI.Request:
            began = events.begin(name, self) if events.listeners else None
            state = state_of(self)
            if state.background is not None and not state.background.is_busy:
                state.settle()
            work: Any = None
            key: Hashable = None
            if state.background is not None:
                pass
            elif state.team is None:
                if is_cached and spanning_of(self) is not None:
                    key = self.key_over_nodes((SpanningWork, make, *kwargs), args, kwargs)
                    work = self.launched_over_nodes(key, args, kwargs)
            elif is_cached and not (state.checking or state.sm_free):
                key = key_of_call((Launched, make, *kwargs), args, kwargs)
                work = launch_again(state, state.team, key, (*args, *kwargs.values()))
            call: Any = None if work is not None else made_alone(self, make, args, kwargs)
            if call is not None and is_for_later(self, call):
                self.prepare_messages()
                work = launch_later(self, call)
            if work is None:
                spanning = None
                if call is None:
                    spanning = self.spanning_for(make, args, kwargs)
                    call = (make if spanning is None else OVER_NODES[make])(self, *args, **kwargs)
                if call is None:
                    return going_on(explained_request(self, _by_mpi(self, family, name, args, kwargs)))
                if spanning is None and set(kwargs) <= set(parameters(name)):
                    leave_to_host(self, call)
                self.prepare_messages()
                arguments = *args, *kwargs.values()
                work = launched(self, spanning, call, key) if spanning else launch(self, call, key, arguments)
            try:
                request = request_of(work)
            except BaseException:
                work.drop()
                raise
            if began is not None:
                nbytes = events.longest_nbytes([*args, *kwargs.values()])
                events.emit(name, events.NATIVE, nbytes, began, comm=self)
            return request

        return _form(begin, make, family, name, _NONBLOCKING_DOC)

    return cast(Any, _Method(method))  # type: ignore[no-any-return]


def launch_as_nonblocking(comm: Any, make: _MakeCall, args: Any, options: Any, *, is_cached: bool) -> bool:
    """Make a blocking call as a nonblocking one if the ranks have to meet in it.

    In MPI a blocking collective never matches a nonblocking one. With this function as `State.first_calls` they do:
    calls in which the ranks need not meet are the same kernels on the same memory. Return False for those.

    If `make` communicates (`is_cached` is false), it must not be called twice, so every call is made as a nonblocking
    one.
    """
    call = made_alone(comm, make, args, options)
    is_later = call is not None and is_for_later(comm, call)
    if call is None or (is_cached and not is_later):
        return False
    began = events.begin(call.operation, comm) if events.listeners else None
    comm.prepare_messages()
    work = launch_later(comm, call) if is_later else launch(comm, call, None, args)
    work.finish()
    if began is not None:
        events.emit(call.operation, events.NATIVE, events.longest_nbytes(args), began, comm=comm)
    return True


def persistent(make: _MakeCall) -> Callable[..., MPI.Prequest]:
    """Return the persistent form of the operation whose calls `make` returns."""

    def method(family: type, name: str) -> _Function:
        # `info` is the last parameter of mpi4py's method. Kernels do not use it.
        before_info = len(parameters(name)) - 1 if parameters(name) else None

        @interrupts_deferred()
        def prepare(self: Any, *args: Any, **kwargs: Any) -> MPI.Prequest:
            self._settled()
            some, ours = args[:before_info], {key: value for key, value in kwargs.items() if key != "info"}
            spanning = self.spanning_for(make, some, ours)
            call: Any = (make if spanning is None else OVER_NODES[make])(self, *some, **ours)
            if call is None:
                return cast(MPI.Prequest, _by_mpi(self, family, name, args, kwargs))
            self.prepare_messages()
            request = Prequest(_on_track(self, make, call, spanning, some, ours))
            request.emits(name, events.NATIVE, events.longest_nbytes([*args, *kwargs.values()]))
            return request

        return _form(prepare, make, family, name, _PERSISTENT_DOC)

    return cast(Any, _Method(method))  # type: ignore[no-any-return]


def _on_track(
    comm: Any, make: _MakeCall, call: Any, spanning: Spanning | None, args: tuple[Any, ...], options: dict[str, Any]
) -> Startable:
    """Return a persistent call's work, on its own track (stream and memory).

    If no track is left and `staging` is true, raise NotSupported; MPI then runs the call. If no track is left and
    `staging` is false, the call uses the communicator's memory. Ranks must start such calls in the same order, so
    kernels compare the numbers of these calls as well.
    """
    tracks, track = tracks_of(comm), None
    try:
        track = tracks.take(comm, None if spanning is None else _span)
    except NotSupported:
        if comm.staging:
            raise
    on, owner = (comm, spanning) if track is None else (track.comm, spanning_of(track.comm))
    if track is None:
        call.signature = (*call.signature, f"request {tracks.made}")
    else:
        # Make the call again, with memory of the track.
        call = (make if spanning is None else OVER_NODES[make])(on, *args, **options)
    work: Any = Prepared(comm, call, on) if owner is None else prepared(comm, owner, call)
    if track is not None:
        track.give_to(work)
    return cast(Startable, work)


def _span(comm: Any) -> None:
    assert comm.spanning is not None


def _by_mpi(comm: Any, family: type, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call mpi4py's method, without the keywords that only pyncclx has.

    Raise NotSupported if mpi4py has no such method.
    """
    if not hasattr(MPI.Cartcomm, name):
        raise NotSupported(f"{name}: mpi4py has no such method for host arrays; pass device arrays")
    theirs = {key: value for key, value in kwargs.items() if key in parameters(name)}
    try:
        return getattr(super(family, comm), name)(*args, **theirs)
    except MPI.Exception as error:
        raise_explained(comm, error, name)


def _form(native: _Function, make: _Function, family: type, name: str, doc: str) -> _Function:
    """Return a method with the signature of mpi4py's method.

    If mpi4py has no such method, the signature is that of `make`.
    """
    functools.update_wrapper(native, getattr(MPI.Cartcomm, name, make))
    native.__name__ = name
    native.__doc__ = doc.format(operation=blocking_form(name))
    return _or_staged(native, family, name)


def _or_staged(native: _Function, family: type, name: str) -> _Function:
    def staged(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = GivenCall(name, args, kwargs)
        which = mixed.host_buffer(given)
        if which is not None and not self.is_inter:
            result = mixed.with_copy(self, given, native, which)
            if result is not NotImplemented:
                return result
        by_mpi: _Function = getattr(super(family, self), name)
        if name in RECEIVES and places.host_arrays():
            return receive_by_mpi(self, name, by_mpi, args, kwargs)
        return by_mpi(*args, **kwargs)

    return host_first(name, native, family, staged)
