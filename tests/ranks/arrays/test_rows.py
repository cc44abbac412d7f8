"""Counts and rows of elements of every kind: records, text, dates, bytes, numbers, against MPI's bytes and NumPy.

A row is compared byte by byte, so what is in it is random bytes that only its source and its call have.
"""

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import HOST, Dlpack, Interface, Output, host_only, put, synchronize, xp
from support.everywhere import raises_everywhere
from support.forms import FORMS, call
from support.reference import comparing
from support.row_routing import LAYOUTS, following
from support.token_case import Case, generator

pytestmark = pytest.mark.parametrize("comm", ["reversed"], indirect=True)

PARTICLE = np.dtype([("id", "i4"), ("x", "f4", 3), ("kind", "u1")])
PADDED = np.dtype([("id", "i1"), ("x", "f8")], align=True)
NUMBERS = ("i1", "u2", "f4", "f8", "c16")
OTHERS = (PARTICLE, PADDED, "S5", "U3", "M8[s]", "V7", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)
DTYPES = (*NUMBERS, *(OTHERS if HOST else ()))  # CuPy has no others
INNER = ((), (3,), (2, 1))  # the shape of a row
ids = lambda dtype: np.dtype(dtype).str if np.dtype(dtype).names is None else f"V{np.dtype(dtype).itemsize}"  # noqa: E731


def random_bytes(rows, row_nbytes, *seed):
    return np.random.default_rng(seed).integers(0, 256, (rows, row_nbytes), np.uint8)


def as_array(rows, dtype, inner):
    """Rows of bytes on the device as an array of a dtype."""
    return rows.reshape(-1).view(dtype).reshape(-1, *inner) if rows.size else xp.empty((len(rows), *inner), dtype)


class Exchange:
    """A dynamic Alltoallv of rows, as all ranks have drawn it."""

    def __init__(self, comm, dtype, seed):
        self.comm, self.dtype, self.size, self.me = comm, np.dtype(dtype), comm.size, comm.rank
        random = np.random.default_rng([seed, comm.size, self.dtype.itemsize])
        self.inner = INNER[random.integers(len(INNER))]
        self.nbytes = self.dtype.itemsize * int(np.prod(self.inner, dtype=int))
        self.layout, self.seed = LAYOUTS[random.integers(4)], seed
        self.counts = random.integers(0, 4, (self.size, self.size))  # [source, target]
        order = random.permuted(np.tile(np.arange(self.size), (self.size, 1)), axis=1)
        self.displs = following(self.counts, order) + random.integers(0, 2, (self.size, 1))
        self.places = following(self.counts.T, order)  # [target, source]
        self.room = 4 * self.size + 2
        self.with_slots = self.layout in ("slots", "sender")
        self.form, self.flat = FORMS[random.integers(3)], bool(random.integers(2))

    def sent(self, source, call):
        return random_bytes(self.room, self.nbytes, self.seed, source, call)

    def begin(self, source):
        """Where the rows of a source begin in recv."""
        if self.layout == "packed":
            return int(self.counts[:source, self.me].sum())
        place = self.displs[source, self.me] if self.layout == "sender" else 0
        return int(self.places[self.me, source]) if self.layout == "placed" else source * self.room + int(place)

    def expected(self, call):
        rows = np.full((self.room * (self.size if self.with_slots else 1), self.nbytes), 0xA5, np.uint8)
        for source, count in enumerate(self.counts[:, self.me]):
            first, begin = self.displs[source, self.me], self.begin(source)
            rows[begin : begin + count] = self.sent(source, call)[first : first + count]
        return rows

    def run(self, compare, wrap=lambda array: array):
        rows = put(self.sent(self.me, 0))
        recv = Output(self.expected(0).shape, "u1")
        got, begin, total = Output(self.size, "i8"), Output(self.size, "i8"), Output(1, "i8")
        if self.layout == "placed":
            begin.fill(self.places[self.me])
        into = as_array(recv.array, self.dtype, self.inner)
        if self.with_slots and not self.flat:
            into = into.reshape(self.size, self.room, *self.inner)
        send = [wrap(as_array(rows, self.dtype, self.inner)), (put(self.counts[self.me]), put(self.displs[self.me]))]
        into = [wrap(into), (got.array, begin.array)]
        what = f"{self.layout}, {self.form}, rows of {self.inner} {self.dtype}, seed {self.seed}"
        call(self.comm, self.form, "Alltoallv", send, into, layout=self.layout, total=total.array, starts=2)
        compare(recv, self.expected(0), what)
        compare(got, self.counts[:, self.me], f"{what}: counts")
        compare(total, self.counts[:, self.me].sum(keepdims=True), f"{what}: total")


@pytest.mark.parametrize("dtype", DTYPES, ids=ids)
def test_rows_of_every_kind(comm, dtype):
    """Random layouts, forms and shapes of rows: whole rows arrive, and nothing beside them is written."""
    with comparing() as compare:
        for seed in range(8):
            Exchange(comm, dtype, seed).run(compare)


@pytest.mark.parametrize("wrap", [Interface, Dlpack])
@pytest.mark.parametrize("dtype", ["f4", *(["V7", "S5"] if HOST else [])])
def test_rows_of_other_libraries(comm, dtype, wrap):
    if wrap is Dlpack and dtype != "f4":
        pytest.skip("DLPack has no such elements")
    with comparing() as compare:
        for seed in range(4):
            Exchange(comm, dtype, seed).run(compare, wrap)


def parts(counts):
    """Slices of blocks that follow one another, and their displacements."""
    displs = (np.cumsum(counts) - counts).tolist()
    return [slice(displ, displ + count) for displ, count in zip(displs, counts, strict=True)], displs


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=ids)
def test_counts_of_every_kind(comm, dtype, form):
    """Counts and displacements are in elements, in collectives of all forms."""
    size, me, nbytes = comm.size, comm.rank, np.dtype(dtype).itemsize
    counts = [(2 * rank + 1) % 4 for rank in range(size)]
    blocks, displs = parts(counts)
    total, mine = sum(counts), blocks[me]
    sent = [random_bytes(4 * size + 1, nbytes, rank) for rank in range(size)]
    send, root = as_array(put(sent[me]), dtype, ()), size - 1
    to_me = [each[size * me : size * me + counts[me]] for each in sent]
    whole = np.concatenate([each[1 : 1 + count] for each, count in zip(sent, counts, strict=True)])
    with comparing() as compare:

        def check(name, recv, *arguments, expected, **keywords):
            call(comm, form, name, *arguments, starts=2, **keywords)
            compare(recv, expected, name)

        def output(rows, first=0, values=None):
            """Poison, with rows of values at a place; the array over it."""
            recv = Output((rows, nbytes), "u1")
            expected = np.full((rows, nbytes), 0xA5, np.uint8)
            if values is not None:
                expected[first : first + len(values)] = values
            return recv, as_array(recv.array, dtype, ()), expected

        recv, into, expected = output(total + 1, 1, whole)
        shifted = [displ + 1 for displ in displs]
        check("Allgatherv", recv, [send, (counts[me], 1)], [into, (counts, shifted)], expected=expected)
        recv, into, expected = output(total, 0, whole if me == root else None)
        check("Gatherv", recv, [send, (counts[me], 1)], [into, counts], root=root, expected=expected)
        recv, into, expected = output(counts[me] + 2, 2, sent[root][mine])
        check("Scatterv", recv, [send, counts], [into, (counts[me], 2)], root=root, expected=expected)
        recv, into, expected = output(2 * size, 0, np.concatenate([each[3:5] for each in sent]))
        check("Allgather", recv, [send, (2, 3)], [into, 2], expected=expected)
        recv, into, expected = output(size * counts[me], 0, np.concatenate(to_me))
        starts = [size * rank for rank in range(size)]
        check("Alltoallv", recv, [send, (counts, starts)], [into, counts[me]], expected=expected)
        recv, into, expected = output(5, 1, sent[root][:3])
        if me == root:
            recv.array[1:4] = put(sent[root][:3])
        check("Bcast", recv, [into, (3, 1)], root, expected=expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=ids)
def test_messages_of_every_kind(comm, dtype):
    """Counts and displacements of messages, in all forms."""
    nbytes, above, below = np.dtype(dtype).itemsize, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sent = random_bytes(9, nbytes, below)
    send = [as_array(put(random_bytes(9, nbytes, comm.rank)), dtype, ()), (4, 2)]
    expected = np.full((9, nbytes), 0xA5, np.uint8)
    expected[3:7] = sent[2:6]
    outputs = [Output((9, nbytes), "u1") for _ in range(3)]
    into = [[as_array(each.array, dtype, ()), (4, 3)] for each in outputs]
    comm.Sendrecv(send, above, 1, into[0], below, 1)
    received = comm.Irecv(into[1], below, 2)
    comm.Isend(send, above, 2).Wait()
    received.Wait()
    persistent = [comm.Recv_init(into[2], below, 3), comm.Send_init(send, above, 3)]
    for _ in range(2):
        for each in persistent:
            each.Start()
        pyncclx.Request.Waitall(persistent)
    for each in persistent:
        each.Free()
    with comparing() as compare:
        for name, output in zip(("Sendrecv", "Irecv", "Recv_init"), outputs, strict=False):
            compare(output, expected, name)


@pytest.mark.one_node
@pytest.mark.parametrize("dtype", DTYPES, ids=ids)
def test_windows_of_every_kind(comm, dtype):
    nbytes, above = np.dtype(dtype).itemsize, (comm.rank + 1) % comm.size
    below = (comm.rank - 1) % comm.size
    memory = comm.Alloc((9, nbytes), "u1")
    memory[...] = 0xA5
    win = pyncclx.Win.Create(memory, nbytes, comm=comm)
    send = as_array(put(random_bytes(9, nbytes, comm.rank)), dtype, ())
    got = Output((9, nbytes), "u1")
    win.Fence()
    win.Put([send, 4], above, (3, 4))
    win.Fence()
    win.Get([as_array(got.array, dtype, ()), (2, 5)], above, 4)
    win.Fence()
    expected, fetched = np.full((2, 9, nbytes), 0xA5, np.uint8)
    expected[3:7] = random_bytes(9, nbytes, below)[:4]
    fetched[5:7] = random_bytes(9, nbytes, comm.rank)[1:3]
    with comparing() as compare:
        compare(memory, expected, "Put")
        compare(got, fetched, "Get")
    win.Free()


@host_only
def test_blocks_of_records_are_reduced(comm):
    """The counts of Reduce_scatter are records, and so is its displacement."""
    pytest.importorskip("numba", reason="operators are compiled by Numba")
    pair = np.dtype([("n", "i8"), ("x", "f8")])

    def add(a, b, out):
        out.n = a.n + b.n
        out.x = a.x + b.x

    counts = [rank % 3 + 1 for rank in range(comm.size)]
    (*_, end), blocks = np.cumsum(counts).tolist(), parts(counts)[0]
    vectors = []
    for rank in range(comm.size):
        vectors.append(np.zeros(end + 1, pair))
        vectors[-1]["n"], vectors[-1]["x"] = np.arange(end + 1) + 100 * rank, rank + 0.5
    recv = Output(counts[comm.rank] + 1, pair)
    op = pyncclx.Op(add, pair)
    comm.Reduce_scatter([vectors[comm.rank], (end, 1)], [recv.array, counts[comm.rank]], counts, op)
    synchronize()
    mine = [vector[1:][blocks[comm.rank]] for vector in vectors]
    found = recv.read()
    with comparing() as compare:
        compare(found[:-1]["n"].copy(), sum(each["n"] for each in mine), "n")
        compare(found[:-1]["x"].copy(), sum(each["x"] for each in mine), "x")
        compare(found[-1:].view("u1"), np.full(pair.itemsize, 0xA5, np.uint8), "behind")
    if comm.size > 1:
        odd = [pair.itemsize * count + 8 * (rank in (0, comm.size - 1)) for rank, count in enumerate(counts)]
        with raises_everywhere(comm, ValueError, "whole number of records"):
            comm.Reduce_scatter(vectors[comm.rank].view("u1"), np.zeros(odd[comm.rank], "u1"), odd, op)


# ---- what has no rows ------------------------------------------------------------------------------------


def test_datatypes_that_leave_no_rows(comm):
    """A datatype of another length would change how many rows there are: nothing is written, the next call works."""
    size = comm.size
    rows, counts, got = put(np.ones((size, 8), "f4")), put(np.ones(size, "i8")), xp.zeros(size, "i8")
    recv = Output((size, 8), "f4")
    for datatype in (MPI.DOUBLE, MPI.BYTE, "c16"):
        wrong = [recv.array, (got, got), datatype]
        for send, into in (([rows, counts, datatype], recv.array), ([rows, counts], wrong)):
            with raises_everywhere(comm, ValueError, "rows are not defined"):
                comm.Alltoallv(send, into, layout="packed")
    with comparing() as compare:
        compare(recv, np.full(8 * size, 0xA5A5A5A5, "u4").view("f4").reshape(size, 8), "nothing")
        comm.Alltoallv([rows, counts, MPI.INT], [recv.array, (got, xp.zeros(size, "i8")), "u4"], layout="packed")
        compare(recv, np.ones((size, 8), "f4"), "another type of the same length")


@pytest.mark.parametrize("wrap", [lambda array: array, Interface, Dlpack], ids=["array", "interface", "dlpack"])
def test_fortran_order_has_no_rows(comm, wrap):
    size = comm.size
    turned = xp.asfortranarray(put(np.ones((2 * size, 3), "f4")))
    rows, counts, recv = xp.ones((2 * size, 3), "f4"), put(np.full(size, 2)), Output((2 * size, 3), "f4")
    for send, into in ((wrap(turned), recv.array), (rows, wrap(turned)), (wrap(turned), wrap(turned))):
        with raises_everywhere(comm, ValueError, "Fortran order"):
            comm.Alltoallv([send, counts], into, layout="packed")
    comm.Alltoallv([rows, counts], recv.array, layout="packed")
    with comparing() as compare:
        compare(recv, np.ones((2 * size, 3), "f4"), "rows")


def test_specs_of_tokens(comm):
    """Parts of arrays, and types of them: whole tokens, or an exception before anything is written."""
    case = Case(comm, generator(comm), tokens=4).draw([4] * comm.size)
    ids = put(case.routing.ids[comm.rank])
    values = np.concatenate([np.full((2, 16), np.nan, "f4"), case.values[comm.rank], np.full((1, 16), np.nan, "f4")])
    out = Output((6, 64), "u1")
    bits = out.array.reshape(-1).view("f4").reshape(24, 4)
    tokens = put(values)
    with case.shuffle as shuffle, comparing() as compare:
        weights = put(case.weights[comm.rank])
        rows, handle = shuffle.dispatch([tokens, (64, 32), "f4"], ids, weights)
        case.check_rows(compare, rows, "part of an array")
        for spec, error in (
            ([out.array, "f4"], ValueError),
            ([out.array[:4], (64, 0), "f4"], ValueError),
            ([bits, (64, 0), "f4"], ValueError),
            ([tokens, (64, 40), "f4"], ValueError),
            ([tokens, (48, 0), "f4"], ValueError),
            (xp.asfortranarray(tokens[:4]), ValueError),
            ([xp.asfortranarray(tokens[:4]), MPI.FLOAT], ValueError),
            ([tokens[:4], "i4"], TypeError),
        ):
            with raises_everywhere(comm, error):
                shuffle.combine(case.expert_out(), handle, out=spec)
        compare(out, np.full((6, 64), 0xA5, np.uint8), "nothing")
        into = out.array.reshape(-1).view("f4").reshape(6, 16)
        shuffle.combine(case.expert_out(), handle, out=[into, (64, 16)])
        found = out.read().reshape(-1).view("f4").reshape(6, 16)
        case.check_sums(compare, found[1:5].copy(), "part of an array")
        compare(found[[0, 5]].view("u1"), np.full((2, 64), 0xA5, np.uint8), "beside it")


def test_transforms_of_parts(comm):
    """`row` and `column` count in the part that is sent; what is not whole rows is refused."""
    pytest.importorskip("numba", reason="transforms are compiled by Numba")

    @pyncclx.Transform
    def located(x, row, column):
        return 100 * x + 10 * row + column

    x = np.arange(12, dtype="f4").reshape(4, 3)
    recv = Output((comm.size, 2, 3), "f4")
    for spec in ([put(x), 4], [put(x), (6, 2)], [put(x), MPI.DOUBLE], [put(x.astype("f8")), MPI.FLOAT]):
        with raises_everywhere(comm, ValueError):
            comm.Allgather(spec, recv.array, transform=located)
    comm.Allgather([put(x), (6, 3), "f4"], recv.array, transform=located)
    expected = 100 * x[1:3] + 10 * np.arange(2)[:, None] + np.arange(3)
    with comparing() as compare:
        compare(recv, np.stack([expected.astype("f4")] * comm.size), "two rows")
