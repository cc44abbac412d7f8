"""Bad input raises exceptions of the classes that plain mpi4py raises for host arrays, whose texts say more."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import host_only

FLOAT, COUNT = MPI.FLOAT, 8
pytestmark = host_only  # both communicators get the same NumPy arrays


@pytest.fixture(scope="module")
def comms():
    """Plain mpi4py's communicator and the library's, of one rank each: a call that is legal for one cannot hang."""
    plain = MPI.COMM_SELF.Dup()
    with pyncclx.Communicator(MPI.COMM_SELF).Dup() as comm:
        yield plain, comm
    plain.Free()


def floats(count=COUNT):
    return np.zeros(count, "f4")


SPECS = {
    "negative count": lambda: [floats(), -1, FLOAT],
    "negative count without a datatype": lambda: [floats(), -1],
    "negative displacement": lambda: [floats(), (4, -1), FLOAT],
    "negative count of text": lambda: [np.zeros(4, "S4"), -1, MPI.BYTE],
    "negative count of records": lambda: [np.zeros(4, "f4,i4"), -1, MPI.BYTE],
    "object": object,
    "number": lambda: 3,
    "list of numbers": lambda: [1, 2],
    "list as a datatype": lambda: [floats(), [FLOAT]],
    "unknown datatype": lambda: [floats(), "nonsense"],
    "null datatype": lambda: [floats(), COUNT, MPI.DATATYPE_NULL],
    "fraction as count": lambda: [floats(), 2.5, FLOAT],
    "text as count": lambda: [floats(), "x", FLOAT],
    "gaps": lambda: floats(16)[::2],
    "long list": lambda: [floats(), 1, 2, 3, 4, 5],
}
OF_SPECS = {
    "Send": lambda comm, spec: comm.Send(spec, 0),
    "Isend": lambda comm, spec: comm.Isend(spec, 0),
    "Irecv": lambda comm, spec: comm.Irecv(spec, 0),
    "Send_init": lambda comm, spec: comm.Send_init(spec, 0),
    "Recv_init": lambda comm, spec: comm.Recv_init(spec, 0),
    "Bcast": lambda comm, spec: comm.Bcast(spec),
    "Gather": lambda comm, spec: comm.Gather(spec, floats()),
    "Allgather": lambda comm, spec: comm.Allgather(spec, floats()),
    "Alltoall": lambda comm, spec: comm.Alltoall(spec, floats()),
}
OF_REDUCTIONS = {
    "Allreduce": lambda comm, spec: comm.Allreduce(spec, floats()),
    "Reduce": lambda comm, spec: comm.Reduce(floats(), spec),
    "Scan": lambda comm, spec: comm.Scan(spec, floats()),
    "Reduce_scatter_block": lambda comm, spec: comm.Reduce_scatter_block(spec, floats()),
}
# mpi4py compares both datatypes before it looks at them.
NOT_REDUCED = {"null datatype"}
NUMBERS = {"beyond": 1, "negative": -5, "text": "x", "more than an int": 1 << 40}
OF_RANKS = {
    "Send": lambda comm, rank: comm.Send(floats(), rank),
    "Irecv": lambda comm, rank: comm.Irecv(floats(), rank),
    "Recv_init": lambda comm, rank: comm.Recv_init(floats(), rank),
    "Sendrecv": lambda comm, rank: comm.Sendrecv(floats(), rank, 0, floats(), 0),
    "Bcast": lambda comm, rank: comm.Bcast(floats(), rank),
    "Reduce": lambda comm, rank: comm.Reduce(floats(), floats(), MPI.SUM, rank),
    "Gatherv": lambda comm, rank: comm.Gatherv(floats(), floats(), rank),
}
OF_TAGS = {
    "tag of Send": lambda comm, tag: comm.Send(floats(), 0, tag),
    "tag of Irecv": lambda comm, tag: comm.Irecv(floats(), 0, tag),
    "tag of Send_init": lambda comm, tag: comm.Send_init(floats(), 0, tag),
}
OPERATORS = {"of integers": MPI.BOR, "null": MPI.OP_NULL, "of pairs": MPI.MAXLOC, "None": None, "text": "+"}
OF_OPERATORS = {
    name: lambda comm, op, name=name: getattr(comm, name)(floats(), floats(), op=op)
    for name in ("Allreduce", "Iallreduce", "Reduce", "Scan", "Exscan", "Reduce_scatter_block", "Allreduce_init")
}
CASES = {
    **{(call, each): (do, make) for call, do in OF_SPECS.items() for each, make in SPECS.items()},
    **{
        (call, each): (do, make)
        for call, do in OF_REDUCTIONS.items()
        for each, make in SPECS.items()
        if each not in NOT_REDUCED
    },
    **{(call, each): (do, lambda n=n: n) for call, do in OF_RANKS.items() for each, n in NUMBERS.items()},
    **{(call, each): (do, lambda n=n: n) for call, do in OF_TAGS.items() for each, n in NUMBERS.items() if n != 1},
    **{(call, each): (do, lambda op=op: op) for call, do in OF_OPERATORS.items() for each, op in OPERATORS.items()},
}


def raised(do, comm, argument):
    """Return the exception of a call; None if it raises none."""
    try:
        do(comm, argument)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_the_class_is_mpi4pys(comms, case):
    do, make = CASES[case]
    expected, error = (raised(do, comm, make()) for comm in comms)
    assert expected is not None
    if isinstance(expected, MPI.Exception):
        assert isinstance(error, MPI.Exception)
        assert error.Get_error_class() == expected.Get_error_class()
    else:
        assert type(error) is type(expected)
