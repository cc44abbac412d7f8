"""Neighbourhood collectives on every topology, against mpi4py's on host copies."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import Output, put
from support.everywhere import raises_everywhere
from support.forms import FORMS, call
from support.lease import layout_of
from support.reference import comparing, labels

INT64 = MPI.INT64_T
OPERATIONS = [f"Neighbor_{name}" for name in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw")]


@pytest.fixture(scope="module", params=["ring", "line", "torus", "grid", "cube"])
def cart(request):
    """Communicators on which ranks have themselves, no rank, or one rank twice as neighbours."""
    world = pyncclx.Communicator()
    dimensions = {"ring": 1, "line": 1, "torus": 2, "grid": 2, "cube": 3}[request.param]
    periods = {"ring": [True], "line": [False], "torus": [True] * 2, "grid": [False] * 2, "cube": [True, False, True]}
    dims = MPI.Compute_dims(world.size, dimensions)
    with world.Create_cart(dims, periods[request.param], reorder=False) as cart:
        yield cart


def sides(name, send, recv, neighbors, count, types):
    """Buffer specs of an operation: blocks of `count` elements, the last ones first where they can be anywhere."""
    places = [count * (neighbors - 1 - n) for n in range(neighbors)]
    each = {
        "Neighbor_allgather": ([send, count, INT64], [recv, count, INT64]),
        "Neighbor_allgatherv": ([send, count, INT64], [recv, ([count] * neighbors, places), INT64]),
        "Neighbor_alltoall": ([send, count, INT64], [recv, count, INT64]),
        "Neighbor_alltoallv": ([send, [count] * neighbors], [recv, ([count] * neighbors, places), INT64]),
    }
    if name in each:
        return each[name]
    return [send, [1] * neighbors, [8 * n for n in range(neighbors)], types], [recv, types]


def check(compare, comm, form, name, values, neighbors, count, types):
    """An operation does with device arrays what mpi4py's does with host arrays."""
    recv = Output(count * neighbors, "i8")
    values = values if name.endswith(("w", "ather", "atherv")) else values[: count * neighbors]
    expected = recv.read()
    getattr(MPI.Topocomm, name)(comm, *sides(name, values, expected, neighbors, count, types))
    call(comm, form, name, *sides(name, put(values), recv.array, neighbors, count, types), starts=2)
    compare(recv, expected, f"{type(comm).__name__}, {form}, {count} elements")


@pytest.mark.parametrize("name", OPERATIONS)
def test_blocks(cart, name):
    """Of lengths that go as packets and as chunks, in all forms."""
    neighbors = 2 * cart.ndim
    large = layout_of(cart).chunk_nbytes * layout_of(cart).channels // 8 + 3
    with comparing() as compare:
        for number, (form, count) in enumerate((("blocking", 3), ("nonblocking", large), ("persistent", 1))):
            stride = [INT64.Create_vector(count, 1, neighbors) for _ in range(neighbors)]
            types = [each.Create_hindexed_block(1, [8 * n]).Commit() for n, each in enumerate(stride)]
            values = labels(cart.rank, (count + 1) * neighbors, number)
            check(compare, cart, form, name, values, neighbors, count, types)
            for each in (*stride, *types):
                each.Free()


@pytest.mark.parametrize("name", ["Neighbor_allgather", "Neighbor_alltoall"])
def test_gaps(cart, name):
    """Blocks of a datatype that is longer than what it names."""
    neighbors, spaced = 2 * cart.ndim, INT64.Create_resized(0, 24).Commit()
    values, recv = labels(cart.rank, 9 * neighbors), Output(9 * neighbors, "i8")
    expected = recv.read()
    getattr(MPI.Topocomm, name)(cart, [values, 3, spaced], [expected, 3, spaced])
    getattr(cart, name)([put(values), 3, spaced], [recv.array, 3, spaced])
    spaced.Free()
    with comparing() as compare:
        compare(recv, expected, name)


def graphs(world):
    """A ring of double edges, and edges one way only, some of them twice or to oneself; and how many a rank has."""
    n, me = world.size, world.rank
    nodes = [((node - 1) % n, (node + 1) % n) for node in range(n)]
    edges = [neighbor for node in nodes for neighbor in node]
    yield world.Create_graph([2 * node + 2 for node in range(n)], edges, reorder=False), 2
    steps = (1, 2, 0, 1)
    sources, destinations = [(me - step) % n for step in steps], [(me + step) % n for step in steps]
    yield world.Create_dist_graph_adjacent(sources, destinations, reorder=False), 4


@pytest.mark.parametrize("name", OPERATIONS)
def test_graphs(name):
    """In all forms; every block differs by its sender."""
    with comparing() as compare:
        for graph, edges in graphs(pyncclx.Communicator()):
            assert graph.explain(name).startswith("native")
            for number, form in enumerate(FORMS):
                count = 3 + number
                types = [INT64.Create_hindexed_block(count, [8 * count * n]).Commit() for n in range(edges)]
                values = labels(graph.rank, (count + 1) * edges, number)
                check(compare, graph, form, name, values, edges, count, types)
                for each in types:
                    each.Free()
            graph.Free()


@pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="one rank has no edges here")
@pytest.mark.parametrize("length", [0, 3])
@pytest.mark.parametrize(
    ("name", "counted"), [(each, False) for each in OPERATIONS] + [(OPERATIONS[0], True), (OPERATIONS[2], True)]
)
def test_edges_in_one_direction(name, counted, length):
    """The first rank has no source, the last no destination; whatever it passes there is not looked at."""
    world = pyncclx.Communicator()
    me, last = world.rank, world.size - 1
    sources, destinations = [me - 1] if me else [], [me + 1] if me < last else []
    send, recv = labels(me, 3 if destinations else length), Output(3 if sources else length, "i8")
    block = INT64.Create_contiguous(3).Commit()
    with world.Create_dist_graph_adjacent(sources, destinations, reorder=False) as graph, comparing() as compare:
        arrays = put(send), recv.array
        if name.endswith("w"):
            arrays = zip(arrays, ([block] * len(destinations), [block] * len(sources)), strict=True)
        if counted:  # by all ranks, because the lengths of blocks agree
            arrays = [[array, 1, block] for array in arrays]
        getattr(graph, name)(*arrays)
        compare(recv, labels(me - 1, 3) if sources else recv.read(), name)
    block.Free()


def test_rank_without_neighbours():
    """It need not pass arrays, so no rank runs a kernel."""
    world = pyncclx.Communicator()
    apart = world.rank == world.size - 1
    others = [] if apart or world.size < 2 else list(range(world.size - 1))
    with world.Create_dist_graph_adjacent(others, others, reorder=False) as graph, comparing() as compare:
        values, recv = labels(world.rank, len(others)), Output(len(others), "i8")
        graph.staging = True
        if others:
            graph.Neighbor_alltoall(put(values), recv.array)
            compare(recv, np.array([labels(rank, len(others))[world.rank] for rank in others]), "others")
        else:
            graph.Neighbor_alltoall([None, 0, INT64], [None, 0, INT64])


def test_absolute_addresses():
    """MPI.BOTTOM with displacements that are addresses."""
    world = pyncclx.Communicator()
    with comparing() as compare:
        for graph, edges in graphs(world):
            values, recv = put(labels(world.rank, edges)), Output(edges, "i8")
            expected = recv.read()
            MPI.Topocomm.Neighbor_alltoall(graph, labels(world.rank, edges), expected)
            begins = [address(values), address(recv.array)]
            places = [[begin + 8 * n for n in range(edges)] for begin in begins]
            ones, types = [1] * edges, [INT64] * edges
            graph.Neighbor_alltoallw([MPI.BOTTOM, (ones, places[0]), types], (MPI.BOTTOM, ones, places[1], types))
            compare(recv, expected, type(graph).__name__)
            graph.Free()


def address(array):
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def test_halo(cart):
    """The edges of a block of an array go to the neighbours' halos, in every dimension at once."""
    inner = [4 + dimension for dimension in range(cart.ndim)]
    shape = [length + 2 for length in inner]
    sends, recvs = [], []
    for dimension, length in enumerate(inner):
        edge = [1 if d == dimension else each for d, each in enumerate(inner)]
        for types, begins in ((sends, (1, length)), (recvs, (0, length + 1))):
            starts = [[begin if d == dimension else 1 for d in range(cart.ndim)] for begin in begins]
            types += [INT64.Create_subarray(shape, edge, start).Commit() for start in starts]
    values = labels(cart.rank, int(np.prod(shape))).reshape(shape)
    x, expected = Output(shape, "i8").fill(values), values.copy()
    MPI.Cartcomm.Neighbor_alltoallw(cart, [values, sends], [expected, recvs])
    cart.Neighbor_alltoallw([put(values), sends], [x.array, recvs])
    with comparing() as compare:
        compare(x, expected, "two arrays")
        x.fill(values)
        cart.Neighbor_alltoallw([x.array, sends], [x.array, recvs])  # they share an array, and no element
        compare(x, expected, "one array")
    for each in (*sends, *recvs):
        each.Free()


def test_bad_input(cart):
    x = put(np.zeros(60, "i8"))
    with raises_everywhere(cart, ValueError, match=r"Neighbor_alltoall: recvbuf"):
        cart.Neighbor_alltoall(x, put(np.zeros(2 * cart.ndim + 1, "i8")))
    with raises_everywhere(cart, ValueError, match=r"Neighbor_alltoallv: sendbuf counts has 1 items"):
        cart.Neighbor_alltoallv([x, [1]], x)
    with raises_everywhere(cart, TypeError):
        cart.Neighbor_alltoallw(x, x)


def test_no_dimensions():
    """Nobody has neighbours, and there is nothing to do."""
    with pyncclx.Communicator(MPI.COMM_SELF).Create_cart([]) as cart:
        assert cart.ndim == 0
        cart.Neighbor_alltoallw([np.zeros(0), []], [np.zeros(0), []])
