"""Workers: in a thread, or without one, when whoever waits does the work."""

import contextlib
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyncclx.system import threads
from support.interruption import Interruption

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(params=["thread", "alone"])
def worker(request, monkeypatch):
    if request.param == "alone":
        monkeypatch.setattr(threads, "start", lambda *arguments: None)
    return threads.Worker("a test's")


def test_one_thing_after_the_other(worker):
    done = []
    numbers = [worker.give(partial(done.append, each)) for each in range(50)]
    assert numbers == list(range(1, 51))
    worker.wait(30)
    assert done[:30] == list(range(30))
    assert worker.has_done(30)
    worker.wait(50)
    assert done == list(range(50))


def test_who_waits_does_the_work_of_two(monkeypatch):
    """Work of one worker that waits for another one's."""
    monkeypatch.setattr(threads, "start", lambda *arguments: None)
    first, second, done = threads.Worker("first"), threads.Worker("second"), []
    number = first.give(lambda: done.append(threading.current_thread()))
    second.give(partial(first.wait, number))
    second.give(partial(done.append, "second"))
    assert done == []
    second.wait(second.given)
    assert done == [threading.main_thread(), "second"]


def test_two_threads_work(monkeypatch):
    """One thing is done after the other, whoever does them."""
    monkeypatch.setattr(threads, "start", lambda *arguments: None)
    alone = threads.Worker("a test's")
    done, begun, waited = [], threading.Event(), threading.Event()

    def first():
        begun.set()
        waited.wait(0.5)  # in vain where the other has to wait for this one
        done.append("first")

    def other():
        begun.wait()
        alone.wait(2)
        waited.set()

    alone.give(first)
    alone.give(partial(done.append, "second"))
    thread = threading.Thread(target=other)
    thread.start()
    alone.wait(1)
    thread.join()
    assert done == ["first", "second"]


@pytest.mark.parametrize("is_put", [False, True])
def test_an_interrupt_while_work_is_given(worker, monkeypatch, is_put):
    """No later wait hangs, whether the work was in the queue already or not."""
    done, queue = [], worker._queue

    def put(work):
        monkeypatch.setattr(worker, "_queue", queue)
        if is_put:
            queue.put(work)
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "_queue", SimpleNamespace(put=put))
    with pytest.raises(KeyboardInterrupt):
        worker.give(partial(done.append, "first"))
    _wait(worker, worker.given)
    _wait(worker, worker.give(partial(done.append, "second")))
    assert done == ["first"] * is_put + ["second"]


def _wait(worker, number):
    if worker.is_alone:
        worker.wait(number)
    else:
        worker.rest(number, 5.0)
    assert worker.has_done(number)


@pytest.mark.parametrize("method", ["give", "wait", "rest"])
def test_an_interrupt_leaves_no_lock(worker, method):
    """Wherever Python runs a signal handler, in the library of Python too."""
    calls = {
        "give": lambda: worker.give(bool),
        "wait": lambda: worker.wait(worker.give(partial(time.sleep, 1e-3))),
        "rest": lambda: worker.rest(worker.given, 1e-3),
    }
    files, done, point, is_past = [threads.__file__, threading.__file__, contextlib.__file__], [], 0, False
    while not is_past:
        point += 1
        interruption = Interruption(point, *files)
        interruption.end(calls[method])
        is_past = interruption.is_past
        other = threading.Thread(target=_do, args=(worker, partial(done.append, point)), daemon=True)
        other.start()
        other.join(5.0)
        assert done[-1:] == [point], interruption.place
    assert point > 3


def _do(worker, work):
    worker.wait(worker.give(work))


def test_too_many_threads_is_an_error(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        threads.start("a test's", print)


def test_the_end_of_the_interpreter():
    """A destructor, where a new thread and an idle one would not run any more."""
    program = """
from pyncclx.system import threads

class Late:
    def __init__(self):
        self.idle, self.threads, self.print = threads.Worker("idle"), threads, print

    def __del__(self):
        done = []
        for worker in (self.idle, self.threads.Worker("new")):
            worker.wait(worker.give(lambda: done.append(1)))
        self.print(self.threads.start("late", done.clear), done)

late = Late()
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout + done.stderr == "None [1, 1]\n"
