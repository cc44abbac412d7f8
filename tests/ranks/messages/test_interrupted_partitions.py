"""Starts and `Pready` of partitioned requests that a signal handler ends, wherever Python runs one: the round is right.

A request whose start was interrupted is active, or can be started. A partition was sent, or can be sent.
"""

import itertools
import os
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import get
from support.everywhere import assert_everywhere
from support.interruption import Interruption, meet, start

PACKAGE = Path(pyncclx.__file__).parent
FILES = [str(PACKAGE / each) for each in ("messages", "requests", "backends", "system")]
PARTITIONS, COUNT, SECONDS = 4, 64, 5.0  # COUNT: elements of 8 bytes in each partition
pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.one_node,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # Python goes on in destructors
]


@pytest.fixture(scope="module")
def comm():
    with pyncclx.Communicator(MPI.COMM_WORLD).Dup() as made:
        yield made


def start_rest(requests):
    left = [request for request in requests if not request.is_active]
    if left:
        start(left)


def send(requests):
    for request in requests:
        request.Pready_list([2, 0])
        request.Pready_range(1, 1)
        request.Pready(3)


def send_rest(requests):
    """Send what has not been sent; MPI refuses what has."""
    for request, partition in itertools.product(requests, range(PARTITIONS)):
        with suppress_refusals():
            request.Pready(partition)


@contextmanager
def suppress_refusals():
    try:
        yield
    except MPI.Exception as error:
        if error.Get_error_class() != MPI.ERR_ARG:
            raise


def are_over(requests):
    end = time.monotonic() + SECONDS
    while not pyncclx.Request.Testall(requests):
        if time.monotonic() > end:
            return False
        os.sched_yield()
    return True


def interrupted(comm, requests, call, rest, point):
    """Interrupt a call at a point, and do the rest of it; return the interruption."""
    interruption = Interruption(point, *FILES)
    interruption.end(call, requests)
    rest(requests)
    return interruption


def round_of(comm, requests, arrays, value, interrupts="", point=0):
    """One round; return what is wrong, and the interruption if one was due in this rank."""
    interruption, sends = None, comm.rank % 2 == 0
    for array in arrays:
        array[...] = value if sends else 0
    comm.synchronize()
    if interrupts == ("start of sends" if sends else "start of receives"):
        interruption = interrupted(comm, requests, start, start_rest, point)
    else:
        start(requests)
    if sends and interrupts == "Pready":
        interruption = interrupted(comm, requests, send, send_rest, point)
    elif sends:
        send(requests)
    found = "no end"
    if are_over(requests):
        comm.synchronize()
        found = [set(get(array).tolist()) for array in arrays]
    place = interruption.place if interruption else ""
    return "" if found == [{value}] * len(arrays) else f"{point}, {place}: {value}: {found}", interruption


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "again"])
@pytest.mark.parametrize("interrupts", ["start of sends", "start of receives", "Pready"])
def test_the_round_is_right(comm, interrupts, is_first, number):
    """In the first round the two ends meet."""
    partner, problem, made = comm.rank ^ 1, "", []
    arrays = [comm.Alloc(PARTITIONS * COUNT, "f8") for _ in range(number)]
    make = comm.Precv_init if comm.rank % 2 else comm.Psend_init
    for point in itertools.count(1, 3) if partner < comm.size else ():
        if is_first or not made:
            made = [make(array, PARTITIONS, partner, tag) for tag, array in enumerate(arrays)]
        if not is_first and point == 1:
            problem, _ = round_of(comm, made, arrays, -0.5)
        found, interruption = round_of(comm, made, arrays, point, interrupts, point)
        problem = problem or found or round_of(comm, made, arrays, -point)[0]
        is_over = bool(problem) or (interruption is not None and interruption.is_past)
        if meet(comm, partner, is_over) or is_over:
            break
        for request in made if is_first else ():
            request.Free()
    assert_everywhere(comm, not problem, problem)
    for request in made:
        request.Free()
