"""A rank that does not come to a call over nodes: the others raise within PYNCCLX_TIMEOUT, and name the step."""

import contextlib
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import backends
from pyncclx.failures.comm_failures import CommFailure
from pyncclx.nodes.engine import EngineError
from pyncclx.nodes.mpi_engine import MpiEngine
from pyncclx.nodes.program import Program
from pyncclx.recording import failures
from pyncclx.recording.ring import RING
from support.arrays import put, xp
from support.everywhere import assert_everywhere

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
SECONDS = 1.5
pytestmark = pytest.mark.ranks(2)


@pytest.fixture(params=["halves", "one rank each"])
def comm(request, monkeypatch):
    """A communicator over pretend nodes, whose ranks are patient for a short time."""
    monkeypatch.setenv("PYNCCLX_NODE", str(2 * RANK // SIZE if request.param == "halves" else RANK))
    monkeypatch.setenv("PYNCCLX_TIMEOUT", str(SECONDS))
    comm = pyncclx.Communicator().Dup()
    comm.Allreduce(put(np.ones(5, "f4")), xp.empty(5, "f4"))
    return comm


@pytest.mark.parametrize(("count", "is_new"), [(5, False), (20_000, False), (20_000, True)])
def test_a_rank_that_does_not_come(comm, count, is_new):
    """To a call that has come before, or to the first one of its kind, for which NCCL connects the ranks."""
    if not is_new:
        comm.Allreduce(put(np.ones(count, "f4")), xp.empty(count, "f4"))
        comm.synchronize()
    raised, began = None, time.monotonic()
    if RANK > 0:
        try:
            comm.Allreduce(put(np.ones(count, "f4")), xp.empty(count, "f4"))
            comm.synchronize()
        except (pyncclx.PeerTimeout, pyncclx.Aborted) as error:
            raised = error
        with pytest.raises((pyncclx.PeerTimeout, pyncclx.Aborted)):
            comm.Bcast(put(np.ones(count, "f4")))  # the communicator is over
    took = time.monotonic() - began
    assert_everywhere(WORLD, RANK == 0 or raised is not None, f"rank {RANK} raised nothing")
    if RANK > 0 and comm.spanning.places.count == SIZE:
        assert ", exchange" in str(raised) or ", NCCL's allgather" in str(raised)
        assert "rank 0" in str(raised)
    assert_everywhere(WORLD, took < 4 * SECONDS + 2, f"rank {RANK} took {took} s")
    comm.state.abandon()


def test_a_rank_that_comes_too_late(comm):
    """If its own call still finds the others' data, its next call raises at once, and blames none of them."""
    comm.Allreduce(put(np.ones(5, "f4")), xp.empty(5, "f4"))
    WORLD.Barrier()
    if RANK == SIZE - 1:
        time.sleep(3 * SECONDS)
    raised, began = None, time.monotonic()
    for _ in range(3):
        try:
            comm.Allreduce(put(np.ones(5, "f4")), xp.empty(5, "f4"))
            comm.synchronize()
        except (pyncclx.PeerTimeout, pyncclx.Aborted) as error:
            raised = raised or error
    took = time.monotonic() - began
    is_right = isinstance(raised, pyncclx.PeerTimeout) and raised.peer == SIZE - 1
    if RANK == SIZE - 1:
        is_right = (is_right or isinstance(raised, pyncclx.Aborted)) and took < SECONDS
    assert_everywhere(WORLD, is_right, f"rank {RANK} raised {raised!r} after {took:.1f} s")
    comm.state.abandon()


@pytest.mark.ranks(3)
def test_ranks_in_the_log(monkeypatch):
    """They are those of the communicator, where ranks of a node have other numbers among themselves."""
    failures._REPORTER.reset()  # it reports equal texts once
    before = len(RING.get().failures)
    monkeypatch.setenv("PYNCCLX_NODE", str(RANK % 2))
    monkeypatch.setenv("PYNCCLX_TIMEOUT", str(SECONDS))
    comm = pyncclx.Communicator().Dup()
    for _ in range(2):
        comm.Allreduce(put(np.ones(5, "f4")), xp.empty(5, "f4"))
        comm.synchronize()
    WORLD.Barrier()
    if RANK == SIZE - 1:
        time.sleep(3 * SECONDS)
    with contextlib.suppress(pyncclx.PeerTimeout, pyncclx.Aborted):
        for _ in range(2):
            comm.Allreduce(put(np.ones(5, "f4")), xp.empty(5, "f4"))
            comm.synchronize()
    end, text = time.monotonic() + 5, ""
    while not text and time.monotonic() < end:  # a thread reports it
        text = " ".join(each["text"] for each in RING.get().failures[before:])
        time.sleep(0.01)
    expected = "" if RANK == SIZE - 1 else f"rank {RANK} timed out waiting for rank {SIZE - 1}"
    assert_everywhere(WORLD, expected in text, text)
    comm.state.abandon()


@pytest.mark.ranks(3)
def test_a_rank_that_has_failed_sends_late():
    """Its message does not come on the next communicator that the others make, in the place of that one's own."""
    engine = MpiEngine(WORLD.Dup(), backends.select(), lambda step, reason: None, direct=True)
    comm, number, count = MPI.Intracomm(engine.comm), np.array([RANK]), SIZE - 1
    if RANK == 0:
        engine.abort("any step", pyncclx.Aborted("any reason"))
    engine.close()
    WORLD.Barrier()
    if RANK == 0:
        comm.Send(number, 2, 7)
    WORLD.Barrier()
    if RANK > 0:
        others = WORLD.Create_group(WORLD.group.Excl([0]))
        others.Sendrecv(np.array([RANK]), RANK % count, 7, number, (RANK - 2) % count, 7)
        others.Free()
    assert_everywhere(WORLD, number[0] == (1 + (RANK - 2) % count if RANK else 0), f"from rank {number[0]}")


def test_data_that_nobody_expects_is_not_that_of_a_later_call(monkeypatch):
    """The counts of an Alltoallv differ: rank 0 sends to the last rank, which receives nothing."""
    monkeypatch.setenv("PYNCCLX_NODE", str(RANK))
    comm = pyncclx.Communicator().Dup()
    comm.Allreduce(put(np.ones(5, "f4")), xp.empty(5, "f4"))
    if comm.spanning.rails.uses_nccl:
        pytest.skip("NCCL matches sends and receives by their order alone")
    count, last = 10, SIZE - 1
    all_counts = [count] * SIZE
    for step in range(4):
        x, y = np.full(SIZE * count, 100.0 * step + RANK), np.full(SIZE * count, -1.0)
        received = [0, *all_counts[1:]] if step == 1 and last == RANK else all_counts
        comm.Alltoallv([put(x), all_counts], [out := put(y), received])
        comm.synchronize()
        got = xp.asarray(out).reshape(SIZE, count)[:, 0]
        right = 100.0 * step + np.arange(SIZE)
        assert_everywhere(WORLD, step == 1 or (got == put(right)).all(), f"step {step}: {got}")
    comm.Free()


class Refused(Program):
    """A program in whose steps the engine reports."""

    def __init__(self, report):
        super().__init__("Allreduce", [], (), follows_streams=True)
        self._report = report

    def enqueue(self, team, stream, aside, call):
        raise self._report


@pytest.mark.parametrize("in_check", [True, False], ids=["in a look", "in a call"])
@pytest.mark.parametrize("is_found", [True, False], ids=["a rank is found dead", "none is"])
def test_what_an_engine_reports(comm, monkeypatch, is_found, in_check):
    """A rank that has died, if one is found soon; the library behind the engine notices first, and cannot name it."""
    spanning, report = comm.spanning, EngineError(MPI.ERR_OTHER, "remote process exited")

    def check():
        raise report

    monkeypatch.setattr(spanning.rails, "check", check)
    monkeypatch.setattr(spanning.elsewhere, "_may_wait", True)
    finder = threading.Timer(0.1, spanning.elsewhere.fail, [CommFailure((SIZE - 1,), (SIZE - 1,), "it is gone")])
    if is_found:
        finder.start()
    with pytest.raises(pyncclx.RankFailed if is_found else EngineError) as raised:
        spanning.check() if in_check else spanning.enqueue(Refused(report), None, capturing=False)
    if is_found:
        finder.join()
        assert raised.value.ranks == (SIZE - 1,)
        assert str(raised.value).startswith("Allreduce")
    comm.state.abandon()


def shuffled(comm):
    """A dispatch and its combine."""
    shuffle = comm.Create_token_shuffle(2 * SIZE, 8 * SIZE, 16, "float32", k=2, max_tokens=4)
    tokens, ids = put(np.ones((4, 16), "f4")), put(np.arange(8).reshape(4, 2) % (2 * SIZE))

    def call():
        _, handle = shuffle.dispatch(tokens, ids)
        shuffle.combine(xp.zeros((8 * SIZE, 16), "f4"), handle)

    return call


def by_counts(comm):
    """An Alltoallv with counts on the device."""
    rows, counts, received = put(np.ones((SIZE, 3))), put(np.ones(SIZE, "i8")), xp.empty((SIZE, 3))
    return lambda: comm.Alltoallv([rows, counts], received, layout="packed")


@pytest.mark.thorough
@pytest.mark.parametrize("make", [shuffled, by_counts])
def test_a_rank_that_does_not_come_to_rows(monkeypatch, make):
    seconds = 6.0  # such calls take long on a slow machine
    monkeypatch.setenv("PYNCCLX_NODE", str(2 * RANK // SIZE))
    monkeypatch.setenv("PYNCCLX_TIMEOUT", str(seconds))
    comm = pyncclx.Communicator().Dup()
    call = make(comm)
    for _ in range(2):
        call()
    comm.synchronize()
    raised, began = None, time.monotonic()
    if RANK > 0:
        try:
            call()
            comm.synchronize()
        except (pyncclx.PeerTimeout, pyncclx.Aborted) as error:
            raised = error
        with pytest.raises((pyncclx.PeerTimeout, pyncclx.Aborted)):
            call()
    took = time.monotonic() - began
    assert_everywhere(WORLD, RANK == 0 or raised is not None, f"rank {RANK} raised nothing")
    assert_everywhere(WORLD, took < 4 * seconds, f"rank {RANK} took {took} s")
    comm.state.abandon()
