"""Calls over nodes that differ among the ranks: all raise, with both calls in the text."""

import re
import time

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.nodes.comparison import Comparison
from pyncclx.nodes.host_exchange import label_of, most_nbytes
from pyncclx.nodes.step_monitor import PAUSE_S
from support.arrays import Output, get, put, xp
from support.everywhere import assert_everywhere, raises_everywhere
from support.reference import comparing

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
LAYOUTS = {"halves": 2 * RANK // SIZE, "in turn": RANK % 2, "alone": RANK}
COUNT = most_nbytes(1)  # elements of 4 bytes: longer than what goes through the host, which compares calls, too
pytestmark = pytest.mark.ranks(2)


@pytest.fixture(params=["halves", "in turn"])
def comm(request, monkeypatch):
    """A communicator over pretend nodes, which has made a call; no test waits until ranks are missed."""
    monkeypatch.setenv("PYNCCLX_NODE", str(LAYOUTS[request.param]))
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "100")
    comm = pyncclx.Communicator().Dup()
    comm.Allreduce(put(np.ones(COUNT, "f4")), xp.empty(COUNT, "f4"))
    yield comm
    comm.state.abandon()


def raised_by(comm, call):
    """The text of the mismatch that the first of some calls raises; and that of the next one."""
    texts = []
    end = time.monotonic() + 30
    while len(texts) < 2 and time.monotonic() < end:
        try:
            call()
            comm.synchronize()
        except pyncclx.CollectiveMismatch as error:
            texts.append(str(error))
    return texts


def test_operators_that_differ(comm):
    x, y = put(np.ones(COUNT, "f4")), xp.empty(COUNT, "f4")
    texts = raised_by(comm, lambda: comm.Allreduce(x, y, MPI.MAX if RANK == 0 else MPI.SUM))
    both = re.compile(r"rank \d called Allreduce\(\d+, 'float32', '(MAX|SUM)'\); rank \d called Allreduce\(\d+, 'fl")
    assert_everywhere(WORLD, len(texts) == 2 and both.search(texts[0]) is not None, f"rank {RANK}: {texts}")
    for engine in comm.spanning.rails.engines():  # what waits in them has been ended, too
        with pytest.raises(pyncclx.CollectiveMismatch):
            engine.check()


@pytest.mark.parametrize("name", ["types", "operations", "nonblocking", "order"])
def test_other_differences(comm, name):
    count = COUNT + 4  # a first call: no thread looks for the sake of texts that are sent together
    x, y = put(np.ones(count, "f4")), xp.empty(count, "f4")
    odd = RANK == SIZE - 1
    calls = {
        "types": lambda: comm.Allreduce(x.view("i4") if odd else x, y.view("i4") if odd else y),
        "operations": lambda: comm.Reduce(x, y, MPI.SUM, 0) if odd else comm.Allreduce(x, y),
        "nonblocking": lambda: comm.Iallreduce(x, y, MPI.PROD if odd else MPI.SUM).Wait(),
        "order": lambda: comm.Allreduce(x, y),
    }
    comm.deterministic = not (name == "order" and odd)
    texts = raised_by(comm, calls[name])
    assert_everywhere(WORLD, len(texts) == 2 and "disagree about a call" in texts[0], f"rank {RANK}: {texts}")


def totals_of(comms, count):
    """Totals over the ranks of several communicators, begun in an order of each rank's own."""
    totals = [Output(count, "f4") for _ in comms]
    requests = []
    for number in range(len(comms))[:: 1 if RANK % 2 else -1]:
        requests.append(comms[number].Iallreduce(put(np.full(count, 1 + number, "f4")), totals[number].array))
    pyncclx.Request.Waitall(requests)
    return totals


@pytest.mark.parametrize("count", [3, COUNT])
def test_checked_nonblocking_calls_in_opposite_orders(comm, monkeypatch, count):
    """With PYNCCLX_CHECK=1: MPI allows them, so a call is compared when it is waited for."""
    monkeypatch.setenv("PYNCCLX_CHECK", "1")
    comms = [comm.Dup(), comm.Dup()]
    for each in comms:  # first calls meet
        totals_of([each], count)
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "5")
    with comparing() as compare:
        for _ in range(3):
            for number, total in enumerate(totals_of(comms, count)):
                compare(total, np.full(count, SIZE * (1 + number), "f4"), f"total {number}")
    for each in comms:
        each.Free()


@pytest.mark.parametrize("differ", ["a first call", "a call of a kind that was"])
def test_checked_nonblocking_calls_that_differ(comm, monkeypatch, differ):
    """With PYNCCLX_CHECK=1: all ranks raise it, at the latest when they wait."""
    monkeypatch.setenv("PYNCCLX_CHECK", "1")
    with comm.Dup() as checked:
        x, y = put(np.ones(COUNT, "f4")), xp.empty(COUNT, "f4")
        operators = (MPI.MIN, MPI.MAX) if differ == "a first call" else (MPI.MAX, MPI.SUM)
        for operator in (MPI.SUM, MPI.MAX):
            checked.Iallreduce(x, y, operator).Wait()
        WORLD.Barrier()  # a rank that still waited for an equal call would raise there
        with raises_everywhere(WORLD, pyncclx.CollectiveMismatch, match=r"rank 0.*Allreduce.*rank \d.*Allreduce"):
            checked.Iallreduce(x, y, operators[RANK == 0]).Wait()


def test_a_test_of_a_checked_call_returns(comm, monkeypatch):
    """With PYNCCLX_CHECK=1: at once, though the last rank begins its call only after a message that comes later."""
    monkeypatch.setenv("PYNCCLX_CHECK", "1")
    with comm.Dup() as checked:
        x = put(np.full(4, 1.0 + RANK, "f4"))
        checked.Ibcast(x, 0).Wait()
        checked.synchronize()
        if RANK == 0:
            request, end, over = checked.Ibcast(x, 0), time.monotonic() + 0.5, False
            while not over and time.monotonic() < end:  # root's part ends meanwhile
                over = request.Test()
            WORLD.Ssend(np.zeros(0), SIZE - 1)
        else:
            if RANK == SIZE - 1:
                WORLD.Recv(np.zeros(0), 0)
            request, over = checked.Ibcast(x, 0), False
        request.Wait()
        checked.synchronize()
        assert_everywhere(WORLD, not over and (get(x) == 1).all(), f"{over}, {get(x)[:3]}")


@pytest.mark.parametrize("comm", ["alone"], indirect=True)
def test_a_call_that_does_not_wait_for_the_others(comm):
    """Its text is sent though this rank makes no further call: the others find out why they wait in vain."""
    x, y, few = put(np.ones(COUNT, "f4")), xp.empty(COUNT, "f4"), xp.ones(3, "f4")
    for _ in range(3):
        comm.Bcast(few, 0)
        comm.Allreduce(x, y)
    comm.synchronize()
    time.sleep(3 * PAUSE_S)  # a look at those that have ended would send the text, too
    texts, ended = [], WORLD.Ibarrier() if RANK == 0 else None
    if RANK == 0:
        comm.Bcast(few, 0)
        ended.Wait()
        texts = raised_by(comm, lambda: comm.Bcast(few, 0))
    else:
        texts = raised_by(comm, lambda: comm.Allreduce(x, y))
        WORLD.Ibarrier().Wait()
    assert_everywhere(WORLD, len(texts) == 2 and "Bcast" in texts[0], f"rank {RANK}: {texts}")


def test_equal_calls_in_any_form(comm):
    """Blocking, nonblocking, persistent, empty and short ones; some ranks make them with other arrays each time."""
    x, y, nothing = put(np.full(COUNT, RANK + 1.0, "f4")), Output(COUNT, "f4"), xp.empty(0, "f4")
    request = comm.Allreduce_init(x, y.array, MPI.MAX)
    few, kept = [put(np.arange(3.0) + call) for call in range(20)], Output(3, "f8")
    with comparing() as compare:
        for call in range(20):
            comm.Bcast(x if call % SIZE == RANK else xp.empty(COUNT, "f4"), call % SIZE)
            comm.Allreduce(nothing, nothing)
            comm.Allreduce(few[call if RANK % 2 else 0], kept.array, MPI.MIN)
            compare(kept, np.arange(3.0) + (call if SIZE == 1 else 0), f"call {call}")
            request.Start()
            request.Wait()
            compare(y, np.full(COUNT, SIZE, "f4"), f"call {call}")
            comm.Iallreduce(x, y.array).Wait()
            compare(y, np.full(COUNT, SIZE * (SIZE + 1) / 2, "f4"), f"call {call}")
    request.Free()
    comm.synchronize()


def one_compared():
    """A comparison among all ranks, which have compared one call."""
    failures = []
    made = Comparison(RANK, SIZE, WORLD.Dup, lambda step, reason: failures.append(step), lambda look: None)
    made.add(label_of("Bcast", (0,)))
    return made, failures


def check_until_it_raises(comparison):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        comparison.check()


def test_news_go_around():
    made, failures = one_compared()
    made.add(label_of("Bcast", (RANK == 0,)))
    with pytest.raises(pyncclx.CollectiveMismatch, match=r"rank 0 called Bcast\(True,\)|Bcast\(True,\)$"):
        check_until_it_raises(made)
    assert failures == ["comparison of calls"]
    WORLD.Barrier()


def test_a_call_that_comes_before_the_own_one():
    """It is compared when the own one is made, not when the next one comes."""
    made, failures = one_compared()
    if RANK == 0:
        made.add(label_of("Bcast", (True,)))
    for _ in range(3):
        WORLD.Barrier()
        made.check()
    WORLD.Barrier()
    if RANK == 1:
        made.add(label_of("Bcast", (False,)))
        with pytest.raises(pyncclx.CollectiveMismatch, match=r"rank 0 called Bcast\(True,\); rank 1"):
            made.check()
    assert len(failures) == (RANK == 1)
    WORLD.Barrier()


def test_calls_that_are_sent_together():
    """With the 16th, or when this rank looks: then the other ranks have all of them."""
    made, failures = one_compared()
    for call in range(40):
        made.add(label_of("Bcast", (call,)), later=True)
        assert made.is_clear == (call % 16 != 15)
        if not made.is_clear:
            made.check()
    WORLD.Barrier()
    made.check_all()
    WORLD.Barrier()
    made.check_all()
    assert not failures
    assert not made._own
    made.add(label_of("Bcast", (RANK == 0,)), later=True)
    assert made.is_clear  # as long as the call is not sent
    assert not failures
    with pytest.raises(pyncclx.CollectiveMismatch, match=r"Bcast\(True,\)"):
        check_until_it_raises(made)
    assert not made.is_clear
    with pytest.raises(pyncclx.CollectiveMismatch):
        made.check()
    WORLD.Barrier()


@pytest.mark.parametrize("stops", [0, SIZE - 1])
def test_a_rank_whose_calls_are_in_graphs(stops):
    """It is not compared any more, and what others send it does no harm."""
    made, failures = one_compared()
    for call in range(5):
        if stops == RANK:
            made.stop()
        else:
            made.add(label_of("Bcast", (call,)))
        WORLD.Barrier()
        made.check_all()
    if stops == RANK:
        made.add(label_of("Bcast", ("in no graph",)))
    for _ in range(3):
        WORLD.Barrier()
        made.check_all()
    assert not failures
