"""Defer work in MPI's callbacks until MPI's call has returned.

A signal handler may raise an exception in a callback. Neither MPI nor mpi4py passes such an exception on, so it is
raised after MPI's call. Python lets C code set an exception for a thread, and raises it as soon as the thread runs
Python code. So the last callback of an MPI call has C code set the exception. If the last callback cannot be
determined, a later call of this library raises the exception.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from operator import methodcaller
from types import FrameType
from typing import Any

_python = ctypes.PyDLL(None)
_set = _python.PyThreadState_SetAsyncExc
_set.argtypes = [ctypes.c_ulong, ctypes.py_object]
#: A C function with its arguments.
Last = Callable[[], object]
NOTHING: Last = int

#: For each thread: an exception still to be raised, and the place where the program called MPI.
INTERRUPTED: dict[int, tuple[BaseException, tuple[int, int]]] = {}


def callback(step: Iterator[Last]) -> Callable[..., Any]:
    """Return a callback that runs `step` to its next yield, then calls what it yields.

    After that call, no Python code runs until the callback has returned.
    """
    return partial(next, map(methodcaller("__call__"), step))


def keep(error: BaseException, caller: FrameType | None) -> None:
    """Record the exception that the MPI call in the frame `caller` should raise."""
    INTERRUPTED[threading.get_ident()] = error, _place(caller)


def is_interrupted(caller: FrameType | None) -> bool:
    """Return whether an exception is recorded for the MPI call in the frame `caller`."""
    _, place = INTERRUPTED.get(threading.get_ident(), (None, None))
    return place == _place(caller)


def taken() -> Last:
    """Return a C function that makes this thread raise its recorded exception."""
    error, _ = INTERRUPTED.pop(threading.get_ident())
    kind = type(error)
    # Python sets a class and instantiates it later, so this class returns the recorded instance.
    again = type(kind.__name__, (kind,), {"__new__": lambda *_: error, "__init__": _nothing})
    return partial(_set, threading.get_ident(), again)


def behind_the_call(work: Callable[[], object]) -> Last:
    """Return a C function that makes the main thread run `work` after the MPI call.

    The work runs when the thread runs Python code again. In other threads the function does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        return NOTHING
    _waiting.append(work)
    return partial(_python.Py_AddPendingCall, _do_all, None)


def raise_kept() -> None:
    """Raise the exception that is recorded for this thread, if any."""
    kept = INTERRUPTED.pop(threading.get_ident(), None)
    if kept is not None:
        raise kept[0]


def _place(caller: FrameType | None) -> tuple[int, int]:
    return (0, 0) if caller is None else (id(caller), caller.f_lasti)


def _nothing(*_: object) -> None:
    pass


_waiting: deque[Callable[[], object]] = deque()


def _do_waiting(_: object) -> int:
    while _waiting:
        _waiting.popleft()()
    return 0


_do_all = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_do_waiting)
