"""Ranks that take turns on a GPU: a kernel that waits for another rank waits for that one's turn, some milliseconds.

So the collectives of programs that let MPI work on host copies are left to MPI where that is faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import NotSupported
from ..operators import ops
from .call import Call

if TYPE_CHECKING:
    from ..team.base import IntraBase as Intracomm

# 2 ranks on an H200, 2026-11-26, MPI's time in that of kernels: 0.01 to 0.13 from 8 B to 512 KB, 0.22 to 0.62 of 8 MB,
# 1.07 to 2.43 of 128 MB.
LONGEST_NBYTES = 16 << 20  # that go by MPI
# Whose lengths all ranks have: of others each rank has its own, and ranks must choose alike.
OF_KNOWN_LENGTH = {
    *("Allreduce", "Reduce", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Exscan"),
    *("Bcast", "Gather", "Scatter", "Allgather", "Allgatherv", "Alltoall"),
}
REFUSAL = (
    "ranks take turns on a GPU, where kernels of different ranks do not run at the same time: start "
    "`nvidia-cuda-mps-control -d` before the program, or give each rank a GPU of its own by comm.select_device()"
)


def leave_to_host(comm: Intracomm, call: Call) -> None:
    """Raise NotSupported for a call that MPI does faster on host copies, if it may. Collective at the first use."""
    if comm.staging and _is_of_mpi(call) and is_left_to_host(comm, call.operation, call.sized[0]):
        device = comm.team.device
        if not device.is_capturing(device.current_stream()):
            raise NotSupported(f"{call.operation}: {REFUSAL}")


def _is_of_mpi(call: Call) -> bool:
    """Whether MPI has such a call; if it reduces, whether it has the operator and the type of the elements."""
    if len(call.template) != 2:
        return call.of_mpi
    op = next((each for each in ops.TABLE.values() if each.cxx == call.template[1]), None)
    return op is not None and op.mpi is not None and all(each.datatype.mpi is not None for each in call.buffers)


def is_left_to_host(comm: Intracomm, operation: str, nbytes: int) -> bool:
    """Whether MPI is faster on host copies than kernels are, for a message of so many bytes."""
    return comm.team.takes_turns and (operation not in OF_KNOWN_LENGTH or nbytes <= LONGEST_NBYTES)
