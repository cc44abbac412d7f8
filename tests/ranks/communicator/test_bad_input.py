"""Bad input raises mpi4py's exception with a text that helps, launches nothing, and leaves the communicator usable."""

from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import NotSupported
from pyncclx.operators import ops
from support.arrays import HOST, Interface, Output, get, gpu_only, host_only, put, xp
from support.lease import epochs
from support.reference import comparing, contributions, fold


@pytest.fixture(params=["reversed"])
def comm(request):
    """One communicator for all cases: it must survive them."""
    communicator = pyncclx.Communicator().Split(0, -MPI.COMM_WORLD.rank)
    vectors = contributions(communicator.size, 10)
    yield communicator
    recv = Output(10, "f4")
    communicator.Allreduce(put(vectors[communicator.rank]), recv.array)
    with comparing() as compare:
        compare(recv, fold(ops.SUM, vectors), "afterwards")
    communicator.Free()


WITHOUT_ARITHMETIC = ("S1", "S4", "U1", "M8[s]", "m8[ns]", "V8", [("a", "f8"), ("b", "i4")])
REDUCTIONS = {
    "Allreduce": lambda c, a, op: c.Allreduce(a, a.copy(), op),
    "in place": lambda c, a, op: c.Allreduce(MPI.IN_PLACE, a, op),
    "Reduce": lambda c, a, op: c.Reduce(a, a.copy(), op),
    "Reduce_scatter": lambda c, a, op: c.Reduce_scatter(a, a[:2].copy(), None, op),
    "Reduce_scatter_block": lambda c, a, op: c.Reduce_scatter_block(a, a[:2].copy(), op),
    "Scan": lambda c, a, op: c.Scan(a, a.copy(), op),
    "Exscan": lambda c, a, op: c.Exscan(a, a.copy(), op),
    "Iallreduce": lambda c, a, op: c.Iallreduce(a, a.copy(), op),
    "Allreduce_init": lambda c, a, op: c.Allreduce_init(a, a.copy(), op),
}


@host_only
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", WITHOUT_ARITHMETIC, ids=str)
def test_elements_without_arithmetic_are_not_reduced(comm, dtype, name):
    """They can be moved, and reduced as the numbers that the caller declares."""
    array = np.zeros(2 * comm.size, dtype)
    for op in (MPI.SUM, MPI.BOR, MPI.MAX, MPI.LAND):
        refused(comm, lambda op=op: REDUCTIONS[name](comm, array, op), TypeError, "without arithmetic")
    if array.dtype.names is None:  # for records there may be an operator
        mine = pyncclx.Op(lambda x, y: x + y)
        refused(comm, lambda: comm.Allreduce(array, array.copy(), mine), TypeError, "without arithmetic")
    comm.Bcast(array)
    comm.Allreduce(MPI.IN_PLACE, [array, MPI.BYTE], MPI.BOR)


@pytest.fixture
def a(comm):
    """Arrays to make mistakes with: `n` elements of float32 and friends, counts for a dynamic all-to-all."""
    n = 4 * comm.size
    made = {name: xp.zeros(n, name) for name in ("f4", "i4", "f8")}
    return SimpleNamespace(
        **made, n=n, short=xp.zeros(n - 1, "f4"), gaps=xp.zeros(2 * n, "f4")[::2], counts=xp.zeros(comm.size, "i8")
    )


def refused(comm, call, exception, *words, error_class=None):
    """`call` raises, its text has all the words, and no kernel has run."""
    before = epochs(comm)
    with pytest.raises(exception) as raised:
        call()
    missing = [word for word in words if word not in str(raised.value)]
    assert not missing, f"{missing} not in: {raised.value}"
    if error_class is not None:
        assert raised.value.Get_error_class() == error_class
    assert epochs(comm) == before


# What is wrong: (call, exception, words of its text). `c` is the communicator, `a` are the arrays.
ARRAYS = {
    "datatypes differ": (lambda c, a: c.Allreduce(a.f4, a.i4), ValueError, ["Allreduce", "float32", "int32", "equal"]),
    "Reduce datatypes": (lambda c, a: c.Reduce(a.f4, a.i4, root=c.rank), ValueError, ["Reduce", "datatypes"]),
    "scatter datatypes": (lambda c, a: c.Reduce_scatter_block(a.f4, a.i4), ValueError, ["block", "datatypes"]),
    "counts differ": (lambda c, a: c.Allreduce(a.f4, a.short), ValueError, ["Allreduce", "count", "equal"]),
    "scatter counts": (lambda c, a: c.Reduce_scatter_block(a.f4, a.f4[:3]), ValueError, ["count", "blocks"]),
    "gaps to send": (lambda c, a: c.Allreduce(a.gaps, a.f4), BufferError, ["Allreduce: sendbuf", "ascontiguousarray"]),
    "gaps to receive": (lambda c, a: c.Allgather(a.f4, a.gaps), BufferError, ["Allgather: recvbuf", "contiguous"]),
    "read-only": (
        lambda c, a: c.Allreduce(a.f4, Interface(a.f4, readonly=True)),
        BufferError,
        ["Allreduce: recvbuf", "read-only", "writable"],
    ),
    "negative count": (lambda c, a: c.Allreduce([a.f4, -1], [a.f4, -1]), ValueError, ["Allreduce: recvbuf", "-1"]),
    "count too large": (lambda c, a: c.Bcast([a.f4, 10**6]), ValueError, ["Bcast: buf", "1000000", "larger"]),
    "displ too large": (lambda c, a: c.Bcast([a.f4, (1, 10**6)]), ValueError, ["Bcast: buf", "displacement"]),
    "no array": (lambda c, a: c.Allreduce(a.f4, None), TypeError, ["Allreduce: recvbuf", "None", "expecting"]),
    "not an array": (lambda c, a: c.Allgather(a.f4, 5), TypeError, ["Allgather: recvbuf", "5", "expecting"]),
    "no blocks": (lambda c, a: c.Alltoall(a.f4, xp.zeros(a.n + 1, "f4")), ValueError, ["Alltoall: recvbuf", "ranks"]),
    "unknown type": (lambda c, a: c.Bcast([a.f4, "what"]), KeyError, ["'what'"]),
    "derived type": (
        lambda c, a: c.Allreduce(a.f4, [a.f4, 1, MPI.FLOAT.Create_contiguous(2).Commit()]),
        NotSupported,
        ["derived", "contiguous"],
    ),
    "in place, not root": (
        lambda c, a: c.Reduce(MPI.IN_PLACE, a.f4, root=(c.rank + 1) % c.size),
        MPI.Exception,
        ["Reduce: sendbuf", "root"],
    ),
    "no such algorithm": (
        lambda c, a: c.Allreduce(a.f4, a.f4, algorithm="magic"),
        ValueError,
        ["'magic'", "'one_shot' or 'two_shot_lines' or 'two_shot'"],
    ),
    "too long for it": (
        lambda c, a: c.Allreduce(*[xp.zeros(10**7, "u1")] * 2, algorithm="one_shot"),
        ValueError,
        ["one_shot", "10000000", "size"],
    ),
}
DYNAMIC = {
    "counts of int32": (lambda c, a: ([a.f4, a.counts.astype("i4")], a.f4, {}), TypeError, ["sendbuf counts", "int64"]),
    "too many counts": (
        lambda c, a: ([a.f4, xp.zeros(c.size + 1, "i8")], a.f4, {}),
        ValueError,
        ["sendbuf counts", "expecting", "rank"],
    ),
    "no counts": (lambda c, a: (a.f4, a.f4, {}), ValueError, ["sendbuf", "[sendbuf, counts]"]),
    "unlike rows": (lambda c, a: ([a.f4, a.counts], a.f8, {}), MPI.Exception, ["row", "4", "8", "equal"]),
    "no such layout": (lambda c, a: ([a.f4, a.counts], a.f4, {"layout": "heap"}), ValueError, ["'heap'", "'slots'"]),
    "no slots": (
        lambda c, a: ([a.f4, a.counts], xp.zeros(a.n + 1, "f4"), {"layout": "slots"}),
        ValueError,
        ["recvbuf", "capacity"],
    ),
    "total too long": (lambda c, a: ([a.f4, a.counts], a.f4, {"total": xp.zeros(2, "i8")}), ValueError, ["total", "1"]),
    "status of int32": (
        lambda c, a: ([a.f4, a.counts], a.f4, {"status": xp.zeros(c.size, "i4")}),
        ValueError,
        ["status", "int64"],
    ),
    "output is input": (
        lambda c, a: ([a.f4, a.counts], [a.f4, a.counts], {}),
        ValueError,
        ["recvbuf counts", "another"],
    ),
    "status is counts": (lambda c, a: ([a.f4, a.counts], a.f4, {"status": a.counts}), ValueError, ["status"]),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays(comm, a, case):
    call, exception, words = ARRAYS[case]
    if case in {"in place, not root", "no blocks"} and comm.size == 1:
        pytest.skip("one rank cannot make this mistake")
    refused(comm, lambda: call(comm, a), exception, *words)


@pytest.mark.parametrize("case", DYNAMIC)
def test_dynamic_alltoallv(comm, a, case):
    arguments, exception, words = DYNAMIC[case]
    if case == "no slots" and comm.size == 1:
        pytest.skip("any capacity divides among one rank")
    send, recv, options = arguments(comm, a)
    refused(comm, lambda: comm.Alltoallv(send, recv, **{"layout": "packed", **options}), exception, "Alltoallv", *words)


BLOCKS = {
    "in place, not root": (
        lambda c, a: c.Gatherv(MPI.IN_PLACE, a.f4, (c.rank + 1) % c.size),
        MPI.Exception,
        ["Gatherv: sendbuf", "root"],
    ),
    "no blocks": (
        lambda c, a: c.Gather(a.f4, xp.zeros(a.n + 1, "f4"), c.rank),
        ValueError,
        ["Gather: recvbuf", "ranks"],
    ),
    "nothing at root": (lambda c, a: c.Scatter(None, a.f4, c.rank), TypeError, ["Scatter: sendbuf", "None"]),
    "too many counts": (
        lambda c, a: c.Gatherv(a.f4, [a.f4, [1] * (c.size + 1)], c.rank),
        ValueError,
        ["Gatherv: recvbuf", "expecting"],
    ),
    "past the end": (
        lambda c, a: c.Scatterv([a.f4, [5] * c.size], a.f4, c.rank),
        ValueError,
        ["Scatterv: sendbuf", "larger"],
    ),
    "counts on the device": (
        lambda c, a: c.Allgatherv(a.f4[:1], [a.f4, Interface(a.counts)]),
        NotSupported,
        ["Allgatherv: recvbuf", "Alltoallv", "lists"],
    ),
    "no sum": (
        lambda c, a: c.Reduce_scatter(a.f4, a.f4[:4], [4] * (c.size - 1) + [5]),
        ValueError,
        ["Reduce_scatter", "sendbuf", "sum"],
    ),
    "no sum, in place": (
        lambda c, a: c.Reduce_scatter(MPI.IN_PLACE, a.f4, [1] * c.size),
        ValueError,
        ["Reduce_scatter", "recvbuf", "sum"],
    ),
    "another receive count": (
        lambda c, a: c.Reduce_scatter(a.f4, a.f4[:3], [4] * c.size),
        ValueError,
        ["Reduce_scatter", "receive count 3", "recvcounts"],
    ),
    "negative receive count": (
        lambda c, a: c.Reduce_scatter(a.f4, a.f4[:4], [-4] * c.size),
        MPI.Exception,
        ["Reduce_scatter: recvcounts", "-4"],
    ),
    "in place without counts": (lambda c, a: c.Reduce_scatter(MPI.IN_PLACE, a.f4), TypeError, ["recvcounts", "None"]),
    "scan datatypes": (lambda c, a: c.Scan(a.f4, a.i4), ValueError, ["Scan", "datatypes"]),
    "exscan counts": (lambda c, a: c.Exscan(a.f4, a.short), ValueError, ["Exscan", "count", "equal"]),
    "no such algorithm": (lambda c, a: c.Scan(a.f4, a.f4, algorithm="magic"), ValueError, ["'magic'", "'one_shot'"]),
}


@pytest.mark.parametrize("case", BLOCKS)
def test_blocks_and_prefixes(comm, a, case):
    call, exception, words = BLOCKS[case]
    if case in {"in place, not root", "no blocks"} and comm.size == 1:
        pytest.skip("one rank cannot make this mistake")
    refused(comm, lambda: call(comm, a), exception, *words)


def test_truncation(comm, a):
    for name, call in (
        ("Gather", lambda: comm.Gather(a.f4[:3], a.f4[: 2 * comm.size], comm.rank)),
        ("Gatherv", lambda: comm.Gatherv(a.f4[:3], [a.f4, 2], comm.rank)),
        ("Scatter", lambda: comm.Scatter(a.f4, a.f4[:3].copy(), comm.rank)),
        ("Scatterv", lambda: comm.Scatterv([a.f4, 4], a.f4[:3].copy(), comm.rank)),
        ("Allgatherv", lambda: comm.Allgatherv(a.f4[:3], [a.f4, 2])),
        ("Allgather", lambda: comm.Allgather(a.f4[:3], a.f4[: 2 * comm.size])),
        ("Allgather", lambda: comm.Allgather(a.f4[:1], a.f4[: 2 * comm.size])),
        ("Alltoall", lambda: comm.Alltoall(a.f4, a.f4[: comm.size])),
    ):
        refused(comm, call, MPI.Exception, name, "bytes", error_class=MPI.ERR_TRUNCATE)


def test_roots(comm, a):
    for root in (-1, comm.size):
        for name, call in (
            ("Bcast", lambda r=root: comm.Bcast(a.f4, r)),
            ("Reduce", lambda r=root: comm.Reduce(a.f4, a.f4, root=r)),
            ("Gather", lambda r=root: comm.Gather(a.f4, a.f4, r)),
            ("Gatherv", lambda r=root: comm.Gatherv(a.f4, a.f4, r)),
            ("Scatter", lambda r=root: comm.Scatter(a.f4, a.f4, r)),
            ("Scatterv", lambda r=root: comm.Scatterv(a.f4, a.f4, r)),
        ):
            refused(comm, call, MPI.Exception, name, f"root is {root}", "ranks", error_class=MPI.ERR_ROOT)


def test_roots_and_ranks_that_are_no_int(comm):
    """mpi4py takes floats, as `comm.size / 2` is one, and no text."""
    last, dest, source = comm.size - 1, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x, gathered = xp.full(3, comm.rank, "f4"), xp.full((comm.size, 3), -1, "f4")
    comm.Gather(x, gathered, float(last))
    if comm.rank == last:
        assert get(gathered).tolist() == [[rank] * 3 for rank in range(comm.size)]
    comm.Sendrecv(x, float(dest), 5.0, gathered[0], float(source), 5.0)
    assert get(gathered[0]).tolist() == [source] * 3
    comm.Bcast(x, float(last))
    assert get(x).tolist() == [last] * 3
    for what in ("0", None):
        refused(comm, lambda what=what: comm.Bcast(x, what), TypeError, "an integer is required")
        refused(comm, lambda what=what: comm.Isend(x, what), TypeError, "an integer is required")


@pytest.mark.parametrize("name", ["Allreduce", "Reduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan"])
def test_operators(comm, a, name):
    recv = a.f4[:4] if name.startswith("Reduce_scatter") else a.f4

    def reduce(op):
        return lambda: getattr(comm, name)(a.f4, recv, op=op)

    for op in (MPI.BAND, MPI.LOR, MPI.MINLOC):
        refused(comm, reduce(op), MPI.Exception, name, "float32", "takes", error_class=MPI.ERR_OP)
    refused(comm, reduce(MPI.OP_NULL), MPI.Exception, "operator", "SUM", error_class=MPI.ERR_OP)
    refused(comm, reduce("sum"), TypeError, "op is 'sum'", "MPI.SUM")
    mine = MPI.Op.Create(lambda x, y, t: None)
    refused(comm, reduce(mine), NotSupported, "Op.Create", "pyncclx.Op")
    mine.Free()


def test_average_of_integers(comm, a):
    refused(
        comm, lambda: comm.Allreduce(a.i4, a.i4, pyncclx.AVG), MPI.Exception, "AVG", "int32", error_class=MPI.ERR_OP
    )


def test_counts_on_the_host(comm, a):
    ones = [1] * comm.size
    refused(comm, lambda: comm.Alltoallv([a.f4, [*ones, 1]], a.f4), ValueError, "Alltoallv: sendbuf", "expecting")
    refused(
        comm,
        lambda: comm.Alltoallv([a.f4, ones], [a.f4, [10**6] * comm.size]),
        ValueError,
        "Alltoallv: recvbuf",
        "larger",
    )
    refused(
        comm, lambda: comm.Alltoallv([a.f4, (ones, [-1] * comm.size)], a.f4), ValueError, "Alltoallv: sendbuf", "displs"
    )
    negative = [a.f4, [*ones[1:], -1]]
    refused(comm, lambda: comm.Alltoallv(negative, a.f4), MPI.Exception, "sendbuf", "-1", error_class=MPI.ERR_COUNT)


def test_settings(comm):
    with pytest.raises(ValueError, match=r"blocking is 'never'.*'stream' or 'host'"):
        comm.blocking = "never"
    with pytest.raises(ValueError, match=r"operation is 'Allredcue'.*Allreduce"):
        comm.explain("Allredcue")
    with pytest.raises(TypeError, match="Communicator: comm is 'world'"):
        pyncclx.Communicator("world")


def test_freed_communicator(a):
    gone = pyncclx.Communicator().Dup()
    gone.Allreduce(a.f4, xp.empty_like(a.f4))
    gone.Free()
    for call in (
        lambda: gone.Allreduce(a.f4, a.f4),
        lambda: gone.Bcast(a.f4),
        lambda: gone.Alltoallv([a.f4, a.counts], a.f4, layout="packed"),
        lambda: gone.Barrier(device=True),
        lambda: gone.blocking,
        gone.memory_report,
    ):
        with pytest.raises(MPI.Exception) as raised:
            call()
        assert raised.value.Get_error_class() == MPI.ERR_COMM


@host_only
def test_byte_order(comm):
    swapped = np.zeros(3, np.dtype("f4").newbyteorder())
    refused(comm, lambda: comm.Allreduce(swapped, swapped), BufferError, "byte order", "astype")


@gpu_only
def test_host_and_device_mixed(comm, a):
    host = np.zeros(a.n, "f4")
    for call, words in (
        (lambda: comm.Allreduce(host, a.f4), ["Allreduce", "sendbuf", "host memory", "cupy.asarray"]),
        (lambda: comm.Allgather(a.f4, host), ["Allgather", "recvbuf", "host memory", "cupy.asarray"]),
        (lambda: comm.Alltoallv([a.f4, a.counts], host), ["Alltoallv", "recvbuf", "host memory"]),
    ):
        refused(comm, call, NotSupported, *words)


@gpu_only
def test_array_of_another_gpu(comm, a):
    if HOST or xp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    mine = xp.cuda.Device().id
    other = (mine + 1) % xp.cuda.runtime.getDeviceCount()
    with xp.cuda.Device(other):
        elsewhere = xp.zeros(a.n, "f4")
    refused(comm, lambda: comm.Allreduce(elsewhere, a.f4), ValueError, "sendbuf", f"GPU {other}", f"GPU {mine}")


@host_only
def test_specs_without_an_extent(comm):
    """As mpi4py, also where the memory is no array."""
    memory, x = MPI.Alloc_mem(8 * comm.size), np.zeros(8 * comm.size, "u1")
    for spec in ([memory, 0, 1, MPI.DATATYPE_NULL], [x, 0, 1, MPI.DATATYPE_NULL]):
        refused(comm, lambda spec=spec: comm.Bcast(spec), ValueError, "DATATYPE_NULL")
    types = [MPI.BYTE] * comm.size
    for counts, displs in ((None, [0] * comm.size), ([0] * comm.size, None)):
        spec = [MPI.BOTTOM, counts, displs, types]
        refused(comm, lambda spec=spec: comm.Alltoallw(spec, [x, types]), ValueError, "MPI.BOTTOM")
    MPI.Free_mem(memory)


def raised_by(call, *arguments):
    """The class of a call's exception."""
    with pytest.raises(Exception) as raised:  # noqa: PT011
        call(*arguments)
    return type(raised.value)


ONE_FOR_ALL = pytest.param(MPI.DOUBLE, id="DOUBLE")


@pytest.mark.parametrize("types", [[None], [1.5], [["d"]], ["d"], ["dd"], "d", "dd", "", b"d", 5, ONE_FOR_ALL], ids=str)
def test_datatypes_of_blocks(types):
    """What mpi4py raises. Characters, which mpi4py takes in other calls, are no datatypes here."""
    kinds = [
        raised_by(own.Alltoallw, [xp.zeros(1), types], [xp.zeros(1), [MPI.DOUBLE]])
        for own in (MPI.COMM_SELF, pyncclx.Communicator(MPI.COMM_SELF))
    ]
    assert kinds[0] is kinds[1]
    assert kinds[0] in (TypeError, ValueError)
