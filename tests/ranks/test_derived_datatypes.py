"""Derived datatypes on device arrays, against MPI on host copies; what no datatype names stays as it is."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from arrays import Output, get, gpu_only, put, xp
from everywhere import raises_everywhere
from pyncclx import devices
from pyncclx.derived.packing import PACK, UNPACK, Part, packing_of
from pyncclx.derived.typemap import typemap_of
from reference import comparing, labels
from typemaps import DATATYPES, packed_by_mpi, unpacked_by_mpi

INT64 = MPI.INT64_T


@pytest.fixture(scope="module")
def comm():
    """The ranks in reversed order."""
    with pyncclx.Communicator().Split(0, -MPI.COMM_WORLD.rank) as comm:
        yield comm


def rows_of(comm):
    """As many rows of a column as go in chunks."""
    return comm.team.layout.chunk_nbytes * comm.team.layout.channels // 8 + 5


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


def call(comm, form, name, *args):
    """A collective in one of its forms."""
    if form == "blocking":
        getattr(comm, name)(*args)
    elif form == "nonblocking":
        getattr(comm, f"I{name.lower()}")(*args).Wait()
    else:
        request = getattr(comm, f"{name}_init")(*args)
        request.Start()
        request.Wait()


FORMS = ("blocking", "nonblocking", "persistent")


@pytest.mark.parametrize("name", ["Bcast", "Gather", "Scatter", "Allgather", "Alltoall"])
def test_collectives(comm, name):
    """Derived on both sides, in all forms."""
    size, root = comm.size, comm.size - 1
    rooted = (root,) if name in ("Bcast", "Gather", "Scatter") else ()
    with comparing() as compare:
        for number, kind in enumerate(KINDS):
            many = 2 * size
            datatype, span = made(comm, kind, many)
            values = labels(comm.rank, span, number)
            recv = Output(span, "i8").fill(values) if name == "Bcast" else Output(span, "i8")
            expected = recv.read()
            send = [] if name == "Bcast" else [values]
            specs = [[each, 2, datatype] for each in (*send, expected)]
            getattr(MPI.Intracomm, name)(comm, *specs, *rooted)
            specs = [[each, 2, datatype] for each in (*map(put, send), recv.array)]
            call(comm, FORMS[number % 3], name, *specs, *rooted)
            compare(recv, expected, kind)
            datatype.Free()


@pytest.mark.parametrize("name", ["Gatherv", "Scatterv", "Allgatherv", "Alltoallv"])
def test_vector_collectives(comm, name):
    """Counts and displacements in elements, some blocks empty, in any order, with gaps between them."""
    size, me, root = comm.size, comm.rank, comm.size // 2
    matrix = np.random.default_rng(size).integers(0, 3, (size, size))
    with comparing() as compare:
        for number, kind in enumerate(KINDS):
            many = 4 * size
            datatype, span = made(comm, kind, many)
            places = [4 * (size - 1 - rank) + 1 for rank in range(size)]
            counts = matrix[root].tolist()
            whole, mine = (counts, places), (counts[me], 1)
            values, recv = labels(me, span, number), Output(span, "i8")
            expected = recv.read()
            sides = {
                "Gatherv": (mine, whole if me == root else None),
                "Scatterv": (whole if me == root else None, mine),
                "Allgatherv": (mine, whole),
                "Alltoallv": ((matrix[me], places), (matrix[:, me], places)),
            }[name]
            rooted = (root,) if name in ("Gatherv", "Scatterv") else ()

            def specs(arrays, sides=sides, datatype=datatype):
                return [None if side is None else [a, side, datatype] for a, side in zip(arrays, sides, strict=True)]

            getattr(MPI.Intracomm, name)(comm, *specs((values, expected)), *rooted)
            call(comm, FORMS[number % 3], name, *specs((put(values), recv.array)), *rooted)
            compare(recv, expected, kind)
            datatype.Free()


@pytest.mark.parametrize("name", ["Gather", "Allgather", "Alltoall", "Allgatherv"])
def test_in_place(comm, name):
    size, root = comm.size, 0
    datatype, span = made(comm, "columns", 2 * size)
    values, recv = labels(comm.rank, span), Output(span, "i8").fill(labels(comm.rank, span))
    expected = recv.read()
    in_place = name != "Gather" or comm.rank == root
    rooted = (root,) if name == "Gather" else ()
    counts = [2] * size if name == "Allgatherv" else 2
    sendbuf = MPI.IN_PLACE if in_place else [values, 2, datatype]
    getattr(MPI.Intracomm, name)(comm, sendbuf, [expected, counts, datatype], *rooted)
    sendbuf = MPI.IN_PLACE if in_place else [put(values), 2, datatype]
    getattr(comm, name)(sendbuf, [recv.array, counts, datatype], *rooted)
    with comparing() as compare:
        compare(recv, expected, name)
    datatype.Free()


def test_other_datatypes_on_other_ranks(comm):
    """What counts is the elements' types, not how they lie: even ranks have columns, odd ones rows."""
    size, me, rows = comm.size, comm.rank, 6
    column = INT64.Create_vector(rows, 1, size).Create_resized(0, 8).Commit()
    values = labels(me, rows * size).reshape(rows, size)
    blocks = values.T if me % 2 == 0 else values.reshape(size, rows)  # what goes to each rank
    expected = np.stack([comm.alltoall(list(blocks))[rank] for rank in range(size)])
    with comparing() as compare:
        for name, count in (("Alltoall", 1), ("Alltoallv", [1] * size)):
            recv = Output((rows, size) if me % 2 == 0 else (size, rows), "i8")
            if me % 2 == 0:
                getattr(comm, name)([put(values), count, column], [recv.array, count, column])
            else:
                plain = rows if name == "Alltoall" else [rows] * size
                getattr(comm, name)([put(values), plain, INT64], [recv.array, plain, INT64])
            compare(recv, expected.T if me % 2 == 0 else expected, name)
        for root in range(size):
            buf = Output((rows, size), "i8").fill(values)
            comm.Bcast([buf.array, 1, column] if me % 2 == 0 else [buf.array, rows, INT64], root)
            sent = comm.bcast(values[:, 0] if me % 2 == 0 else values.reshape(-1)[:rows], root)
            wanted = values.copy()
            (wanted.T[0] if me % 2 == 0 else wanted.reshape(-1)[:rows])[:] = sent
            compare(buf, wanted, f"root {root}")
    column.Free()


def test_alltoallw(comm):
    """A matrix whose rows are divided unevenly among the ranks becomes one whose columns are."""
    size, me = comm.size, comm.rank
    heights, widths = [1 + 3 * (r % 2) for r in range(size)], [5 - r % 3 for r in range(size)]
    tops, lefts = np.cumsum([0, *heights]).tolist(), np.cumsum([0, *widths]).tolist()
    sends = [
        INT64.Create_subarray([heights[me], lefts[-1]], [heights[me], w], [0, x])
        for w, x in zip(widths, lefts, strict=False)
    ]
    recvs = [
        INT64.Create_subarray([tops[-1], widths[me]], [h, widths[me]], [y, 0])
        for h, y in zip(heights, tops, strict=False)
    ]
    types = [each.Commit() for each in (*sends, *recvs)]
    with comparing() as compare:
        for number, form in enumerate(FORMS):
            values = labels(me, heights[me] * lefts[-1], number)
            recv = Output((tops[-1], widths[me]), "i8")
            call(comm, form, "Alltoallw", [put(values), types[:size]], [recv.array, types[size:]])
            whole = np.concatenate(
                [labels(r, heights[r] * lefts[-1], number).reshape(heights[r], -1) for r in range(size)]
            )
            compare(recv, whole[:, lefts[me] : lefts[me + 1]], form)
    for each in types:
        each.Free()


@pytest.mark.parametrize("in_place", [False, True], ids=["two buffers", "in place"])
def test_alltoallw_of_all_kinds(comm, in_place):
    """Blocks of unlike datatypes, some empty, some in chunks, one after the other with displacements in bytes."""
    size, me = comm.size, comm.rank
    kinds = ["contiguous", "pieces", "long columns", "irregular", "columns"]
    pairs = [kinds[(me + rank) % 5] for rank in range(size)]  # the same seen from both sides
    counts = [(me * rank + me + rank) % 3 for rank in range(size)]
    types, displs, end = [], [], 8
    for kind in pairs:
        datatype, span = made(comm, kind, 2)
        types.append(datatype)
        displs.append(end)
        end += 8 * span + 16
    values = labels(me, end // 8)
    recv = Output(end // 8, "i8")
    if in_place:
        recv.fill(values)
    expected = recv.read()
    MPI.Intracomm.Alltoallw(
        comm, MPI.IN_PLACE if in_place else [values, counts, displs, types], [expected, (counts, displs), types]
    )
    comm.Alltoallw(
        MPI.IN_PLACE if in_place else [put(values), (counts, displs), types], [recv.array, counts, displs, types]
    )
    with comparing() as compare:
        compare(recv, expected, "Alltoallw")
    for each in types:
        each.Free()


def test_alltoallw_without_copies(comm):
    """Contiguous blocks, which are moved from where they are, to a window."""
    size, me, most = comm.size, comm.rank, 2 * rows_of(comm)
    whole = comm.Alloc(size * most + 64, "i8")
    recv = Output(size * most, "i8", memory=whole.view("u1"))
    counts, places = [most - rank - me for rank in range(size)], [8 * most * rank for rank in range(size)]
    values = labels(me, size * most)
    comm.Alltoallw([put(values), counts, places, [INT64] * size], [recv.array, counts, places, [INT64] * size])
    expected = Output(size * most, "i8").read()
    MPI.Intracomm.Alltoallw(comm, [values, counts, places, [INT64] * size], [expected, counts, places, [INT64] * size])
    with comparing() as compare:
        compare(recv, expected, "windows")


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_kernels(offset):
    """Three elements of each datatype, in memory of any alignment, there and back."""
    device = devices.select()
    stream = device.current_stream()
    with comparing() as compare:
        for name, make in DATATYPES.items():
            datatype = make()
            repeated = datatype.Create_contiguous(3).Commit()
            lower, length = repeated.Get_true_extent()
            values = np.random.default_rng(1).integers(0, 256, max(length, 1), np.uint8)
            part = Part(typemap_of(datatype), 3, -lower, 0)
            packed, memory = Output(repeated.Get_size(), "u1", offset), Output(values.size, "u1", offset)
            for kernel, array in ((PACK, put(values, offset)), (UNPACK, memory.array)):
                addresses = pointer(array), pointer(packed.array)
                for launch in packing_of(device).launches(kernel, (part,), *addresses, stream):
                    device.launch(*launch, stream)
            expected, back = packed_by_mpi(values, repeated), Output(values.size, "u1").read()
            unpacked_by_mpi(expected, back, repeated)
            compare(packed, expected, f"{name}, packed")
            if name != "overlapping":  # where nobody says which byte is the last
                compare(memory, back, f"{name}, unpacked")
            datatype.Free()
            repeated.Free()


def pointer(array):
    return array.data.ptr if hasattr(array.data, "ptr") else array.ctypes.data


def test_bad_input(comm):
    size = comm.size
    x, y = xp.zeros(8 * size + 8, "i8"), xp.zeros(8 * size, "i8")
    column = INT64.Create_vector(4, 1, 3).Commit()
    with raises_everywhere(comm, ValueError, match=r"Allgather: recvbuf has .* bytes, the message takes"):
        comm.Allgather([x, 1, column], [y, 2, column])
    with raises_everywhere(comm, ValueError, match=r"Bcast: buf has count -1"):
        comm.Bcast([x, -1, column])
    with raises_everywhere(comm, ValueError, match=r"Bcast: buf has 64.* not a multiple of the datatype's extent 80"):
        comm.Bcast([x[:8], column])
    with raises_everywhere(comm, ValueError, match="displacement -1"):
        comm.Bcast([x, (1, -1), column])
    with raises_everywhere(comm, ValueError, match=f"Alltoallw: sendbuf has 0 datatypes, expecting {size}"):
        comm.Alltoallw([x, []], [y, [INT64] * size])
    with raises_everywhere(comm, ValueError, match=r"Alltoallw: recvbuf, block 0, has .* bytes, the message takes"):
        comm.Alltoallw([x, [INT64] * size], [y, ([1] * size, [-8] * size), [INT64] * size])
    with raises_everywhere(comm, MPI.Exception, match="negative"):
        comm.Alltoallw([x, [INT64] * size], [y, ([-1] * size, [0] * size), [INT64] * size])
    with raises_everywhere(comm, pyncclx.NotSupported, match="derived"):
        comm.Allreduce([x, 1, column], [y, 1, column])
    with raises_everywhere(comm, pyncclx.NotSupported, match="derived"):
        comm.Alltoallv([x, xp.ones(size, "i8"), column], y, layout="packed")
    assert not get(y).any()
    column.Free()


def test_how_it_runs(comm):
    assert comm.explain("Alltoallw", 1 << 20).startswith("native")
    assert comm.explain("Ialltoallw", 8).startswith("native")
    with comm.Create_graph([], []) if comm.size == 1 else comm.Create_cart([comm.size]) as topology:
        word = "host" if comm.size == 1 else "native"
        assert topology.explain("Neighbor_alltoallw").startswith(word) or (word == "host" and comm.device == "gpu")


@gpu_only
def test_graph(comm):
    """Captured once, replayed with other data: packed memory outlives the capture."""
    size, me = comm.size, comm.rank
    column = INT64.Create_vector(50, 1, size).Create_resized(0, 8).Commit()
    irregular = INT64.Create_indexed([1 + i % 3 for i in range(20)], [4 * i for i in range(20)]).Commit()
    x, y = xp.zeros((50, size), "i8"), Output((50, size), "i8")
    z = Output(80, "i8")
    stream = xp.cuda.Stream(non_blocking=True)

    def operations():
        comm.Alltoall([x, 1, column], [y.array, 1, column])
        comm.Bcast([z.array, 1, irregular], size - 1)

    with stream:
        operations()
        stream.synchronize()
        stream.begin_capture()
        operations()
        graph = stream.end_capture()
        comm.Bcast([xp.zeros(80, "i8"), 1, irregular], 0)
    irregular.Free()
    with comparing() as compare:
        for number in range(3):
            values, last = labels(me, 50 * size, number).reshape(50, size), labels(size - 1, 80, number)
            with stream:
                x.set(values)
                z.fill(last if me == size - 1 else np.full(80, -1))
                graph.launch(stream)
            whole = [labels(rank, 50 * size, number).reshape(50, size)[:, me] for rank in range(size)]
            compare(y, np.stack(whole, axis=1), f"replay {number}")
            named = np.concatenate([np.arange(4 * i, 4 * i + 1 + i % 3) for i in range(20)])
            wanted = last if me == size - 1 else np.full(80, -1)
            wanted[named] = last[named]
            compare(z, wanted, f"replay {number}, irregular")
    column.Free()


def address_of(array):
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def test_absolute_addresses(comm):
    """MPI.BOTTOM, and datatypes that name elements of several arrays."""
    size, rank = comm.size, comm.rank
    first, second = (put(labels(rank, 3 * size, call)) for call in (0, 1))
    output = put(np.full(6 * size, -1))
    here, there = address_of(first), address_of(second)
    sends = [
        MPI.Datatype.Create_struct([1, 2], [here + 24 * peer, there + 24 * peer + 8], [INT64, INT64]).Commit()
        for peer in range(size)
    ]
    receives = [INT64.Create_hindexed([3], [address_of(output) + 48 * peer]).Commit() for peer in range(size)]
    counts = [1] * size, [0] * size
    comm.Alltoallw([MPI.BOTTOM, counts, sends], [MPI.BOTTOM, counts, receives])
    comm.synchronize()
    expected = np.full((size, 6), -1)
    for peer in range(size):
        values = labels(peer, 3 * size, 0), labels(peer, 3 * size, 1)
        expected[peer, :3] = values[0][3 * rank], values[1][3 * rank + 1], values[1][3 * rank + 2]
    for datatype in (*sends, *receives):
        datatype.Free()
    with comparing() as compare:
        compare(output, expected.ravel(), "Alltoallw")
