"""Threads of this process; while the interpreter ends, callers do their work.

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
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from .begun import BEGUN

_Work = Callable[[], object]
_REST_S = 1.0  # longest wait at exit for work under way in threads


def start(name: str, function: Callable[..., object], *arguments: Any) -> threading.Thread | None:
    """Start a daemon thread; return None if the interpreter is ending."""
    if sys.is_finalizing():
        return None
    thread = threading.Thread(target=function, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        if "interpreter shutdown" not in str(error):  # for example, the system has no more threads
            raise
        return None
    return thread


class Bell:
    """Wakes a thread that waits for it: an event that the wait resets.

    Its lock is C's: an exception of a signal handler, which Python may run in every method of `threading.Event`, must
    not leave it locked.
    """

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """Wake the thread, or let its next wait return at once."""
        if self._silent.locked():
            # Another thread may have rung meanwhile.
            with suppress(RuntimeError):
                self._silent.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for a ring, for at most `seconds`; return whether there was one.

        Only one thread may wait at a time.
        """
        return self._silent.acquire(timeout=-1 if seconds is None else seconds)


class Worker:
    """A thread that runs tasks in order; without it, callers that wait run them.

    Its locks are C's: an exception of a signal handler, which Python may run in every method of `threading.Condition`,
    must not leave them locked.

    Attributes
    ----------
    given : int
        Number of tasks given so far.
    """

    def __init__(self, name: str) -> None:
        self.given = 0
        self._done = 0
        self._lock = threading.RLock()
        self._waiters: list[tuple[int, threading.Lock]] = []  # with the numbers of tasks; each lock is locked
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread = start(name, _serve, self._queue)
        _workers.add(self)
        weakref.finalize(self, self._queue.put, None).atexit = False

    def give(self, work: _Work, parameters: bytes = b"") -> int:
        """Enqueue a task, which must raise nothing; return its number.

        `parameters` are those of a kernel that the task launches, for `begun.py`.
        """

        def do() -> None:
            work()
            self._count(number)

        with self._locked():
            try:
                thread = threading.get_ident()
                BEGUN[thread], self.given = parameters, self.given + 1
                number = self.given
                self._queue.put(do)
            except BaseException:
                # After an interrupt `do` may be in the queue or not.
                self._queue.put(functools.partial(self._count, self.given))
                raise
            return number

    def _count(self, number: int) -> None:
        """Record that the first `number` tasks are done, and wake those who wait for them."""
        self._done = number
        for waiter in [each for each in self._waiters if each[0] <= number]:
            self._waiters.remove(waiter)
            waiter[1].release()

    def has_done(self, number: int) -> bool:
        """Return whether the first `number` tasks are done."""
        return self._done >= number

    def wait(self, number: int) -> None:
        """Wait until the first `number` tasks are done.

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
        """Wait for the thread to finish the first `number` tasks, for at most `seconds`."""
        woken = threading.Lock()
        woken.acquire()
        self._waiters.append((number, woken))
        # Test this after the append: `_count` sets the number before it looks for waiters.
        if self._done < number:
            woken.acquire(timeout=-1 if seconds is None else seconds)

    @property
    def is_alone(self) -> bool:
        """Whether the thread does not run: it was not started, or the interpreter ends."""
        return self._thread is None or sys.is_finalizing()

    def _locked(self) -> AbstractContextManager[object]:
        """Return the lock of what threads give and take.

        While the interpreter ends no lock is taken: no other thread runs, and a stopped one may hold it for ever.
        """
        return nullcontext() if sys.is_finalizing() else self._lock

    def _work(self, number: int) -> None:
        """Run the remaining tasks in this thread; raise if another thread was running one."""
        with self._locked():
            while self._done < number:
                try:
                    do = self._queue.get_nowait()
                except queue.Empty:
                    raise RuntimeError("what the program waits for was under way when the interpreter ended") from None
                if do is not None:
                    do()


def _serve(work: queue.SimpleQueue[_Work | None]) -> None:
    """Run tasks until the worker is deleted."""
    # Each task refers to the worker, so it is dropped before the next one is awaited.
    while (do := work.get()) is not None:
        do()
        del do


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _rest() -> None:
    """Wait at exit for tasks under way; threads do not run afterwards."""
    end = time.monotonic() + _REST_S
    for worker in list(_workers):
        if not worker.is_alone:
            worker.rest(worker.given, max(end - time.monotonic(), 0.0))


atexit.register(_rest)
