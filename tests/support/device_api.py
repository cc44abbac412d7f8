"""The kernels of ranks/device/device_api.cu, and a team for them."""

import functools
import re
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx.device as d
from support.arrays import synchronize

WORLD = MPI.COMM_WORLD
SOURCE = Path(__file__).resolve().parents[1] / "ranks" / "device" / "device_api.cu"

one_communicator = pytest.mark.parametrize("comm", ["reversed" if WORLD.size > 1 else "dup"], indirect=True)


@functools.cache
def kernels():
    """All of the file, by name."""
    return d.kernels(SOURCE, *re.findall(r"__global__ void (\w+)", SOURCE.read_text()))


def launch(name, grid, block, *args):
    """Run a kernel and wait for it."""
    kernels()[name](grid, block, args)
    synchronize()


def i4(value):
    return np.int32(value)


def row(rank, number, nbytes):
    """Bytes that depend on a rank and a number."""
    return np.random.default_rng([rank, number, 7]).integers(0, 256, nbytes, np.uint8)


def checked_team(comm):
    """What a fixture of a team does."""
    made = comm.device_team()
    yield made
    synchronize()
    MPI.Comm.Barrier(comm)
    made.check()
