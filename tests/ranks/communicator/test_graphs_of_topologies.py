"""Distributed graphs whose parent has a topology, against duplicates of mpi4py's graphs.

If the parent is Cartesian or a graph, Open MPI (5.0.11) gives graphs of `Create_dist_graph_adjacent` its topology.
"""

import time

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.alarms import raising
from support.arrays import Output, put
from support.everywhere import assert_everywhere
from support.reference import comparing, labels

WORLD = MPI.COMM_WORLD
N, ME = WORLD.size, WORLD.rank
RING = [(ME + 1) % N]
PARENTS = {
    "Cartesian": lambda comm: comm.Create_cart([N], [True]),
    "graph": lambda comm: comm.Create_graph(range(1, N + 1), [(rank + 1) % N for rank in range(N)]),
    "distributed graph": lambda comm: comm.Create_dist_graph_adjacent(RING, RING),
}
# Edges to the next rank, and to oneself.
MAKERS = {
    "Create_dist_graph": lambda parent: parent.Create_dist_graph([ME], [2], [RING[0], ME]),
    "Create_dist_graph_adjacent": lambda parent: parent.Create_dist_graph_adjacent([(ME - 1) % N, ME], [RING[0], ME]),
}


@pytest.fixture(params=PARENTS)
def parent(request):
    """A pyncclx communicator with a topology."""
    with PARENTS[request.param](pyncclx.Communicator()) as parent:
        yield parent


@pytest.fixture(params=MAKERS)
def make(request):
    """A function that makes a distributed graph of two sources and two destinations a rank."""
    return MAKERS[request.param]


@pytest.fixture
def theirs(parent, make):
    """A graph that mpi4py makes from the same parent."""
    plain = {pyncclx.Cartcomm: MPI.Cartcomm, pyncclx.Graphcomm: MPI.Graphcomm}.get(type(parent), MPI.Distgraphcomm)
    theirs = make(plain(parent))
    yield theirs
    theirs.Free()


def neighbors(graph):
    """Sources and destinations; `Create_dist_graph` may order the sources in any way."""
    sources, destinations, _ = graph.Get_dist_neighbors()
    return sorted(sources), destinations


def from_sources(graph):
    return np.concatenate([labels(source, 5) for source in graph.Get_dist_neighbors()[0]])


def gathers_device_arrays(compare, graph):
    recv = Output(10, "i8")
    graph.Neighbor_allgather(put(labels(ME, 5)), recv.array)
    compare(recv, from_sources(graph), "device arrays")


def gathers_host_arrays(graph):
    blocks = np.full(10, -1)
    graph.Neighbor_allgather(labels(ME, 5), blocks)
    assert_everywhere(WORLD, (blocks == from_sources(graph)).all(), f"{blocks}, not {from_sources(graph)}")


def test_calls_are_mpi4pys(parent, make, theirs):
    """Neighbours, and blocks of device arrays, of host arrays and of objects."""
    with make(parent) as graph, comparing() as compare, graph.Dup() as duplicate:
        for each in (graph, duplicate):
            assert type(each) is pyncclx.Distgraphcomm
            assert each.topology == MPI.DIST_GRAPH
            assert neighbors(each) == neighbors(theirs)
            gathers_device_arrays(compare, each)
            gathers_host_arrays(each)
            assert_everywhere(WORLD, each.neighbor_allgather(ME) == each.Get_dist_neighbors()[0])


def test_communicator_of_mpi4pys(make, theirs):
    """It shares the handle, as always. Kernels use its edges; with Open MPI only its duplicate takes host arrays."""
    graph = pyncclx.Communicator(theirs)
    assert type(graph) is pyncclx.Distgraphcomm
    assert graph == theirs
    assert graph.Get_dist_neighbors() == theirs.Get_dist_neighbors()
    with comparing() as compare, graph.Dup() as duplicate:
        gathers_device_arrays(compare, graph)
        gathers_device_arrays(compare, duplicate)
        gathers_host_arrays(duplicate)
    assert theirs.allreduce(1) == N


def test_options_come_from_the_parent(parent, make):
    parent.blocking = "host"
    with make(parent) as graph:
        assert graph.blocking == "host"


@pytest.mark.ranks(2)
def test_a_handler_raises_while_one_is_made(parent, make):
    """On one rank, which waits for the others: they get their graph."""
    if ME == 0:
        with pytest.raises(InterruptedError), raising(InterruptedError, 0.1):
            make(parent)
    else:
        time.sleep(0.3)
        assert type(make(parent)) is pyncclx.Distgraphcomm
    assert_everywhere(WORLD, parent.allreduce(1) == N)
