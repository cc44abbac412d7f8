"""Reductions of objects while a call over nodes is under way: its steps go on, where a rank waits for the others."""

import functools
import time

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import backends
from support.arrays import host_only
from support.everywhere import assert_everywhere

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
LATE_S = 0.2
BEFORE, OTHERS = sum(range(RANK)), sum(range(1 - RANK % 2, SIZE, 2))  # of the ranks' numbers
RIGHT = {
    "allreduce": sum(range(SIZE)),
    "reduce": sum(range(SIZE)) if RANK == 0 else None,
    "scan": BEFORE + RANK,
    "exscan": BEFORE if RANK else None,
}
pytestmark = [pytest.mark.ranks(2, 3), pytest.mark.timeout(60), host_only]


@pytest.fixture
def spanning(monkeypatch):
    """A communicator over nodes, each rank on one of its own, that has made its first call."""
    monkeypatch.setenv("PYNCCLX_NODE", str(RANK))
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "5")
    comm = pyncclx.Communicator(WORLD).Dup()
    comm.Iallreduce(np.ones(3), np.empty(3)).Wait()
    yield comm
    comm.Free()


def within_groups(comm):
    """An intercommunicator between the even and the odd ranks."""
    group = comm.Split(RANK % 2)
    made = group.Create_intercomm(0, comm, 1 - RANK % 2)
    group.Free()
    return made


def reduced_beside(spanning, monkeypatch, reduce):
    """What `reduce` returns, and the sum of a call begun before; rank 0 reduces first, and its steps begin late."""
    device = backends.select()
    unchanged = device.call_between

    def begin_late(stream, *args):
        stream.enqueue(functools.partial(time.sleep, LATE_S))
        return unchanged(stream, *args)

    if RANK == 0:
        monkeypatch.setattr(device, "call_between", begin_late)
    total = np.zeros(3)
    request = spanning.Iallreduce(np.full(3, float(RANK)), total)
    if RANK == 0:
        result = reduce()
        request.Wait()
    else:
        try:
            request.Wait()
        finally:
            result = reduce()
    return result, total.tolist()


def agrees(spanning, monkeypatch, reduce, expected):
    try:
        result, total = reduced_beside(spanning, monkeypatch, reduce)
    except pyncclx.PeerTimeout:
        return False
    return result == expected and total == [float(sum(range(SIZE)))] * 3


@pytest.mark.parametrize("name", RIGHT)
def test_the_first_reduction_of_objects_lets_steps_go_on(spanning, monkeypatch, name):
    comm = spanning.Dup()
    ok = agrees(spanning, monkeypatch, lambda: getattr(comm, name)(RANK), RIGHT[name])
    assert_everywhere(WORLD, ok)
    comm.Free()


def test_the_first_reduction_between_groups_lets_steps_go_on(spanning, monkeypatch):
    comm = within_groups(spanning)
    assert_everywhere(WORLD, agrees(spanning, monkeypatch, lambda: comm.allreduce(RANK), OTHERS))
    comm.Free()
