"""Ctrl-C inside `Free` of a communicator over nodes: its memory goes back to the heap, if need be by another `Free`."""

import signal

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.memory.heap import HEAP
from pyncclx.nodes.comparison import Comparison
from pyncclx.nodes.host_exchange import HostExchange
from pyncclx.nodes.rails import Rails
from pyncclx.nodes.spanning import spanning_of
from pyncclx.team.kept import Scratch
from support.arrays import get, put, xp
from support.everywhere import assert_everywhere
from support.leases import leases as leases_of

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
LAST = SIZE - 1
COUNT = 20_000
pytestmark = pytest.mark.ranks(2)
PLACES = {"comparison": (Comparison, "close"), "rails": (Rails, "close"), "short": (HostExchange, "close")}
PLACES |= {"scratch": (Scratch, "close"), "end": (Comparison, "end")}


class Interrupted(BaseException):
    pass


@pytest.fixture
def comm(monkeypatch):
    monkeypatch.setenv("PYNCCLX_NODE", str(2 * RANK // SIZE))
    comm = pyncclx.Communicator().Dup()
    for count in (3, COUNT):
        total = xp.empty(count, "f4")
        comm.Allreduce(put(np.full(count, RANK, "f4")), total)
        assert (get(total) == sum(range(SIZE))).all()
    return comm


@pytest.fixture
def interrupt():
    """A function after which a signal handler raises, on the last rank."""

    def leave(*_):
        raise Interrupted

    before = signal.signal(signal.SIGUSR2, leave)
    yield lambda: signal.raise_signal(signal.SIGUSR2) if RANK == LAST else None
    signal.signal(signal.SIGUSR2, before)


def outcome(call):
    """What a call raises, or None. Where the ranks of a node meet, all of them raise."""
    try:
        call()
    except Interrupted:
        return "interrupted"
    except RuntimeError as error:
        return str(error)
    return None


def assert_released(comm, leases):
    found = {*leases_of(HEAP.get())} - leases
    assert_everywhere(WORLD, not found, f"leases {found}")
    with pyncclx.Communicator().Dup() as other:
        total = xp.empty(COUNT, "f4")
        other.Allreduce(put(np.full(COUNT, RANK, "f4")), total)
        assert_everywhere(WORLD, (get(total) == sum(range(SIZE))).all())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("place", PLACES)
def test_at_a_step(comm, interrupt, monkeypatch, place, when):
    owner, name = PLACES[place]
    function, calls = getattr(owner, name), []
    leases = {*HEAP.get().leases} - {spanning_of(comm).team.lease}

    def interrupted(*args):
        calls.append(place)
        if when == "before" and len(calls) == 1:
            interrupt()
        function(*args)
        if when == "after" and len(calls) == 1:
            interrupt()

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        raised = outcome(comm.Free)
    if comm != MPI.COMM_NULL:
        comm.Free()
    is_right = raised == "interrupted" if RANK == LAST else raised is None or "Interrupted" in raised
    assert_everywhere(WORLD, len(calls) > 0 and is_right, f"{raised} {calls}")
    assert_everywhere(WORLD, comm == MPI.COMM_NULL)
    assert_released(comm, leases)


def test_while_a_step_waits(comm, interrupt, monkeypatch):
    """Ctrl-C ends the wait, and the next `Free` goes on where the first one was."""
    leases, spanning = {*HEAP.get().leases} - {spanning_of(comm).team.lease}, spanning_of(comm)
    wait, calls = spanning.thread.wait, []

    def interrupted():
        calls.append("wait")
        if len(calls) == 1:
            interrupt()
        wait()

    monkeypatch.setattr(spanning.thread, "wait", interrupted)
    raised = outcome(comm.Free)
    if RANK == LAST:  # the other rank of its node may wait for it
        is_left = comm != MPI.COMM_NULL
        comm.Free()
        assert is_left
    assert_everywhere(WORLD, raised == ("interrupted" if RANK == LAST else None), f"{raised}")
    assert_everywhere(WORLD, comm == MPI.COMM_NULL)
    assert_released(comm, leases)
