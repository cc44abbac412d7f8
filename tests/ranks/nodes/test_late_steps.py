"""Steps of calls over nodes that run late: those on the other stream which need them wait.

Nonblocking calls are on streams of their own, which on the host device are threads. So a step may be late there, and
one that does not come after it on purpose is early.
"""

import functools
import itertools
import time

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import backends
from support.arrays import Output, host_only, put
from support.forms import NAMES, arguments, spec, total
from support.reference import comparing, labels

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
LAYOUTS = {"halves": 2 * RANK // SIZE, "in turn": RANK % 2}
LATE_S = 0.01
LATE = {"copy": 3, "launch": 4, "call_between": 0}  # methods of the device: where the stream is among their arguments
COUNT = 40_000  # elements of eight bytes: more than what goes through the host's memory, and in pieces
IN_PLACE = ("Allreduce", "Reduce_scatter_block", "Allgather", "Alltoall", "Scan", "Exscan")
pytestmark = [pytest.mark.ranks(3, 4), host_only]  # of two, each is alone on its node: few steps are aside

ADDED = pyncclx.Op(lambda a, b: a + b, "f8")


@pyncclx.Transform
def doubled(x, row, column):
    return 2 * x


@pytest.fixture(scope="module", params=LAYOUTS)
def comm(request):
    """A communicator over pretend nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYNCCLX_NODE", str(LAYOUTS[request.param]))
        comm = pyncclx.Communicator().Dup()
        yield comm
        comm.Free()


@pytest.fixture
def late(request, monkeypatch):
    """Copies, kernels, or what the engine does between nodes: each begins late, on a stream of its own."""
    device, place = backends.select(), LATE[request.param]
    unchanged = getattr(device, request.param)

    def begin_late(*args, **options):
        if args[place] is not None:
            args[place].enqueue(functools.partial(time.sleep, LATE_S))
        return unchanged(*args, **options)

    monkeypatch.setattr(device, request.param, begin_late)


@pytest.mark.parametrize(("late", "name"), list(itertools.product(LATE, NAMES)), indirect=["late"])
def test_nonblocking(comm, late, name):
    sent, received, more, named = arguments(comm, name, COUNT)
    name = f"I{name.lower()}"
    with comparing() as compare:
        for call in range(2):
            values, output = labels(RANK, total(sent), call), Output(total(received), "i8")
            expected = output.read()
            getattr(MPI.Intracomm, name)(comm, spec(values, sent), spec(expected, received), *more, **named).Wait()
            getattr(comm, name)(spec(put(values), sent), spec(output.array, received), *more, **named).Wait()
            compare(output, expected, f"call {call}")


@pytest.mark.parametrize(("late", "name"), list(itertools.product(LATE, IN_PLACE)), indirect=["late"])
def test_in_place(comm, late, name):
    sent, received, more, named = arguments(comm, name, COUNT)
    with comparing() as compare:
        for call in range(2):
            values = labels(RANK, max(sent, received), call)
            expected, output = values.copy(), Output(len(values), "i8").fill(values)
            getattr(MPI.Intracomm, f"I{name.lower()}")(comm, MPI.IN_PLACE, expected, *more, **named).Wait()
            getattr(comm, f"I{name.lower()}")(MPI.IN_PLACE, output.array, *more, **named).Wait()
            length = received if name == "Reduce_scatter_block" else len(values)  # MPI leaves the rest undefined
            compare(np.array(output.read()[:length]), expected[:length], f"call {call}")


@pytest.mark.parametrize("name", ["Allgather", "Alltoall"])
@pytest.mark.parametrize("late", ["launch"], indirect=True)
def test_row_transforms(comm, late, name):
    pytest.importorskip("numba", reason="transforms are compiled by Numba")
    count = COUNT * (SIZE if name == "Alltoall" else 1)
    with comparing() as compare:
        for call in range(2):
            every = np.array([np.arange(count) % 91 + rank + call for rank in range(SIZE)], "f4")
            of_ranks = every.reshape(SIZE, SIZE, COUNT)[:, RANK] if name == "Alltoall" else every
            output = Output(SIZE * COUNT, "f4")
            getattr(comm, f"I{name.lower()}")(put(every[RANK]), output.array, transform=doubled).Wait()
            compare(output, 2 * of_ranks.reshape(-1), f"call {call}")


@pytest.mark.parametrize("late", ["launch"], indirect=True)
def test_operators_of_the_program(comm, late):
    """Where ranks take turns on the nodes, each folds a part of the vectors in rank order, and gives it to all."""
    pytest.importorskip("numba", reason="operators are compiled by Numba")
    values, expected = (np.arange(COUNT, dtype="f8") * factor for factor in (RANK + 1, SIZE * (SIZE + 1) // 2))
    with comparing() as compare:
        for name in ("Allreduce", "Reduce"):
            output = Output(COUNT, "f8")
            getattr(comm, f"I{name.lower()}")(put(values), output.array, ADDED).Wait()
            if name == "Allreduce" or RANK == 0:
                compare(output, expected, name)
