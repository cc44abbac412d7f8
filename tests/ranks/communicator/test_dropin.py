"""pyncclx.MPI is mpi4py.MPI with our communicators in it."""

import copy
import ctypes
import importlib
import pickle
import sys

import numpy as np
import pytest
from mpi4py import MPI
from mpi4py.util import pkl5

import pyncclx
from pyncclx.system import driver
from pyncclx.team.state import STAGES_BY_DEFAULT, state_of
from support.arrays import get, gpu_only, put


@pytest.fixture
def module():
    """`pyncclx.MPI`, gone again afterwards: its import is what lets communicators stage."""
    yield importlib.import_module("pyncclx.MPI")
    del sys.modules["pyncclx.MPI"]
    STAGES_BY_DEFAULT.reset()


def test_every_public_name(module):
    names = [name for name in dir(MPI) if not name.startswith("_")]
    assert len(names) > 300
    ours = {name for name in names if getattr(module, name) is not getattr(MPI, name)}
    communicators = {"Cartcomm", "Comm", "Distgraphcomm", "Graphcomm", "Intercomm", "Intracomm", "Topocomm"}
    constants = {"COMM_NULL", "COMM_SELF", "COMM_WORLD", "MESSAGE_NO_PROC", "MESSAGE_NULL", "REQUEST_NULL", "WIN_NULL"}
    constants |= {name for name in names if isinstance(getattr(MPI, name), (MPI.Op, MPI.Datatype))}
    assert ours == communicators | constants | {"Datatype", "Grequest", "Message", "Op", "Prequest", "Request", "Win"}
    for name in ours - constants:
        assert issubclass(getattr(module, name), getattr(MPI, name))
    namespace = {}
    exec("from pyncclx.MPI import *", namespace)
    assert namespace["COMM_WORLD"] is module.COMM_WORLD


def test_constants(module):
    assert module.COMM_WORLD == MPI.COMM_WORLD
    assert type(module.COMM_WORLD) is pyncclx.Intracomm
    assert pyncclx.Communicator() is module.COMM_WORLD
    for constant in (module.COMM_WORLD, module.COMM_SELF, module.COMM_NULL, module.REQUEST_NULL):
        assert pickle.loads(pickle.dumps(constant)) is constant
        assert copy.copy(constant) is constant
        again = pickle.loads(pickle.dumps(type(constant)(constant)))
        assert again == constant
        assert again is not constant
    assert module.COMM_WORLD.Split(MPI.UNDEFINED) == module.COMM_NULL


def test_addresses_and_handles(module):
    """What other extension modules are built on."""
    world = module.COMM_WORLD
    assert module._handleof(world) == MPI._handleof(MPI.COMM_WORLD)
    assert module._addressof(world) != 0
    assert "PyMPIComm_Get" in module.__pyx_capi__
    assert module.Win.Allocate(8, comm=world).Free() is None
    with pytest.raises(AttributeError):
        module.no_such_name  # noqa: B018


def test_staging_is_allowed(module):
    """By the module alone, unless the communicator has another setting."""
    comm = module.COMM_WORLD.Dup()
    assert comm.staging
    comm.staging = False
    assert not comm.Dup().staging
    state_of(comm).staging = None
    STAGES_BY_DEFAULT.reset()
    assert not comm.staging


def test_requests(module):
    """Requests of mpi4py's are instances of ours, and complete together."""
    comm, x, y = module.COMM_WORLD, np.ones(3), np.zeros(3)
    request = comm.Irecv(y, comm.rank)
    persistent = comm.Send_init(x, comm.rank)
    assert isinstance(request, module.Request)
    assert not isinstance(request, module.Prequest)
    assert isinstance(persistent, module.Prequest)
    module.Prequest.Startall([persistent])
    assert module.Request.Waitall([request, persistent]) is True
    assert y.tolist() == [1, 1, 1]
    assert module.Request.Waitany([module.Request()]) == MPI.UNDEFINED
    persistent.Free()


def test_methods_of_a_class_take_mpi4pys_communicators(module):
    """As `MPI.Comm.Isend(comm, ...)` in mpi4py's own utilities, on a communicator that is not ours."""
    comm = MPI.COMM_WORLD
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    message, total = np.full(3, -1), np.full(1, -1)
    request = module.Comm.Isend(comm, np.full(3, comm.rank), right, 5)
    module.Comm.Recv(comm, message, left, 5)
    request.Wait()
    module.Intracomm.Allreduce(comm, np.full(1, comm.rank), total)
    assert (message == left).all()
    assert total[0] == sum(range(comm.size))


def test_a_datatype_may_be_freed_before_the_wait(module):
    comm, message = module.COMM_WORLD, np.full(300, -1, "i4")
    datatype = MPI.INT.Create_contiguous(300).Commit()
    request = comm.Irecv([message, 1, datatype], (comm.rank - 1) % comm.size)
    datatype.Free()
    comm.Send(np.full(300, comm.rank, "i4"), (comm.rank + 1) % comm.size)
    request.Wait()
    assert (message == (comm.rank - 1) % comm.size).all()


def test_operators(module):
    """Equal to mpi4py's, and as good."""
    assert module.SUM == MPI.SUM
    assert isinstance(module.MAX, MPI.Op)
    assert isinstance(MPI.MAX, module.Op)
    assert pickle.loads(pickle.dumps(module.PROD)) is module.PROD
    assert module.SUM(2, 3) == 5
    op = module.Op.Create(lambda a, b, _: None, commute=True)
    assert isinstance(op, module.Op)
    assert op.Is_commutative()
    op.Free()
    total = np.full(1, -1)
    module.COMM_WORLD.Allreduce(np.ones(1, int), total, op=module.SUM)
    assert total[0] == module.COMM_WORLD.size


@gpu_only
def test_reduce_local_on_the_device(module):
    values, total = put(np.arange(5.0)), put(np.full(7, 10.0))
    module.SUM.Reduce_local(values, [total, 5, module.DOUBLE])
    assert (get(total) == [10, 11, 12, 13, 14, 10, 10]).all()
    module.MAX.Reduce_local(values, total[:5])
    assert (get(total)[:5] == [10, 11, 12, 13, 14]).all()
    with pytest.raises(pyncclx.NotSupported, match="Reduce_local: one array is on the device"):
        module.SUM.Reduce_local(np.zeros(5), total)


def test_communicators_of_mpi4pys_classes(module):
    """Such as those of its pkl5, which its own classes are the bases of; without the module they are not ours."""
    others = pkl5.Intracomm(module.COMM_WORLD), MPI.COMM_WORLD
    for other in others:
        assert isinstance(other, module.Comm)
        assert isinstance(other, module.Intracomm)
        assert not isinstance(other, module.Cartcomm)
    assert issubclass(pkl5.Intracomm, module.Comm)
    assert not isinstance("a word", module.Comm)
    STAGES_BY_DEFAULT.reset()
    assert not any(isinstance(other, pyncclx.Comm) for other in others)
    assert type(pyncclx.Communicator(others[0])) is pyncclx.Intracomm


def test_file(module):
    """How programs find MPI's functions."""
    assert ctypes.CDLL(module.__file__).MPI_Init


def test_kinds_of_memory(module, monkeypatch):
    key = "mpi_memory_alloc_kinds"
    monkeypatch.setattr(driver, "count", lambda: 0)
    assert module.COMM_WORLD.Get_info().Get(key) == MPI.COMM_WORLD.Get_info().Get(key)
    monkeypatch.setattr(driver, "count", lambda: 1)
    monkeypatch.delenv("PYNCCLX_DEVICE", raising=False)
    with module.COMM_WORLD.Dup() as comm:
        kinds = comm.Get_info().Get(key).split(",")
    assert {"mpi", "system", "cuda", "cuda:device"} <= set(kinds)
    assert len(set(kinds)) == len(kinds)
