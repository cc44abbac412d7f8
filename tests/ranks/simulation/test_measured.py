"""The simulated MPI is asked for what a real one is, and the command measures real ranks."""

import sys

import pytest
from mpi4py import MPI

import mpi_bootstrap
from pyncclx.communicator.communicator import Intracomm
from pyncclx.tools.simulation import creation, network
from pyncclx.tools.simulation.network import Network
from support.everywhere import assert_everywhere

WORLD = MPI.COMM_WORLD
PATTERNS = {"Ibarrier": "barrier", "Iallreduce": "allreduce", "Ibcast": "broadcast"}
pytestmark = pytest.mark.ranks(2)


class Noting:
    """A communicator of mpi4py's that notes what collectives of all ranks it is asked for."""

    def __init__(self, comm, asked):
        self._comm, self._asked = comm, asked

    def __getattr__(self, name):
        if name in PATTERNS and self._comm.size == WORLD.size:
            self._asked.append(PATTERNS[name])
        return getattr(self._comm, name)


@pytest.fixture
def each_a_node(monkeypatch):
    monkeypatch.setenv("PYNCCLX_NODE", str(WORLD.rank))


def simulated(monkeypatch):
    """The collectives that the simulation lets pass for as many ranks: those in which ranks wait asleep."""
    passed = []

    def pass_by(self, ranks, pattern, *, asleep):
        if asleep and ranks == "all ranks":
            passed.append(pattern.name)

    with monkeypatch.context() as context:
        context.setattr(network.Clock, "pass_by", pass_by)
        identities = b"".join(bytes([rank]) * 16 for rank in range(WORLD.size))
        job = creation.Job(WORLD.size, 1, Network(), identities)
        spanning = job.make(0)[-1]
        of_creation = list(passed)
        spanning.close()
    return of_creation


def test_the_same_collectives_in_the_same_order(each_a_node, monkeypatch):
    expected, asked = simulated(monkeypatch), []
    comm = Intracomm(WORLD).Dup()
    for name in ("agreement", "meeting", "topology"):
        module = sys.modules[f"mpi_bootstrap.{name}"]
        monkeypatch.setattr(module, "plain", lambda comm: Noting(mpi_bootstrap.plain(comm), asked))
    assert comm.spanning is not None
    comm.spanning.rails.rail()
    found = list(asked)
    monkeypatch.undo()
    assert_everywhere(WORLD, found == expected, f"{found} {expected}")
    comm.Free()


def test_every_part_is_measured(each_a_node):
    found = creation.measure(2)
    assert_everywhere(WORLD, len(found) == 4 and all(each.seconds > 0 for each in found))
