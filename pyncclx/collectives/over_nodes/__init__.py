"""Collectives over several nodes: make calls of several steps from arguments.

A function here (a lowering) returns a `SpanningCall` (`nodes/program.py`), whose `compose` adds steps to a
`Composition`: kernels among the ranks of the node (`inside.py`), exchanges between nodes, folds. `movement.py` sends
data from any rank to any rank. Each file also has texts for `Comm.explain`, by the lowering's name. `HOW` describes the
steps (default: the text of `movement.py`), `HOW_SHORT` the steps of messages up to `SHORT_NBYTES`, and `ON_HOST` the
host exchange of messages for which `Spanning.is_short` is true.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from ...nodes.rails import NodeMap
from ...nodes.spanning import Spanning
from ...operations import COLLECTIVES, Operation
from .. import FUNCTIONS, lowering
from . import allreduce, movement, reduce, reduce_scatter

_FILES = [import_module(f".{each.name}", __name__) for each in iter_modules(__path__)]


def _file_of(row: Operation) -> ModuleType:
    """Return the file that defines an operation's lowering.

    The lowering has the name of the operation's module inside a node.
    """
    for file in _FILES:
        if getattr(vars(file).get(row.module), "__module__", None) == file.__name__:
            return file
    raise NotImplementedError(f"{row.name}: no file of {__name__} defines the function {row.module}")


_FILE = {name: _file_of(row) for name, row in COLLECTIVES.items()}
#: The function that makes the call over nodes, by the function for one node.
OVER_NODES: dict[Callable[..., Any], Callable[..., Any]] = {
    make: lowering.over_nodes(make, getattr(_FILE[name], COLLECTIVES[name].module)) for name, make in FUNCTIONS.items()
}
# The operations that do not reduce and whose `compose` calls a collective of NCCL for the whole call.
_WHOLE_BY_NCCL = "Bcast", "Allgather", "Alltoall"
#: The functions of neighbourhood collectives inside a node.
NEIGHBORS = {FUNCTIONS[name] for name, row in COLLECTIVES.items() if row.is_of_neighbors}


def explain(operation: str, spanning: Spanning, nbytes: int) -> str:
    """Describe how a collective operation runs, for `Comm.explain`."""
    places = spanning.places
    blocks = places.size if "sendbuf" in COLLECTIVES[operation].blocks else 1
    on_host = _text(operation, "ON_HOST")
    if on_host is not None and spanning.is_short(nbytes * blocks):
        return f"{on_host}, through pinned memory of the host"
    if spanning.rails.has_collectives:
        if operation in _WHOLE_BY_NCCL:
            return "a collective of NCCL's: each rank is alone on its node"
        name, folded = _of_nccl(operation, places, nbytes), _folded(operation, places, nbytes)
        if name is None:
            return folded
        return f"NCCL's {name} if no order of the ranks changes the bits, or comm.deterministic is False; else {folded}"
    return _explain(operation, nbytes)


def _explain(operation: str, nbytes: int) -> str:
    is_short = nbytes <= getattr(_FILE[operation], "SHORT_NBYTES", -1)
    return _text(operation, "HOW_SHORT" if is_short else "HOW") or movement.HOW


def _text(operation: str, kind: str) -> str | None:
    """Return an operation's text of one kind, from the file with its lowering."""
    texts: dict[str, str] = getattr(_FILE[operation], kind, {})
    return texts.get(COLLECTIVES[operation].module)


def _of_nccl(operation: str, places: NodeMap, nbytes: int) -> str | None:
    """Return the NCCL collective that can run a whole reduction; see `nccl_reduction`."""
    if operation == "Allreduce" and allreduce.is_of_nccl(places, nbytes):
        return "allreduce"
    if operation == "Reduce_scatter_block" and reduce_scatter.is_of_nccl(places, nbytes):
        return "reduce-scatter"
    return "reduce" if operation == "Reduce" else None


def _folded(operation: str, places: NodeMap, nbytes: int) -> str:
    """Describe a reduction in which kernels fold and NCCL may move the data."""
    file = _FILE[operation]
    if hasattr(file, "is_gathered") and file.is_gathered(places, nbytes):
        return "NCCL's allgather of the vectors, then a fold: each rank is alone on its node"
    if operation == "Reduce" and reduce.is_broadcast(places):
        return "NCCL's broadcast of the other rank's vector, then a fold: each rank is alone on its node"
    return _explain(operation, nbytes)
