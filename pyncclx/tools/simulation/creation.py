"""Measure the creation of a communicator over many nodes, without the nodes.

This process runs the library's code for a few of the ranks; a `SimulatedComm` stands for all other ranks. A real job
can measure the same code, on its own ranks and over pretend nodes.
"""

from __future__ import annotations

import functools
import hashlib
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, cast

from mpi4py import MPI

import mpi_bootstrap
from mpi_bootstrap.identity import IDENTITY_NBYTES

from ...communicator.communicator import Intracomm
from ...nodes.nccl_engine import unique_id
from ...nodes.spanning import Spanning, span
from ...system import settings
from ...team.base import IntraBase, nodes_of
from ...team.state import state_of
from .communicator import Results, SimulatedComm
from .network import Clock, Network, Stage

# Replaces NCCL, with an identifier as long as ncclUniqueId.
_NCCL = SimpleNamespace(get_unique_id=lambda: bytes(range(128)))
TEAM = "Team of a node"
T = TypeVar("T")


class Creation(NamedTuple):
    """Time and memory that the creation of a communicator takes.

    Attributes
    ----------
    ranks, per_node : int
    stages : list of Stage
        Stages of the rank that takes longest.
    kept, peak : float
        Bytes of this process's memory per rank: after the creation, and at the peak.
    """

    ranks: int
    per_node: int
    stages: list[Stage]
    kept: float
    peak: float

    @property
    def seconds(self) -> float:
        """Time of all stages together."""
        return float(self.total("seconds"))

    def total(self, name: str) -> Any:
        """Return the sum of an attribute of the stages."""
        return sum(getattr(stage, name) for stage in self.stages)


@dataclass
class Job:
    """A job of simulated ranks, with the results of its collectives so far."""

    ranks: int
    per_node: int
    costs: Network
    table: bytes
    results: Results = field(default_factory=Results)

    def make(self, rank: int) -> tuple[list[Stage], SimulatedComm, Spanning]:
        """Create the communicator on one rank; return its timed stages, and itself.

        Call it for rank 0 first, because other ranks use the results of its collectives.
        """
        clock = Clock(self.costs)
        local = Intracomm(MPI.COMM_SELF).Dup()
        # The Team is created before the clock starts, and represents the node's Team.
        assert local.team is not None
        begin = rank // self.per_node * self.per_node
        node = list(range(begin, min(begin + self.per_node, self.ranks)))
        comm = SimulatedComm(clock, self.results, rank, self.ranks, "all ranks", self.table, node, local)
        ours = cast(IntraBase, comm)
        with clock.stage("nodes of the ranks"):
            state_of(ours).topology = topology = nodes_of(ours, state_of(ours))
        with clock.stage("communicator of a node, rails"):
            mpi_bootstrap.first_bytes(cast(MPI.Intracomm, comm), b"")  # as in nodes/dropped.py
            spanning = span(ours, topology)
        with clock.stage("engine of the rails: MPI"):
            spanning.rails.rail()
        with clock.stage("engine of the rails: NCCL's identifier"):
            unique_id(mpi_bootstrap.part(ours, spanning.places.ranks_with(spanning.places.local_rank)), _NCCL)
        self.results.again()
        return clock.stages, comm, spanning


def create(ranks: int, per_node: int, costs: Network, node_s: float) -> Creation:
    """Return the time and memory that a communicator of `ranks` ranks takes.

    It is created on three ranks: the first, the last, and one in the middle. The times are those of the slowest.

    Parameters
    ----------
    ranks, per_node : int
        Ranks of the communicator and of each node. The last node may have fewer.
    costs : Network
    node_s : float
        Seconds that the ranks of a node take to make their Team.
    """
    nodes = (b"node %d" % (rank // per_node) for rank in range(ranks))
    table = b"".join(hashlib.blake2b(node, digest_size=IDENTITY_NBYTES).digest() for node in nodes)
    kept, peak = _memory(Job(ranks, per_node, costs, table))
    job, slowest = Job(ranks, per_node, costs, table), list[Stage]()
    middle = (ranks - 1) // per_node // 2 * per_node + (ranks - 1) % per_node  # on the same rail as the last rank
    for rank in sorted({0, middle, ranks - 1}):
        stages, _, spanning = job.make(rank)
        spanning.close()
        slowest = max(slowest, stages, key=lambda each: sum(stage.seconds for stage in each))
    return Creation(ranks, per_node, [*slowest, Stage(TEAM, computed_s=node_s)], kept, peak)


def _memory(job: Job) -> tuple[float, float]:
    """Return rank 0's memory divided by the number of ranks, in bytes: kept, and peak."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        made = job.make(0)
        kept, peak = tracemalloc.get_traced_memory()
        made[-1].close()
    finally:
        tracemalloc.stop()
    return (kept - before) / job.ranks, (peak - before) / job.ranks


# ---- on the ranks of a real job --------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """Time that a part of creating a communicator has taken.

    Attributes
    ----------
    name : str
    seconds : float
        Time on the slowest rank; the shortest of all repetitions.
    cpu_seconds : float
        Processor time of all ranks together; the shortest of all repetitions.
    """

    name: str
    seconds: float
    cpu_seconds: float


def pretend(per_node: int) -> None:
    """Put `per_node` ranks in turn on each pretend node, unless PYNCCLX_NODE is set."""
    settings.set_foreign(settings.NODE.name, str(MPI.COMM_WORLD.rank // per_node))


def measure(repeats: int) -> list[Measured]:
    """Create a communicator of all ranks several times; time each part. Collective."""
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(repeats):
        comm = Intracomm(MPI.COMM_WORLD).Dup()
        state = state_of(comm)
        state.topology = topology = _time("nodes of the ranks", functools.partial(nodes_of, comm, state), found)
        local = comm.Split(topology.node, comm.rank)
        _time(TEAM, functools.partial(getattr, local, "team"), found)
        local.Free()
        name = "communicator of a node with its Team, rails"
        spanning = _time(name, functools.partial(span, comm, topology), found)
        _time("engine of the rails: MPI", spanning.rails.rail, found)
        comm.Free()
    return [Measured(name, *map(min, zip(*times, strict=True))) for name, times in found.items()]


def _time(name: str, work: Callable[[], T], found: dict[str, list[tuple[float, float]]]) -> T:
    """Time a collective part of the work on all ranks."""
    world = MPI.COMM_WORLD
    world.Barrier()
    began, computed = time.perf_counter(), time.process_time()
    result = work()
    took = world.allreduce(time.perf_counter() - began, MPI.MAX)
    found.setdefault(name, []).append((took, world.allreduce(time.process_time() - computed, MPI.SUM)))
    return result
