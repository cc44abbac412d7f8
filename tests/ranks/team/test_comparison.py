"""PYNCCLX_CHECK=1: calls that no other rank makes, and calls in orders that are wrong or right. Nothing hangs."""

import re

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import Aborted, CollectiveMismatch, PeerTimeout
from support import forms
from support.arrays import Output, put
from support.everywhere import raises_everywhere
from support.reference import comparing

WORLD = MPI.COMM_WORLD
SECONDS = 1

pytestmark = pytest.mark.ranks(2)


@pytest.fixture
def comm(monkeypatch):
    monkeypatch.setenv("PYNCCLX_CHECK", "1")
    comm = pyncclx.Communicator(WORLD.Dup())
    works(comm)
    comm.Barrier(device=True)
    monkeypatch.setenv("PYNCCLX_TIMEOUT", str(SECONDS))
    yield comm
    comm.Free()


def works(comm):
    total = Output(3, "i4")
    comm.Allreduce(put(np.full(3, 1 + comm.rank, "i4")), total.array)
    with comparing() as compare:
        compare(total, np.full(3, sum(range(1 + comm.size)), "i4"), "total")


def allreduce(comm):
    comm.Allreduce(put(np.ones(3, "i4")), Output(3, "i4").array)


def alone(comm, call, *words):
    """What rank 0 alone calls: it raises with words, while the others wait for it to have done so."""
    if comm.rank == 0:
        with pytest.raises(CollectiveMismatch, match=".*".join(words)):
            call()


@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.parametrize("form", forms.FORMS)
def test_a_communicator_s_first_call_may_have_any_form(monkeypatch, form, is_apart):
    monkeypatch.setenv("PYNCCLX_CHECK", "1")
    if is_apart:
        monkeypatch.setenv("PYNCCLX_NODE", str(WORLD.rank))
    with pyncclx.Communicator(WORLD).Dup() as comm, comparing() as compare:
        sums = Output(3, "i4")
        forms.call(comm, form, "Allreduce", put(np.full(3, 1 + comm.rank, "i4")), sums.array)
        comm.synchronize()
        compare(sums, np.full(3, sum(range(1 + comm.size)), "i4"), form)
    if form == "persistent":
        with pyncclx.Communicator(WORLD).Dup() as comm:
            comm.Barrier_init(device=True).Free()


@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.parametrize("form", forms.FORMS)
@pytest.mark.parametrize("name", ["Bcast", "Alltoallw"])
def test_a_first_call_that_packs_on_one_rank_alone(monkeypatch, name, form, is_apart):
    """That rank has a datatype with gaps; the others' is of the same elements, without gaps."""
    monkeypatch.setenv("PYNCCLX_CHECK", "1")
    if is_apart:
        monkeypatch.setenv("PYNCCLX_NODE", str(WORLD.rank))
    size, me = WORLD.size, WORLD.rank
    spaced = MPI.INT.Create_vector(5, 1, 2).Commit()
    count, datatype, step = (1, spaced, 2) if me == 0 else (5, MPI.INT, 1)
    values, got = np.arange(10 * size, dtype="i4") + 1000 * me, Output(5 * size, "i4")
    with pyncclx.Communicator(WORLD).Dup() as comm, comparing() as compare:
        if name == "Bcast":
            buf = Output(10, "i4").fill(values[:10])
            forms.call(comm, form, name, [buf.array, count, datatype])
            compare(buf, values[:10] if me == 0 else np.append(np.arange(0, 10, 2, "i4"), values[5:10]), form)
        else:
            sent = [put(values), ([count] * size, [20 * step * rank for rank in range(size)]), [datatype] * size]
            places = ([5] * size, [20 * rank for rank in range(size)])
            forms.call(comm, form, name, sent, [got.array, places, [MPI.INT] * size])
            steps = [2] + [1] * (size - 1)
            wanted = [1000 * rank + step * (5 * me + np.arange(5)) for rank, step in enumerate(steps)]
            compare(got, np.concatenate(wanted).astype("i4"), form)
    spaced.Free()


def test_two_communicators_in_opposite_orders(comm):
    """Each rank names the other and what that has called elsewhere; both communicators go on."""
    other = comm.Dup()
    other.name = "the other one"
    works(other)
    mine = other if comm.rank == 0 else comm
    with raises_everywhere(comm, CollectiveMismatch, match=r"waited 1 s .*has not called anything on this") as raised:
        allreduce(mine)
    assert re.search(rf"rank {comm.rank} called Allreduce", str(raised.value))
    if comm.size == 2:
        assert re.search(rf"rank {1 - comm.rank}: Allreduce.* on another communicator", str(raised.value))
    for each in (comm, other):
        MPI.Intracomm.Barrier(each)
        works(each)
    other.Free()


def test_in_opposite_orders_from_the_first_call_on(comm):
    """The ranks have nothing to compare by yet. One has left where the other one comes: then all calls raise."""
    first, second = comm.Dup(), comm.Dup()
    with raises_everywhere(comm, CollectiveMismatch, match=r"rank \d called Allreduce.*not all others have called"):
        allreduce(first if comm.rank == 0 else second)
    for each in (first, second):
        with raises_everywhere(comm, (PeerTimeout, Aborted)):
            allreduce(each)
        each.Free()


def test_another_rank_has_raised(comm):
    def bad():
        comm.Allreduce(put(np.ones(3, "i4")), Output(4, "i4").array)

    if comm.rank == 0:
        alone(comm, lambda: allreduce(comm), "rank 0 called Allreduce", "rank .*1.* has not called anything")
    else:
        with pytest.raises(ValueError, match="mismatch"):
            bad()
    MPI.Intracomm.Barrier(comm)
    comm.Barrier(device=True)
    works(comm)


def test_another_rank_calls_what_is_not_compared(comm):
    """mpi4py's bcast on the same communicator, whose messages are not mixed with those of the comparison."""
    word = {"from": 0}
    alone(comm, lambda: allreduce(comm), "rank 0 called Allreduce", "has not called anything")
    assert comm.bcast(word, 0) == word
    works(comm)


@pytest.mark.parametrize("make", ["Alloc", "Create_token_shuffle", "device_team"])
def test_against_what_makes_something(comm, make):
    calls = {
        "Alloc": lambda: comm.Alloc(4),
        "Create_token_shuffle": lambda: comm.Create_token_shuffle(4, 8, 16, "f4", k=1, max_tokens=4),
        "device_team": comm.device_team,
    }
    with raises_everywhere(comm, CollectiveMismatch, match=rf"rank 0: {make}.*rank 1: Allreduce"):
        calls[make]() if comm.rank == 0 else allreduce(comm)
    works(comm)


def test_nonblocking_ones_in_opposite_orders(comm):
    """Which MPI allows: they are compared when they are waited for."""
    other = comm.Dup()
    works(other)
    for call in range(3):
        totals = [Output(3, "i4"), Output(3, "i4")]
        begin = [
            lambda each=each, total=total: each.Iallreduce(put(np.full(3, 1, "i4")), total.array)
            for each, total in zip((comm, other), totals, strict=True)
        ]
        requests = [each() for each in begin[:: 1 if (comm.rank + call) % 2 else -1]]
        pyncclx.Request.Waitall(requests)
        with comparing() as compare:
            for total in totals:
                compare(total, np.full(3, comm.size, "i4"), "total")
    other.Free()


def test_nonblocking_ones_that_differ(comm):
    """Of which one has still to be prepared: before anything is launched."""
    value = Output(3, "i8")
    with raises_everywhere(comm, CollectiveMismatch, match="rank 0: Allreduce.*rank 1: Scan"):
        (comm.Iallreduce if comm.rank == 0 else comm.Iscan)(MPI.IN_PLACE, value.array)
    works(comm)
