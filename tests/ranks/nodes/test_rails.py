"""Which engines a communicator over nodes has where NCCL could move its data; here they move nothing."""

import pytest
from mpi4py import MPI

from pyncclx import backends
from pyncclx.nodes import rails
from pyncclx.nodes.rails import NodeMap
from support.arrays import host_only

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
LAYOUTS = {"alone": list(range(SIZE)), "in turn": [rank % 2 for rank in range(SIZE)]}
pytestmark = [pytest.mark.ranks(2, 3), host_only]


class Engine:
    """In the place of NCCL's: which ranks it has."""

    def __init__(self, comm, ranks, failed, device):
        assert comm.size == len(ranks)
        self.ranks = list(ranks)

    def close(self):
        pass


@pytest.fixture
def make(monkeypatch):
    """Makes the rails of a layout, as if all ranks had NCCL."""
    monkeypatch.setattr(rails, "_choose", lambda comm, device: (True, "NCCL moves the data"))
    monkeypatch.setattr(rails, "NcclEngine", Engine)
    made = []

    def of(layout, *, shares_gpu):
        comm = WORLD.Dup()
        own = rails.Rails(comm, NodeMap(LAYOUTS[layout], RANK), backends.select(), None, shares_gpu=shares_gpu)
        made.append((comm, own))
        return own

    yield of
    for comm, own in made:
        own.close()
        comm.Free()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_engines_at_most(make, layout):
    """One is enough where each rank is alone on its node: a rail has all of them then."""
    own = make(layout, shares_gpu=False)
    flat, rail = own.flat(), own.rail()
    assert own.flat() is flat
    assert own.rail() is rail
    assert flat.ranks == list(range(SIZE))
    assert rail.ranks == (flat.ranks if layout == "alone" else [0, 1] if RANK < 2 else [2])
    assert (flat is rail) == (len(set(LAYOUTS[layout])) == SIZE)
    assert own.flat_uses_nccl
    assert "MPI" not in own.why


def test_nccl_refuses_ranks_of_a_node_that_share_a_gpu(make):
    """One such node is enough."""
    own = make("in turn", shares_gpu=RANK == 0)
    assert own.flat() is own.mpi()
    assert isinstance(own.rail(), Engine)
    assert own.uses_nccl
    assert not own.flat_uses_nccl
    assert own.why.startswith("NCCL moves the data; but")
    assert "ranks of a node that share a GPU" in own.why
