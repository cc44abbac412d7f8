"""Starts of persistent collectives that a signal handler ends, wherever Python runs one: started, or not."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import get, put
from support.everywhere import assert_everywhere
from support.interruption import Interruption

COUNT = 100
PACKAGE = Path(pyncclx.__file__).parent
FILES = [str(PACKAGE / each) for each in ("launch", "requests", "team", "backends", "system", "derived")]
pytestmark = [pytest.mark.one_node, pytest.mark.timeout(100)]


def start(requests):
    """Start requests, as the program does: one alone, several together."""
    if len(requests) == 1:
        requests[0].Start()
    elif requests:
        pyncclx.Prequest.Startall(requests)


def of_rows(comm, arrays):
    """Of every other element, which kernels pack before the collective's and unpack after it."""
    datatype = MPI.DOUBLE.Create_vector(COUNT // 2, 1, 2).Commit()
    return [comm.Bcast_init([array, 1, datatype], comm.size - 1) for array in arrays]


WAYS = {
    "one": lambda comm, arrays: [comm.Allreduce_init(MPI.IN_PLACE, arrays[0])],
    "several": lambda comm, arrays: [comm.Allreduce_init(MPI.IN_PLACE, array) for array in arrays],
    "packed": lambda comm, arrays: of_rows(comm, arrays[:1]),
}


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_the_next_start_is_right(comm, way, ordered):
    own, arrays, problem = comm.Dup(), [put(np.zeros(COUNT)) for _ in range(3)], ""
    own.ordered_starts = ordered
    requests = WAYS[way](own, arrays)
    expected = own.size - 1 if way == "packed" else own.size * (own.size - 1) / 2
    for point in itertools.count(1):
        interruption = Interruption(point, *FILES)
        for is_interrupted in (own.rank == 0, False):
            for array in arrays:
                array[...] = own.rank
            if is_interrupted:
                interruption.end(start, requests)
                start([request for request in requests if not request.is_active])
            else:
                start(requests)
            pyncclx.Request.Waitall(requests)
            own.synchronize()
            found = [set(get(array)[::2].tolist()) for array in arrays[: len(requests)]]
            problem = problem or ("" if found == [{expected}] * len(requests) else f"{interruption.place}: {found}")
        if MPI.Comm.bcast(own, interruption.is_past):
            break
    assert_everywhere(own, not problem, f"{point}: {problem}")
    for request in requests:
        request.Free()
    own.Free()
