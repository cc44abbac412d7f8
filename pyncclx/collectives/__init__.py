"""One file per operation: check the arguments, choose an algorithm, launch one kernel."""

from . import allgather, allreduce, alltoall, alltoallv, barrier, bcast, reduce, reduce_scatter_block

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
}

__all__ = ["MODULES"]
