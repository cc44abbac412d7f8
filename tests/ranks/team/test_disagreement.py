"""Ranks that disagree on who moves the arrays: each wait ends, and the error has the ranks that did not come."""

import time

import numpy as np
import pytest
from mpi4py import MPI

import mpi_bootstrap
import pyncclx
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
    """The others name it. It finds them again when it comes, in the place that they wait in."""
    last, x = brief.size - 1, Output(1000, "f4")
    if brief.rank == last:
        assert MPI.COMM_WORLD.allgather(None)  # before it comes, all others have given up
    else:
        with pytest.raises(PeerTimeout, match=f"timed out waiting for rank {last}.*PYNCCLX_CHECK") as raised:
            brief.Allreduce(put(np.ones(1000, "f4")), x.array)
        assert (raised.value.rank, raised.value.peer, raised.value.missing) == (brief.rank, last, (last,))
        assert MPI.COMM_WORLD.allgather(None)
    brief.Allreduce(put(np.ones(1000, "f4")), x.array)
    pyncclx.Communicator(brief).synchronize()
    with brief.Create_token_shuffle(brief.size, 8, 16, "float32", k=1, max_tokens=1) as shuffle:
        shuffle.dispatch(put(np.ones((1, 16), "f4")), put(np.zeros((1, 1), "i4")))
    # All ranks met again when the shuffle was freed: none is ahead of the others.
    assert mpi_bootstrap.allgather_objects(brief, brief.rank) == list(range(brief.size))


def test_a_meeting(comm):
    meeting = mpi_bootstrap.Meeting()
    for _ in range(3):
        assert meeting.missing(comm, 100.0) == []


def test_a_rank_that_is_late_twice(comm):
    """Both waits name it. Then all meet, though not at once: a wait that was in vain ends no later one."""
    meeting, last = mpi_bootstrap.Meeting(), comm.size - 1
    early = MPI.Comm.Split(comm, comm.rank == last)
    for _ in range(2):
        MPI.Comm.Barrier(early)
        if comm.rank != last:
            assert meeting.missing(comm, 1.0) == [last]
    early.Free()
    MPI.Comm.Barrier(comm)
    time.sleep(1.5 * (comm.rank == last))
    assert meeting.missing(comm, 100.0) == []


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
