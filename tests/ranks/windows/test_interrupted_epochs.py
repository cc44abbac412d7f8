"""Epochs of windows of device memory that a signal handler's exception ends: each call is made, or not made."""

import itertools
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from mpi_bootstrap import interrupts
from pyncclx.windows import epochs
from support.arrays import get, host_only, put
from support.everywhere import assert_everywhere
from support.interruption import CtrlC, Interrupted
from support.reference import labels
from support.window_memory import COUNT, opened

memory = pytest.fixture(opened)
on_one = pytest.mark.parametrize("comm", ["world"], indirect=True)
FOLDER = str(Path(epochs.__file__).parent)
pytestmark = [pytest.mark.ranks(2), host_only]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """A rank that waits for a lock raises soon."""
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "4")


def interrupted(comm, call, *arguments):
    """Make a call on rank 0 again and again, ended at each of its points in turn; yield where, after each."""
    for point in itertools.count(1):
        trace = CtrlC(point, FOLDER)
        if comm.rank == 0:
            trace.end(call, *arguments)
        has_ended = comm.bcast(trace.is_past)
        yield not has_ended, f"point {point}, {trace.place}"
        if has_ended:
            assert point > 5
            return


def assert_lockable(comm, win, target, place):
    """Both ranks put into the target in epochs of their own; nobody has left a lock."""
    sent = put(labels(comm.rank, COUNT, 1))
    errors = []
    try:
        win.Lock(target)
        win.Put(sent, target)
        win.Unlock(target)
    except Exception as error:
        errors.append(error)
    assert_everywhere(comm, not errors, f"{place}: {errors}")


@on_one
@pytest.mark.parametrize("target", [0, 1])
def test_a_lock(comm, memory, target):
    """A Lock that raises leaves no lock."""
    win = memory.win
    for has_left, place in interrupted(comm, win.Lock, target):
        if comm.rank == 0 and not has_left:
            win.Unlock(target)
        assert_lockable(comm, win, target, place)


@on_one
def test_a_lock_of_all(comm, memory):
    win = memory.win
    for has_left, place in interrupted(comm, win.Lock_all):
        if comm.rank == 0 and not has_left:
            win.Unlock_all()
        assert_lockable(comm, win, 1, place)


@on_one
@pytest.mark.parametrize("name", ["Unlock", "Unlock_all"])
def test_an_unlock(comm, memory, name):
    """An Unlock that raises has released the lock, or the next one does."""
    win, target = memory.win, (1,) if name == "Unlock" else ()
    begin = win.Lock if target else win.Lock_all

    def locked():
        begin(*target)

    for point in itertools.count(1):
        trace = CtrlC(point, FOLDER)
        if comm.rank == 0:
            locked()
            trace.end(getattr(win, name), *target)
            if not trace.is_past:
                with suppress(MPI.Exception):  # it was made
                    getattr(win, name)(*target)
        assert_lockable(comm, win, 1, f"point {point}, {trace.place}")
        if comm.bcast(trace.is_past):
            break


@on_one
def test_a_fence(comm, memory):
    """All ranks leave it, so that none is waited for."""
    win, sent = memory.win, put(labels(comm.rank, COUNT, 2))
    left = (comm.rank - 1) % comm.size
    win.Fence()
    for _, place in interrupted_inside(comm, win):
        win.Put(sent, (comm.rank + 1) % comm.size)
        win.Fence()
        comm.synchronize()
        right = np.array_equal(get(memory.array)[:COUNT], labels(left, COUNT, 2))
        comm.Barrier()
        assert_everywhere(comm, right, place)


class Between(CtrlC):
    """It comes once the ranks have begun to meet."""

    has_begun = False

    def __call__(self, frame, event, argument):
        self.has_begun = self.has_begun or interrupts._INTERRUPTS.level > 0
        return super().__call__(frame, event, argument)

    def _is_point(self, frame):
        return super()._is_point(frame) and self.has_begun


def interrupted_inside(comm, win):
    for point in itertools.count(1):
        trace = Between(point, FOLDER)
        if comm.rank == 0:
            trace.end(win.Fence)
        else:
            with suppress(Interrupted):  # all ranks raise what one raises before they have met
                win.Fence()
        has_ended = comm.bcast(trace.is_past)
        yield has_ended, f"point {point}, {trace.place}"
        if has_ended:
            return
