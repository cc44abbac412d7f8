"""What each first step begins with: a communicator, this rank's device, and the library of its arrays."""

import importlib

from mpi4py import MPI

import pyncclx

comm = pyncclx.Communicator(MPI.COMM_WORLD)
comm.select_device()  # this rank's GPU; before the first array
xp = importlib.import_module("numpy" if comm.device == "host" else "cupy")


def report(text: str) -> None:
    """Print a line on rank 0, after everything that was enqueued; raise what went wrong in a kernel."""
    comm.synchronize()
    if comm.rank == 0:
        print(text, flush=True)
