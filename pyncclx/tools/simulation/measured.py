"""Times of making a communicator in a real job over pretend nodes, for the model."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from mpi4py import MPI

from ...communicator.communicator import Intracomm
from ...nodes.spanning import span
from ...system import settings
from ...team.base import nodes_of
from ...team.state import state_of
from .creation import TEAM

T = TypeVar("T")


class Measured(NamedTuple):
    """Time that a part of making a communicator has taken.

    Attributes
    ----------
    name : str
    seconds : float
        On the rank that took longest; the shortest of all repetitions.
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
    """Make a communicator of all ranks several times, and time each part. Collective."""
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
