"""Meetings on the host of ranks whose communicator fails meanwhile."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.errors import Aborted
from pyncclx.failures import comm_failures
from support.arrays import put


@pytest.mark.ranks(2)
@pytest.mark.one_node
def test_a_rank_that_waits_sees_the_failure_at_once(monkeypatch):
    """Before the time for a look at what the others do."""
    comm = pyncclx.Communicator(MPI.COMM_WORLD.Dup())
    comm.Allreduce(put(np.ones(3)), put(np.zeros(3)))
    comm.synchronize()
    looks, errors = [], comm.team.errors
    monkeypatch.setattr(errors, "check_for_call", looks.append)
    if comm.rank == comm.size - 1:
        errors.give_up(comm_failures.ABORTED, "a call")
    else:
        with pytest.raises(Aborted):
            comm.state.meet(comm)
    MPI.COMM_WORLD.Barrier()
    assert looks == []
    comm.Free()
