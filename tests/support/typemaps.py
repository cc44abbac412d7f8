"""Derived datatypes of every constructor, and what MPI packs from them."""

import numpy as np
from mpi4py import MPI

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
    "vector of elements with gaps": lambda: INT.Create_resized(0, 12).Create_vector(3, 2, 4),
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


def packed_by_mpi(memory: np.ndarray, datatype: MPI.Datatype) -> np.ndarray:
    """What MPI packs of one element in `memory`, which holds no more than what the datatype names, from end to end."""
    packed = np.zeros(datatype.Get_size(), np.uint8)
    if packed.size:
        datatype.Pack(_element(memory, datatype), packed, 0, MPI.COMM_SELF)
    return packed


def unpacked_by_mpi(packed: np.ndarray, memory: np.ndarray, datatype: MPI.Datatype) -> None:
    """The way back."""
    if packed.size:
        datatype.Unpack(packed, 0, _element(memory, datatype), MPI.COMM_SELF)


def _element(memory: np.ndarray, datatype: MPI.Datatype) -> MPI.buffer:
    """An element, from where its byte 0 would be."""
    return MPI.buffer.fromaddress(memory.ctypes.data - datatype.Get_true_extent()[0], datatype.extent)
