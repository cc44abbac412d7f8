"""Error handlers of communicators and windows, for errors that pyncclx finds.

MPI calls them for its own errors. Once the program has set a handler other than MPI.ERRORS_RETURN, each public method
calls the handler before it raises an exception of pyncclx. Until then no method is changed.

The functions that replace public methods serve forked children, too: there, calls on the parent's communicators and
requests raise.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from mpi4py import MPI

from ..errors import Aborted, CapacityExceeded, CollectiveMismatch, MPIError, NotSupported, PeerTimeout
from ..requests import shown
from ..system.mpi_library import is_child
from ..system.process import held, in_children

_Method = Callable[..., Any]
_FOUND = MPIError, NotSupported, PeerTimeout, Aborted, CollectiveMismatch, CapacityExceeded
_CLASSES = {NotSupported: MPI.ERR_UNSUPPORTED_OPERATION, CapacityExceeded: MPI.ERR_TRUNCATE}  # others: ERR_OTHER
_CALLED = "has_called_handler"  # attribute of an exception
_ENDING = MPI.ERRORS_ARE_FATAL, MPI.ERRORS_ABORT
_Owner = MPI.Comm | MPI.Win
_followed: dict[type, None] = held({})  # classes; their methods call handlers once one is set


def is_ours(cls: type) -> bool:
    """Return whether a class is one of pyncclx, not of mpi4py."""
    return cls.__module__.startswith(f"{__name__.partition('.')[0]}.")


def replace_public(classes: Iterable[type], make: Callable[[str, _Method], _Method]) -> None:
    """Replace every public method of classes and of their base classes in pyncclx.

    Parameters
    ----------
    classes : iterable of type
    make : callable
        Returns the new function of a method, given its name and function.
    """
    for base in {base for cls in classes for base in cls.__mro__ if is_ours(base)}:
        for name, method in list(vars(base).items()):
            if name.startswith("_"):
                continue
            if inspect.isfunction(method):
                new: Any = make(name, method)
            elif isinstance(method, (classmethod, staticmethod)):
                new = type(method)(make(name, method.__func__))
            else:
                continue
            setattr(base, name, new)


def refuse_in_children(classes: Iterable[type]) -> None:
    """Make all public methods of the classes raise NotSupported in forked children.

    This holds for children that this process forks after MPI was initialized.
    """
    classes = tuple(classes)
    in_children(lambda: replace_public(classes, _refusing) if is_child() else None)


def _refusing(name: str, method: Callable[..., Any]) -> Callable[..., NoReturn]:
    @functools.wraps(method)
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotSupported(
            f"{name}: this process was forked by a rank, and is no rank itself: call pyncclx in the parent, and pass "
            "data to it by a pipe or a queue"
        )

    return refuse


class _Thread(threading.local):
    """State of a thread."""

    is_inside = False  # whether the thread is in a public method, which may call other public methods


_THREAD = _Thread()


def follow_handlers(classes: Iterable[type]) -> None:
    """Make the classes' methods call error handlers as soon as the program sets one."""
    new = dict.fromkeys(cls for cls in classes if cls not in _followed)
    _followed.update(new)
    if shown.ON_ERROR:
        replace_public(new, _calling_handlers)


def note_handler(handler: MPI.Errhandler) -> None:
    """Make methods call handlers from now on, unless this one is MPI.ERRORS_RETURN."""
    if handler != MPI.ERRORS_RETURN and not shown.ON_ERROR:
        replace_public(_followed, _calling_handlers)
        shown.ON_ERROR.append(_call_for_state)


def _calling_handlers(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _THREAD.is_inside:
            return method(*args, **kwargs)
        # Requests forget their communicators when they complete.
        owners = _owners((*args, *kwargs.values()))
        _THREAD.is_inside = True
        try:
            return method(*args, **kwargs)
        except _FOUND as error:
            _THREAD.is_inside = False
            _call_handler(owners, error)
            raise
        finally:
            _THREAD.is_inside = False

    return call


def _owners(values: Sequence[Any]) -> Sequence[_Owner | None]:
    """Return the owner of a call or message, or those of the requests it completes."""
    for value in values:
        if isinstance(value, (MPI.Comm, MPI.Win)):
            return [value]
        if isinstance(value, MPI.Request):
            return [_owner_of(value)]
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], MPI.Request):
            return list(map(_owner_of, value))
        # Messages have no public attribute for their communicator, because mpi4py's messages have none.
        if isinstance(comm := getattr(value, "comm", getattr(value, "_comm", None)), MPI.Comm):
            return [comm]
    return [None]


def _owner_of(request: Any) -> _Owner | None:
    """Return the communicator of a request, if it is known."""
    landing = getattr(request, "landing", None)
    if landing is not None:
        return getattr(landing, "_comm", None)
    return _owner_of_state(request._work.caller) if hasattr(request, "_work") else None


def _owner_of_state(caller: Any) -> _Owner | None:
    # MPI may have given the handle of a freed communicator to a new communicator.
    return caller.comm if caller is not None and getattr(caller, "current", True) else None


def _call_for_state(caller: Any, error: Exception) -> None:
    """Call the handler for an error that a call of mpi4py's own has found."""
    if not _THREAD.is_inside and isinstance(error, _FOUND):
        _call_handler([_owner_of_state(caller)], error)
        vars(error)[_CALLED] = True


def _call_handler(owners: Sequence[_Owner | None], error: Exception) -> None:
    """Call the handler for an error, unless MPI or an earlier call has called it."""
    if _CALLED in vars(error):
        return
    first = error.__cause__
    if (isinstance(first, MPI.Exception) and not isinstance(first, MPIError)) or MPI.Is_finalized():
        return
    owner = owners[min(getattr(error, "of_request", 0), len(owners) - 1)]
    if isinstance(error, MPIError) and error.Get_error_class() == MPI.ERR_IN_STATUS and isinstance(first, MPIError):
        code = first.Get_error_code()
    else:
        code = _code_of(error)
    if owner is None or code == MPI.ERR_REQUEST or _is_over(owner):
        owner = MPI.COMM_SELF
    if owner.Get_errhandler() in _ENDING:
        traceback.print_exception(error, file=sys.stderr)
        sys.stderr.flush()
    owner.Call_errhandler(code)


def _code_of(error: Exception) -> int:
    if isinstance(error, MPIError):
        return error.Get_error_code()
    return next((code for cls, code in _CLASSES.items() if isinstance(error, cls)), MPI.ERR_OTHER)


def _is_over(owner: _Owner) -> bool:
    """Return whether a communicator or window has been freed."""
    state = getattr(owner, "_state", None)
    return (state is not None and not state.current) or owner in (MPI.COMM_NULL, MPI.WIN_NULL)


class Handled:
    """The method of communicators and windows that sets error handlers."""

    def Set_errhandler(self, errhandler: MPI.Errhandler) -> None:
        """Set the error handler, for errors of MPI and of pyncclx.

        Works like mpi4py's `Set_errhandler`.

        Parameters
        ----------
        errhandler : MPI.Errhandler
            MPI calls it for MPI's errors. pyncclx calls it for its own errors, before it raises the exception.
        """
        super().Set_errhandler(errhandler)  # type: ignore[misc]
        note_handler(errhandler)
