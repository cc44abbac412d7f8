"""Measure the creation of a communicator over many nodes, without the nodes.

This process runs the code of the library for a few of the ranks. A `SimulatedComm` stands for the other ranks.
"""

from __future__ import annotations

import hashlib
import tracemalloc
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from mpi4py import MPI

import mpi_bootstrap
from mpi_bootstrap.identity import IDENTITY_NBYTES

from ...communicator.communicator import Intracomm
from ...nodes.nccl_engine import unique_id
from ...nodes.spanning import Spanning, span
from ...team.base import IntraBase, nodes_of
from ...team.state import state_of
from .clock import Clock, Stage
from .communicator import Results, SimulatedComm
from .network import Network

_ID_NBYTES = 128  # ncclUniqueId
TEAM = "Team of a node"


class Creation(NamedTuple):
    """Time and memory that the creation of a communicator takes.

    Attributes
    ----------
    ranks, per_node : int
    stages : list of Stage
        Stages of the rank that takes longest.
    kept, peak : float
        Bytes of this process's memory per rank: what is kept, and the peak.
    """

    ranks: int
    per_node: int
    stages: list[Stage]
    kept: float
    peak: float

    @property
    def seconds(self) -> float:
        """Time of all stages together."""
        return sum(stage.seconds for stage in self.stages)


class _Identifiers:
    """A stand-in for the NCCL library that makes identifiers."""

    def get_unique_id(self) -> bytes:
        """Return an identifier of NCCL's length."""
        return bytes(range(_ID_NBYTES))


@dataclass
class Job:
    """A job of simulated ranks, with the results of its collectives so far."""

    ranks: int
    per_node: int
    costs: Network
    table: bytes
    results: Results = field(default_factory=Results)

    def make(self, rank: int) -> tuple[list[Stage], SimulatedComm, Spanning]:
        """Make the communicator on one rank; return its stages, with times, and itself.

        Call it for rank 0 first: other ranks get the results of its collectives.
        """
        clock = Clock(self.costs)
        local = Intracomm(MPI.COMM_SELF).Dup()
        # The Team is made before the clock starts, and stands for the node's Team.
        assert local.team is not None
        begin = rank // self.per_node * self.per_node
        node = range(begin, min(begin + self.per_node, self.ranks))
        comm = SimulatedComm(
            clock, self.results, rank, self.ranks, name="all ranks", table=self.table, node=node, local=local
        )
        ours = cast(IntraBase, comm)
        with clock.stage("nodes of the ranks"):
            state_of(ours).topology = topology = nodes_of(ours, state_of(ours))
        with clock.stage("communicator of a node, rails"):
            mpi_bootstrap.first_bytes(cast(MPI.Intracomm, comm), b"")  # as in nodes/dropped.py
            spanning = span(ours, topology)
        with clock.stage("engine of the rails: MPI"):
            spanning.rails.rail()
        with clock.stage("engine of the rails: NCCL's identifier"):
            unique_id(mpi_bootstrap.part(ours, spanning.places.ranks_with(spanning.places.local_rank)), _Identifiers())
        self.results.again()
        return clock.stages, comm, spanning


def create(ranks: int, per_node: int, costs: Network, node_s: float) -> Creation:
    """Return the time and memory that a communicator of `ranks` ranks takes.

    It is made on three ranks: the first, the last, and one in the middle. The times are those of the slowest.

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
