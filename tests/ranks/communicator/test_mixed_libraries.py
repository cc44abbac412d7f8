"""Collectives with a device array, and arrays of several libraries in host memory."""

import array
import ctypes

import numpy as np
import pytest
from mpi4py import MPI

from support.arrays import host_only
from support.device_memory import installed
from support.fake_arrays import DlpackArray, FakeTensor
from support.forms import FORMS, call
from support.staging_comm import staging

pytestmark = [host_only, pytest.mark.one_node]
memory, comm = pytest.fixture(installed), pytest.fixture(staging)
# Each is made of a NumPy array, and has its memory.
OF_HOST = {
    "NumPy": lambda values: values,
    "matrix": lambda values: values.reshape(2, -1),
    "Fortran": lambda values: values.reshape(2, -1, order="F"),
    "bytes": lambda values: [memoryview(values).cast("B"), MPI.DOUBLE],
    "ctypes": lambda values: (ctypes.c_double * values.size).from_buffer(values),
    "MPI.buffer": lambda values: [MPI.buffer.fromaddress(values.ctypes.data, values.nbytes), MPI.DOUBLE],
    "DLPack": DlpackArray,
    "tensor": lambda values: FakeTensor(values, cuda=False),
}


@pytest.mark.parametrize("library", OF_HOST)
@pytest.mark.parametrize("form", FORMS)
def test_libraries(comm, memory, form, library):
    """One buffer of the last rank is on the host, and then the other one."""
    x, expected = np.arange(8.0) + comm.rank, np.zeros(8)
    MPI.Intracomm.Allreduce(comm, x, expected)
    for side in ("send", "recv"):
        here, there, y = memory.put(x), memory.put(np.zeros(8)), np.zeros(8)
        arguments = [here.typed("array"), there.typed("array")]
        if comm.rank == comm.size - 1:
            arguments[side == "recv"] = OF_HOST[library](x if side == "send" else y)
        call(comm, form, "Allreduce", *arguments)
        comm.synchronize()
        is_there = side == "send" or comm.rank < comm.size - 1
        np.testing.assert_array_equal(there.host if is_there else y, expected, err_msg=side)


@pytest.mark.parametrize("form", FORMS)
def test_elements_without_a_name_in_numpy(comm, memory, form):
    """A tensor of bfloat16, sent and received as bytes."""
    x, y = memory.put(np.arange(4, dtype="u2")), np.zeros(4 * comm.size, "u2")
    call(comm, form, "Allgather", [x.typed("array"), MPI.BYTE], [FakeTensor(y, "bfloat16", cuda=False), MPI.BYTE])
    np.testing.assert_array_equal(y, [*range(4)] * comm.size)


def test_of_the_standard_library(comm, memory):
    x = array.array("d", range(5))
    y = memory.put(np.zeros(5))
    comm.Allreduce([x, MPI.DOUBLE], y.typed("array"))
    comm.synchronize()
    np.testing.assert_array_equal(y.host, np.arange(5.0) * comm.size)


def test_a_tensor_with_other_memory(comm, memory):
    """Each start would copy from memory that has been freed."""
    tensor, x = FakeTensor(np.ones(3), cuda=False), memory.put(np.zeros(3))
    request = comm.Allreduce_init(tensor, x.typed("array"))
    tensor.array = np.ones(3)
    with pytest.raises(MPI.Exception, match="other memory") as raised:
        request.Start()
    assert raised.value.Get_error_class() == MPI.ERR_BUFFER
    request.Free()


def test_unusable_arrays(comm, memory):
    """As mpi4py judges them, before anything is launched."""
    y, read_only = memory.put(np.zeros(3)), np.zeros(3)
    read_only.flags.writeable = False
    with pytest.raises(BufferError, match="not contiguous"):
        comm.Allreduce(np.zeros(6)[::2], y.typed("array"))
    with pytest.raises(BufferError, match="requires grad"):
        comm.Allreduce(FakeTensor(np.zeros(3), cuda=False, requires_grad=True), y.typed("array"))
    with pytest.raises(BufferError, match="read-only"):
        comm.Allreduce(y.typed("array"), read_only)
