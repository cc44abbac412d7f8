"""Ranks that disagree on who moves the arrays: each wait ends, and the error has the ranks that did not come."""

import time

import numpy as np
import pytest
from mpi4py import MPI

import mpi_bootstrap
import pyncclx
from mpi_bootstrap import freeing
from pyncclx import CollectiveMismatch, PeerTimeout
from pyncclx.communicator import host_first
from support.arrays import Output, put

# Their timeouts are short: more ranks than 4 need longer to meet on two processors.
pytestmark = [pytest.mark.ranks(2, 4), pytest.mark.timeout(40)]


@pytest.fixture
def brief(monkeypatch):
    """A communicator whose ranks do not wait long for each other."""
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "3")
    with pyncclx.Communicator().Dup() as comm:
        yield comm


def test_one_rank_is_in_a_call_of_mpis(brief):
    """The others name it. When it comes, it learns that they have left; all their later calls raise the same."""
    last, x = brief.size - 1, Output(1000, "f4")
    error = PeerTimeout
    if brief.rank == last:
        error = pyncclx.Aborted
        assert MPI.COMM_WORLD.allgather(None)  # before it comes, all others have left
    else:
        with pytest.raises(PeerTimeout, match=f"timed out waiting for rank {last}.*PYNCCLX_CHECK") as raised:
            brief.Allreduce(put(np.ones(1000, "f4")), x.array)
        assert (raised.value.rank, raised.value.peer, raised.value.missing) == (brief.rank, last, (last,))
        assert MPI.COMM_WORLD.allgather(None)
    for call in (brief.Allreduce, brief.Scan, brief.Allreduce):
        with pytest.raises(error):
            call(put(np.ones(1000, "f4")), x.array)
    with pytest.raises(error):
        brief.Alloc(3)


def test_a_meeting(comm):
    for _ in range(3):
        assert mpi_bootstrap.missing_ranks(comm, 100.0) == []


@pytest.mark.parametrize("late_s", [0.0, 0.6, 0.95, 1.05, 2.0])
def test_a_rank_that_is_late(comm, late_s):
    """At whatever moment the last one comes, all ranks meet afterwards, or none does ever again."""
    own, last = MPI.Comm.Dup(comm), comm.size - 1
    time.sleep(late_s * (comm.rank == last))
    found = mpi_bootstrap.missing_ranks(own, 1.0)
    for _ in range(2):
        try:
            have_met = not mpi_bootstrap.missing_ranks(own, 5.0)
        except (PeerTimeout, pyncclx.Aborted):
            have_met = False
        results = MPI.Comm.allgather(comm, (found, have_met))
        assert len({each for _, each in results}) == 1, results
    if late_s < 0.5 or late_s > 1.5:
        assert found == ([] if late_s < 0.5 or comm.size == 1 else [last])


def test_a_duplicate_has_not_left(comm):
    """Ranks that have left may differ in their collectives, and `Dup` is one of them. So all leave without any here."""
    own = MPI.Comm.Dup(comm)
    freeing.leave(own, None, RuntimeError("left"))
    assert mpi_bootstrap.has_left(own)
    assert not mpi_bootstrap.has_left(MPI.Comm.Dup(own))


def test_a_host_array_and_a_device_array_where_calls_are_compared(monkeypatch):
    monkeypatch.setenv("PYNCCLX_CHECK", "1")
    with pyncclx.Communicator().Dup() as comm:
        x = put(np.ones(4, "f4"))
        buffers = (bytearray(16), bytearray(16)) if comm.rank else (x, put(np.zeros(4, "f4")))
        with pytest.raises(CollectiveMismatch, match=r"rank 0: Allreduce\(4, .*; rank 1: Allreduce\(host arrays\)"):
            comm.Allreduce(*buffers)


def test_no_buffers_and_device_arrays_where_calls_are_compared(monkeypatch):
    """None is in no memory, so that call goes to MPI."""
    monkeypatch.setenv("PYNCCLX_CHECK", "1")
    monkeypatch.setattr(host_first, "looks_closely", lambda: True)  # as if the setting had been there from the start
    with pyncclx.Communicator().Dup() as comm:
        nothing = [0] * comm.size
        there, absent = [put(np.ones(4, "f4")), nothing], [None, nothing, MPI.FLOAT]
        with pytest.raises(CollectiveMismatch, match=r"rank 0: Alltoallv\(.*; rank 1: Alltoallv\(host arrays\)"):
            comm.Alltoallv(absent, absent) if comm.rank else comm.Alltoallv(there, there)
