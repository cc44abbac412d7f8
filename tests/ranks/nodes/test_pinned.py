"""The engine of MPI as on GPUs: pieces in memory of its own, and a thread that waits in place of nonblocking calls."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.backends import host
from pyncclx.nodes import mpi_engine, pieces
from support.arrays import host_only, put

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
pytestmark = [pytest.mark.ranks(2), host_only]


@pytest.fixture
def comm(monkeypatch):
    """A communicator over two pretend nodes, on a device that MPI cannot reach."""
    make = mpi_engine.MpiEngine.__init__

    def indirect(self, comm, device, failed, *, direct):
        make(self, comm, device, failed, direct=False)

    monkeypatch.setenv("PYNCCLX_NODE", str(2 * RANK // SIZE))
    monkeypatch.setattr(mpi_engine.MpiEngine, "__init__", indirect)
    monkeypatch.setattr(pieces, "_allocate", lambda nbytes: np.full(nbytes, 0xA5, np.uint8))
    monkeypatch.setattr(pieces, "PIECE_NBYTES", 1000)  # many of them, and a rest
    comm = pyncclx.Communicator().Dup()
    yield comm
    comm.Free()


@pytest.mark.parametrize("count", [1, 250, 20_001])
def test_pieces(comm, count, monkeypatch):
    vectors = [(np.arange(count) * 7 + rank * 31) % 101 for rank in range(SIZE)]
    x, total = put(vectors[RANK]), sum(vectors)
    y, z = np.zeros_like(total), np.zeros(count * SIZE, total.dtype)
    comm.Allreduce(x, y)
    assert np.array_equal(y, total)
    comm.Allgather(x, z)
    assert np.array_equal(z, np.concatenate(vectors))
    comm.Alltoall(z, z2 := np.zeros_like(z))
    assert np.array_equal(z2, np.tile(vectors[RANK], SIZE))
    monkeypatch.setattr(host.Device, "name", "a GPU")  # whose streams do not call functions of the host
    y[...] = 0
    comm.Iallreduce(x, y).Wait()
    assert np.array_equal(y, total)
    request = comm.Allreduce_init(x, y)
    for _ in range(2):
        y[...] = 0
        request.Start()
        request.Wait()
        assert np.array_equal(y, total)
    comm.Ibarrier(device=True).Wait()
