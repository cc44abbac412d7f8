"""Collectives with device arrays and host arrays of which one is empty: on all ranks the same happens as elsewhere."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import events
from pyncclx.communicator import staged
from support.arrays import host_only
from support.device_memory import installed
from support.forms import FORMS, call
from support.staging_comm import staging

pytestmark = [host_only, pytest.mark.ranks(2), pytest.mark.one_node]
memory, comm = pytest.fixture(installed), pytest.fixture(staging)


@pytest.fixture
def ways():
    """How the calls were performed."""
    seen = []
    events.listeners.append(seen.append)
    yield lambda: {event.how for event in seen}
    events.listeners.remove(seen.append)


def without(comm, empty):
    """A count for each rank; none for one of them."""
    return [0 if rank == empty else 2 + rank for rank in range(comm.size)]


def packed(counts):
    return [sum(counts[:rank]) for rank in range(len(counts))]


def case(comm, name, empty):
    """Elements to send and to receive, the counts of both if they have some, arguments after them, and keywords.

    Of one rank the send buffer, the receive buffer or both are empty.
    """
    counts, rank, size = without(comm, empty), comm.rank, comm.size
    own, whole, root = counts[rank], sum(counts), {"root": empty}
    to_each = [0] * size if rank == empty else [3] * size
    from_each = [0 if each == empty else 3 for each in range(size)]
    w = [[8 * each for each in packed(some)] for some in (to_each, from_each)]
    return {
        "Reduce_scatter": (whole, (), own, (), (counts,), {}),
        "Gatherv": (own, (), whole, (counts,), (), root),
        "Scatterv": (whole, (counts,), own, (), (), root),
        "Allgatherv": (own, (), whole, (counts,), (), {}),
        "Alltoallv": (sum(to_each), (to_each,), sum(from_each), (from_each,), (), {}),
        "Alltoallw": (
            *(sum(to_each), (to_each, w[0], [MPI.DOUBLE] * size)),
            *(sum(from_each), (from_each, w[1], [MPI.DOUBLE] * size), (), {}),
        ),
    }[name]


def transposed(number):
    """The same with receive buffers empty where send buffers were."""
    sent, of_sent, received, of_received, after, keywords = number
    return received, of_received, sent, of_sent, after, keywords


def perform(comm, memory, form, name, arguments, on_host):
    """Call it with the buffers named in `on_host` as host arrays, and compare with mpi4py's method."""
    sent, of_sent, received, of_received, after, keywords = arguments
    x, y = np.arange(sent) + 100.0 * comm.rank, np.full(received, -1.0)
    places = memory.put(x), memory.put(y)
    buffers = [
        values.copy() if side in on_host else place.typed("array")
        for side, values, place in zip(("send", "recv"), (x, y), places, strict=True)
    ]
    base = MPI.Distgraphcomm if name.startswith("Neighbor") else MPI.Intracomm
    specs = [[array, *more] if more else array for array, more in ((x, of_sent), (y, of_received))]
    getattr(base, name)(comm, *specs, *after, **keywords)
    specs = [
        [array, *more] if more else array for array, more in zip(buffers, (of_sent, of_received), strict=True)
    ]
    if name.startswith("Neighbor") and form == "nonblocking":
        getattr(comm, f"I{name.lower()}")(*specs).Wait()
    else:
        call(comm, form, name, *specs, *after, starts=2, **keywords)
    comm.synchronize()
    np.testing.assert_array_equal(buffers[1] if "recv" in on_host else places[1].host, y)


def sides(name):
    return {"Gatherv": ["recv"], "Scatterv": ["send"]}.get(name, ["send", "recv"])


@pytest.mark.parametrize("who", ["all", "empty"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "name", ["Reduce_scatter", "Gatherv", "Scatterv", "Allgatherv", "Alltoallv", "Alltoallw"]
)
def test_kernels(comm, memory, ways, name, form, who):
    """One buffer is a host array, of all ranks or of the one that has nothing to send or to receive."""
    for empty in (0, comm.size - 1):
        arguments = case(comm, name, empty)
        for each in [arguments, transposed(arguments)] if name.startswith("Alltoall") else [arguments]:
            for side in sides(name):
                on_host = [side] if who == "all" or comm.rank == empty else []
                perform(comm, memory, form, name, each, on_host)
        memory.clear()
    assert ways() <= {events.NATIVE}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["Gatherv", "Scatterv"])
def test_the_buffer_of_all_decides(comm, memory, ways, name, form):
    """It is a host array on all ranks and empty at root, whose other buffer is a device array: MPI does the call."""
    side = {"Gatherv": "send", "Scatterv": "recv"}[name]
    for empty in (0, comm.size - 1):
        perform(comm, memory, form, name, case(comm, name, empty), [side])
    assert events.NATIVE not in ways()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["Neighbor_allgatherv", "Neighbor_alltoallv", "Neighbor_alltoallw"])
def test_neighbours(comm, memory, ways, name, form):
    """Rank 0 sends nothing, so the next one on the ring receives nothing."""
    size, count = comm.size, 0 if comm.rank == 0 else 4
    left, right = (comm.rank - 1) % size, (comm.rank + 1) % size
    of_left = 0 if left == 0 else 4
    with comm.Create_dist_graph_adjacent([left], [right]) as graph:
        graph.staging = True
        more = {
            "Neighbor_allgatherv": ((), ([of_left],)),
            "Neighbor_alltoallv": (([count],), ([of_left],)),
            "Neighbor_alltoallw": (([count], [0], [MPI.DOUBLE]), ([of_left], [0], [MPI.DOUBLE])),
        }[name]
        for side in ("send", "recv"):
            for who in (range(size), [0], [1]):
                on_host = [side] if comm.rank in who else []
                perform(graph, memory, form, name, (count, more[0], of_left, more[1], (), {}), on_host)
        graph.synchronize()
    assert ways() <= {events.NATIVE}


@pytest.mark.parametrize("form", FORMS)
def test_all_are_empty(comm, memory, ways, form):
    """And a host array among them."""
    for name in ("Reduce", "Allreduce", "Gather", "Scatter", "Allgather", "Alltoall"):
        for side in {"Gather": ["recv"], "Scatter": ["send"], "Reduce": ["recv"]}.get(name, ["send", "recv"]):
            perform(comm, memory, form, name, (0, (), 0, (), (), {}), [side] if comm.rank == 0 else [])
    assert ways() <= {events.NATIVE}


def test_more_requests_than_tracks(comm, memory):
    """MPI takes those for which kernels have no memory, on all ranks, wherever the host arrays are."""
    requests, results = [], []
    for number in range(18):
        x, y = memory.put(np.full(5, number + comm.rank)), memory.put(np.zeros(5, int))
        on_host = number % comm.size == comm.rank
        results.append(np.zeros(5, int) if on_host else y.host)
        requests.append(comm.Allreduce_init(x.typed("array"), results[-1] if on_host else y.typed("array")))
    for _ in range(2):
        for request in requests[comm.rank :] + requests[: comm.rank]:
            request.Start()
        pyncclx.Request.Waitall(requests)
        comm.synchronize()
        for number, result in enumerate(results):
            np.testing.assert_array_equal(result, sum(number + rank for rank in range(comm.size)))
            result[:] = 0
    for request in requests:
        request.Free()


@pytest.mark.parametrize("count", [0, 3])
def test_refused_without_staging(memory, monkeypatch, count):
    """MPI would have to do it."""
    monkeypatch.setattr(staged, "is_cuda_aware", lambda: False)
    there = memory.put(np.zeros(count)).typed("array")
    with pyncclx.Communicator(MPI.COMM_SELF).Dup() as comm:
        for form in FORMS:
            with pytest.raises(pyncclx.NotSupported, match=r"sendbuf is in host memory.*comm\.staging = True"):
                call(comm, form, "Gather", np.ones(count), there)
