"""Reduce: root's recvbuf becomes the fold of all ranks' vectors; the others' stays as it is."""

import pytest
from mpi4py import MPI

from pyncclx.collectives.algorithms import CHAIN_ROWS
from pyncclx.operators import ops
from support.arrays import Output, put
from support.lease import layout_of
from support.reference import comparing, contributions, counts, fold, named


def most(layout) -> int:
    """The longest vector that goes as two shots of lines, in bytes."""
    return max(0, layout.line_nbytes - 32) * layout.peers * layout.channels


CHAINS = ("chain", "chain_lines")


def roots(layout, algorithm: str | None) -> list[int]:
    """The roots to which an algorithm can reduce; from rank to rank, partial results can go to some."""
    if algorithm not in CHAINS:
        return list(range(layout.size))
    fits = layout.size > 2 and (algorithm == "chain" or layout.slot_rows >= CHAIN_ROWS)
    return sorted({0, 1, layout.size - 1}) if fits else []


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot_lines", "two_shot", *CHAINS, None])
def test_sizes_to_every_root(comm, algorithm):
    layout = layout_of(comm)
    with comparing() as compare:
        for call, count in enumerate(counts(layout, 4)):
            if algorithm == "one_shot" and count * 4 > layout.packet_nbytes:
                continue
            if algorithm == "two_shot_lines" and count * 4 > most(layout):
                continue
            vectors = contributions(comm.size, count, call=call)
            expected, send = fold(ops.SUM, vectors), put(vectors[comm.rank])
            for root in roots(layout, algorithm):
                recv = Output(count, "f4") if comm.rank == root else None
                comm.Reduce(send, recv and recv.array, MPI.SUM, root, algorithm=algorithm)
                if recv:
                    compare(recv, expected, f"count {count} to root {root}")
            compare(send, vectors[comm.rank], f"count {count}: sendbuf")


@pytest.mark.parametrize("algorithm", CHAINS)
def test_averages_through_a_chain(comm, algorithm):
    """Only the last rank divides."""
    vectors = contributions(comm.size, 1000)
    with comparing() as compare:
        for root in roots(layout_of(comm), algorithm):
            recv = Output(1000, "f4") if comm.rank == root else None
            comm.Reduce(put(vectors[comm.rank]), recv and recv.array, ops.AVG, root, algorithm=named(algorithm))
            if recv:
                compare(recv, fold(ops.AVG, vectors), f"to root {root}")


def test_in_place_and_unaligned(comm):
    with comparing() as compare:
        for count in counts(layout_of(comm), 4):
            vectors = contributions(comm.size, count)
            root = count % comm.size
            recv = Output(count, "f4", offset=1).fill(vectors[comm.rank])
            if comm.rank == root:
                comm.Reduce(MPI.IN_PLACE, recv.array, root=root)
            else:
                comm.Reduce(recv.array, None, root=root)
            expected = fold(ops.SUM, vectors) if comm.rank == root else vectors[comm.rank]
            compare(recv, expected, f"count {count} to root {root}")


def test_recvbuf_is_untouched_at_other_ranks(comm):
    vectors = contributions(comm.size, 100)
    recv = Output(100, "f4")
    comm.Reduce(put(vectors[comm.rank]), recv.array, root=0)
    with comparing() as compare:
        if comm.rank == 0:
            compare(recv, fold(ops.SUM, vectors), "at root")
        else:
            compare(recv, Output(100, "f4").read(), "elsewhere")


@pytest.mark.parametrize("comm", ["reversed"], indirect=True)
@pytest.mark.parametrize(("name", "op"), [("int8", "SUM"), ("bfloat16", "AVG"), ("double_int", "MAXLOC")])
def test_datatypes(comm, name, op):
    """Each with one operator; test_allreduce.py has them all, and the kernels share the fold."""
    op = ops.TABLE[op]
    with comparing() as compare:
        for count in (15, 2000):
            vectors = contributions(comm.size, count, name)
            recv = Output(count * vectors[0].itemsize, "u1")
            comm.Reduce([put(vectors[comm.rank].view("u1")), name], [recv.array, name], op.mpi or op)
            if comm.rank == 0:
                compare(recv, fold(op, vectors), f"count {count}", as_dtype=vectors[0].dtype)


def test_roots_take_turns_without_waiting(comm):
    tile = layout_of(comm).chunk_nbytes * comm.size // 4
    calls = [contributions(comm.size, count, call=call) for call, count in enumerate((3, 2 * tile, 4, 100, tile) * 3)]
    sends, recvs = [put(vectors[comm.rank]) for vectors in calls], [Output(vectors[0].size, "f4") for vectors in calls]
    for call, (send, recv) in enumerate(zip(sends, recvs, strict=True)):
        comm.Reduce(send, recv.array, root=call % comm.size)
    with comparing() as compare:
        for call in range(comm.rank, len(calls), comm.size):
            compare(recvs[call], fold(ops.SUM, calls[call]), f"call {call}")
