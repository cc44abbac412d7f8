"""Operators written in Python: the gallery of examples/operators against NumPy, and arguments that are refused."""

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import NotSupported
from pyncclx.arrays.datatypes import TABLE
from pyncclx.collectives.algorithms import CHAIN_ROWS, half_of_lines
from pyncclx.operators import ops
from support.arrays import Output, get, put, xp
from support.everywhere import assert_everywhere, raises_everywhere
from support.lease import layout_of
from support.reference import comparing, contributions, fold

pytest.importorskip("numba", reason="operators written in Python need Numba")

_path = Path(__file__).resolve().parents[3] / "examples" / "operators" / "operators_gallery.py"
_spec = importlib.util.spec_from_file_location("operators_gallery", _path)
gallery = sys.modules["operators_gallery"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(gallery)

one_communicator = pytest.mark.parametrize("comm", ["reversed"], indirect=True)
RECORDS = ("sum of 3-vectors", "product of 2 by 2 matrices")  # of 12 and of 32 bytes


def counts(comm, itemsize):
    """Lengths that are odd, that end within a pack and within a group, and that take several tiles."""
    tile = layout_of(comm).chunk_nbytes * comm.size * layout_of(comm).channels // itemsize
    return 1, 3, 37, 2 * tile + 5


def algorithms(comm, nbytes, itemsize):
    """Those that can move vectors of `nbytes` here, and None; slots hold whole groups of elements."""
    layout, group = layout_of(comm), math.lcm(16, itemsize)
    slot = layout.slot_nbytes // group * group
    most = {"one_shot": slot, "two_shot_lines": (half_of_lines(layout) - 32) * comm.size, "two_shot": math.inf}
    return [*(name for name, limit in most.items() if nbytes <= limit * layout.channels), None]


class Check:
    """Calls of one operator of the gallery on one communicator, all compared in the end."""

    def __init__(self, comm, name):
        self.comm, self.name, self.case, self.wrong = comm, name, gallery.CASES[name], []

    def vector(self, rank, count):
        return gallery.contribution(self.name, rank, count)

    def send(self, count, offset=0):
        return put(self.vector(self.comm.rank, count).view("u1"), offset).view(self.plain)

    @property
    def plain(self):
        """CuPy has no records: their bytes do."""
        return np.dtype("u1") if self.case.dtype.names else self.case.dtype

    def output(self, count, offset=0):
        itemsize = self.case.dtype.itemsize // self.plain.itemsize
        return Output(count * itemsize, self.plain, offset=offset)

    def compare(self, output, expected, call):
        problem = output.damage()
        if not gallery.agrees(self.name, output.read().view(self.case.dtype), expected):
            problem = f"{problem} wrong result"
        if problem:
            self.wrong.append(f"{call}: {problem}")


@pytest.fixture
def check(comm, request):
    made = Check(comm, request.param)
    yield made
    assert not made.wrong, "\n".join(made.wrong[:5])


everyone = pytest.mark.parametrize("check", list(gallery.CASES), indirect=True)


@one_communicator
@everyone
def test_gallery(comm, check):
    for count in counts(comm, check.case.dtype.itemsize):
        expected = gallery.expected(check.name, comm.size, count)
        itemsize = check.case.dtype.itemsize
        for algorithm in algorithms(comm, count * itemsize, itemsize):
            recv = check.output(count)
            comm.Allreduce(check.send(count), recv.array, check.case.op, algorithm=algorithm)
            check.compare(recv, expected, f"count {count}, {algorithm}")


@pytest.mark.parametrize("check", RECORDS, indirect=True)
def test_records_in_place_and_unaligned(comm, check):
    for count in counts(comm, check.case.dtype.itemsize):
        expected = gallery.expected(check.name, comm.size, count)
        recv = check.output(count, offset=4).fill(check.send(count))
        comm.Allreduce(MPI.IN_PLACE, recv.array, check.case.op)
        check.compare(recv, expected, f"count {count} in place")
        recv = check.output(count, offset=8)
        comm.Allreduce(check.send(count, offset=4), recv.array, check.case.op)
        check.compare(recv, expected, f"count {count} unaligned")


@one_communicator
@pytest.mark.parametrize("check", RECORDS, indirect=True)
def test_records_in_windows(comm, check):
    """Loaded where they are, or stored where the result will be: shards are whole groups, and a rest."""
    tile = counts(comm, check.case.dtype.itemsize)[-1]
    for count in (37, tile, 3 * tile + 2):
        send, recv, whole = (comm.Alloc(n * check.case.dtype.itemsize, "u1") for n in (count, count, count * comm.size))
        send[...], recv[...] = check.send(count), 0xA5
        whole[...] = check.send(count * comm.size)
        wanted = gallery.expected(check.name, comm.size, count)
        block = gallery.expected(check.name, comm.size, count * comm.size)[count * comm.rank : count * (comm.rank + 1)]
        comm.Allreduce(send, recv, check.case.op)
        results = [(get(recv), wanted)]
        comm.Allreduce(MPI.IN_PLACE, send, check.case.op)
        comm.Reduce_scatter_block(whole, recv, check.case.op)
        results += [(get(send), wanted), (get(recv), block)]
        right = [gallery.agrees(check.name, result.view(check.case.dtype), each) for result, each in results]
        assert_everywhere(comm, all(right), f"count {count}: {right}")


@one_communicator
@pytest.mark.parametrize("check", [*RECORDS, "product of quaternions"], indirect=True)
def test_other_reductions(comm, check):
    for count in counts(comm, check.case.dtype.itemsize):
        itemsize = check.case.dtype.itemsize
        for algorithm in sorted({"one_shot", "two_shot"}.intersection(algorithms(comm, count * itemsize, itemsize))):
            root = count % comm.size
            expected = gallery.expected(check.name, comm.size, count)
            recv = check.output(count)
            poison = recv.read().view(check.case.dtype)
            comm.Reduce(check.send(count), recv.array, check.case.op, root, algorithm=algorithm)
            check.compare(recv, expected if comm.rank == root else poison, f"Reduce {count}, {algorithm}")

            whole = gallery.expected(check.name, comm.size, count * comm.size)
            block = whole[count * comm.rank : count * (comm.rank + 1)]
            recv, send = check.output(count), check.send(count * comm.size)
            comm.Reduce_scatter_block(send, recv.array, check.case.op, algorithm=algorithm)
            check.compare(recv, block, f"Reduce_scatter_block {count}, {algorithm}")
            comm.Reduce_scatter_block(MPI.IN_PLACE, send, check.case.op, algorithm=algorithm)
            recv = check.output(count).fill(send[: recv.array.size])
            check.compare(recv, block, f"Reduce_scatter_block {count}, {algorithm}, in place")


@pytest.mark.ranks(3)
@one_communicator
@pytest.mark.parametrize("algorithm", ["chain", "chain_lines"])
def test_order_through_a_chain(comm, algorithm):
    """A rank may get what the ranks above it have folded, and folds it behind its own."""
    if algorithm == "chain_lines" and comm.team.layout.slot_rows < CHAIN_ROWS:
        pytest.skip("other tests have left the communicator too little memory")
    minus = pyncclx.Op(lambda a, b: a - b)
    vectors = contributions(comm.size, 1000, "int64")
    with comparing() as compare:
        for root in sorted({0, 1, comm.size - 1}):
            recv = Output(1000, "i8") if comm.rank == root else None
            comm.Reduce(put(vectors[comm.rank]), recv and recv.array, minus, root, algorithm=algorithm)
            if recv:
                compare(recv, vectors[0] - sum(vectors[1:]), f"to root {root}")


@one_communicator
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "complex128", "uint8"])
def test_a_sum_without_a_dtype_is_the_sum(comm, name):
    plus = pyncclx.Op(lambda a, b: a + b)
    with comparing() as compare:
        vectors = contributions(comm.size, 37, name)
        recv = Output(37 * vectors[0].itemsize, "u1")
        comm.Allreduce([put(vectors[comm.rank].view("u1")), name], [recv.array, name], plus)
        compare(recv, fold(ops.SUM, vectors), name, as_dtype=vectors[0].dtype)


@one_communicator
def test_truths(comm):
    implies = pyncclx.Op(lambda a, b: b or not a, "?")
    values = [np.arange(32) >> rank & 1 == 1 for rank in range(comm.size)]
    expected = values[0]
    for value in values[1:]:
        expected = value | ~expected
    recv = Output(32, "?")
    comm.Allreduce(put(values[comm.rank]), recv.array, implies)
    with comparing() as compare:
        compare(recv, expected, "implication")


def test_numba_refuses(comm):
    """All ranks raise with the line, and go on."""

    def spelled(a, b):
        return a.upper() + b  # the line

    with raises_everywhere(comm, TypeError, match=r"(?s)spelled\(a, b\) for float32.*upper.*# the line"):
        comm.Allreduce(MPI.IN_PLACE, xp.zeros(3, "f4"), pyncclx.Op(spelled, "f4"))
    recv = Output(3, "i8")
    comm.Allreduce(put(np.ones(3, "i8")), recv.array)
    assert recv.read().tolist() == [comm.size] * 3


def vector(a, b, out):
    out.x = a.x + b.x


XYZ = np.dtype([("x", "f4"), ("y", "f4"), ("z", "f4")])
REFUSED = {
    "other elements": (lambda c, a: c.Allreduce(a, a.copy(), pyncclx.Op(max, "f8")), TypeError, "Python function"),
    "other datatype": (lambda c, a: c.Allreduce(a, a.copy(), pyncclx.Op(vector, "f8")), ValueError, "float64.*float32"),
    "half a record": (lambda c, a: c.Allreduce(a, a.copy(), pyncclx.Op(vector, XYZ)), ValueError, "12 bytes"),
    "other fields": (lambda c, a: c.Reduce(a.view("i4"), a.view("i4"), pyncclx.Op(vector, XYZ)), ValueError, "int32"),
    "a long record": (
        lambda c, a: c.Allreduce(a.view("u1"), a.view("u1"), pyncclx.Op(vector, [("x", "f4"), ("y", "u1", 71)])),
        NotSupported,
        "75 bytes.*multiple of 16",
    ),
    "MPI's own pairs": (lambda c, a: pyncclx.Op(vector, TABLE["float_int"]), NotSupported, "structured"),
    "no function": (lambda c, a: pyncclx.Op(7), TypeError, "Python function"),
    "not an operator": (lambda c, a: c.Allreduce(a, a.copy(), vector), TypeError, r"pyncclx\.Op"),
}


@one_communicator
@pytest.mark.parametrize("what", REFUSED)
def test_refused(comm, what):
    call, exception, text = REFUSED[what]
    array = xp.zeros(75 * 4, "f4")[: 300 if what == "a long record" else 50]
    with raises_everywhere(comm, exception, match=text):
        call(comm, array)
