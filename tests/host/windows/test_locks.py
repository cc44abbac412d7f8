"""Locks of a window, of which two threads of a rank ask for one at once: MPI refuses the second."""

import threading

import pytest
from mpi4py import MPI

from pyncclx.windows.locks import Locks


@pytest.fixture
def locks():
    own = Locks(MPI.COMM_SELF)
    yield own
    own.close()


def test_the_second_thread_does_not_get_the_lock(locks, monkeypatch):
    """Not even while the first waits for it: what it does not have it does not release."""
    waits, answered, answers = threading.Event(), threading.Event(), []
    wait = locks._wait

    def hooked(*arguments):
        if not waits.is_set():
            waits.set()
            answered.wait(10)
        return wait(*arguments)

    def second():
        waits.wait()
        answers.append(locks.acquire(0, shared=False, check=lambda: None))
        answered.set()

    monkeypatch.setattr(locks, "_wait", hooked)
    thread = threading.Thread(target=second)
    thread.start()
    answers.insert(0, locks.acquire(0, shared=False, check=lambda: None))
    thread.join()
    assert answers == [True, False]


def test_an_interrupt_leaves_no_lock(locks, monkeypatch):
    """Whatever ends the wait, the lock can be had again."""

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(locks, "_wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            locks.acquire(0, shared=False, check=lambda: None)
    assert locks.acquire(0, shared=False, check=lambda: None)
