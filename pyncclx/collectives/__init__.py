"""One file per operation: check arguments, choose an algorithm, make the call."""

from . import (
    allgather,
    allgatherv,
    allreduce,
    alltoall,
    alltoallv,
    alltoallw,
    barrier,
    bcast,
    gather,
    gatherv,
    neighbors,
    reduce,
    reduce_scatter,
    reduce_scatter_block,
    scan,
    scatter,
    scatterv,
)

# By the name of the method; each module has `choose(layout, nbytes)`.
MODULES = {
    "Barrier": barrier,
    "Bcast": bcast,
    "Reduce": reduce,
    "Allreduce": allreduce,
    "Allgather": allgather,
    "Reduce_scatter_block": reduce_scatter_block,
    "Alltoall": alltoall,
    "Alltoallv": alltoallv,
    "Gather": gather,
    "Gatherv": gatherv,
    "Scatter": scatter,
    "Scatterv": scatterv,
    "Allgatherv": allgatherv,
    "Reduce_scatter": reduce_scatter,
    "Scan": scan,
    "Exscan": scan,
    "Alltoallw": alltoallw,
    **dict.fromkeys(neighbors.OPERATIONS, neighbors),
}


def blocking_form(name: str) -> str:
    """Return a method's blocking operation: Bcast for Ibcast and Bcast_init.

    A method whose operation has no kernel keeps its name.
    """
    operation = name.removesuffix("_init") if name.endswith("_init") else name[1:].capitalize()
    forms = (f"I{operation.lower()}", f"{operation}_init")
    return operation if name in forms and operation in MODULES else name


__all__ = ["MODULES", "blocking_form"]
