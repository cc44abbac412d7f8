"""Signals whose handlers raise while a collective of objects waits in MPI: the ranks stay in step."""

import os
import signal
import threading
import time
from functools import reduce

import numpy as np
import pytest

from pyncclx.objects import packed_arrays
from support.arrays import put
from support.everywhere import assert_everywhere
from support.objects import difference
from support.reference import labels
from support.reversed_ranks import reversed_ranks

LONG, AFTER_S, LATE_S = 20_001, 0.05, 0.15  # elements of 8 bytes; seconds
pytestmark = [pytest.mark.ranks(2, 3), pytest.mark.timeout(60)]

comm = pytest.fixture(reversed_ranks, scope="module")


class Stop(BaseException):
    """What the program's handler raises."""


def stop(*_):
    raise Stop


@pytest.fixture(params=[signal.SIGINT, signal.SIGALRM])
def number(request):
    """The number of a signal whose handler raises."""
    before = signal.signal(request.param, stop)
    yield request.param
    signal.signal(request.param, before)


@pytest.fixture(autouse=True)
def by_kernels(monkeypatch):
    """Arrays of any length go by kernels."""
    monkeypatch.setattr(packed_arrays, "SHORT_NBYTES", -1)


class Sum:
    """An object that functions of Python add and unpickle."""

    def __init__(self, value):
        self.value = value

    def __reduce__(self):
        return Sum, (self.value,)

    def __add__(self, other):
        return Sum(self.value + other.value)


KINDS = {  # objects, given a rank and a call
    "array": lambda rank, call: labels(rank, LONG, call),
    "object": lambda rank, call: Sum(1000 * call + rank),
    "number": lambda rank, call: 1000 * call + rank,
    "array or object": lambda rank, call: labels(rank, LONG, call) if rank else [Sum(call)],
}


def each(comm, kind, call):
    return [KINDS[kind](rank, call) for rank in range(comm.size)]


def own(obj):
    """The object of a rank, on the device if it is an array."""
    return put(obj) if isinstance(obj, np.ndarray) else obj


def total(items):
    return reduce(lambda first, second: first + second, items)


# The call with this rank's object, and its result, given the objects of all ranks.
CALLS = {
    "bcast": (lambda comm, obj: comm.bcast(obj), lambda comm, items: items[0]),
    "gather": (lambda comm, obj: comm.gather(obj), lambda comm, items: None if comm.rank else items),
    "scatter": (lambda comm, obj: comm.scatter([obj] * comm.size), lambda comm, items: items[0]),
    "allgather": (lambda comm, obj: comm.allgather(obj), lambda comm, items: items),
    "alltoall": (lambda comm, obj: comm.alltoall([obj] * comm.size), lambda comm, items: items),
    "reduce": (lambda comm, obj: comm.reduce(obj), lambda comm, items: None if comm.rank else total(items)),
    "allreduce": (lambda comm, obj: comm.allreduce(obj), lambda comm, items: total(items)),
    "scan": (lambda comm, obj: comm.scan(obj), lambda comm, items: total(items[: comm.rank + 1])),
    "exscan": (
        lambda comm, obj: comm.exscan(obj),
        lambda comm, items: total(items[: comm.rank]) if comm.rank else None,
    ),
}
REDUCTIONS = ("reduce", "allreduce", "scan", "exscan")


def plain(obj):
    """An object in a form that `difference` compares."""
    if isinstance(obj, list):
        return list(map(plain, obj))
    return ["sum", obj.value] if isinstance(obj, Sum) else obj


def problem_of(comm, name, kind, call):
    """Make a call; return what is wrong with its result."""
    run, result = CALLS[name]
    items = each(comm, kind, call)
    return difference(plain(run(comm, own(items[comm.rank]))), plain(result(comm, items)), f"call {call}")


def interrupted(number, call):
    """Make a call while a signal comes; return whether its handler has raised, and what is wrong with the result."""
    timer, problem = threading.Timer(AFTER_S, os.kill, (os.getpid(), number)), ""
    try:
        timer.start()
        problem = call()
        time.sleep(1)
    except Stop:
        return True, problem
    return False, problem


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CALLS)
def test_the_next_calls_are_right(comm, number, name, kind, first):
    """One rank is interrupted while it waits for the last one, which comes late."""
    if name in REDUCTIONS and kind == "array or object":
        pytest.skip("cannot be added")
    stopped, late = (0, comm.size - 1) if first else (comm.size - 1, 0)
    for call in range(2):
        problem, has_raised = "", comm.rank != stopped
        if comm.rank == stopped:
            has_raised, problem = interrupted(number, lambda call=call: problem_of(comm, name, kind, call))
        else:
            if comm.rank == late:
                time.sleep(LATE_S)
            problem = problem_of(comm, name, kind, call)
        assert_everywhere(comm, has_raised and not problem, problem or "the handler has not raised")
        for again in range(2):
            problem = problem_of(comm, name, kind, 10 + 2 * call + again)
            assert_everywhere(comm, not problem, problem)


@pytest.mark.parametrize("name", ["bcast", "allgather"])
def test_the_first_arrays_of_a_process(comm, number, name):
    """A rank that has had none in objects, and has none of its own, is interrupted while it waits for another's."""
    run = {"bcast": comm.bcast, "allgather": lambda obj: comm.allgather(obj)[0]}[name]
    stopped = comm.size - 1
    for call in range(4):
        expected = labels(0, LONG, call)
        problem, has_raised = "", True
        if comm.rank == stopped:
            packed_arrays.MOVED.clear()
            if call % 2 == 0:
                has_raised, _ = interrupted(number, lambda call=call: str(run(call)))
            else:
                problem = difference(run(call), expected, f"call {call}")
        else:
            if comm.rank == 0:
                time.sleep(LATE_S)
            problem = difference(run(call if comm.rank else put(expected)), expected, f"call {call}")
        assert_everywhere(comm, has_raised and not problem, problem or "the handler has not raised")
