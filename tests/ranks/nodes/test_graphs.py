"""What no CUDA graph can hold is refused before anything is launched, and the communicator goes on.

The host device captures nothing; here it says that it does. Its engine is MPI's, whose steps a graph cannot hold.
"""

from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import Output, host_only, put
from support.everywhere import raises_everywhere
from support.forms import FORMS, call
from support.reference import comparing, labels

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
LONG, SHORT = 40_000, 5  # elements of eight bytes: short ones go through the host's memory
MANY = 1_000  # calls
REASONS = {LONG: "MPI moves the data between nodes", SHORT: "its data goes through the host's memory"}
pytestmark = [pytest.mark.ranks(2, 4), host_only]


@pytest.fixture
def comm(monkeypatch):
    """A communicator over pretend nodes, with ranks in turn."""
    monkeypatch.setenv("PYNCCLX_NODE", str(RANK % 2))
    with pyncclx.Communicator().Dup() as comm:
        yield comm


@pytest.fixture
def capturing(comm, monkeypatch):
    """Returns a context in which streams are being captured."""
    device = type(comm.spanning.team.device)

    @contextmanager
    def capture():
        with monkeypatch.context() as patch:
            patch.setattr(device, "is_capturing", lambda _device, _stream: True)
            yield

    return capture


@pytest.mark.parametrize("count", REASONS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_known", [False, True], ids=["new call", "known call"])
def test_a_call_is_refused(comm, capturing, count, form, is_known):
    x, y = put(labels(RANK, count)), Output(count, "i8")
    total = sum(labels(rank, count) for rank in range(SIZE))
    with comparing() as compare:
        first = y if is_known else Output(count, "i8")  # scratch memory is allocated outside
        call(comm, form, "Allreduce", x, first.array)
        compare(first, total, "before")
        y.poison()
        poisoned = y.read().copy()
        reason = f"Allreduce: no CUDA graph .* {REASONS[count]}"
        with capturing(), raises_everywhere(comm, pyncclx.NotSupported, match=reason):
            call(comm, form, "Allreduce", x, y.array)
        compare(y, poisoned, "refused")
        for _ in range(2):
            call(comm, form, "Allreduce", x, y.array)
            compare(y, total, "after")


def test_counts_on_the_device_are_refused(comm, capturing):
    ones, counts = put(np.ones(SIZE, "i8")), Output(SIZE, "i8")
    x, y = put(labels(RANK, SIZE)), Output(SIZE, "i8")

    def alltoallv():
        comm.Alltoallv([x, ones], [y.array, counts.array], layout="packed")
        comm.synchronize()
        compare(y, np.array([labels(rank, SIZE)[RANK] for rank in range(SIZE)]), "rows")
        compare(counts, np.ones(SIZE, "i8"), "counts")

    with comparing() as compare:
        alltoallv()
        reason = "Alltoallv: no CUDA graph .* the host reads"
        with capturing(), raises_everywhere(comm, pyncclx.NotSupported, match=reason):
            comm.Alltoallv([x, ones], [y.array, counts.array], layout="packed")
        alltoallv()


def test_calls_are_compared_after_a_refusal(comm, capturing):
    x, y = put(labels(RANK, LONG)), Output(LONG, "i8")
    comm.Allreduce(x, y.array)
    with capturing(), raises_everywhere(comm, pyncclx.NotSupported):
        comm.Allreduce(x, y.array)
    with raises_everywhere(comm, pyncclx.CollectiveMismatch):
        for _ in range(MANY):  # the text of another rank's call may come later than its data
            comm.Allreduce(x, y.array, MPI.MAX if RANK == 0 else MPI.SUM)
            comm.synchronize()
    comm.state.abandon()
