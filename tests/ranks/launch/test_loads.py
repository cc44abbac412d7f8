"""When kernels are loaded: on GPUs not while one waits for a peer, for the driver waits for it."""

import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import Prequest, Request, backends
from pyncclx.derived import packing
from pyncclx.launch import kernels
from pyncclx.messages import context
from pyncclx.messages.partitioned import starts as partitioned_starts
from support.arrays import get, host_only, put, xp
from support.labelled_messages import data_of
from support.reversed_ranks import ring

COUNT, TAG = 24, 7
COLUMN = MPI.INT64_T.Create_vector(COUNT, 1, 2).Commit()

pytestmark = [host_only, pytest.mark.one_node]


@pytest.fixture
def anew(monkeypatch):
    """Return a communicator of a process that has loaded no kernel, and cannot do so while one of its kernels runs."""
    device = backends.select()
    monkeypatch.setattr(device, "loads_beside_kernels", False)
    monkeypatch.setattr(kernels, "_loaded", {})
    monkeypatch.setattr(packing, "_packings", {})
    for value in (context.CONTEXT, partitioned_starts.FUNCTIONS):
        value.reset()
    comm = pyncclx.Communicator().Dup()
    yield comm
    comm.Free()
    for value in (context.CONTEXT, partitioned_starts.FUNCTIONS):
        value.reset()


def typed(comm, x, y):
    right, left = ring(comm)
    comm.Sendrecv([x, 1, COLUMN], right, TAG, [y, 1, COLUMN], left, TAG)
    return get(y)[::2]


def partitioned(comm, x, y):
    right, left = ring(comm)
    requests = [comm.Precv_init(y[:COUNT], 3, left, TAG), comm.Psend_init(x[:COUNT], 2, right, TAG)]
    Prequest.Startall(requests)
    requests[1].Pready_range(0, 1)
    Request.Waitall(requests)
    comm.synchronize()
    return get(y)[:COUNT]


def typed_collective(comm, x, y):
    comm.Bcast([x, 1, COLUMN])
    return get(x)[::2]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("call", [typed, partitioned, typed_collective])
def test_what_a_program_may_need_at_any_time(anew, call, monkeypatch):
    """Another thread may need it while a blocking collective waits."""
    loads, comm = [], anew
    comm.Bcast(xp.zeros(COUNT, "i8"))  # the first kernel that waits for a peer
    device = backends.select()
    load = device.load
    monkeypatch.setattr(device, "load", lambda image, called=None: (loads.append(image), load(image, called))[1])
    x, y = put(data_of(comm.rank, TAG, 0, 2 * COUNT)), xp.zeros(2 * COUNT, "i8")
    found = call(comm, x, y)
    _, left = ring(comm)
    source, step = (0 if call is typed_collective else left), (1 if call is partitioned else 2)
    assert found.tolist() == data_of(source, TAG, 0, 2 * COUNT)[: step * COUNT : step].tolist()
    assert loads == []
