"""A process group for each file, so that nothing of it is left for the tests of other packages."""

import importlib

import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import HOST


@pytest.fixture(scope="module", autouse=True)
def world():
    """The default process group, of all ranks in the order of MPI.COMM_WORLD."""
    torch = pytest.importorskip("torch")
    importlib.import_module("pyncclx.torch")
    if not HOST:
        torch.cuda.set_device(pyncclx.Communicator(MPI.COMM_WORLD).select_device())
    torch.distributed.init_process_group("pyncclx")
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()
