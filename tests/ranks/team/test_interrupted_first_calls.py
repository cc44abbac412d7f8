"""Signal handlers that raise while a call waits on the host for a late rank, before something is made together."""

import contextlib
import time

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.alarms import raising
from support.arrays import get, put, xp
from support.everywhere import assert_everywhere

WORLD = MPI.COMM_WORLD
COUNT = 3001
pytestmark = [pytest.mark.ranks(2, 2), pytest.mark.one_node]


class Late(Exception):
    """What the handler raises."""


def allreduce(comm):
    recv = xp.zeros(COUNT, "i4")
    comm.Allreduce(put(np.arange(COUNT, dtype="i4") + comm.rank), recv)
    return bool((get(recv) == 2 * np.arange(COUNT) + 1).all())


@pytest.fixture
def comm():
    made = pyncclx.Communicator(WORLD).Dup()
    allreduce(made)
    made.synchronize()
    WORLD.Barrier()
    yield made
    if made != MPI.COMM_NULL:
        with contextlib.suppress(pyncclx.Aborted):
            made.Free()


def outcome(comm, call, late_s):
    """Make a call, for which rank 1 is late and in which rank 0's handler raises; return what it raised."""
    memory = comm.Alloc(7, "i4")
    WORLD.Barrier()
    if comm.rank == 1:
        time.sleep(late_s)
    try:
        with raising(Late, 0.05) if comm.rank == 0 else contextlib.nullcontext():
            call(comm, memory)
    except (Late, pyncclx.Aborted) as error:
        return type(error)
    return None


AFTER = {
    "Alloc": lambda comm, memory: comm.Alloc(7),
    "Win.Create": lambda comm, memory: pyncclx.Win.Create(memory, 4, comm=comm),
    "Allreduce_init": lambda comm, memory: comm.Allreduce_init(xp.ones(5), xp.zeros(5)),
    "device_team": lambda comm, memory: comm.device_team(),
}


@pytest.mark.parametrize("call", AFTER)
def test_the_exception_comes_after_the_call(comm, call):
    """As with mpi4py, if the other rank comes soon; then all goes on.

    Where the ranks agree on a step that waits for the other one, both raise the exception.
    """
    raised = outcome(comm, AFTER[call], 0.25)
    allowed = (Late,) if comm.rank == 0 else (None, Late) if call in ("Win.Create", "Allreduce_init") else (None,)
    assert_everywhere(WORLD, raised in allowed, f"{raised}")
    assert_everywhere(WORLD, allreduce(comm))


@pytest.mark.parametrize("late_s", [0.25, 1.2])
def test_a_window_is_freed(comm, late_s):
    """Between the meetings of `Free`, no rank leaves; the other one does not wait in vain."""
    window = pyncclx.Win.Create(comm.Alloc(7), 4, comm=comm)
    began = time.monotonic()
    raised = outcome(comm, lambda comm, memory: window.Free(), late_s)
    is_right = raised is (Late if comm.rank == 0 else None) and window == MPI.WIN_NULL
    assert_everywhere(WORLD, is_right and time.monotonic() - began < 10, f"{raised}, {window}")


ENDED = {
    "first Reduce": (lambda comm, memory: comm.Reduce(xp.ones(5), xp.zeros(5)), 0.25),
    "Allreduce_init": (AFTER["Allreduce_init"], 1.2),
    "Alloc": (AFTER["Alloc"], 1.2),
    "Win.Create": (AFTER["Win.Create"], 1.2),
    "device_team": (AFTER["device_team"], 1.2),
    "Register": (lambda comm, memory: comm.Register(put(np.zeros(5))), 1.2),
}


@pytest.mark.parametrize("call", ENDED)
def test_all_ranks_raise_aborted(comm, call):
    """Otherwise the other rank would wait, and take this rank's next call for this one."""
    make, late_s = ENDED[call]
    raised = outcome(comm, make, late_s)
    assert_everywhere(WORLD, raised is (Late if comm.rank == 0 else pyncclx.Aborted), f"{raised}")
    with pytest.raises(pyncclx.Aborted, match=r"rank 0 was interrupted in it"):
        allreduce(comm)


FIRST = {
    "Allreduce": allreduce,
    "Bcast": lambda comm: comm.Bcast(xp.zeros(5), 1),
    "Alloc": lambda comm: comm.Alloc(7),
    "Allreduce_init": lambda comm: comm.Allreduce_init(xp.ones(5), xp.zeros(5)),
    "Iallreduce": lambda comm: comm.Iallreduce(xp.ones(5), xp.zeros(5)).Wait(),
}


@pytest.mark.parametrize("late_s", [0.25, 1.2])
@pytest.mark.parametrize("call", FIRST)
def test_a_communicator_whose_first_call_is_interrupted(call, late_s):
    """No rank takes another call for this one: the handler's exception comes after the call, or all raise for ever."""
    comm = pyncclx.Communicator(WORLD).Dup()
    WORLD.Barrier()
    time.sleep(late_s * comm.rank)
    try:
        with raising(Late, 0.05) if comm.rank == 0 else contextlib.nullcontext():
            FIRST[call](comm)
        raised = None
    except (Late, pyncclx.Aborted) as error:
        raised = type(error)
    for _ in range(3):
        try:
            result = allreduce(comm)
        except pyncclx.Aborted:
            result = None
        assert_everywhere(WORLD, WORLD.allgather(result) in ([True] * 2, [None] * 2), f"{result} after {raised}")
    comm.Free()


@pytest.mark.parametrize("blocking", ["stream", "host"])
def test_a_comparison_is_interrupted(monkeypatch, blocking):
    """The others may find the call of the rank that has left, and would make theirs."""
    monkeypatch.setenv("PYNCCLX_CHECK", "1")
    comm = pyncclx.Communicator(WORLD).Dup()
    comm.blocking = blocking
    allreduce(comm)
    comm.synchronize()
    raised = outcome(comm, lambda comm, memory: allreduce(comm), 0.5)
    assert_everywhere(WORLD, raised is (Late if comm.rank == 0 else pyncclx.Aborted), f"{raised}")
    for _ in range(2):
        with pytest.raises(pyncclx.Aborted):
            allreduce(comm)
    comm.Free()


def test_objects_are_reduced_while_a_call_waits_for_a_late_rank(monkeypatch):
    """The first such reduction waits in MPI without a time limit, so nobody may have left a meeting then."""
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "1")
    comm = pyncclx.Communicator(WORLD).Dup()
    WORLD.Barrier()
    time.sleep(1.6 * comm.rank)
    request = comm.Iallreduce(xp.ones(5), xp.zeros(5))
    with pytest.raises((pyncclx.PeerTimeout, pyncclx.Aborted)):
        comm.allreduce(put(np.ones(3)))
    with pytest.raises((pyncclx.PeerTimeout, pyncclx.Aborted)):
        request.Wait()
    WORLD.Barrier()
    comm.Free()
