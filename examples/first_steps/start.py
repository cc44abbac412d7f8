"""Needed by each first step: communicator, rank's device, array library."""

import importlib

from mpi4py import MPI

import pyncclx

comm = pyncclx.Communicator(MPI.COMM_WORLD)
comm.select_device()  # this rank's GPU; call it before the first array
xp = importlib.import_module("numpy" if comm.device == "host" else "cupy")


def report(text: str) -> None:
    """Print a line on rank 0 after all work; raise errors of kernels."""
    comm.synchronize()
    if comm.rank == 0:
        print(text, flush=True)
