"""The persistent collectives: everything is decided once, and each start is one launch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from mpi4py import MPI

from ..collectives import blocking_form
from ..launch.call import Call
from ..launch.prepared import Prepared
from ..requests.persistent import Prequest
from ..team.base import IntraBase
from .nonblocking import CALLS

_Class = TypeVar("_Class", bound=type)


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
