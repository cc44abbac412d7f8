"""The operations by number, as kernels write them into error records."""

DEVICE_TEAM = "device_team"  # the device functions of cuda/pyncclx.cuh, called by a program's own kernels

OPERATIONS = (
    *("Barrier", "Bcast", "Reduce", "Allreduce", "Allgather", "Reduce_scatter_block", "Alltoall", "Alltoallv"),
    *("Dispatch", "Combine", "Collect"),
    *("Gather", "Gatherv", "Scatter", "Scatterv", "Allgatherv", "Reduce_scatter", "Scan", "Exscan"),
    DEVICE_TEAM,
    "Alltoallw",
    *("Neighbor_allgather", "Neighbor_allgatherv", "Neighbor_alltoall", "Neighbor_alltoallv", "Neighbor_alltoallw"),
)
NUMBERS = {name: number for number, name in enumerate(OPERATIONS)}
