"""Starts of persistent messages that a signal handler ends, wherever Python runs one: all are started, or none."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import get, put
from support.everywhere import assert_everywhere
from support.interruption import Interruption, meet, start
from support.labelled_messages import assert_all_read, map_peers_if

PACKAGE = Path(pyncclx.__file__).parent
FILES = [str(PACKAGE / each) for each in ("messages", "requests", "backends", "system")]
COUNTS = (1_000, 100_000)  # elements of 8 bytes: a message that is copied to a slot, and one that is offered
pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # Python goes on in destructors
]


@pytest.fixture(scope="module")
def comm():
    with pyncclx.Communicator(MPI.COMM_WORLD).Dup() as made:
        yield made


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("counts", [COUNTS[:1], COUNTS[1:], COUNTS * 2], ids=["short", "long", "four"])
@pytest.mark.parametrize("interrupts", ["sends", "receives"])
def test_the_next_start_is_right(comm, interrupts, counts, mapped, monkeypatch):
    map_peers_if(comm, mapped, monkeypatch)
    partner, sends = comm.rank ^ 1, comm.rank % 2 == 0
    arrays = [put(np.zeros(count)) for count in counts]
    make, problem = comm.Send_init if sends else comm.Recv_init, ""
    requests = [make(array, partner, tag) for tag, array in enumerate(arrays)] if partner < comm.size else []
    for point in itertools.count(1, 3 if len(counts) == 1 else 11) if requests else ():
        interruption, has_started = Interruption(point, *FILES), True
        if sends == (interrupts == "sends"):
            fill(comm, arrays, point if sends else 0)
            interruption.end(start, requests)
            started = [request.is_active for request in requests]
            problem = problem or ("" if len(set(started)) == 1 else f"{point}, {interruption.place}: {started}")
            has_started = all(started)
        if meet(comm, partner, has_started) and has_started:
            problem = problem or rounds(comm, requests, arrays, point, is_started=sends == (interrupts == "sends"))
        problem = problem or rounds(comm, requests, arrays, -point)
        if problem:
            problem = f"{interruption.place}: {problem}"
        is_past = interruption.is_past and sends == (interrupts == "sends")
        if meet(comm, partner, is_past) or is_past:
            break
    assert_everywhere(comm, not problem, problem)
    for request in requests:
        request.Free()
    assert_all_read(comm)


def fill(comm, arrays, value):
    for array in arrays:
        array[...] = value
    comm.synchronize()


def rounds(comm, requests, arrays, value, *, is_started=False):
    """One round, which this rank may have started; return what is wrong."""
    if not is_started:
        fill(comm, arrays, value if comm.rank % 2 == 0 else 0)
        start(requests)
    pyncclx.Request.Waitall(requests)
    comm.synchronize()
    found = [set(get(array).tolist()) for array in arrays]
    return "" if found == [{value}] * len(arrays) else f"{value}: {found}"
