"""Decide which calls MPI runs faster than kernels, if ranks time-slice a GPU.

Without MPS a kernel that waits for a peer waits for the peer's time slice (milliseconds). So collectives run through
MPI on host copies where that is faster and the program allows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpi4py import MPI

from ..errors import NotSupported
from ..operations import COLLECTIVES
from ..operators import ops
from .call import Call

if TYPE_CHECKING:
    from ..team.base import IntraBase as Intracomm

# MPI's time divided by the kernels' time was 0.01 to 0.13 for 8 B to 512 KB, 0.22 to 0.62 for 8 MB, and 1.07 to 2.43
# for 128 MB (2 ranks on an H200, 2026-11-26).
LONGEST_NBYTES = 16 << 20  # longest message that goes through MPI
REFUSAL = (
    "ranks take turns on a GPU, where kernels of different ranks do not run at the same time: start "
    "`nvidia-cuda-mps-control -d` before the program, or give each rank a GPU of its own by comm.select_device()"
)


def leave_to_host(comm: Intracomm, call: Call) -> None:
    """Raise NotSupported for a call that MPI runs faster on host copies.

    Collective at the first use.
    """
    if is_faster_on_host(comm, call):
        device = comm.team.device
        if not device.is_capturing(device.current_stream()):
            raise NotSupported(f"{call.operation}: {REFUSAL}")


def is_faster_on_host(comm: Intracomm, call: Call) -> bool:
    """Return whether MPI may run a call and is faster. Collective at the first use."""
    return comm.staging and _is_of_mpi(call) and is_left_to_host(comm, call.operation, call.sized[0])


def _is_of_mpi(call: Call) -> bool:
    """Return whether MPI can run a call, with its operator and element type."""
    if len(call.template) != 2:
        return call.of_mpi
    op = next((each for each in ops.TABLE.values() if each.cxx == call.template[1]), None)
    return op is not None and op.mpi is not None and all(each.datatype.mpi is not None for each in call.buffers)


def is_left_to_host(comm: Intracomm, operation: str, nbytes: int) -> bool:
    """Return whether MPI on host copies is faster than kernels for a message.

    All ranks must choose alike, so the length counts only in operations where it is equal on all ranks. False for an
    operation that mpi4py does not have.
    """
    if not hasattr(MPI.Cartcomm, operation):
        return False
    by_length = operation in COLLECTIVES and COLLECTIVES[operation].has_one_length
    return comm.team.is_time_sliced and (not by_length or nbytes <= LONGEST_NBYTES)
