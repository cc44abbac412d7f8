"""Channels: the ranks meet beside the program's collectives on the same communicator, in an order of their own."""

import threading

import numpy as np
import pytest
from mpi4py import MPI

import mpi_bootstrap
import pyncclx
from support.everywhere import assert_everywhere

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
LONG = 3 * 4096 + 17


class Beside(MPI.Intracomm):
    """A communicator whose ranks meet on a channel."""

    def __new__(cls, comm):
        made = super().__new__(cls, comm)
        made.channel = mpi_bootstrap.Channel(comm)
        return made


@pytest.fixture
def comm():
    assert_everywhere(WORLD, mpi_bootstrap.has_channels())
    duplicate = WORLD.Dup()
    beside = Beside(duplicate)
    yield beside
    beside.channel.close()
    duplicate.Free()


def test_bytes_of_any_length(comm):
    rising = range(SIZE)
    for lengths in ([0] * SIZE, [1] * SIZE, [5 * rank for rank in rising], [LONG * (1 + rank) for rank in rising]):
        expected = [bytes([rank + 1]) * length for rank, length in enumerate(lengths)]
        assert mpi_bootstrap.allgather_bytes(comm, expected[RANK]) == expected


def test_objects_and_errors(comm):
    assert mpi_bootstrap.allgather_objects(comm, (RANK, "any")) == [(rank, "any") for rank in range(SIZE)]
    assert mpi_bootstrap.first_bytes(comm, b"") is None
    assert mpi_bootstrap.first_bytes(comm, bytes(LONG) if RANK == SIZE - 1 else b"") == (SIZE - 1, bytes(LONG))
    with pytest.raises(ValueError, match=f"any \\[failed on rank {SIZE - 1} of {SIZE}\\]"):
        mpi_bootstrap.agree(comm, _raise_on_last)
    assert mpi_bootstrap.agree(comm, lambda: RANK) == RANK


def _raise_on_last():
    if RANK == SIZE - 1:
        raise ValueError("any")


def test_nodes(comm):
    assert mpi_bootstrap.topology(comm) == mpi_bootstrap.topology(WORLD)


def test_beside_the_program(comm):
    """A thread of each rank uses the channel while the program makes collectives of all kinds."""
    errors, plain = [], MPI.Intracomm(comm)

    def work():
        for number in range(30):
            if mpi_bootstrap.allgather_objects(comm, (number, RANK)) != [(number, rank) for rank in range(SIZE)]:
                errors.append(number)

    thread = threading.Thread(target=work)
    if RANK == 0:
        thread.start()
    results, sent, requests = [np.zeros(5) for _ in range(40)], np.full(5, RANK + 1.0), []
    for result in results[:20]:
        requests.append(plain.Iallreduce(sent, result))
        plain.Barrier()
    if RANK > 0:
        thread.start()
    for result in results[20:]:
        requests.append(plain.Iallreduce(sent, result))
        plain.Dup().Free()
    MPI.Request.Waitall(requests)
    thread.join()
    assert errors == []
    assert all((result == SIZE * (SIZE + 1) / 2).all() for result in results)


@pytest.mark.skipif(SIZE == 1, reason="no rank is late")
def test_a_late_rank():
    """It learns that the others have left, and nobody meets again."""
    comm, late = Beside(WORLD.Dup()), SIZE - 1
    if late != RANK:
        assert mpi_bootstrap.missing_ranks(comm, 0.2) == [late]
    WORLD.Barrier()
    if late == RANK:
        assert mpi_bootstrap.missing_ranks(comm, 60.0) == [late]
    with pytest.raises((pyncclx.PeerTimeout, pyncclx.Aborted, TimeoutError)):
        mpi_bootstrap.missing_ranks(comm, 60.0)


def test_the_end_of_a_channel_ends_waits():
    comm = WORLD.Dup()
    beside = Beside(comm)
    beside.channel.end()
    with pytest.raises(RuntimeError, match="before all ranks"):
        mpi_bootstrap.allgather_bytes(beside, b"any")
    beside.channel.close()
