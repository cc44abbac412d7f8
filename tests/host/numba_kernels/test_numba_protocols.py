"""The collectives written in Python, run as plain Python: right results call after call, in any order of ranks."""

import numpy as np
import pytest

from pyncclx.collectives.alltoallv_dynamic import PLACEMENTS
from support.plain_python import CHUNKS_NBYTES, PACKETS_NBYTES, Machine, kernels_of
from support.reference import labels
from support.row_routing import LONGEST, POISON, WIDTH, draw, expected

THREADS = 64


def rows(rank, call, nbytes):
    """Bytes that differ by rank and call."""
    return np.random.default_rng([rank, call, 3]).integers(0, 256, nbytes, np.uint8)


def address(array):
    return array.ctypes.data


def packet_nbytes(size):
    """The longest message of a block that goes as packets."""
    return PACKETS_NBYTES // 2 // size // 16 * 16


def chunk_nbytes(size):
    """The longest chunk."""
    return CHUNKS_NBYTES // size // 16 * 16


def lengths(size, blocks):
    """Of messages in bytes: one, odd, as packets to the last, by several turns; some blocks have nothing to do."""
    packets, chunks = blocks * packet_nbytes(size), blocks * chunk_nbytes(size)
    return [1, packets, packets + 1, chunks + 17, 3, 2 * chunks + 5, packets]


@pytest.mark.parametrize(("size", "blocks", "in_place"), [(1, 2, False), (2, 2, True), (3, 1, False), (3, 1, True)])
@pytest.mark.parametrize("name", ["allgather", "alltoall"])
def test_moves(name, size, blocks, in_place):
    machine, calls = Machine(size, blocks, THREADS), lengths(size, blocks)
    all_to_all = name == "alltoall"
    sends = [[rows(r, call, n * size if all_to_all else n) for r in range(size)] for call, n in enumerate(calls)]
    recvs = [[np.full(size * n, 0xA5, "u1") for _ in range(size)] for n in calls]
    expected, arguments = [], []
    for n, send, recv in zip(calls, sends, recvs, strict=True):
        blocks_of = [each.reshape(-1, n) for each in send]
        expected.append([np.concatenate([b[r if all_to_all else 0] for b in blocks_of]) for r in range(size)])
        arguments.append([])
        for rank in range(size):
            source = address(send[rank])
            if in_place:
                begin, length = (0, size * n) if all_to_all else (rank * n, n)
                recv[rank][begin : begin + length] = send[rank]
                source = address(recv[rank]) + begin
            arguments[-1].append((source, address(recv[rank]), n))
    with kernels_of(machine) as module:
        kernel = getattr(module("blocks"), name)(size)
        machine.call(lambda call: kernel, arguments)
    for call, recv in enumerate(recvs):
        for rank in range(size):
            assert np.array_equal(recv[rank], expected[call][rank]), f"call {call}, rank {rank}"


@pytest.mark.parametrize(("size", "turn"), [(1, 0), (3, 0), (2, 2**32 - 4), (3, 2**32 - 2)])
def test_allreduce(size, turn):
    """All kernels in turn, on float32 with sums that depend on the order; also when the count of turns begins anew."""
    machine, blocks = Machine(size, 2, THREADS), 2
    forms = ("one_shot", "two_shot_packets", "two_shot")
    calls = [30, 500, 3 * CHUNKS_NBYTES // 4, 1, 3, 37, blocks * packet_nbytes(size) // 4, 999, 999]
    random = np.random.default_rng(size)
    vectors = [[random.standard_normal(n).astype("f4") for _ in range(size)] for n in calls]
    recvs = [[np.full(n, np.nan, "f4") for _ in range(size)] for n in calls]
    for space in machine.spaces:
        space[: 8 * blocks].view("i8")[:] = turn
    for signals in machine.signals:
        signals[:] = [turn] * len(signals)
    arguments = [
        [(address(v), address(out), v.nbytes) for v, out in zip(*each, strict=True)]
        for each in zip(vectors, recvs, strict=True)
    ]
    with kernels_of(machine) as module:
        made = [getattr(module("allreduce"), form)(np.float32, 4, lambda a, b: a + b, size) for form in forms]
        machine.call(lambda call: made[call % 3], arguments)
    for call, recv in enumerate(recvs):
        total = vectors[call][0]
        for vector in vectors[call][1:]:
            total = total + vector
        for rank in range(size):
            assert np.array_equal(recv[rank], total), f"call {call}, rank {rank}"


def matrices(size, blocks):
    """Counts of rows [sender, receiver]."""
    random, long = np.random.default_rng(size), 2 * blocks * chunk_nbytes(size) // 24
    some = random.integers(0, 20, (size, size))
    mixed = random.choice([0, 1, long // 3, long + 1], (size, size))
    return [some, some * 0, mixed, np.full((size, size), 3), mixed.T.copy(), some]


@pytest.mark.parametrize("size", [1, 3])
def test_alltoallv(size):
    """Packed, with room for all or for some."""
    machine, blocks = Machine(size, 2, THREADS), 2
    counts = matrices(size, blocks)
    room = [int(m.sum(axis=0).max()) - (call % 2) * 2 for call, m in enumerate(counts)]
    room = [max(each, 0) for each in room]
    sends = [[rows(r, call, m[r].sum() * 24).reshape(-1, 24) for r in range(size)] for call, m in enumerate(counts)]
    recvs = [[np.full((n + 1, 24), 0xA5, "u1") for _ in range(size)] for n in room]
    outputs = [[np.full((4, size), -1, "i8") for _ in range(size)] for _ in counts]
    send_counts = [[m[r].astype("i8").copy() for r in range(size)] for m in counts]
    arguments = [
        [
            (
                *(address(sends[call][r]), address(recvs[call][r]), 24, len(sends[call][r]), room[call], 0),
                *(address(send_counts[call][r]), 0, *(address(outputs[call][r][k]) for k in range(4)), 0, 1),
            )
            for r in range(size)
        ]
        for call in range(len(counts))
    ]
    with kernels_of(machine) as module:
        kernel = module("alltoallv").alltoallv(size)
        machine.call(lambda call: kernel, arguments)
    for call, matrix in enumerate(counts):
        for rank in range(size):
            left, stored = room[call], []
            for source in range(size):
                begin = int(matrix[source, :rank].sum())
                stored.append(sends[call][source][begin : begin + min(int(matrix[source, rank]), left)])
                left -= len(stored[-1])
            kept = np.array([len(each) for each in stored])
            total = int(kept.sum())
            what = f"call {call}, rank {rank}"
            assert np.array_equal(recvs[call][rank][:total], np.concatenate(stored)), what
            assert (recvs[call][rank][total:] == 0xA5).all(), what
            recv_counts, displs, totals, status = outputs[call][rank]
            assert recv_counts.tolist() == kept.tolist(), what
            assert displs.tolist() == (kept.cumsum() - kept).tolist(), what
            assert totals[0] == total, what
            assert status.tolist() == (matrix[:, rank] - kept).tolist(), what
    assert not machine.overflows


def test_alltoallv_in_all_layouts():
    """Random counts and places, some of them none, and rooms for some of the rows."""
    size, most = 2, 2 * LONGEST + 3
    machine, routings, kept, arguments = Machine(size, 2, THREADS), [draw(n, size) for n in range(18)], [], []
    for routing in routings:
        kept.append([Rank(routing, me, most) for me in range(size)])
        arguments.append([rank.arguments() for rank in kept[-1]])
    with kernels_of(machine) as module:
        kernel = module("alltoallv").alltoallv(size)
        machine.call(lambda call: kernel, arguments)
    for routing, ranks in zip(routings, kept, strict=True):
        for me, rank in enumerate(ranks):
            for what, right in expected(routing, me).items():
                found = rank.outputs[what].reshape(right.shape)
                assert np.array_equal(found, right), f"{what} of {routing} on rank {me}: {found.tolist()}"
    assert not machine.overflows
    assert {routing.layout for routing in routings} == set(PLACEMENTS)


class Rank:
    """The arrays of one rank in one call."""

    def __init__(self, routing, me, most):
        self.routing, size = routing, len(routing.counts)
        self.send = labels(me, most * WIDTH, routing.number % 2**15).astype("i8").reshape(-1, WIDTH)
        self.counts = routing.counts[me].copy()
        self.displs = None if routing.displs is None else routing.displs[me].copy()
        shapes = {what: right.shape for what, right in expected(routing, me).items()}
        self.outputs = {what: np.full(shape, POISON, "i8") for what, shape in shapes.items()}
        if routing.layout == "placed":
            self.outputs["displs"][:] = routing.places[me][:size]

    def arguments(self):
        """The words of a kernel's arguments."""
        recv, *outputs = (address(array) for array in self.outputs.values())
        places = 0 if self.displs is None else address(self.displs)
        room, layout = self.routing.capacity, PLACEMENTS[self.routing.layout]
        sent = (address(self.send), recv, self.send[0].nbytes, len(self.send), room, room)
        return (*sent, address(self.counts), places, *outputs, layout, 1)
