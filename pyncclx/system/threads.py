"""Threads of this process; while the interpreter ends, callers run their tasks.

From Python 3.12 on, no thread can be started once `atexit` functions run. In every version, threads that need the
interpreter stop forever once the `atexit` functions have returned. Destructors of the program's objects run even later.

A call that a signal handler has interrupted looks up in `BEGUN` whether its kernel was launched. Python runs signal
handlers after calls of C functions and at the start of Python functions. Devices set the entry of `BEGUN` directly
before the C call that launches or enqueues, so no handler runs in between.
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
from threading import get_ident
from typing import Any

_Work = Callable[[], object]
#: For each thread, the parameters of the last launch that it has begun.
BEGUN: dict[int, bytes] = {}
_REST_S = 1.0  # longest wait at exit for tasks that threads are running


def forget() -> None:
    """Clear this thread's last launch, before a launch that may have equal parameters."""
    BEGUN.pop(get_ident(), None)


def has_begun(arguments: bytes) -> bool:
    """Return whether the parameters of this thread's last launch end with `arguments`.

    If an earlier launch of this thread may have had equal parameters, call `forget` first.
    """
    return BEGUN.get(get_ident(), b"").endswith(arguments)


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
    """An event that wakes a waiting thread; the wait resets it.

    Its lock is implemented in C. In methods of `threading.Event`, Python may run a signal handler, whose exception
    could leave the lock locked.
    """

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """Wake the thread, or make its next wait return immediately."""
        if self._silent.locked():
            # Another thread may have rung meanwhile.
            with suppress(RuntimeError):
                self._silent.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for a ring, for at most `seconds`; return whether the bell rang.

        Only one thread may wait at a time.
        """
        return self._silent.acquire(timeout=-1 if seconds is None else seconds)


class Worker:
    """A thread that runs tasks in order; without a thread, waiting callers run them.

    Its locks are implemented in C. In methods of `threading.Condition`, Python may run a signal handler, whose
    exception could leave them locked.

    Attributes
    ----------
    given : int
        Number of tasks enqueued so far.
    """

    def __init__(self, name: str) -> None:
        self.given = 0
        self._done = 0
        self._lock = threading.RLock()
        self._waiters: list[tuple[int, threading.Lock]] = []  # task numbers and locked locks
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread = start(name, _serve, self._queue)
        _workers.add(self)
        weakref.finalize(self, self._queue.put, None).atexit = False

    def give(self, work: _Work, parameters: bytes = b"") -> int:
        """Enqueue a task, which must raise nothing; return its number.

        `parameters` are those of a kernel that the task launches, for `BEGUN`.
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
                # If this is interrupted, `do` may or may not be in the queue.
                self._queue.put(functools.partial(self._count, self.given))
                raise
            return number

    def _count(self, number: int) -> None:
        """Record that the first `number` tasks are done; wake threads that wait for them."""
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
            If the thread was running one of them when the interpreter began to end.
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
        # Test for the number after the append, because `_count` sets the number before it reads the list of waiters.
        if self._done < number:
            woken.acquire(timeout=-1 if seconds is None else seconds)

    @property
    def is_alone(self) -> bool:
        """Whether the thread does not run: not started, or the interpreter is ending."""
        return self._thread is None or sys.is_finalizing()

    def _locked(self) -> AbstractContextManager[object]:
        """Return the lock of the tasks.

        While the interpreter ends, no lock is taken: no other thread runs, and a stopped thread may hold the lock
        forever.
        """
        return nullcontext() if sys.is_finalizing() else self._lock

    def _work(self, number: int) -> None:
        """Run the remaining tasks in this thread; raise if a stopped thread was in one."""
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
    # A task refers to the worker, so drop it before waiting for the next one.
    while (do := work.get()) is not None:
        do()
        del do


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _rest() -> None:
    """Wait at exit for running tasks, because threads do not run afterwards."""
    end = time.monotonic() + _REST_S
    for worker in list(_workers):
        if not worker.is_alone:
            worker.rest(worker.given, max(end - time.monotonic(), 0.0))


atexit.register(_rest)
