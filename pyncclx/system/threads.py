"""Threads of this process, which do not run any more while the interpreter ends: then callers do the work.

From Python 3.12 on no thread can be started once functions of `atexit` run. In every version a thread that needs the
interpreter stops for ever once those functions have returned, while destructors of the program's objects still run.
"""

from __future__ import annotations

import atexit
import functools
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_Work = Callable[[], object]
_REST_S = 1.0  # to wait at exit for work that is under way in threads


def start(name: str, function: Callable[..., object], *arguments: Any) -> threading.Thread | None:
    """Start a thread that does not keep the program from ending; return None if it is too late to start one."""
    if sys.is_finalizing():
        return None
    thread = threading.Thread(target=function, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        if "interpreter shutdown" not in str(error):  # the system has no more threads, for example
            raise
        return None
    return thread


class Worker:
    """Does one thing after the other in a thread of its own; without the thread, whoever waits for them does them.

    Attributes
    ----------
    given : int
        How many things it has been given so far.
    """

    def __init__(self, name: str) -> None:
        self.given = 0
        self._done = 0
        self._changed = threading.Condition()
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread = start(name, _serve, self._queue)
        _workers.add(self)
        weakref.finalize(self, self._queue.put, None).atexit = False

    def give(self, work: _Work) -> int:
        """Let the thread do something, which must raise nothing; return how many things it has been given by then."""

        def do() -> None:
            work()
            self._count(number)

        with self._locked():
            try:
                self.given = number = self.given + 1
                self._queue.put(do)
            except BaseException:  # an interrupt: `do` may be in the queue, or not
                self._queue.put(functools.partial(self._count, self.given))
                raise
            return number

    def _count(self, number: int) -> None:
        """Let the first `number` things be done."""
        with self._locked():
            self._done = number

    def has_done(self, number: int) -> bool:
        """Return whether the first `number` things are done."""
        return self._done >= number

    def wait(self, number: int) -> None:
        """Wait until the first `number` things are done.

        Raises
        ------
        RuntimeError
            One of them was under way in the thread when the interpreter began to end.
        """
        if self.is_alone:
            self._work(number)
        else:
            self.rest(number, None)

    def rest(self, number: int, seconds: float | None) -> None:
        """Wait for the thread to do the first `number` things, for so many seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._done >= number, seconds)

    @property
    def is_alone(self) -> bool:
        """Whether there is no thread that works."""
        return self._thread is None or sys.is_finalizing()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Change what the waits for this worker look at; a thread that has ended may have the lock for ever."""
        if sys.is_finalizing():  # and no other thread runs
            yield
            return
        with self._changed:
            yield
            self._changed.notify_all()

    def _work(self, number: int) -> None:
        """Do in this thread what is left, unless another one does it."""
        with self._locked():
            while self._done < number:
                try:
                    do = self._queue.get_nowait()
                except queue.Empty:
                    raise RuntimeError("what the program waits for was under way when the interpreter ended") from None
                if do is not None:
                    do()


def _serve(work: queue.SimpleQueue[_Work | None]) -> None:
    """Work until the worker is no more, which what is done here refers to."""
    while (do := work.get()) is not None:
        do()
        del do


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _rest() -> None:
    """Let work end that is under way in threads, which do not run any more after this."""
    end = time.monotonic() + _REST_S
    for worker in list(_workers):
        if not worker.is_alone:
            worker.rest(worker.given, max(end - time.monotonic(), 0.0))


atexit.register(_rest)
