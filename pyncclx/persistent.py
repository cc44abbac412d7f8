"""The persistent collectives: everything is decided once, and each start is one launch."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from mpi4py import MPI

from .base import IntraBase
from .collectives import blocking_form
from .collectives.launch import Call
from .errors import MPIError
from .messages.request import Request
from .nonblocking import CALLS
from .prepared import Prepared, start_all

_Class = TypeVar("_Class", bound=type)


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
        return bool(self) and self._work.active

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
