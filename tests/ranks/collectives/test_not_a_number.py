"""NaN in MAX, MIN and their relatives with an index: it is the result, whichever rank has it."""

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.arrays.datatypes import TABLE
from pyncclx.operators import ops
from support.arrays import Output, put
from support.reference import comparing, dtype_of, fold

COUNT = 37
OPERATORS = {"MAX": np.maximum, "MIN": np.minimum}


def vectors_of(comm, name, owner):
    """Numbers of all ranks; those of the owner have NaN in every third place, those of the next in every fifth."""
    vectors = [np.arange(COUNT, dtype="f8") * (rank + 1) - 7 for rank in range(comm.size)]
    vectors[owner][::3] = np.nan
    vectors[(owner + 1) % comm.size][::5] = np.nan
    return [vector.astype(dtype_of(TABLE[name])) for vector in vectors]


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_reductions(comm, name, op):
    """Against NumPy's maximum and minimum, which have NaN where an operand has."""
    itemsize = TABLE[name].itemsize
    with comparing() as compare:
        for owner in range(comm.size):
            vectors = vectors_of(comm, name, owner)
            wide = [vector.astype("f8") for vector in vectors]
            expected = OPERATORS[op].reduce(wide).astype(vectors[0].dtype)
            upto = OPERATORS[op].reduce(wide[: comm.rank + 1]).astype(vectors[0].dtype)
            send = [put(vectors[comm.rank].view("u1")), name]
            for method in ("Allreduce", "Reduce", "Scan"):
                recv = Output(COUNT * itemsize, "u1")
                getattr(comm, method)(send, [recv.array, name], getattr(MPI, op))
                if method != "Reduce" or comm.rank == 0:
                    result = upto if method == "Scan" else expected
                    compare(recv, result, f"{method}, NaN of rank {owner}", as_dtype=vectors[0].dtype)


@pytest.mark.parametrize("op", [ops.MAXLOC, ops.MINLOC], ids=lambda op: op.name)
def test_with_an_index(comm, op):
    """Of several NaN the smallest index is kept."""
    pair = np.dtype([("value", "f4"), ("index", "i4")])
    with comparing() as compare:
        for owner in range(comm.size):
            values = vectors_of(comm, "float32", owner)
            vectors = [np.zeros(COUNT, pair) for _ in range(comm.size)]
            for rank, vector in enumerate(vectors):
                vector["value"], vector["index"] = values[rank], comm.size - rank
            recv = Output(COUNT * pair.itemsize, "u1")
            comm.Allreduce([put(vectors[comm.rank].view("u1")), MPI.FLOAT_INT], [recv.array, MPI.FLOAT_INT], op.mpi)
            found = recv.read().view(pair)
            ranks = range(comm.size)
            indices = [[comm.size - rank for rank in ranks if np.isnan(values[rank][i])] for i in range(COUNT)]
            compare(np.isnan(found["value"]), np.array([bool(each) for each in indices]), f"NaN of rank {owner}")
            kept = np.array([min(each, default=found["index"][i]) for i, each in enumerate(indices)], "i4")
            compare(np.ascontiguousarray(found["index"]), kept, f"index, NaN of rank {owner}")
            compare(recv, fold(op, vectors), f"all, NaN of rank {owner}", as_dtype=pair)
