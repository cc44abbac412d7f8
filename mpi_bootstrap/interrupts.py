"""Defer signal handlers during a collective until peers can learn of an exception.

Handlers may raise: Python's own handler of SIGINT raises KeyboardInterrupt. If a rank left between two rendezvous, the
others would wait for it in the second one.
"""

import _signal  # type: ignore[import-not-found]
import ctypes
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Handler = Callable[[int, FrameType | None], Any]
_LONGEST_S = 0.5  # longest deferral by a wait for other ranks
_ACTION_NBYTES = 256  # more than any struct sigaction, which begins with the handler
_HANDLER_NBYTES = ctypes.sizeof(ctypes.c_void_p)
_ALLOWED, _DEFERRED, _TO_THE_END = range(3)
_NUMBERS = sorted(int(number) for number in signal.valid_signals() if number < signal.SIGRTMIN)
# The functions of `signal` convert numbers and handlers to enumerations, which takes four times as long.
_get, _set = _signal.getsignal, _signal.signal
_sigaction = ctypes.CDLL(None).sigaction


class _Action:
    """A signal's struct sigaction: its handler in C, its flags."""

    def __init__(self, number: int) -> None:
        self.number, self._memory = number, ctypes.create_string_buffer(_ACTION_NBYTES)

    def read(self) -> bytes:
        """Read the struct, and return it. It begins with the address of the handler."""
        _sigaction(self.number, None, self._memory)
        return self._memory.raw

    def restore(self) -> None:
        """Set the struct that was read last."""
        _sigaction(self.number, self._memory, None)


class _Interrupts:
    """State of this process's signals.

    Attributes
    ----------
    level : int
        When signal handlers run. _ALLOWED: at once. _DEFERRED: at the end of the block, inside an `interrupts_allowed`
        in it, or when they are overdue. _TO_THE_END: at the end of the block only.
    is_installed : bool
        Whether `_receive` has replaced all handlers that were set in Python.
    """

    def __init__(self) -> None:
        self.level, self.is_installed = _ALLOWED, False
        self._handlers: dict[int, _Handler] = {}  # the program's handlers that `_receive` replaces
        self._pending: dict[int, FrameType | None] = {}  # frame of each pending signal, by number
        self._since = 0.0  # time of the first pending signal
        self._actions: dict[int, _Action] = {}
        self._of_python = b""  # the struct that `signal` sets for every Python handler
        self._with_flags: list[_Action] = []  # structs whose flags `siginterrupt` has changed

    def install(self) -> None:
        """Replace all handlers of Python by `_receive`."""
        self.is_installed = True
        self._handlers.clear()
        self._with_flags.clear()
        for number in _NUMBERS:
            handler = _get(number)
            if callable(handler) and handler is not _receive:
                self._replace(number, handler)

    def _replace(self, number: int, handler: _Handler) -> None:
        """Replace a Python handler, unless the program has set another one in C.

        Python's `getsignal` does not show a handler that was set in C.
        """
        action = self._actions.get(number) or self._actions.setdefault(number, _Action(number))
        before = action.read()
        if not self._of_python:
            _set(number, _receive)
            self._of_python = _Action(number).read()
            _set(number, handler)
        if before != self._of_python:
            if before[:_HANDLER_NBYTES] != self._of_python[:_HANDLER_NBYTES]:
                action.restore()
                return
            self._with_flags.append(action)
        self._handlers[number] = handler
        _set(number, _receive)

    def uninstall(self) -> None:
        """Restore the program's handlers, except where it has set others meanwhile."""
        self.is_installed = False
        replaced = [number for number in self._handlers if _get(number) is _receive]
        try:
            # Python runs no handler between these calls of `_set`, which return `_receive`.
            all(map(_set, replaced, map(self._handlers.__getitem__, replaced)))
        finally:
            for action in self._with_flags:
                if action.number in replaced:
                    action.restore()

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Call the program's handler of a signal now, or note that it has to be called."""
        if not self._pending:
            self._since = time.monotonic()
        self._pending[number] = frame
        if self.level == _ALLOWED:
            self.call_pending()

    def call_pending(self) -> None:
        """Call the program's handlers of the signals that are pending."""
        if self._pending:
            number, frame = self._pending.popitem()
            try:
                self._handlers[number](number, frame)
            finally:
                self.call_pending()

    def is_overdue(self) -> bool:
        """Return whether a signal has been pending for too long."""
        return bool(self._pending) and time.monotonic() - self._since > _LONGEST_S


_INTERRUPTS = _Interrupts()


def _receive(number: int, frame: FrameType | None) -> None:
    """Handle a signal during a collective: the handler that replaces all others."""
    _INTERRUPTS.receive(number, frame)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


class Deferral:
    """Context manager and decorator that defers signals; see `interrupts_deferred`."""

    __slots__ = ("_before", "_installs", "_level")

    def __init__(self, level: int) -> None:
        self._level = level

    def __call__(self, function: _Function) -> _Function:
        """Return a function that runs with signal handlers deferred."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with Deferral(self._level):
                return function(*args, **kwargs)

        return cast(_Function, call)

    def __enter__(self) -> None:
        state = _INTERRUPTS
        self._before, self._installs = self._level, False  # equal levels: `__exit__` does nothing
        if state.level < self._level and _is_main():
            self._before, self._installs = state.level, not state.is_installed
            state.level = self._level
            if self._installs:
                try:
                    state.install()
                except BaseException:
                    self.__exit__()
                    raise

    def __exit__(self, *_: object) -> None:
        if self._before == self._level:
            return
        state = _INTERRUPTS
        try:
            if self._installs:
                state.uninstall()
        finally:
            state.level = self._before
            # Inside an `interrupts_allowed` of an outer block, handlers wait for the end of that block, unless they are
            # overdue. An exception now would end the outer block on this rank alone, after this block succeeded on all.
            if state.level == _ALLOWED and (self._installs or state.is_overdue()):
                state.call_pending()


def interrupts_deferred(*, to_the_end: bool = False) -> Deferral:
    """Return a context manager, also a decorator, that defers signal handlers.

    Handlers run at the end of the block, or in an `interrupts_allowed` inside it. Without this, a rank could leave
    between two rendezvous, and the others would wait for it in the second one. The block has no effect outside the main
    thread, because Python runs no handlers there. It does not defer handlers that were set in C.

    Parameters
    ----------
    to_the_end : bool
        Run handlers at the end only, however long the block waits for other ranks.
    """
    return Deferral(_TO_THE_END if to_the_end else _DEFERRED)


@contextmanager
def interrupts_allowed() -> Iterator[None]:
    """Let signal handlers run in this block, inside an `interrupts_deferred`.

    Handlers that are already deferred run now only if they are overdue, otherwise at the end of the outer block. This
    is as in MPI, whose calls return before handlers run.
    """
    state = _INTERRUPTS
    if state.level != _DEFERRED or not _is_main():
        yield
        return
    try:
        state.level = _ALLOWED
        if state.is_overdue():
            state.call_pending()
        yield
    finally:
        state.level = _DEFERRED


def raise_if_overdue() -> None:
    """Run handlers that a wait for other ranks has deferred for too long."""
    state = _INTERRUPTS
    if state.level == _DEFERRED and state.is_overdue() and _is_main():
        state.call_pending()
