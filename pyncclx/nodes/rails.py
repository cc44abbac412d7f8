"""Rails: engines between ranks of different nodes; each rank uses its own link.

Rail k joins the ranks with local index k, one of each node. There are as many rails as the smallest node has ranks; the
other ranks of larger nodes take part by kernels inside their node. One more engine, *flat*, has all ranks. It moves
data between ranks that are on no common rail.

`NodeMap` has the nodes of a communicator's ranks, in 8 bytes per rank and 4 per node.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import suppress

from mpi4py import MPI

import mpi_bootstrap
from mpi_bootstrap.polls import WHILE_FREED_S, polls_stopped

from ..backends import Device
from ..system import settings
from ..system.mpi_library import is_cuda_aware
from . import nccl_library
from .engine import Engine, Failed, Transfer
from .mpi_engine import MpiEngine
from .nccl_engine import NcclEngine


class NodeMap:
    """Which ranks of a communicator are on which node.

    Nodes may have different numbers of ranks, and ranks may alternate between nodes.

    Parameters
    ----------
    nodes : sequence of int
        The node of every rank; nodes are numbered by their lowest rank (`mpi_bootstrap.Topology.nodes`).
    rank : int
        This rank.

    Attributes
    ----------
    rank, size : int
        This rank, and the number of ranks.
    node, count : int
        This rank's node, and the number of nodes.
    local_rank, local_size : int
        This rank's index among those of its node, and their number.
    lanes : int
        Number of ranks on the smallest node. The ranks with the same local index, one of each node, exchange data with
        each other, if the index is less than `lanes` (see `Rails`).
    is_even : bool
        Whether all nodes have the same number of ranks.
    in_rank_order : bool
        Whether each node's ranks follow those of the previous node. A reduction by node is then in rank order.

    Examples
    --------
    >>> places = NodeMap([0, 1, 0, 1, 0], rank=2)
    >>> places.local_rank, places.lanes, list(places.ranks_of(1))
    (1, 2, [1, 3])
    >>> places.in_rank_order
    False
    """

    def __init__(self, nodes: Sequence[int], rank: int) -> None:
        self.rank, self.size = rank, len(nodes)
        self.count = max(nodes) + 1
        self._nodes = array("i", nodes)
        self._begins = array("i", bytes(4 * (self.count + 1)))  # where the ranks of each node begin in `_ranks`
        for node in nodes:
            self._begins[node + 1] += 1
        for node in range(self.count):
            self._begins[node + 1] += self._begins[node]
        self._ranks = array("i", sorted(range(self.size), key=nodes.__getitem__))  # ordered by node, then by rank
        sizes = {len(self.ranks_of(node)) for node in range(self.count)}
        self.node = nodes[rank]
        self.local_rank, self.local_size = self.local_of(rank), len(self.ranks_of(self.node))
        self.lanes, self.is_even = min(sizes), len(sizes) == 1
        self.in_rank_order = all(before <= after for before, after in zip(self._nodes, self._nodes[1:], strict=False))

    def node_of(self, rank: int) -> int:
        """Return the node of a rank."""
        return self._nodes[rank]

    def ranks_of(self, node: int) -> array[int]:
        """Return the ranks of a node, in rank order."""
        return self._ranks[self._begins[node] : self._begins[node + 1]]

    def local_of(self, rank: int) -> int:
        """Return the index of a rank among those of its node."""
        return self.place_of(rank) - self._begins[self._nodes[rank]]

    def place_of(self, rank: int) -> int:
        """Return a rank's index if ranks are sorted by node, then by rank."""
        return bisect_left(self._ranks, rank, self._begins[self._nodes[rank]], self._begins[self._nodes[rank] + 1])

    def peer_on(self, node: int, lane: int) -> int:
        """Return the rank of a node with this local index, else the node's last rank."""
        return self._ranks[min(self._begins[node] + lane, self._begins[node + 1] - 1)]

    def ranks_with(self, lane: int) -> array[int]:
        """Return the ranks with this local index, in rank order."""
        begins = zip(self._begins, self._begins[1:], strict=False)
        return array("i", sorted(self._ranks[begin + lane] for begin, end in begins if begin + lane < end))

    @property
    def away(self) -> list[int]:
        """The ranks of other nodes."""
        return [rank for rank, node in enumerate(self._nodes) if node != self.node]

    @property
    def other_nodes(self) -> list[int]:
        """The other nodes, starting with the next one, so that first targets differ."""
        return [(self.node + step) % self.count for step in range(1, self.count)]


class Rails:
    """The engines of one communicator, made when a call first needs them. Collective.

    Parameters
    ----------
    comm : MPI.Intracomm
    places : NodeMap
    device : Device
    failed : callable
    shares_gpu : bool
        Whether ranks of this node share a GPU, which NCCL refuses in one of its communicators.

    Attributes
    ----------
    uses_nccl : bool
        Whether NCCL moves the data on the rails.
    flat_uses_nccl : bool
        Whether NCCL also moves the data between other pairs of ranks.
    why : str
        Which engine is used, and why; for `explain`.
    """

    def __init__(
        self, comm: MPI.Intracomm, places: NodeMap, device: Device, failed: Failed, *, shares_gpu: bool
    ) -> None:
        # Not the program's own object: while that is referred to, the communicator does not count as dropped.
        self._comm = mpi_bootstrap.plain(comm)
        self._places, self._device, self._failed = places, device, failed
        self._engines: dict[str, Engine] = {}
        self._of_mpi: MpiEngine | None = None
        self.uses_nccl, self.why = _choose(comm, device)
        self.flat_uses_nccl = self.uses_nccl and not _any_shares(comm, shares_gpu)
        if self.uses_nccl and not self.flat_uses_nccl:
            self.why += (
                "; but where any rank may send to any MPI does, and the host waits for it, since NCCL refuses ranks of "
                "a node that share a GPU"
            )

    @property
    def engine_name(self) -> str:
        """Name of the rails' engine: "nccl" or "mpi"."""
        return "nccl" if self.uses_nccl else "mpi"

    def rail(self) -> Engine:
        """Return the engine of this rank's rail. Collective over all ranks."""
        return self._nccl("rail") if self.uses_nccl else self.mpi()

    @property
    def has_collectives(self) -> bool:
        """Whether NCCL can do the collectives: each rank is alone on its node."""
        return self.uses_nccl and self._places.count == self._places.size

    def flat(self) -> Engine:
        """Return the engine *flat* of all ranks. Collective over them."""
        if not self.flat_uses_nccl:
            return self.mpi()
        return self.rail() if self.has_collectives else self._nccl("flat")

    def engine_for(self, on_rail: bool) -> Engine:
        """Return the engine of this rank's rail, or the engine of all ranks."""
        return self.rail() if on_rail else self.flat()

    def mpi(self) -> MpiEngine:
        """Return the engine of all ranks that uses MPI. Collective over them."""
        if self._of_mpi is None:
            direct = self._device.name == "host" or bool(is_cuda_aware())
            own = mpi_bootstrap.same_ranks(self._comm)
            self._of_mpi = self._engines["mpi"] = MpiEngine(own, self._device, self._failed, direct=direct)
        return self._of_mpi

    def _nccl(self, kind: str) -> Engine:
        if kind not in self._engines:
            comm, places = self._comm, self._places
            ranks = range(places.size) if kind == "flat" else places.ranks_with(places.local_rank)
            group = mpi_bootstrap.part(comm, ranks)
            self._engines[kind] = NcclEngine(group, ranks, self._failed, self._device)
            group.Free()
        return self._engines[kind]

    def engines(self) -> Iterable[Engine]:
        """Return the engines that have been made."""
        return self._engines.values()

    @property
    def has_failed(self) -> bool:
        """Whether `check` would raise."""
        for engine in self._engines.values():  # noqa: SIM110  a generator costs each call two functions
            if engine.has_failed:
                return True
        return False

    def check(self) -> None:
        """Raise the error of a failed step."""
        for engine in self._engines.values():
            engine.check()

    def close(self) -> None:
        """Close the engines. Collective."""
        while self._engines:
            self._engines.popitem()[1].close()

    def free(self) -> None:
        """Free MPI's communicator after `abandon`, when no rank uses it. Collective."""
        if self._of_mpi is not None:
            with suppress(MPI.Exception), polls_stopped(WHILE_FREED_S):  # ranks have failed
                self._of_mpi.comm.Free()

    def abandon(self) -> None:
        """Abandon the engines, after this rank's steps have ended."""
        while self._engines:
            self._engines.popitem()[1].abandon()


def _choose(comm: MPI.Intracomm, device: Device) -> tuple[bool, str]:
    """Return whether NCCL moves the data, and why. Collective.

    The result is the same on all ranks.
    """

    def reason() -> str:
        wanted = settings.ENGINE.get()
        if wanted == "mpi":
            return f"{settings.ENGINE.name} is mpi"
        if device.name == "host":
            return "the host device's memory is MPI's own"
        return nccl_library.refusal() or ""

    own = mpi_bootstrap.agree(comm, reason)
    refusal = mpi_bootstrap.first_bytes(comm, own.encode())
    if refusal is None:
        return True, f"NCCL {nccl_library.version_text()} moves the data between nodes, in the order of streams"
    refusing, why = refusal
    text = f"MPI moves the data between nodes, since {why.decode()}"
    return False, text if device.name == "host" else f"{text} (rank {refusing}); the host waits for it"


def _any_shares(comm: MPI.Intracomm, shares_gpu: bool) -> bool:
    """Return whether ranks of any node share a GPU. Collective."""
    return mpi_bootstrap.first_bytes(comm, b"shared" if shares_gpu else b"") is not None


def without_empty(transfers: Iterable[Transfer]) -> list[Transfer]:
    """Return the transfers that have bytes."""
    return [each for each in transfers if each.nbytes]
