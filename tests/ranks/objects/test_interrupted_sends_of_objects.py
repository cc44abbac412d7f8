"""Sends of objects whose requests an interrupt loses: MPI sends the pickle whole, though nobody else holds it."""

import itertools
from pathlib import Path

import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import HOST
from support.everywhere import assert_everywhere
from support.interruption import Interruption, meet

PACKAGE = Path(pyncclx.__file__).parent
FILES = [str(PACKAGE / each) for each in ("communicator", "failures", "messages/progress", "objects/messages")]
NBYTES, TAG = 1 << 20, 3  # more than MPI sends before the receiver has come
pytestmark = [pytest.mark.timeout(100), pytest.mark.ranks(2, 3)]


@pytest.fixture(scope="module")
def comm():
    with pyncclx.Communicator(MPI.COMM_WORLD).Dup() as made:
        yield made


def pickled(value):
    """An object whose pickle has its bytes."""
    return [bytes([value % 256]) * NBYTES]


@pytest.mark.parametrize("name", ["isend", "issend"])
def test_what_an_interrupted_send_has_begun_arrives(comm, name):
    partner, problem, point = comm.rank ^ 1, "", 0
    for point in itertools.count(1) if partner < comm.size else ():
        is_past = False
        if comm.rank % 2:
            interruption, kept, obj = Interruption(point, *FILES), [], pickled(point)
            interruption.end(lambda: kept.append(getattr(comm, name)(obj, partner, TAG)))  # noqa: B023
            junk = [bytes([0xDD]) * (NBYTES + 100) for _ in range(4)]
            meet(comm, partner)
            comm.send(-point, partner, TAG)
            for request in kept:
                request.wait()
            is_past = interruption.is_past
            del junk
        else:
            meet(comm, partner)
            first = comm.recv(None, partner, TAG)
            second = comm.recv(None, partner, TAG) if first != -point else first
            is_right = second == -point and first in (-point, pickled(point))
            problem = problem or ("" if is_right else f"point {point}: {str(first)[:20]}, {str(second)[:20]}")
        if meet(comm, partner, is_past) or is_past:
            break
    assert_everywhere(comm, not problem, problem)
    assert_everywhere(comm, partner >= comm.size or point > (5 if HOST else 0), f"{point} points")
