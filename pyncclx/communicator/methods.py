"""Methods made from an operation's function: its nonblocking and persistent forms, and the way to MPI if it refuses."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from mpi4py import MPI

from .. import events
from ..collectives import blocking_form
from ..errors import NotSupported
from ..launch.call import Call
from ..launch.launched import Launched
from ..launch.prepared import Prepared
from ..requests.persistent import Prequest
from ..requests.request import request_of

_Function = Callable[..., Any]
_Decorated = TypeVar("_Decorated", bound=_Function)
_Request = TypeVar("_Request", bound=MPI.Request)
_MakeCall = Callable[..., Call | None]

_NONBLOCKING_DOC = """Begin what `{operation}` does, with its arguments, and return a request.

On device arrays the kernel is enqueued on the current stream. `Wait` makes the stream that is current then
wait for it, and the host only if `blocking` is "host"; `Test` returns whether it has ended. The first call
with a new kernel compiles it, and is collective.
"""
_PERSISTENT_DOC = """Prepare what `{operation}` does, with its arguments, and return a request to start again and again.

Collective on device arrays: the kernel is chosen and compiled, and its parameters are packed, so that
a start is only a launch. `Start` works on the stream that is current then, where the arrays are to be ready.
"""


class _Method:
    """A method that is made when its class is, for `super` needs the class and the method's name."""

    def __init__(self, make: Callable[[type, str], _Function]) -> None:
        self._make = make

    def __set_name__(self, family: type, name: str) -> None:
        setattr(family, name, self._make(family, name))


def or_staged(native: _Decorated) -> _Decorated:
    """Let a method leave to MPI, on host copies, what its kernels refuse with NotSupported, if `staging` allows it.

    Kernels refuse before anything is launched, and on all ranks alike.
    """
    return cast(_Decorated, _Method(lambda family, name: _or_staged(native, family, name)))


def nonblocking(make: _MakeCall) -> Callable[..., MPI.Request]:
    """The nonblocking form of the operation whose calls `make` makes."""
    return _form(make, lambda comm, call: request_of(Launched(comm, call)), _NONBLOCKING_DOC)


def persistent(make: _MakeCall) -> Callable[..., MPI.Prequest]:
    """The persistent form of the operation whose calls `make` makes."""
    return _form(make, lambda comm, call: Prequest(Prepared(comm, call)), _PERSISTENT_DOC)


def _form(make: _MakeCall, request_for: Callable[[Any, Call], _Request], doc: str) -> Callable[..., _Request]:
    def method(family: type, name: str) -> _Function:
        original = getattr(MPI.Cartcomm, name)
        parameters = list(inspect.signature(original).parameters)[1:]
        # Persistent forms have `info` as their last parameter, for which a kernel has no use.
        before_info = parameters.index("info") if "info" in parameters else None

        def native(self: Any, *args: Any, **kwargs: Any) -> Any:
            began = events.now() if events.listeners else None
            ours = {key: value for key, value in kwargs.items() if key != "info"} if kwargs else kwargs
            call = make(self, *args[:before_info], **ours)
            if call is not None:
                request = request_for(self, call)
                if isinstance(request, Prequest):
                    request.emits(name, events.NATIVE, events.longest_nbytes([*args, *kwargs.values()]))
                elif began is not None:
                    nbytes = events.longest_nbytes([*args, *kwargs.values()])
                    events.emit(name, events.NATIVE, nbytes, began, comm=self)
                return request
            theirs = {key: value for key, value in kwargs.items() if key in parameters}
            return getattr(super(family, self), name)(*args, **theirs)

        functools.update_wrapper(native, original)
        native.__doc__ = doc.format(operation=blocking_form(name))
        return _or_staged(native, family, name)

    return cast(Any, _Method(method))  # type: ignore[no-any-return]


def _or_staged(native: _Function, family: type, name: str) -> _Function:
    known = frozenset(inspect.signature(getattr(MPI.Cartcomm, name)).parameters)

    @functools.wraps(native)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not issubclass(type(self), family):  # MPI.Comm.Send(comm, ...), where comm is mpi4py's
            return getattr(type(self), name)(self, *args, **kwargs)
        try:
            return native(self, *args, **kwargs)
        except NotSupported:
            # MPI cannot do what an argument asks for that mpi4py does not have.
            if not self.staging or not known.issuperset(kwargs):
                raise
        return getattr(super(family, self), name)(*args, **kwargs)

    return method
