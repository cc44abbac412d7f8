"""Ranks that take turns on a GPU: programs that stage leave collectives to MPI, but for long ones and graphs."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import events
from pyncclx.collectives.alltoallv import alltoallv
from pyncclx.launch import time_slicing as turns
from pyncclx.launch.time_slicing import leave_to_host
from support.arrays import get, gpu_only, put, xp
from support.everywhere import assert_everywhere

WORLD = MPI.COMM_WORLD
COUNT = 1000


@pytest.fixture
def comm():
    """A communicator whose ranks share no GPU, but are taken for ranks that do."""
    duplicate = pyncclx.Communicator().Dup()
    duplicate.staging = True
    duplicate.team.is_time_sliced = True
    yield duplicate
    duplicate.Free()


@pytest.fixture
def kinds(monkeypatch):
    """What has moved the data of the calls that come."""
    found = []
    monkeypatch.setattr(events, "listeners", [lambda event: found.append(event.how)])
    return found


def numbers(comm, count=COUNT):
    return put(np.arange(count) + 10_000 * comm.rank)


def of_rank(rank, count=COUNT):
    return np.arange(count) + 10_000 * rank


def gathered(size, count=COUNT):
    return np.concatenate([of_rank(rank, count) for rank in range(size)])


def test_explain(comm):
    short, long = (comm.explain("Allreduce", nbytes) for nbytes in (8, turns.LONGEST_NBYTES + 1))
    assert short.startswith("staged")
    assert "nvidia-cuda-mps-control -d" in short
    assert long.startswith("native")
    comm.staging = False
    assert comm.explain("Allreduce", 8).startswith("native")


def test_collectives(comm, kinds):
    """Of equal and of any lengths, blocking and nonblocking, in place and not."""
    total, every = xp.full(COUNT, -1), xp.full(comm.size * COUNT, -1)
    comm.Allreduce(numbers(comm), total)
    comm.Allgatherv(numbers(comm), [every, [COUNT] * comm.size])
    comm.Iallreduce(MPI.IN_PLACE, again := numbers(comm)).Wait()
    comm.Reduce_scatter(put(np.tile(of_rank(comm.rank), comm.size)), scattered := xp.full(COUNT, -1))
    assert_everywhere(WORLD, events.NATIVE not in kinds and len(kinds) == 4, f"{kinds}")
    expected = sum(of_rank(rank) for rank in range(comm.size))
    for each in (total, again, scattered):
        assert (get(each) == expected).all()
    assert (get(every) == gathered(comm.size)).all()


def test_what_kernels_do(comm, kinds, monkeypatch):
    """Long messages, options that MPI does not have, what may not be staged, and persistent calls."""
    every = xp.full(comm.size * COUNT, -1)
    monkeypatch.setattr(turns, "LONGEST_NBYTES", 8 * COUNT - 1)
    comm.Allgather(numbers(comm), every)
    monkeypatch.undo()
    monkeypatch.setattr(events, "listeners", [lambda event: kinds.append(event.how)])
    last, total = xp.full_like(every, -1), xp.full(COUNT, -1)
    comm.Allreduce(numbers(comm), total, algorithm="two_shot")
    request = comm.Allgather_init(numbers(comm), last)
    request.Start()
    request.Wait()
    comm.staging = False
    comm.Allgather(numbers(comm), xp.full_like(every, -1))
    assert_everywhere(WORLD, set(kinds) == {events.NATIVE}, f"{kinds}")
    assert (get(total) == sum(of_rank(rank) for rank in range(comm.size))).all()
    for each in (every, last):
        assert (get(each) == gathered(comm.size)).all()


def test_what_mpi_does_not_have(comm, kinds):
    """Operators of pyncclx and of the program, and counts on the device."""
    send, recv = put(np.full(COUNT, float(comm.rank))), [xp.full(COUNT, -1.0) for _ in range(2)]
    for op, each in zip((pyncclx.AVG, pyncclx.Op(lambda a, b: a if a > b else b)), recv, strict=True):
        comm.Allreduce(send, each, op)
    rows, counts = xp.full((comm.size, 1), comm.rank), xp.full(comm.size, 1, "i8")
    leave_to_host(comm, alltoallv(comm, [rows, counts], xp.empty((comm.size, 1), rows.dtype), layout="packed"))
    assert_everywhere(WORLD, kinds == [events.NATIVE] * 2, f"{kinds}")
    for each, expected in zip(recv, ((comm.size - 1) / 2, comm.size - 1), strict=True):
        assert (get(each) == expected).all()


@gpu_only
def test_in_a_graph(comm):
    send, recv, stream = numbers(comm), xp.full(comm.size * COUNT, -1), xp.cuda.Stream(non_blocking=True)
    comm.staging = False
    comm.Allgather(send, recv)  # loads the kernel
    comm.synchronize()
    comm.staging = True
    recv[...] = -1
    xp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        comm.Allgather(send, recv)
        stream.end_capture().launch(stream)
        stream.synchronize()
    assert (get(recv) == gathered(comm.size)).all()
