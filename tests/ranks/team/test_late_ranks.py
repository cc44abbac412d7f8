"""Ranks that come late to a meeting on the host: the others name them, though they are alive."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.errors import RanksMissing
from support.arrays import put, xp
from support.everywhere import assert_everywhere

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
pytestmark = pytest.mark.ranks(2)
MEETINGS = {
    "Alloc": lambda comm: comm.Alloc(100, "f8"),
    "Register": lambda comm: comm.Register(put(np.zeros(100))),
    "window": lambda comm: pyncclx.Win.Create(put(np.zeros(100)), 8, comm=comm),
    "Create_token_shuffle": lambda comm: comm.Create_token_shuffle(SIZE, 4, 16, "float32", k=1, max_tokens=4).dispatch(
        put(np.ones((4, 16), "f4")), put(np.zeros((4, 1), "i8"))
    ),
}


@pytest.mark.parametrize("name", MEETINGS)
def test_the_late_rank_is_named(monkeypatch, name):
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "1")
    comm, late, error = pyncclx.Communicator().Dup(), SIZE - 1, None
    comm.Allreduce(put(np.ones(5)), xp.empty(5))
    comm.synchronize()
    if late != RANK:
        with pytest.raises(RanksMissing) as raised:
            MEETINGS[name](comm)
        error = raised.value
    WORLD.Barrier()
    assert_everywhere(WORLD, error is None or error.missing == (late,), str(error))
    assert_everywhere(WORLD, error is None or f"timed out waiting for rank {late}" in str(error), str(error))
    comm.state.abandon()
