"""Exceptions of signals' handlers in callbacks of MPI's, which neither MPI nor mpi4py passes on.

Python raises an exception that is set for a thread as soon as the thread runs Python code again. So code in C sets it,
behind the last callback of the call of MPI. Where it is not known which callback that is, a later call raises it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import starmap
from types import FrameType
from typing import Any

_set = ctypes.PyDLL(None).PyThreadState_SetAsyncExc
_set.argtypes = [ctypes.c_ulong, ctypes.py_object]
Setting = tuple[int, Any]  # a thread, and a class of exceptions
NOTHING: Setting = (0, None)

#: By thread: what has still to be raised, and where the program has called MPI.
INTERRUPTED: dict[int, tuple[BaseException, tuple[int, int]]] = {}


def callback(step: Iterator[Setting]) -> Callable[..., Any]:
    """Return a callback that goes on to where `step` yields what is set for a thread behind all Python code."""
    return partial(next, starmap(_set, step))


def keep(error: BaseException, caller: FrameType | None) -> None:
    """Keep what the call of MPI's should raise that the program makes in its frame `caller`."""
    INTERRUPTED[threading.get_ident()] = error, _place(caller)


def is_interrupted(caller: FrameType | None) -> bool:
    """Whether an exception is kept of the call of MPI's that the program makes in its frame `caller`."""
    _, place = INTERRUPTED.get(threading.get_ident(), (None, None))
    return place == _place(caller)


def taken() -> Setting:
    """Return what makes this thread raise the exception that is kept, of which Python makes the instance."""
    error, _ = INTERRUPTED.pop(threading.get_ident())
    kind = type(error)
    return threading.get_ident(), type(kind.__name__, (kind,), {"__new__": lambda *_: error, "__init__": _nothing})


def raise_kept() -> None:
    """Raise the exception that is kept for this thread, if any."""
    kept = INTERRUPTED.pop(threading.get_ident(), None)
    if kept is not None:
        raise kept[0]


def _place(caller: FrameType | None) -> tuple[int, int]:
    return (0, 0) if caller is None else (id(caller), caller.f_lasti)


def _nothing(*_: object) -> None:
    pass
