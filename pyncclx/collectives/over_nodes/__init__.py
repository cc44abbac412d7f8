"""Collectives over several nodes: one function for each function inside a node.

Each makes a `SpanningCall` (`nodes/call.py`), whose `compose` adds steps to a `Composition`: kernels among the ranks of
the node (`inside.py`), exchanges between nodes, folds. In `movement.py` any rank sends to any.
"""

from collections.abc import Callable
from typing import Any

from ...nodes.places import Places
from ...nodes.spanning import Spanning
from .. import MODULES
from ..allgather import allgather as allgather_in_node
from ..allgatherv import allgatherv as allgatherv_in_node
from ..allreduce import allreduce as allreduce_in_node
from ..alltoall import alltoall as alltoall_in_node
from ..alltoallv import alltoallv as alltoallv_in_node
from ..alltoallw import alltoallw as alltoallw_in_node
from ..barrier import barrier as barrier_in_node
from ..bcast import bcast as bcast_in_node
from ..gather import gather as gather_in_node
from ..gatherv import gatherv as gatherv_in_node
from ..neighbors import (
    neighbor_allgather,
    neighbor_allgatherv,
    neighbor_alltoall,
    neighbor_alltoallv,
    neighbor_alltoallw,
)
from ..reduce import reduce as reduce_in_node
from ..reduce_scatter import reduce_scatter as reduce_scatter_in_node
from ..reduce_scatter_block import reduce_scatter_block as reduce_scatter_block_in_node
from ..scan import exscan as exscan_in_node
from ..scan import scan as scan_in_node
from ..scatter import scatter as scatter_in_node
from ..scatterv import scatterv as scatterv_in_node
from . import allgather, allreduce, barrier, bcast, exchanges, reduce, reduce_scatter, scan

NEIGHBORS = neighbor_allgather, neighbor_allgatherv, neighbor_alltoall, neighbor_alltoallv, neighbor_alltoallw

#: The function that makes the call over nodes, by the one inside a node.
OVER_NODES: dict[Callable[..., Any], Callable[..., Any]] = {
    barrier_in_node: barrier.barrier,
    bcast_in_node: bcast.bcast,
    gather_in_node: exchanges.gather,
    gatherv_in_node: exchanges.gatherv,
    scatter_in_node: exchanges.scatter,
    scatterv_in_node: exchanges.scatterv,
    allgather_in_node: allgather.allgather,
    allgatherv_in_node: allgather.allgatherv,
    alltoall_in_node: exchanges.alltoall,
    alltoallv_in_node: exchanges.alltoallv,
    alltoallw_in_node: exchanges.alltoallw,
    reduce_in_node: reduce.reduce,
    allreduce_in_node: allreduce.allreduce,
    reduce_scatter_in_node: reduce_scatter.reduce_scatter,
    reduce_scatter_block_in_node: reduce_scatter.reduce_scatter_block,
    scan_in_node: scan.scan,
    exscan_in_node: scan.exscan,
    **{make: exchanges.NEIGHBORS[make.__name__] for make in NEIGHBORS},
}
_EXPLANATIONS: dict[str, Callable[[Places, int], str]] = {
    "Barrier": barrier.explain,
    "Bcast": bcast.explain,
    "Allgather": allgather.explain,
    "Allgatherv": allgather.explain,
    "Alltoallv": exchanges.explain_alltoallv,
    "Reduce": reduce.explain,
    "Allreduce": allreduce.explain,
    "Reduce_scatter": reduce_scatter.explain,
    "Reduce_scatter_block": reduce_scatter.explain,
    "Scan": scan.explain,
    "Exscan": scan.explain,
}
#: Whether all ranks get whole vectors, if each rank is alone on its node.
_GATHERED: dict[str, Callable[[Places, int], bool]] = {
    "Allreduce": allreduce.is_gathered,
    "Reduce_scatter": reduce_scatter.is_gathered,
    "Reduce_scatter_block": reduce_scatter.is_gathered,
}
_VECTORS_ON_HOST = "each rank's vector goes to all others, which fold those of each node, and then of the nodes"
#: Descriptions of the host exchange, used for messages that `Spanning.is_short` accepts.
_ON_HOST = {
    "Barrier": "a message of each rank to all others",
    "Bcast": "root sends to all ranks",
    "Allgather": "each rank's block goes to all others",
    "Allgatherv": "each rank's block goes to all others",
    "Reduce": "each rank's vector goes to root, which folds those of each node, and then of the nodes",
    "Allreduce": _VECTORS_ON_HOST,
    "Reduce_scatter": _VECTORS_ON_HOST,
    "Reduce_scatter_block": _VECTORS_ON_HOST,
    "Alltoall": "all of each rank's blocks go to all others",
}
# In these operations each rank has a block for each rank.
_OF_BLOCKS = ("Reduce_scatter", "Reduce_scatter_block", "Alltoall")


def explain(operation: str, spanning: Spanning, nbytes: int) -> str:
    """Describe how an operation of `MODULES` runs, for `Comm.explain`."""
    assert operation in MODULES
    places = spanning.places
    if operation in _ON_HOST and spanning.is_short(nbytes * (places.size if operation in _OF_BLOCKS else 1)):
        return f"{_ON_HOST[operation]}, through pinned memory of the host"
    if spanning.rails.has_collectives:
        if operation in ("Bcast", "Allgather", "Alltoall"):
            return "a collective of NCCL's: each rank is alone on its node"
        name, folded = _of_nccl(operation, places, nbytes), _folded(operation, places, nbytes)
        if name is None:
            return folded
        return f"NCCL's {name} if no order of the ranks changes the bits, or comm.deterministic is False; else {folded}"
    return _EXPLANATIONS.get(operation, exchanges.explain)(places, nbytes)


def _of_nccl(operation: str, places: Places, nbytes: int) -> str | None:
    """Return the NCCL collective that may do a whole reduction (`nccl_reduction`)."""
    if operation == "Allreduce" and allreduce.is_of_nccl(places, nbytes):
        return "allreduce"
    if operation == "Reduce_scatter_block" and reduce_scatter.is_of_nccl(places, nbytes):
        return "reduce-scatter"
    return "reduce" if operation == "Reduce" else None


def _folded(operation: str, places: Places, nbytes: int) -> str:
    """Describe a reduction that kernels fold although NCCL has collectives."""
    if operation in _GATHERED and _GATHERED[operation](places, nbytes):
        return "NCCL's allgather of the vectors, then a fold: each rank is alone on its node"
    if operation == "Reduce" and reduce.is_broadcast(places):
        return "NCCL's broadcast of the other rank's vector, then a fold: each rank is alone on its node"
    return _EXPLANATIONS.get(operation, exchanges.explain)(places, nbytes)
