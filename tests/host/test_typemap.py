"""Derived datatypes are flattened to what MPI itself packs."""

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.derived.nest import MOST_DIMS, MOST_NESTS, bounds, cut
from pyncclx.derived.typemap import typemap_of

DOUBLE, INT, CHAR = MPI.DOUBLE, MPI.INT, MPI.CHAR
RANDOM = np.random.default_rng(0)
STARTS = np.sort(RANDOM.choice(200, 40, replace=False)).tolist()


def nested():
    """A struct of a resized column and of irregular bytes, twice."""
    column = DOUBLE.Create_vector(3, 1, 5).Create_resized(0, 8)
    letters = CHAR.Create_indexed([1, 2, 5], [9, 4, 0])
    return MPI.Datatype.Create_struct([2, 1], [0, 160], [column, letters]).Create_contiguous(2)


def darray(distribs, dargs, order=MPI.ORDER_C, rank=3):
    return INT.Create_darray(6, rank, [7, 11], distribs, dargs, [2, 3], order)


BLOCK, CYCLIC, DEFAULT = MPI.DISTRIBUTE_BLOCK, MPI.DISTRIBUTE_CYCLIC, MPI.DISTRIBUTE_DFLT_DARG
DATATYPES = {
    "contiguous": lambda: DOUBLE.Create_contiguous(7),
    "empty": lambda: DOUBLE.Create_contiguous(0),
    "vector": lambda: INT.Create_vector(5, 2, 3),
    "vector without gaps": lambda: INT.Create_vector(5, 2, 2),
    "vector backwards": lambda: INT.Create_vector(4, 1, -2),
    "hvector": lambda: CHAR.Create_hvector(4, 3, 7),
    "hvector of vectors": lambda: INT.Create_vector(3, 1, 4).Create_hvector(5, 2, 100),
    "overlapping": lambda: INT.Create_vector(4, 2, 1),
    "indexed": lambda: DOUBLE.Create_indexed([1, 3, 0, 2], [4, 0, 9, 12]),
    "indexed, regular": lambda: DOUBLE.Create_indexed([2] * 30, list(range(0, 90, 3))),
    "indexed, irregular": lambda: INT.Create_indexed(RANDOM.integers(0, 5, 40).tolist(), STARTS),
    "triangle": lambda: DOUBLE.Create_indexed(list(range(1, 31)), [30 * row for row in range(30)]),
    "hindexed": lambda: CHAR.Create_hindexed([3, 1], [10, 0]),
    "indexed block": lambda: DOUBLE.Create_indexed_block(2, [0, 7, 3]),
    "indexed block of vectors": lambda: INT.Create_vector(2, 1, 2).Create_indexed_block(2, STARTS),
    "hindexed block": lambda: DOUBLE.Create_hindexed_block(1, [8 * start for start in STARTS]),
    "struct": lambda: MPI.Datatype.Create_struct([1, 2, 3], [0, 8, 30], [INT, DOUBLE, CHAR]),
    "struct of many": lambda: MPI.Datatype.Create_struct(
        [1] * 30, [16 * i for i in range(30)], [INT, CHAR, DOUBLE] * 10
    ),
    "subarray": lambda: INT.Create_subarray([4, 5, 6], [2, 3, 4], [1, 1, 2]),
    "subarray, Fortran": lambda: INT.Create_subarray([4, 5, 6], [2, 3, 4], [1, 1, 2], order=MPI.ORDER_FORTRAN),
    "subarray of whole rows": lambda: DOUBLE.Create_subarray([4, 5, 6], [4, 2, 6], [0, 3, 0]),
    "vector of nothing": lambda: DOUBLE.Create_vector(4, 0, 3),
    "subarray of eight dimensions": lambda: CHAR.Create_subarray([3] * 8, [2] * 8, [1] * 8),
    "darray of blocks": lambda: darray([BLOCK, BLOCK], [DEFAULT, DEFAULT]),
    "darray of blocks, last": lambda: darray([BLOCK, BLOCK], [DEFAULT, 5], rank=5),
    "darray of cycles": lambda: darray([CYCLIC, CYCLIC], [DEFAULT, 2]),
    "darray of cycles, Fortran": lambda: darray([BLOCK, CYCLIC], [4, 2], MPI.ORDER_FORTRAN),
    "resized": lambda: DOUBLE.Create_vector(3, 1, 4).Create_resized(0, 8),
    "resized, lower bound": lambda: INT.Create_vector(2, 1, 4).Create_resized(-8, 40),
    "duplicate": lambda: INT.Create_vector(5, 2, 3).Dup(),
    "nested": nested,
}


@pytest.mark.parametrize("name", DATATYPES)
@pytest.mark.parametrize("count", [1, 3])
def test_packs_what_mpi_packs(name, count):
    datatype = DATATYPES[name]()
    repeated = datatype.Create_contiguous(count).Commit()
    typemap = typemap_of(repeated)
    lower, length = repeated.Get_true_extent()
    size = repeated.Get_size()
    assert (typemap.size, typemap.extent) == (size, repeated.extent)
    assert (typemap.lower, typemap.upper) == (lower, lower + length)
    memory = RANDOM.integers(0, 256, max(length, 1), np.uint8)
    packed = np.zeros(size, np.uint8)
    if size:
        origin = MPI.buffer.fromaddress(memory.ctypes.data - lower, repeated.extent)  # where the datatype's byte 0 is
        repeated.Pack(origin, packed, 0, MPI.COMM_SELF)
    ours = np.zeros(size, np.uint8)
    assert len(typemap.nests) <= MOST_NESTS
    assert all(len(nest.dims) <= MOST_DIMS for nest in typemap.nests)
    for start, offset, nbytes in zip(*bounds(typemap.nests), strict=True) if size else ():
        ours[start : start + nbytes] = memory[offset - lower : offset - lower + nbytes]
    np.testing.assert_array_equal(ours, packed)
    half = cut(typemap.nests, size // 2) if size else ()
    assert sum(bounds(half)[2]) == size // 2 if half else size < 2
    datatype.Free()
    repeated.Free()


@pytest.mark.parametrize(
    ("name", "nests", "dims"),
    [
        ("vector", 1, 1),
        ("vector without gaps", 1, 0),
        ("indexed, regular", 1, 1),
        ("subarray", 1, 2),
        ("subarray of whole rows", 1, 1),
        ("triangle", 1, 0),  # a table of runs
        ("struct", 3, 0),
    ],
)
def test_normal_forms(name, nests, dims):
    """As few nests and loops as can be."""
    datatype = DATATYPES[name]()
    found = typemap_of(datatype).nests
    assert (len(found), max(len(nest.dims) for nest in found)) == (nests, dims)
    assert (found[0].runs is not None) == (name == "triangle")
    datatype.Free()


def test_a_reused_handle_has_another_typemap():
    for length in (2, 3, 4) * 5:
        datatype = DOUBLE.Create_vector(3, 1, length)
        assert typemap_of(datatype).upper == 16 * length + 8
        assert typemap_of(datatype) is typemap_of(datatype)
        datatype.Free()


def test_elements_without_a_datatype_of_mpi():
    for key, nbytes in (("bf16", 2), ("f4", 4), (MPI.DOUBLE_INT, 16), (np.dtype("c16"), 16)):
        assert typemap_of(key).is_contiguous
        assert typemap_of(key).size == nbytes
    with pytest.raises(KeyError):
        typemap_of("zz")
    with pytest.raises(MPI.Exception):
        typemap_of(MPI.DATATYPE_NULL)
