"""Calls with plain NumPy arrays, as on a machine with a GPU: mpi4py's own, before any argument is looked at closely."""

import ctypes
import importlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI as MPI4PY

from pyncclx import backends
from pyncclx.arrays import places, pointers
from pyncclx.communicator import host_first
from pyncclx.communicator.host_first import is_plain
from pyncclx.messages.progress import pending_sends
from pyncclx.messages.progress.pending_sends import PendingSends
from pyncclx.staging import arguments
from pyncclx.team.state import STAGES_BY_DEFAULT


@pytest.fixture(scope="module")
def MPI():
    """`pyncclx.MPI`, gone again afterwards: its import is what lets communicators stage."""
    yield importlib.import_module("pyncclx.MPI")
    del sys.modules["pyncclx.MPI"]
    STAGES_BY_DEFAULT.reset()


class Exposes:
    """An object that NumPy makes an array of without a copy."""

    def __init__(self, array):
        self.kept, self.__array_interface__ = array, array.__array_interface__


class Subclass(np.ndarray):
    """May override anything."""


def test_plain_arrays(MPI):
    array = np.zeros((4, 6))
    for plain in (array, array[1:, ::2], array.T, [array, MPI.DOUBLE], (array, 3, MPI.DOUBLE), None, MPI.IN_PLACE):
        assert is_plain(plain)


def test_memory_of_others(MPI, monkeypatch):
    """The driver is asked where it is."""
    array, memory = np.zeros(4), (ctypes.c_double * 4)()
    for gpu in (None, 0):
        monkeypatch.setattr(pointers, "gpu_of_memory", lambda address, gpu=gpu: gpu)
        of_others = [np.asarray(Exposes(array)), np.ctypeslib.as_array(memory), np.frombuffer(MPI.Alloc_mem(32))]
        for other in (each for whole in of_others for each in (whole, whole[1:])):
            assert is_plain(other) == is_plain([other, MPI.DOUBLE]) == (gpu is None)
        assert is_plain(np.frombuffer(bytearray(32)))


def test_other_objects(MPI):
    array = np.zeros(4)
    memory = (ctypes.c_double * 4)()
    for other in (array.view(Subclass), memory, memoryview(array), bytearray(8), MPI.BOTTOM, [], 3, "x"):
        assert not is_plain(other)
        assert not is_plain([other, MPI.DOUBLE])


@pytest.fixture
def nothing_asked(monkeypatch):
    """Nothing may look for the place of a buffer, or make a device."""

    def refuse(*_):
        raise AssertionError("looked at closely")

    monkeypatch.setattr(places, "host_arrays", lambda: False)
    monkeypatch.setattr(host_first, "looks_closely", lambda: False)
    monkeypatch.setattr(places, "where", refuse)
    monkeypatch.setattr(arguments, "where", refuse)
    monkeypatch.setattr(backends, "select", refuse)


@pytest.mark.parametrize("count", [1, 36, 1000])
def test_nothing_is_asked_of_plain_arrays(MPI, nothing_asked, count):
    comm, x, y = MPI.COMM_SELF, np.arange(count) + 1.0, np.zeros(count)
    cart = comm.Create_cart([1], [True])
    two = np.concatenate([x, x])

    def check():
        assert (y == x).all()
        y[:] = -1

    for name in ("Allreduce", "Reduce", "Scan", "Reduce_scatter_block", "Allgather", "Alltoall", "Gather", "Scatter"):
        getattr(comm, name)(x, y)
        check()
        getattr(comm, f"I{name.lower()}")([x, MPI.DOUBLE], y).Wait()
        check()
    comm.Allreduce(x, y, op=MPI.SUM)
    check()
    comm.Reduce_scatter(x, y, [count], MPI.SUM)
    check()
    comm.Alltoallv([x, [count]], [y, [count], [0], MPI.DOUBLE])
    check()
    comm.Alltoallw([x, [count], [0], [MPI.DOUBLE]], [y, [count], [0], [MPI.DOUBLE]])
    check()
    cart.Neighbor_alltoall(two, np.empty_like(two))
    comm.Bcast(x, root=0)
    comm.Ibcast(x).Wait()
    comm.Sendrecv(x, 0, 3, y, 0, 3)
    check()
    status = MPI.Status()
    comm.Sendrecv(x, dest=0, recvbuf=[y, MPI.DOUBLE], status=status)
    check()
    assert (status.Get_count(MPI.DOUBLE), status.source) == (count, 0)
    sending = comm.Isend(x, dest=0, tag=5)
    comm.Recv(y, tag=5, status=status)
    sending.Wait()
    check()
    assert status.tag == 5
    requests = [comm.Irecv(y, 0), comm.Issend(x, 0)]
    statuses = []
    MPI.Request.Waitall(requests, statuses)
    check()
    assert [each.Get_count(MPI.DOUBLE) for each in statuses[:1]] == [count]
    assert not any(requests)
    MPI.Request.Waitall(requests)
    requests = [comm.Irecv(y, 0), comm.Isend(x, 0), MPI.REQUEST_NULL]
    while not MPI.Request.Testall(requests):
        pass
    check()
    cart.Free()


def test_mpi_goes_on_with_requests(MPI, nothing_asked, monkeypatch):
    """Of short and long arrays, in all forms of calls."""
    followed = PendingSends(SimpleNamespace(wake=lambda: None))
    monkeypatch.setattr(pending_sends, "OF_PROCESS", [followed])
    comm = MPI.COMM_SELF
    for count in (1, 1000):
        x, y = np.ones(count), np.zeros(count)
        sent = comm.Isend(x, 0)
        for begin in (comm.Irecv, lambda y, x=x: comm.Iallreduce(x, y), comm.Ibcast):
            request = begin(y)
            before = followed.begun
            assert followed
            assert followed.begun > before
            request.Wait()
        sent.Wait()
        assert not followed


def test_errors_are_mpi4pys(MPI, nothing_asked):
    comm, x = MPI.COMM_SELF, np.ones(4)
    with pytest.raises(MPI4PY.Exception) as raised:
        comm.Bcast(x, root=3)
    assert raised.value.Get_error_class() == MPI.ERR_ROOT
    with pytest.raises(TypeError, match="recvbuf"):
        comm.Allreduce(x)
    sending = comm.Isend(x, 0)
    with pytest.raises(MPI4PY.Exception, match="longer than the buffer"):
        comm.Recv(x[:2], 0)
    sending.Wait()


def test_a_communicator_of_mpi4pys(MPI, nothing_asked):
    x, y = np.ones(4), np.zeros(4)
    MPI.Intracomm.Allreduce(MPI4PY.COMM_SELF, x, y)
    MPI.Comm.Sendrecv(MPI4PY.COMM_SELF, x, 0, recvbuf=y)
    assert (y == 1).all()
