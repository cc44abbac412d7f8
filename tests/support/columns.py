"""Derived datatypes of int64, most of them with gaps, by name."""

from mpi4py import MPI

from support.lease import layout_of

INT64 = MPI.INT64_T


def rows_of(comm):
    """As many rows of a column as go in chunks."""
    return layout_of(comm).chunk_nbytes * layout_of(comm).channels // 8 + 5


# By name: a datatype of int64, given how many elements of it there are side by side.

KINDS = {
    "columns": lambda comm, many: INT64.Create_vector(7, 1, many).Create_resized(0, 8),
    "long columns": lambda comm, many: INT64.Create_vector(rows_of(comm), 1, many).Create_resized(0, 8),
    "pieces": lambda comm, many: INT64.Create_vector(3, 2, 3),
    "irregular": lambda comm, many: INT64.Create_indexed(
        [1 + i % 3 for i in range(20)], [i * i for i in range(1, 40, 2)]
    ),
    "struct": lambda comm, many: MPI.Datatype.Create_struct([1, 1], [0, 8], [INT64, MPI.INT32_T]).Create_resized(0, 24),
    "contiguous": lambda comm, many: INT64.Create_contiguous(3),
}


def made(comm, kind, many):
    """A datatype, and the int64 that `many` elements of it span."""
    datatype = KINDS[kind](comm, many).Commit()
    lower, length = datatype.Get_true_extent()
    return datatype, ((many - 1) * datatype.extent + lower + length + 7) // 8
