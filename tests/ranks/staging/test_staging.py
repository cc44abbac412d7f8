"""Operations that MPI does on host copies: every form has its result on host arrays, and writes nothing else."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.communicator import host_first, staged
from pyncclx.staging.requests import Prequest, Request
from pyncclx.staging.stage import Op
from support.arrays import host_only
from support.everywhere import assert_everywhere
from support.fake_gpu import Array, Rest, allowed, check, installed, ramp

pytestmark = host_only
gpu = pytest.fixture(installed, autouse=True)
comm = pytest.fixture(allowed)


def test_refused_unless_allowed(comm, monkeypatch):
    monkeypatch.setattr(staged, "is_cuda_aware", lambda: False)
    comm.staging = False
    with pytest.raises(pyncclx.NotSupported, match=r"Bsend: no kernel does this.*comm\.staging = True"):
        comm.Bsend(Array(ramp(comm, 3)), comm.rank)
    with pytest.raises(pyncclx.NotSupported, match="no kernels here"):
        comm.Ssend(Array(ramp(comm, 3)), comm.rank)
    with pytest.raises(pyncclx.NotSupported, match="no kernels here"):
        comm.Allreduce(Array(ramp(comm, 3)), Array(np.zeros(3)))


@pytest.mark.parametrize(
    "name", ["Gather", "Scatter", "Allgather", "Alltoall", "Allreduce", "Reduce", "Scan", "Exscan"]
)
@pytest.mark.parametrize("form", ["blocking", "nonblocking", "persistent"])
def test_collectives(comm, name, form):
    """Against mpi4py's method on host arrays."""
    send, recv = ramp(comm, 4 * comm.size), np.full(4 * comm.size**2, -1.0)
    if name in ("Scatter", "Alltoall", "Allreduce", "Reduce", "Scan", "Exscan"):
        recv = recv[: 4 if name == "Scatter" else 4 * comm.size].copy()
    x, y = Array(send), Array(recv)
    root = {"root": comm.size - 1} if name in ("Gather", "Scatter", "Reduce") else {}
    getattr(MPI.Intracomm, name)(comm, send, recv, **root)
    if form == "blocking":
        getattr(comm, name)(x, recvbuf=y, **root)
    elif form == "nonblocking":
        request = getattr(comm, f"I{name.lower()}")(x, y, **root)
        MPI.Request.Waitall([request])
    else:
        request = getattr(comm, f"{name}_init")(x, y, **root)
        assert isinstance(request, Prequest)
        request.Start()
        request.Wait()
        y.host[...] = 0 if name == "Exscan" and comm.rank == 0 else y.host
        request.Start()
        Request.Waitall([request])
    check(x, ramp(comm, 4 * comm.size))
    if not (name == "Exscan" and comm.rank == 0):
        check(y, recv)


def test_bcast(comm, gpu):
    for root in range(comm.size):
        x = Array(ramp(comm, 5))
        gpu.uploaded = 0
        comm.Bcast(x, root)
        check(x, ramp(comm, 5, rank=root))
        assert (gpu.uploaded == 0) == (comm.rank == root)


def test_user_operator(comm):
    op = MPI.Op.Create(lambda a, b, datatype: np.frombuffer(b, "f8").__imul__(np.frombuffer(a, "f8")), commute=True)
    y = Array(np.zeros(3))
    comm.Allreduce(Array(np.full(3, 2.0)), y, op)
    op.Free()
    check(y, np.full(3, 2.0**comm.size))


@pytest.mark.parametrize("dtype", ["V2", "S4", "U1", [("a", "f8"), ("b", "i4")]], ids=str)
def test_elements_without_arithmetic_are_not_reduced(comm, dtype):
    """MPI would take them for bytes; the program's own operator may do so, and a datatype that it names."""
    x, y = Array(np.zeros(comm.size, dtype)), Array(np.zeros(comm.size, dtype))
    for call in (comm.Allreduce, comm.Reduce, comm.Scan, comm.Exscan, comm.Iallreduce, comm.Allreduce_init):
        with pytest.raises(TypeError, match="without arithmetic"):
            call(x, y)
    with pytest.raises(TypeError, match="without arithmetic"):
        comm.Reduce_scatter_block(MPI.IN_PLACE, y, MPI.MAX)
    comm.Allreduce([x, MPI.BYTE], [y, MPI.BYTE], MPI.BOR)
    op = MPI.Op.Create(lambda a, b, datatype: None, commute=True)
    comm.Allreduce(x, y, op)
    op.Free()


def test_reduce_local():
    values, total = Array(np.arange(5.0)), Array(np.full(7, 10.0))
    Op.constants["SUM"].Reduce_local(values, [total, 5, MPI.DOUBLE])
    check(total, [10, 11, 12, 13, 14, 10, 10])
    with pytest.raises(TypeError, match="without arithmetic"):
        Op.constants["SUM"].Reduce_local(Array(np.zeros(2, "S4")), Array(np.zeros(2, "S4")))
    with pytest.raises(pyncclx.NotSupported, match="one array is on the device"):
        Op.constants["SUM"].Reduce_local(np.zeros(7), total)


def test_columns_of_one_array(comm):
    """Two receives into one array at once; what lies between is changed meanwhile, and stays so."""
    column = MPI.DOUBLE.Create_vector(4, 1, 3).Commit()
    y = Array(np.zeros((4, 3)))
    receives = [comm.Irecv([y, (1, 0), column], comm.rank, 0)]
    last = MPI.DOUBLE.Create_vector(4, 1, 3).Create_hindexed_block(1, [16]).Commit()
    receives.append(comm.Irecv([y, 1, last], comm.rank, 1))
    y.host[:, 1] = 5
    comm.Send(Array(np.full(4, 8.0)), comm.rank, 1)
    comm.Send(Array(np.full(4, 7.0)), comm.rank, 0)
    MPI.Request.Waitall(receives)
    check(y, np.tile([7.0, 5.0, 8.0], (4, 1)))


def test_datatype_that_reaches_before_the_array(comm):
    """Every second element backwards, and one in front of the array's end."""
    datatype = MPI.DOUBLE.Create_hvector(3, 1, -16).Commit()
    send, recv = ramp(comm, 9), np.full((comm.size, 9), -1.0)
    x, y = Array(send), Array(recv.reshape(-1))
    rows = datatype.Create_resized(0, 72).Commit()
    comm.Allgather([Rest(x, 6), 1, datatype], [Rest(y, 5), 1, rows])
    recv[:, 5:0:-2] = [ramp(comm, 9, rank=rank)[6:1:-2] for rank in range(comm.size)]
    check(y, recv.reshape(-1))
    check(x, send)
    request = comm.Irecv([Rest(y, 8), 1, datatype], comm.rank)
    comm.Send([Rest(x, 8), 1, datatype], comm.rank)
    request.Wait()
    recv[0, 8:3:-2] = send[8:3:-2]
    check(y, recv.reshape(-1))
    with pytest.raises(ValueError, match="takes those from -32"):
        comm.Bcast([x, 1, datatype])
    for each in (datatype, rows):
        each.Free()


def test_gaps_between_blocks(comm):
    """Gatherv into blocks with displacements writes the blocks and nothing between."""
    counts = [1 + rank % 2 for rank in range(comm.size)]
    displs = [4 * rank + 1 for rank in range(comm.size)]
    y = Array(np.full(4 * comm.size, -1.0))
    request = comm.Iallgatherv(Array(ramp(comm, counts[comm.rank])), [y, (counts, displs), MPI.DOUBLE])
    y.host[::4] = 3
    request.Wait()
    expected = np.full(4 * comm.size, -1.0)
    expected[::4] = 3
    for rank, (count, displ) in enumerate(zip(counts, displs, strict=True)):
        expected[displ : displ + count] = ramp(comm, count, rank=rank)
    check(y, expected)


def test_alltoallw(comm):
    """Of types of its own for each rank, and back."""
    x, y = Array(ramp(comm, comm.size, "i4")), Array(np.zeros(comm.size, "i4"))
    places = ([1] * comm.size, [4 * rank for rank in range(comm.size)])
    comm.Alltoallw([x, places, [MPI.INT] * comm.size], [y, places, [MPI.INT] * comm.size])
    check(y, [100 * rank + comm.rank for rank in range(comm.size)])


def test_neighbours(comm):
    """On a ring: the left neighbour's value, then the right one's."""
    ring = comm.Create_cart([comm.size], periods=[True])
    x, y = Array([10 * comm.rank, 10 * comm.rank + 1]), Array([-1, -1])
    ring.Neighbor_alltoall(x, y)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    if comm.size > 2:  # else one rank is both, and MPI does not say which message is which
        check(y, [10 * left + 1, 10 * right])
    z = Array([-1, -1])
    ring.Ineighbor_allgather(Array([comm.rank]), z).Wait()
    check(z, [left, right])
    ring.Free()


@pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="no rank has neighbours")
@pytest.mark.parametrize("made_by", ["Create_graph", "Create_dist_graph", "Create_dist_graph_adjacent", "Dup", "Idup"])
@pytest.mark.parametrize("nothing", [[None, 0, MPI.DOUBLE], np.empty(0)], ids=["None", "host array"])
def test_rank_without_neighbours(comm, monkeypatch, made_by, nothing):
    """Its calls go to MPI at once, as those with host arrays do on a GPU: no other rank may wait for it before."""
    monkeypatch.setattr(host_first, "looks_closely", lambda: False)
    others = list(range(comm.size - 1))
    neighbors = others if comm.rank in others else []
    if made_by == "Create_graph":
        ends = [len(others) * min(rank + 1, len(others)) for rank in range(comm.size)]
        graph = comm.Create_graph(ends, others * len(others))
    elif made_by == "Create_dist_graph":
        graph = comm.Create_dist_graph([comm.rank] * bool(neighbors), [len(neighbors)] * bool(neighbors), neighbors)
    else:
        graph = comm.Create_dist_graph_adjacent(neighbors, neighbors)
    if made_by in ("Dup", "Idup"):
        with graph:
            graph, request = graph.Idup() if made_by == "Idup" else (graph.Dup(), MPI.REQUEST_NULL)
            request.Wait()
    graph.staging = True
    for name in ("Neighbor_alltoall", "Ineighbor_alltoall"):
        sources, destinations = np.array(graph.inedges, "f8"), np.array(graph.outedges, "f8")  # MPI may reorder them
        x, y = (Array(10 * comm.rank + destinations), Array(-sources)) if neighbors else (nothing, nothing)
        request = getattr(graph, name)(x, y)
        if request is not None:
            request.Wait()
        if neighbors:
            check(y, 10 * sources + comm.rank)
    graph.Free()


@pytest.mark.ranks(2)
def test_intercommunicator(comm):
    side = comm.rank % 2
    local = comm.Split(side, comm.rank)
    inter = local.Create_intercomm(0, comm, 1 - side)
    y = Array(np.full(inter.remote_size, -1))
    inter.Allgather(Array([comm.rank]), y)
    check(y, [2 * rank + 1 - side for rank in range(inter.remote_size)])
    inter.Free()
    local.Free()


def test_one_side_on_the_host(comm):
    y = np.zeros(2)
    comm.Sendrecv(Array(ramp(comm, 2)), comm.rank, recvbuf=y, source=comm.rank)
    np.testing.assert_array_equal(y, ramp(comm, 2))


@pytest.mark.parametrize("dtype", ["V2", "f2", "?", "c16", "i1"])
def test_element_types(comm, dtype):
    """What MPI has no type for moves as bytes."""
    x = Array(np.arange(6).astype("u1").repeat(np.dtype(dtype).itemsize).view(dtype))
    y = Array(np.zeros(6 * comm.size, dtype))
    comm.Allgather(x, y)
    assert_everywhere(comm, y.host.tobytes() == x.host.tobytes() * comm.size)


def test_empty(comm):
    comm.Allreduce(Array(np.zeros(0)), Array(np.zeros(0)))
    comm.Isend(Array(np.zeros(0)), MPI.PROC_NULL).Wait()


def test_bad_input(comm):
    """As mpi4py judges it, and nothing is written."""
    y = Array(ramp(comm, 3))
    with pytest.raises(BufferError):
        comm.Recv(Array(np.zeros(3), readonly=True), comm.rank)
    with pytest.raises(ValueError, match="mismatch in send count"):
        comm.Allreduce(Array(np.zeros(2)), y)
    with pytest.raises(TypeError):
        comm.Send(Array(np.zeros(2)), "somebody")
    check(y, ramp(comm, 3))
