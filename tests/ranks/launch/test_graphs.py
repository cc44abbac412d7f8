"""CUDA graphs: captured once, replayed with other data and other counts, beside calls that are not captured."""

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx import CapacityExceeded
from pyncclx.operators import ops
from support.arrays import Output, get, gpu_only, put, xp
from support.reference import comparing, contributions, fold, labels

pytestmark = gpu_only

REPLAYS = 5


@pytest.fixture
def stream():
    return xp.cuda.Stream(non_blocking=True)


def captured(stream, call):
    """`call` as a graph. It is made once before: kernels are compiled and leases taken outside of a capture.

    Its arrays were made on another stream, for which this one does not wait.
    """
    xp.cuda.Device().synchronize()
    with stream:
        call()
        stream.synchronize()
        stream.begin_capture()
        call()
        return stream.end_capture()


def large(comm):
    """A count of float32 that travels in chunks."""
    layout = comm.team.layout
    return layout.chunk_nbytes * layout.channels * comm.size // 4 + 3


@pytest.mark.parametrize("size", ["small", "large"])
def test_allreduce(comm, stream, size):
    count = 33 if size == "small" else large(comm)
    send, recv = xp.zeros(count, "f4"), Output(count, "f4")
    graph = captured(stream, lambda: comm.Allreduce(send, recv.array))
    with comparing() as compare:
        for call in range(REPLAYS):
            vectors = contributions(comm.size, count, call=call)
            with stream:
                send.set(vectors[comm.rank])
                recv.poison()
                graph.launch(stream)
            compare(recv, fold(ops.SUM, vectors), f"replay {call}")


@pytest.mark.parametrize("size", ["small", "large"])
def test_all_operations_in_one_graph(comm, stream, size):
    ranks, me, root = comm.size, comm.rank, comm.size - 1
    count = 21 if size == "small" else large(comm) // 4
    send, blocks = xp.zeros(count, "i8"), xp.zeros(ranks * count, "i8")
    buffer, gathered, exchanged = Output(count, "i8"), Output(ranks * count, "i8"), Output(ranks * count, "i8")
    reduced, largest, scattered = Output(count, "i8"), Output(count, "i8"), Output(count, "i8")

    def call():
        buffer.array[...] = send
        comm.Bcast(buffer.array, root)
        comm.Allgather(send, gathered.array)
        comm.Alltoall(blocks, exchanged.array)
        comm.Reduce(send, reduced.array if me == root else None, MPI.SUM, root)
        comm.Allreduce(send, largest.array, MPI.SUM)
        comm.Reduce_scatter_block(blocks, scattered.array, MPI.SUM)
        comm.Barrier(device=True)

    graph = captured(stream, call)
    with comparing() as compare:
        for number in range(REPLAYS):
            sends = [labels(rank, count, number) for rank in range(ranks)]
            cut = [labels(rank, ranks * count, number).reshape(ranks, count) for rank in range(ranks)]
            with stream:
                send.set(sends[me])
                blocks.set(cut[me].reshape(-1))
                for output in (gathered, exchanged, reduced, largest, scattered):
                    output.poison()
                graph.launch(stream)
            compare(buffer, sends[root], f"Bcast, replay {number}")
            compare(gathered, np.concatenate(sends), f"Allgather, replay {number}")
            compare(exchanged, np.concatenate([block[me] for block in cut]), f"Alltoall, replay {number}")
            if me == root:
                compare(reduced, sum(sends), f"Reduce, replay {number}")
            compare(largest, sum(sends), f"Allreduce, replay {number}")
            compare(scattered, sum(block[me] for block in cut), f"Reduce_scatter_block, replay {number}")


def test_replays_without_waiting(comm, stream):
    """Each replay takes the last one's result."""
    value = xp.zeros(5, "i8")

    def call():
        value[...] += 1
        comm.Allreduce(MPI.IN_PLACE, value, MPI.MAX)

    graph = captured(stream, call)
    with stream:
        value[...] = comm.rank
        for _ in range(100):
            graph.launch(stream)
    with comparing() as compare:
        compare(value, np.full(5, comm.size - 1 + 100), "100 replays")


def test_two_graphs_and_calls_beside_them(comm, stream):
    vectors = contributions(comm.size, 1000)
    send, outputs = put(vectors[comm.rank]), [Output(1000, "f4") for _ in range(3)]
    graphs = [captured(stream, lambda o=output: comm.Allreduce(send, o.array)) for output in outputs[:2]]
    with comparing() as compare:
        for number in range(REPLAYS):
            with stream:
                for output in outputs:
                    output.poison()
                graphs[number % 2].launch(stream)
                comm.Allreduce(send, outputs[2].array)
                graphs[1 - number % 2].launch(stream)
            for output in outputs:
                compare(output, fold(ops.SUM, vectors), f"round {number}")


def test_what_a_kernel_recorded_is_raised_in_a_capture(comm, stream):
    """Once, and the graph takes no harm: the call that raises is not in it, the next one is."""
    vectors, (first, second) = contributions(comm.size, 100), [Output(100, "f4") for _ in range(2)]
    send, rows, recv = put(vectors[comm.rank]), xp.zeros(3 * comm.size, "i8"), xp.zeros(2 * comm.size, "i8")
    counts = xp.full(comm.size, 3, "i8")

    comm.Allreduce(send, first.array)
    xp.cuda.Device().synchronize()
    with stream:
        comm.Alltoallv([rows, counts], [recv, xp.zeros(comm.size, "i8")])
        stream.synchronize()
        stream.begin_capture()
        with pytest.raises(CapacityExceeded):
            comm.Allreduce(send, first.array)
        comm.Allreduce(send, second.array)
        graph = stream.end_capture()
        for output in (first, second):
            output.poison()
        graph.launch(stream)
    with comparing() as compare:
        compare(first, Output(100, "f4").read(), "the call that raised")
        compare(second, fold(ops.SUM, vectors), "the next one")


@pytest.mark.parametrize("layout", ["packed", "slots"])
def test_dynamic_alltoallv_with_other_counts(comm, stream, layout):
    """A shuffle whose counts change from replay to replay, from nothing to more than there is room for."""
    ranks, me, room = comm.size, comm.rank, 40
    random = np.random.default_rng(ranks)
    send, counts = xp.zeros((200 * ranks, 3), "i8"), xp.zeros(ranks, "i8")
    recv = Output((ranks, room, 3) if layout == "slots" else (ranks * room, 3), "i8")
    got, total, cut = Output(ranks, "i8"), Output(1, "i8"), Output(ranks, "i8")
    graph = captured(
        stream,
        lambda: comm.Alltoallv(
            [send, counts], [recv.array, got.array], layout=layout, total=total.array, status=cut.array
        ),
    )
    with comparing() as compare:
        for number, most in enumerate((20, 0, 200, 1, 40)):
            matrix = random.integers(0, most + 1, (ranks, ranks))
            with stream:
                send.set(labels(me, send.size, number).reshape(send.shape))
                counts.set(matrix[me])
                for output in (recv, got, total, cut):
                    output.poison()
                graph.launch(stream)
            stored, left = [], ranks * room
            for source in range(ranks):
                begin = int(matrix[source, :me].sum())
                fits = int(min(matrix[source, me], room if layout == "slots" else left))
                stored.append(labels(source, send.size, number).reshape(send.shape)[begin : begin + fits])
                left -= fits
            sizes = np.array([len(rows) for rows in stored])
            compare(got, sizes, f"counts, replay {number}")
            compare(total, np.array([sizes.sum()]), f"total, replay {number}")
            compare(cut, matrix[:, me] - sizes, f"status, replay {number}")
            rows = get(recv.array)
            where = [slice(end - n, end) for n, end in zip(sizes, sizes.cumsum(), strict=True)]
            for source, expected in enumerate(stored):
                found = rows[source, : sizes[source]] if layout == "slots" else rows[where[source]]
                compare(put(found), expected, f"rows of {source}, replay {number}")
            assert not recv.damage()
