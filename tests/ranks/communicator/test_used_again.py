"""Communicators whose memory has been released are used again."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import get, put
from support.everywhere import assert_everywhere

WORLD = MPI.COMM_WORLD


def sent(comm, call):
    return np.arange(5000.0) + 100 * comm.rank + call


def calls_are_right(comm, call):
    """A collective, a nonblocking one and a message, all with device arrays."""
    summed, later, received = (put(np.full(5000, -1.0)) for _ in range(3))
    comm.Allreduce(put(sent(comm, call)), summed)
    comm.Iallreduce(put(sent(comm, call)), later, MPI.MAX).Wait()
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv(put(sent(comm, call)), right, 0, received, left, 0)
    comm.synchronize()
    own = np.arange(5000.0) + call
    ranks = range(comm.size)
    wanted = sum(own + 100 * rank for rank in ranks), own + 100 * ranks[-1], own + 100 * left
    return all((get(got) == want).all() for got, want in zip((summed, later, received), wanted, strict=True))


def test_world_is_used_after_free():
    comm = pyncclx.Communicator(WORLD)
    for call in range(3):
        assert_everywhere(WORLD, calls_are_right(comm, call))
        comm.free()
        comm.synchronize()


@pytest.mark.skipif(
    "Open MPI" not in MPI.Get_library_version(),
    reason="once a process has made a topology, MPICH reads freed memory when mpi4py calls a callback",
)
@pytest.mark.parametrize("way", ["on a node", "over nodes"])
@pytest.mark.parametrize("is_used_before", [False, True])
def test_a_callback_uses_the_communicator_that_is_freed(monkeypatch, way, is_used_before):
    if way == "over nodes":
        monkeypatch.setenv("PYNCCLX_NODE", str(WORLD.rank))
    were_right = []
    keyval = pyncclx.Comm.Create_keyval(delete_fn=lambda comm, _, call: were_right.append(calls_are_right(comm, call)))
    comm = pyncclx.Communicator(WORLD).Dup()
    comm.Set_attr(keyval, 7)
    if is_used_before:
        assert_everywhere(WORLD, calls_are_right(comm, 1))
    comm.Free()
    MPI.Comm.Free_keyval(keyval)
    assert_everywhere(WORLD, were_right == [True])
