"""Pack and Unpack of device arrays: the bytes that MPI packs from host copies, at any position."""

import pickle

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.derived.datatype import Datatype
from support.arrays import Output, get, host_only, put
from support.fake_gpu import Array, installed
from support.reference import comparing
from support.typemaps import DATATYPES

POSITION = 5  # of what is packed, after some other bytes
INT = Datatype.constants["INT"]


@pytest.fixture(scope="module")
def comm():
    return pyncclx.Communicator()


# Of the others mpi4py packs what is outside of the array, or divides by a length of 0.
OTHERS = ("empty", "vector of nothing", "vector backwards", "resized", "resized, lower bound", "nested")


@pytest.mark.parametrize("name", sorted(set(DATATYPES) - set(OTHERS)))
def test_as_mpi_packs(comm, name):
    """Twice as long as one element, and a rest that is none."""
    datatype = Datatype(DATATYPES[name]().Commit())
    values = np.random.default_rng(comm.rank).integers(0, 256, 2 * max(datatype.extent, 4) + 3, np.uint8)
    expected, packed = np.full(2 * datatype.size + 20, 0xA5, "u1"), Output(2 * datatype.size + 20, "u1")
    end = MPI.Datatype.Pack(datatype, values, expected, POSITION, MPI.COMM_WORLD)
    assert datatype.Pack(put(values), packed.array, POSITION, comm) == end
    host, unpacked = np.full(values.size, 0xA5, "u1"), Output(values.size, "u1")
    MPI.Datatype.Unpack(datatype, expected, POSITION, host, MPI.COMM_WORLD)
    assert datatype.Unpack(packed.array, POSITION, unpacked.array, comm) == end
    with comparing() as compare:
        compare(packed, expected, "packed")
        compare(unpacked, host, "unpacked")
    datatype.Free()


@pytest.mark.parametrize("name", ["INT", "DOUBLE", "DOUBLE_INT", "C_BOOL", "BYTE"])
def test_predefined(comm, name):
    """Pairs of MPI's with padding inside among them, which it leaves out."""
    datatype = Datatype.constants[name]
    values = np.arange(3 * datatype.extent, dtype="u1")
    expected, packed = np.zeros(3 * datatype.size, "u1"), put(np.zeros(3 * datatype.size, "u1"))
    end = MPI.Datatype.Pack(datatype, values, expected, 0, comm)
    assert datatype.Pack(put(values), packed, 0, comm) == end
    back = put(np.zeros(3 * datatype.extent, "u1"))
    datatype.Unpack(packed, 0, back, comm)
    again = put(np.zeros(3 * datatype.size, "u1"))
    datatype.Pack(back, again, 0, comm)
    assert (get(packed) == expected).all()
    assert (get(again) == expected).all()


def test_nothing(comm):
    datatype = Datatype(DATATYPES["empty"]().Commit())
    assert datatype.Pack(put(np.zeros(9)), put(np.zeros(0)), 0, comm) == 0
    datatype.Free()


def test_external_representation(comm):
    """Bytes swapped by MPI."""
    values = np.arange(7, dtype="i4") + comm.rank
    expected, packed = np.zeros(40, "u1"), put(np.zeros(40, "u1"))
    end = MPI.Datatype.Pack_external(INT, "external32", values, expected, 3)
    assert INT.Pack_external("external32", put(values), packed, 3) == end
    back = put(np.zeros(7, "i4"))
    assert INT.Unpack_external("external32", packed, 3, back) == end
    assert (get(packed) == expected).all()
    assert (get(back) == values).all()


def test_refusals(comm):
    nine, column = put(np.zeros(9, "u1")), Datatype(MPI.INT.Create_resized(0, 2).Commit())
    with pytest.raises(MPI.Exception, match="outbuf has 9 bytes, those from 2 to 10 are needed"):
        INT.Pack(nine, nine, 2, comm)
    with pytest.raises(MPI.Exception, match="those from -1 to 7 are needed") as raised:
        INT.Unpack(nine, -1, nine, comm)
    assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
    with pytest.raises(ValueError, match="pass a larger array"):
        column.Pack(nine, put(np.zeros(99, "u1")), 0, comm)
    column.Free()


@host_only
def test_copies_that_go_through_the_host(comm, monkeypatch):
    """What MPI does goes back to a GPU, and nothing else of the array does."""
    gpu = installed(monkeypatch)
    x, y = Array(np.arange(4, dtype="i4")), Array(np.full(20, 9, "u1"))
    end = INT.Pack_external("external32", x, y, 2)
    assert end == 18
    assert (y.host == [9, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 9, 9]).all()
    assert gpu.uploaded == 16
    packed = np.full(20, 9, "u1")
    assert INT.Pack_external("external32", x, packed, 2) == 18
    assert (packed == y.host).all()
    back = Array(np.zeros(4, "i4"))
    assert INT.Unpack_external("external32", packed.tobytes(), 2, back) == 18
    assert (back.host == x.host).all()
    values = np.arange(4, dtype="i4")
    assert INT.Pack(x, plain := bytearray(20), 2, comm) == INT.Unpack(bytes(2) + values.tobytes(), 2, back, comm) == 18
    assert plain[2:18] == values.tobytes()
    assert (back.host == values).all()


def test_host_memory_beside_the_device(comm):
    """As mpi4py with host arrays."""
    column = Datatype(MPI.INT.Create_vector(3, 2, 4).Commit())
    values, packed = np.arange(12, dtype="i4"), bytearray(column.Pack_size(1, comm))
    expected = bytearray(packed)
    end = MPI.Datatype.Pack(column, values, expected, 0, comm)
    assert column.Pack(put(values), packed, 0, comm) == end
    assert packed == expected
    back = put(np.zeros(12, "i4"))
    assert column.Unpack(bytes(packed), 0, back, comm) == end
    assert (get(back)[[0, 1, 4, 5, 8, 9]] == values[[0, 1, 4, 5, 8, 9]]).all()
    assert (get(back)[[2, 3, 6, 7, 10, 11]] == 0).all()
    column.Free()


def test_pickle(comm):
    """Datatypes inside of another come along."""
    inner = INT.Create_vector(2, 1, 2)
    outer = Datatype.Create_struct([1, 2], [0, 80], [inner, Datatype.constants["DOUBLE"]]).Commit()
    again = pickle.loads(pickle.dumps(outer))
    values, packed = put(np.arange(96, dtype="u1")), put(np.zeros(24, "u1"))
    assert again.Pack(values, packed, 0, comm) == 24
    assert (get(packed) == [*range(4), *range(8, 12), *range(80, 96)]).all()
    for each in (again, outer, inner):
        each.Free()


def test_functions_of_attributes():
    """They get this library's datatypes, which pack device arrays."""
    told = []
    keyval = Datatype.Create_keyval(
        lambda datatype, key, value: told.append((type(datatype), key, value)) or "copied",
        lambda datatype, key, value: told.append((type(datatype), key, value)),
    )
    datatype = Datatype(MPI.INT.Create_contiguous(2))
    datatype.Set_attr(keyval, "value")
    copy, number = datatype.Dup(), keyval
    for each in (copy, datatype):
        each.Free()
    Datatype.Free_keyval(keyval)
    assert told == [(Datatype, number, value) for value in ("value", "copied", "value")]
