"""Communicators of groups, made while the library's threads call MPI."""

import os
import threading
import time

import pytest
from mpi4py import MPI

import pyncclx
from mpi_bootstrap import groups, polls
from mpi_bootstrap.waiting import let_go_on
from support.arrays import get, host_only, xp
from support.everywhere import assert_everywhere

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
TIMES = 80
pytestmark = [pytest.mark.timeout(120), pytest.mark.skipif(SIZE < 2, reason="one rank gets no messages")]


@pytest.fixture
def group():
    made = WORLD.Get_group()
    yield made
    made.Free()


@pytest.fixture
def polled():
    """A thread polls MPI, as the library's threads do."""
    over = threading.Event()

    def go_on():
        while not over.wait(5e-4):
            polls.poll(let_go_on)

    thread = threading.Thread(target=go_on)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.mark.ranks(2, 4)
@pytest.mark.usefixtures("polled")
def test_messages_of_a_communicator_that_is_being_made_arrive(group):
    """Open MPI loses them if another thread makes progress meanwhile."""
    for number in range(TIMES):
        comm = pyncclx.Intracomm.Create_from_group(group, f"made {number % 3}")
        assert comm.allreduce(1) == SIZE
        comm.Free()


@pytest.mark.ranks(4)
@pytest.mark.usefixtures("polled")
def test_messages_of_an_intercommunicator_that_is_being_made_arrive(group):
    half = SIZE // 2
    halves = group.Incl(range(half)), group.Incl(range(half, SIZE))
    mine, others = halves if half > RANK else halves[::-1]
    for number in range(TIMES // 5):
        comm = pyncclx.Intercomm.Create_from_groups(mine, 0, others, 0, stringtag=f"made {number % 3}")
        assert comm.remote_size == others.size
        comm.Free()
    for each in halves:
        each.Free()


@host_only
@pytest.mark.ranks(2, 3)
def test_a_receive_goes_on_while_a_rank_waits_for_the_others(group):
    """A long Send waits until the receiver's thread has received it. The receiver already makes the communicator."""
    comm = pyncclx.Communicator(WORLD).Dup()
    x, y = xp.full(1 << 20, RANK, "i4"), xp.zeros(1 << 20, "i4")
    if RANK == 0:
        request = comm.Irecv(y, 1)
    elif RANK == 1:
        time.sleep(0.3)
        comm.Send(x, 0)
    made = pyncclx.Intracomm.Create_from_group(group, "after a message")
    if RANK == 0:
        request.Wait()
    comm.synchronize()
    assert_everywhere(WORLD, RANK > 0 or bool((get(y) == 1).all()))
    made.Free()
    comm.Free()


def test_no_thread_polls_while_a_communicator_is_made(group, monkeypatch):
    if "PMIX_NAMESPACE" not in os.environ or groups._pmix() is None:
        pytest.skip("needs Open MPI's PMIx")
    stopped = []
    make = groups.made_of_groups(lambda group: stopped.append(bool(polls._stops)))
    make(group)
    make(MPI.GROUP_EMPTY)
    assert_everywhere(WORLD, stopped == [True, False] and not polls._stops)
