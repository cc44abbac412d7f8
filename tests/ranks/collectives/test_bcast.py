"""Bcast: every rank's buffer becomes root's."""

import numpy as np
import pytest

from pyncclx.arrays.datatypes import TABLE
from pyncclx.collectives.algorithms import CHAIN_ROWS
from support.arrays import Output, put
from support.lease import layout_of
from support.reference import comparing, counts, dtype_of, labels


def message(root: int, count: int, call: int = 0) -> np.ndarray:
    return labels(root, count, call)


def most(layout) -> int:
    """The longest message that goes as two shots of lines, in bytes."""
    return max(0, layout.line_nbytes - 32) * layout.peers * layout.channels


@pytest.mark.parametrize("algorithm", ["direct", "two_shot_lines", "chain_lines", "chain", None])
def test_sizes_from_every_root(comm, algorithm):
    layout = layout_of(comm)
    with comparing() as compare:
        for call, count in enumerate(counts(layout, 8)):
            if algorithm == "direct" and count * 8 > layout.packet_nbytes:
                continue
            if algorithm == "two_shot_lines" and count * 8 > most(layout):
                continue
            if algorithm == "chain_lines" and layout.slot_rows < CHAIN_ROWS:
                continue
            for root in range(comm.size):
                buffer = Output(count, "i8")
                if comm.rank == root:
                    buffer.fill(message(root, count, call))
                comm.Bcast(buffer.array, root, algorithm=algorithm)
                compare(buffer, message(root, count, call), f"count {count} from root {root}")


def test_unaligned_bytes(comm):
    """Every rank's buffer begins somewhere else."""
    with comparing() as compare:
        for count in counts(layout_of(comm), 1)[1:]:
            expected = np.random.default_rng(count).integers(0, 256, count).astype("u1")
            for root in {0, comm.size - 1}:
                buffer = Output(count, "u1", offset=comm.rank * 5 + 1)
                if comm.rank == root:
                    buffer.fill(expected)
                comm.Bcast(buffer.array, root=root)
                compare(buffer, expected, f"{count} bytes from root {root}")


@pytest.mark.parametrize("comm", ["reversed"], indirect=True)
@pytest.mark.parametrize("name", TABLE)
def test_datatypes(comm, name):
    dtype = dtype_of(TABLE[name])
    expected = np.random.default_rng(7).integers(0, 256, 19 * dtype.itemsize).astype("u1")
    buffer = Output(expected.size, "u1")
    if comm.rank == 0:
        buffer.fill(expected)
    comm.Bcast([buffer.array, 19, name])
    with comparing() as compare:
        compare(buffer, expected, name)


def test_two_dimensions_and_a_part_of_an_array(comm):
    root, expected = comm.size - 1, labels(comm.size - 1, 60).reshape(5, 12)
    whole, part = Output((5, 12), "i8"), Output(60, "i8")
    if comm.rank == root:
        whole.fill(expected)
        part.fill(expected.reshape(-1))
    comm.Bcast(whole.array, root)
    comm.Bcast([part.array, (20, 7), "i8"], root)
    with comparing() as compare:
        compare(whole, expected, "two dimensions")
        compare(put(part.read()[7:27]), expected.reshape(-1)[7:27], "elements 7 to 26")
        if comm.rank != root:
            rest = np.delete(part.read(), np.s_[7:27])
            compare(rest, np.full(40, rest[0]), "the others")


def test_roots_take_turns_without_waiting(comm):
    """A root that is not waited for runs ahead of the others; its data must not overtake theirs."""
    layout = layout_of(comm)
    large = layout.chunk_nbytes * layout.channels // 8 * 3 + 1
    sizes = [3, large, 40, 5, large, 1] * 4
    buffers = [Output(count, "i8") for count in sizes]
    for call, buffer in enumerate(buffers):
        if comm.rank == call % comm.size:
            buffer.fill(message(comm.rank, sizes[call], call))
    for call, buffer in enumerate(buffers):
        comm.Bcast(buffer.array, call % comm.size)
    with comparing() as compare:
        for call, buffer in enumerate(buffers):
            compare(buffer, message(call % comm.size, sizes[call], call), f"call {call}")
