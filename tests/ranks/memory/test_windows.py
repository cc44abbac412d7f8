"""Arrays from comm.Alloc: the same results as with any other, whether all ranks pass one or only some."""

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.operators import ops
from support.arrays import HOST, Output, get, put, xp
from support.everywhere import assert_everywhere
from support.reference import block_counts, comparing, contributions, counts, fold, labels, uneven_counts

# Which ranks have their buffers in a window.
WHO = {"all": lambda rank: True, "odd": lambda rank: rank % 2 == 1, "first": lambda rank: rank == 0}
who = pytest.mark.parametrize("who", WHO)
pytestmark = pytest.mark.parametrize("comm", ["reversed"], indirect=True)


class Memory:
    """Room for the arrays of a test: in two windows on some ranks, anywhere on the others."""

    def __init__(self, comm, who, nbytes):
        send, recv = (comm.Alloc(nbytes, "u1") for _ in range(2))
        self.send, self.recv = (send, recv) if WHO[who](comm.rank) else (None, None)

    def put(self, values, offset=0):
        """An array to send; it begins some elements after an aligned address."""
        if self.send is None:
            return put(values, offset)
        array = self.send[: (offset + values.size) * values.itemsize].view(values.dtype)[offset:]
        array[...] = put(values.reshape(-1))
        return array

    def output(self, count, dtype, offset=0):
        return Output(count, dtype, offset, self.recv)


def room(comm, itemsize, blocks):
    layout = comm.team.layout
    return (max(*counts(layout, itemsize), *block_counts(layout, itemsize)) + 100) * itemsize * blocks


@who
@pytest.mark.parametrize("operation", ["Allreduce", "Reduce", "Reduce_scatter_block"])
def test_reductions(comm, who, operation):
    blocks = comm.size if operation == "Reduce_scatter_block" else 1
    memory = Memory(comm, who, room(comm, 4, blocks))
    with comparing() as compare:
        for call, count in enumerate(counts(comm.team.layout, 4)[1:]):
            vectors = contributions(comm.size, count * blocks, call=call)
            for offset in (0, comm.rank % 4):  # not the same on all ranks
                recv = memory.output(count, "f4", offset)
                getattr(comm, operation)(memory.put(vectors[comm.rank], offset), recv.array)
                expected = fold(ops.SUM, vectors).reshape(blocks, count)[comm.rank if blocks > 1 else 0]
                if operation != "Reduce" or comm.rank == 0:
                    compare(recv, expected, f"count {count} offset {offset}")


@pytest.mark.parametrize("remainder", [0, 1, 13])
def test_allreduce_into_windows(comm, remainder):
    """Vectors from anywhere travel through the receive buffers; also of lengths that ranks and packs do not divide."""
    layout = comm.team.layout
    memory = Memory(comm, "all", room(comm, 4, 1))
    count = 4 * layout.chunk_nbytes * comm.size * layout.channels // 4 + 4 * comm.size + remainder
    with comparing() as compare:
        for call, offset in enumerate((0, comm.rank % 4)):
            vectors = contributions(comm.size, count, call=call)
            recv = memory.output(count, "f4", offset)
            comm.Allreduce(put(vectors[comm.rank]), recv.array)
            compare(recv, fold(ops.SUM, vectors), f"offset {offset}")


@who
@pytest.mark.parametrize("operation", ["Allreduce", "Reduce", "Reduce_scatter_block"])
def test_reductions_in_place(comm, who, operation):
    blocks = comm.size if operation == "Reduce_scatter_block" else 1
    memory = Memory(comm, who, room(comm, 4, blocks))
    with comparing() as compare:
        for call, count in enumerate(counts(comm.team.layout, 4)[1:]):
            vectors = contributions(comm.size, count * blocks, call=call)
            recv = memory.output(count * blocks, "f4").fill(vectors[comm.rank])
            in_place = operation != "Reduce" or comm.rank == 0
            getattr(comm, operation)(MPI.IN_PLACE if in_place else recv.array, recv.array if in_place else None)
            result = fold(ops.SUM, vectors)
            kept = vectors[comm.rank].copy()
            if blocks > 1:
                kept[:count] = result[comm.rank * count : (comm.rank + 1) * count]
                result = get(recv.array)
                compare(recv, np.concatenate([kept[:count], result[count:]]), f"count {count}")
            elif in_place:
                compare(recv, result, f"count {count}")
            else:
                compare(recv, kept, f"count {count}, not root")


def test_long_blocks_reduced_in_place(comm):
    """The result moves to the beginning tile by tile, when rank 0 has read what was there."""
    layout = comm.team.layout
    count = 33 * layout.chunk_nbytes * layout.channels // 4 + 5
    memory = Memory(comm, "all", 4 * count * comm.size + 64)
    with comparing() as compare:
        for call in range(2):
            vectors = contributions(comm.size, count * comm.size, call=call)
            recv = memory.output(count * comm.size, "f4").fill(vectors[comm.rank])
            comm.Reduce_scatter_block(MPI.IN_PLACE, recv.array)
            own = slice(comm.rank * count, (comm.rank + 1) * count)
            compare(get(recv.array)[:count], fold(ops.SUM, vectors)[own], f"call {call}")


@who
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("operation", ["Scan", "Exscan"])
def test_prefix_reductions(comm, who, operation, in_place):
    memory, end = Memory(comm, who, room(comm, 4, 1)), comm.rank + (operation == "Scan")
    with comparing() as compare:
        for call, count in enumerate(counts(comm.team.layout, 4)[1:]):
            vectors = contributions(comm.size, count, call=call)
            recv = memory.output(count, "f4", comm.rank % 2)
            if in_place:
                recv.fill(vectors[comm.rank])
            before = recv.read()
            getattr(comm, operation)(MPI.IN_PLACE if in_place else memory.put(vectors[comm.rank]), recv.array)
            compare(recv, fold(ops.SUM, vectors[:end]) if end else before, f"count {count}")


@who
@pytest.mark.parametrize("in_place", [False, True])
def test_reduce_scatter(comm, who, in_place):
    memory, me = Memory(comm, who, room(comm, 4, comm.size)), comm.rank
    with comparing() as compare:
        for call, lengths in enumerate(uneven_counts(comm.team.layout, 4, comm.size)):
            vectors, begin = contributions(comm.size, sum(lengths), call=call), sum(lengths[:me])
            expected = fold(ops.SUM, vectors)[begin : begin + lengths[me]]
            recv = memory.output(sum(lengths) if in_place else lengths[me], "f4")
            if in_place:
                recv.fill(vectors[me])
            comm.Reduce_scatter(MPI.IN_PLACE if in_place else memory.put(vectors[me]), recv.array, lengths)
            compare(put(recv.read()[: lengths[me]]), expected, f"counts {lengths}")


@who
@pytest.mark.parametrize("operation", ["Gatherv", "Allgatherv"])
@pytest.mark.parametrize("in_place", [False, True])
def test_gathered_blocks(comm, who, operation, in_place):
    memory, me = Memory(comm, who, room(comm, 8, comm.size)), comm.rank
    with comparing() as compare:
        for root, lengths in enumerate(uneven_counts(comm.team.layout, 8, comm.size)):
            recv, begin = memory.output(sum(lengths), "i8", offset=root % 2), sum(lengths[:me])
            receives = operation == "Allgatherv" or me == root % comm.size
            send = put(labels(me, lengths[me]))
            if in_place and receives:
                recv.array[begin : begin + lengths[me]] = send
            arguments = () if operation == "Allgatherv" else (root % comm.size,)
            getattr(comm, operation)(MPI.IN_PLACE if in_place and receives else send, [recv.array, lengths], *arguments)
            if receives:
                expected = np.concatenate([labels(rank, length) for rank, length in enumerate(lengths)])
                compare(recv, expected, f"counts {lengths}")


@who
def test_scattered_blocks(comm, who):
    memory, me = Memory(comm, who, room(comm, 8, 1)), comm.rank
    with comparing() as compare:
        for root, lengths in enumerate(uneven_counts(comm.team.layout, 8, comm.size)):
            recv, begin = memory.output(lengths[me], "i8", offset=root % 2), sum(lengths[:me])
            send = put(labels(root % comm.size, sum(lengths)))
            comm.Scatterv([send, lengths], recv.array, root % comm.size)
            compare(recv, labels(root % comm.size, begin + lengths[me])[begin:], f"counts {lengths}")


@who
@pytest.mark.parametrize("in_place", [False, True])
def test_allgather(comm, who, in_place):
    memory = Memory(comm, who, room(comm, 8, comm.size))
    with comparing() as compare:
        for call, count in enumerate(block_counts(comm.team.layout, 8)[1:]):
            mine = labels(comm.rank, count, call)
            recv = memory.output(count * comm.size, "i8", offset=call % 2)
            if in_place:
                recv.array[comm.rank * count : (comm.rank + 1) * count] = put(mine)
            comm.Allgather(MPI.IN_PLACE if in_place else put(mine), recv.array)
            compare(recv, np.concatenate([labels(rank, count, call) for rank in range(comm.size)]), f"count {count}")


@who
@pytest.mark.parametrize("in_place", [False, True])
def test_alltoall(comm, who, in_place):
    memory, size = Memory(comm, who, room(comm, 8, comm.size)), comm.size
    with comparing() as compare:
        for call, count in enumerate(block_counts(comm.team.layout, 8)[1:]):
            mine = labels(comm.rank, count * size, call)
            recv = memory.output(count * size, "i8", offset=call % 2)
            if in_place:
                recv.fill(mine)
            comm.Alltoall(MPI.IN_PLACE if in_place else put(mine), recv.array)
            blocks = [labels(rank, count * size, call).reshape(size, count)[comm.rank] for rank in range(size)]
            compare(recv, np.concatenate(blocks), f"count {count}")


@who
@pytest.mark.parametrize("layout", ["packed", "slots"])
def test_alltoallv_with_lengthson_the_device(comm, who, layout):
    """Rows that do not fit are dropped, in a window too."""
    size, me = comm.size, comm.rank
    chunk = comm.team.layout.chunk_nbytes * comm.team.layout.channels // 8
    random = np.random.default_rng(size)
    memory = Memory(comm, who, (size * size * 5 * chunk + 64) * 8)
    with comparing() as compare:
        for call in range(4):
            matrix = random.choice([0, 3, chunk, 5 * chunk], (size, size))
            capacity = int(matrix.max()) - (call % 2)
            recv = memory.output(size * capacity, "i8")
            got, lost = xp.zeros(size, "i8"), xp.zeros(size, "i8")
            send = put(labels(me, max(1, matrix[me].sum()), call))
            comm.Alltoallv([send, put(matrix[me])], [recv.array, got], layout=layout, status=lost)
            expected = recv.read()
            for source in range(size):
                kept = min(matrix[source, me], capacity) if layout == "slots" else matrix[source, me]
                first = source * capacity if layout == "slots" else int(matrix[:source, me].sum())
                kept = max(0, min(kept, size * capacity - first))
                begin = matrix[source, :me].sum()
                expected[first : first + kept] = labels(source, matrix[source].sum(), call)[begin : begin + kept]
            compare(recv, expected, f"call {call}")


def test_bcast(comm):
    memory = Memory(comm, "all", room(comm, 8, 1))
    with comparing() as compare:
        for call, count in enumerate(counts(comm.team.layout, 8)[1:]):
            buffer = memory.output(count, "i8").fill(labels(comm.rank, count, call))
            comm.Bcast(buffer.array, root=comm.size - 1)
            compare(buffer, labels(comm.size - 1, count, call), f"count {count}")


def test_shapes_may_differ(comm):
    array = comm.Alloc((comm.rank + 1, 3), "i2")
    assert_everywhere(comm, array.shape == (comm.rank + 1, 3) and array.dtype == np.int16 and not get(array).any())
    assert_everywhere(comm, comm.Alloc(0).size == 0)
    assert_everywhere(comm, comm.Alloc(np.int64(5)).shape == (5,))


def test_memory_outlives_the_communicator(comm):
    duplicate = comm.Dup()
    array = duplicate.Alloc(1000, "i8")
    before = duplicate.memory_report()["windows"]
    duplicate.Free()
    array[...] = put(labels(comm.rank, 1000))
    assert_everywhere(comm, before >= 8000)
    assert_everywhere(comm, (get(array) == labels(comm.rank, 1000)).all())


@pytest.mark.parametrize("ipc", ["", "legacy"])
def test_memory_that_was_used_before_is_zeroed(comm, ipc, monkeypatch):
    monkeypatch.setenv("PYNCCLX_IPC", ipc)
    for _ in range(3):
        duplicate = comm.Dup()
        array = duplicate.Alloc(1000, "u8")
        assert_everywhere(comm, not get(array).any())
        array[...] = put(np.full(1000, 1 << 63, "u8"))
        del array
        duplicate.Free()


def test_memory_is_not_used_again_while_peers_have_it(comm):
    """An array that has gone stays mapped by the peers, so its address must not become another array's."""
    count = comm.team.layout.packet_nbytes + 100
    first = comm.Alloc(count, "u1")
    address = first.data.ptr if not HOST else first.ctypes.data
    del first
    others = [comm.Alloc(count, "u1") for _ in range(3)]
    assert_everywhere(comm, address not in [a.data.ptr if not HOST else a.ctypes.data for a in others])


@pytest.mark.skipif(not HOST, reason="many windows of a GPU are many pages of 2 MiB")
def test_many_windows(comm):
    duplicate = comm.Dup()
    arrays = [duplicate.Alloc(comm.team.layout.packet_nbytes + 40, "u1") for _ in range(50)]
    recv = arrays[-1][: comm.team.layout.packet_nbytes // comm.size * comm.size]
    with comparing() as compare:
        duplicate.Allgather(put(np.full(recv.size // comm.size, comm.rank, "u1")), recv)
        compare(recv, np.repeat(np.arange(comm.size, dtype="u1"), recv.size // comm.size), "the last of 50 windows")
    duplicate.Free()
