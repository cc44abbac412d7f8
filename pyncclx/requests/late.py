"""What callbacks of MPI's leave to be done when MPI's call has returned.

Exceptions of signals' handlers are raised then: neither MPI nor mpi4py passes them on. Python raises an exception that
is set for a thread as soon as the thread runs Python code again. So code in C sets it, behind the last callback of the
call of MPI. Where it is not known which callback that is, a later call raises it.
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
Last = Callable[[], object]  # a function in C with its arguments
NOTHING: Last = int

#: By thread: what has still to be raised, and where the program has called MPI.
INTERRUPTED: dict[int, tuple[BaseException, tuple[int, int]]] = {}


def callback(step: Iterator[Last]) -> Callable[..., Any]:
    """Return a callback that goes on to where `step` yields what is called last, behind all Python code."""
    return partial(next, map(methodcaller("__call__"), step))


def keep(error: BaseException, caller: FrameType | None) -> None:
    """Keep what the call of MPI's should raise that the program makes in its frame `caller`."""
    INTERRUPTED[threading.get_ident()] = error, _place(caller)


def is_interrupted(caller: FrameType | None) -> bool:
    """Whether an exception is kept of the call of MPI's that the program makes in its frame `caller`."""
    _, place = INTERRUPTED.get(threading.get_ident(), (None, None))
    return place == _place(caller)


def taken() -> Last:
    """Return what makes this thread raise the exception that is kept, of which Python makes the instance."""
    error, _ = INTERRUPTED.pop(threading.get_ident())
    kind = type(error)
    again = type(kind.__name__, (kind,), {"__new__": lambda *_: error, "__init__": _nothing})
    return partial(_set, threading.get_ident(), again)


def behind_the_call(work: Callable[[], object]) -> Last:
    """Return what lets the main thread do some work when it runs Python code again; nothing in other threads."""
    if threading.current_thread() is not threading.main_thread():
        return NOTHING
    _waiting.append(work)
    return partial(_python.Py_AddPendingCall, _do_all, None)


def raise_kept() -> None:
    """Raise the exception that is kept for this thread, if any."""
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
