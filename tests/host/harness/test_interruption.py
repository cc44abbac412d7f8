"""Whether the tracer of tests interrupts a call where a signal handler could, and nowhere else."""

import contextlib
import signal
import threading

import pytest

from support.interruption import Interrupted, Interruption


def plain(lock):
    with lock:
        abs(-1)


def returning(lock):
    with lock:
        return abs(-1)


def looping(lock):
    with lock:
        for number in range(2):
            abs(number)


def unsafe(lock):
    lock.acquire()
    try:
        abs(-1)
    finally:
        lock.release()


def interrupt_everywhere(call):
    """Interrupt a call with a lock at each point; return the number of points, and those that leave it locked."""
    locked, number, interruption = [], 0, Interruption(0, __file__)
    while not interruption.is_past:
        number, lock = number + 1, threading.Lock()
        interruption = Interruption(number, __file__)
        interruption.end(call, lock)
        locked += [number] * lock.locked()
    return interruption.points, locked


@pytest.mark.parametrize(("call", "points"), [(plain, 3), (returning, 2), (looping, 7)])
def test_a_lock_of_c_is_unlocked_again(call, points):
    """Python runs no handlers between the call that takes it and the block, nor at the block's end."""
    assert interrupt_everywhere(call) == (points, [])


def test_what_a_handler_would_leave_is_found():
    points, locked = interrupt_everywhere(unsafe)
    assert (points, locked) == (4, [2])


@pytest.mark.parametrize("call", [plain, returning, looping])
def test_real_signals_leave_no_lock(call):
    """The claim of the tests above: an alarm at any time leaves the lock unlocked."""

    def handler(number, frame):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for turn in range(200):
            lock = threading.Lock()
            with contextlib.suppress(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + turn * 1e-6)
                for _ in range(1000):
                    call(lock)
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert not lock.locked()
    finally:
        signal.signal(signal.SIGALRM, before)
