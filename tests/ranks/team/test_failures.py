"""Failures: waits end, the error names the ranks that waited and for whom, other communicators go on."""

import gc
import threading

import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import Aborted, CollectiveMismatch, PeerTimeout
from pyncclx.collectives.algorithms import CHAIN_ROWS
from pyncclx.launch import kernels
from pyncclx.operators import ops
from support.arrays import Output, put, synchronize, xp
from support.everywhere import raises_everywhere
from support.impatient import impatient
from support.reference import comparing, contributions, counts, fold

WORLD = MPI.COMM_WORLD
TIMEOUT = 0.2  # seconds
LONGER = 0.5 if WORLD.size <= 4 else 1.0  # where it matters that all others have come; many share few processors

DIRECT = ("Barrier", "Bcast", "Allreduce", "Allgather", "Alltoall")  # a rank that has come is never waited for
TO_ROOT = ("Reduce", "Gather", "Gatherv")  # only root waits
UPWARDS = ("Scan", "Exscan")  # while short, a rank waits for those below it; never for the last
CALLS = {
    "Barrier": lambda comm, a: comm.Barrier(device=True),
    "Bcast": lambda comm, a: comm.Bcast(a, comm.size - 1),
    "Reduce": lambda comm, a: comm.Reduce(MPI.IN_PLACE if comm.rank == 0 else a, a),
    "Allreduce": lambda comm, a: comm.Allreduce(MPI.IN_PLACE, a),
    "Allgather": lambda comm, a: comm.Allgather(MPI.IN_PLACE, a),
    "Alltoall": lambda comm, a: comm.Alltoall(MPI.IN_PLACE, a),
    "Reduce_scatter_block": lambda comm, a: comm.Reduce_scatter_block(MPI.IN_PLACE, a),
    "Alltoallv": lambda comm, a: comm.Alltoallv(MPI.IN_PLACE, [a, a.size // comm.size]),
    "Gather": lambda comm, a: comm.Gather(MPI.IN_PLACE if comm.rank == 0 else a[: a.size // comm.size], a),
    "Gatherv": lambda comm, a: comm.Gatherv(MPI.IN_PLACE if comm.rank == 0 else a[: a.size // comm.size], a),
    "Scatter": lambda comm, a: comm.Scatter(a, a[: a.size // comm.size].copy(), comm.size - 1),
    "Scatterv": lambda comm, a: comm.Scatterv(a, a[: a.size // comm.size].copy(), comm.size - 1),
    "Allgatherv": lambda comm, a: comm.Allgatherv(MPI.IN_PLACE, a),
    "Reduce_scatter": lambda comm, a: comm.Reduce_scatter(MPI.IN_PLACE, a, [a.size // comm.size] * comm.size),
    "Scan": lambda comm, a: comm.Scan(a[::-1].copy(), a),
    "Exscan": lambda comm, a: comm.Exscan(a[::-1].copy(), a),
}


@pytest.fixture
def brief():
    """A communicator that is to be `impatient`: before, all ranks come, and on a busy machine some come late."""
    gc.collect()  # communicators that other tests have dropped hold parts of the heap
    WORLD.Barrier()
    comm = pyncclx.Communicator().Dup()
    yield comm
    comm.Free()


def works(comm):
    vectors, recv = contributions(comm.size, 2000), Output(2000, "f4")
    comm.Allreduce(put(vectors[comm.rank]), recv.array)
    with comparing() as compare:
        compare(recv, fold(ops.SUM, vectors), "Allreduce")
    comm.synchronize()


def prepare(comm, name, array):
    """Compile and load the kernel, which takes all ranks; then meet."""
    CALLS[name](comm, array)
    comm.synchronize()
    WORLD.Barrier()


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, "packets") for name in CALLS if name not in UPWARDS),
        *((name, "lines") for name in ("Alltoall", "Gather", "Reduce_scatter_block")),
        *((name, "chunks") for name in ("Allreduce", "Alltoallv", *UPWARDS)),
    ],
)
def test_peer_does_not_come(brief, name, size):
    """The last rank stays away; ranks that waited for it raise at the next call, and from then on."""
    other, away = pyncclx.Communicator(), brief.size - 1
    works(other)
    layout = brief.team.layout
    block = layout.packet_nbytes // 4 + 8  # float32, too many for packets
    count = {"packets": 6, "lines": brief.size * block, "chunks": counts(layout, 4)[-1]}[size]
    assert size != "lines" or "lines" in brief.explain(name, 4 * block)
    array = xp.zeros(count // brief.size * brief.size or brief.size, "f4")
    prepare(brief, name, array)
    impatient(brief, LONGER if name in DIRECT else TIMEOUT)
    waits = brief.rank != away and not (name in TO_ROOT and size != "chunks" and brief.rank != 0)
    if brief.rank != away:
        CALLS[name](brief, array)
        synchronize()
    if waits:
        for _ in range(2):
            with pytest.raises(PeerTimeout) as raised:
                brief.Allreduce(MPI.IN_PLACE, array)
        error = raised.value
        assert error.operation == name
        assert error.rank != away  # another rank may have given up first, and have told this one
        if brief.size == 2 or (name in DIRECT and size == "packets"):
            assert error.peer == away
        assert error.epoch > 0
        assert f"{name}: rank {error.rank} timed out waiting for rank {error.peer}" in str(error)
    WORLD.Barrier()
    works(other)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("away", range(3))
def test_a_rank_of_a_chain_does_not_come(brief, away):
    """Those before it have no place for what they send, and those behind it nothing to send."""
    layout = brief.team.layout
    if layout.slot_rows < CHAIN_ROWS:
        pytest.skip("other tests have left the communicator too little memory")
    array = xp.zeros(layout.line_nbytes * layout.channels, "f4")  # four times what fits the slots

    def reduce():
        brief.Reduce(MPI.IN_PLACE if brief.rank == 0 else array, array, algorithm="chain_lines")

    reduce()
    brief.synchronize()
    WORLD.Barrier()
    impatient(brief, TIMEOUT)
    if brief.rank != away:
        reduce()
        synchronize()
        with pytest.raises(PeerTimeout, match=r"Reduce: rank \d timed out waiting for rank"):
            brief.Allreduce(MPI.IN_PLACE, array)
    WORLD.Barrier()


@pytest.mark.ranks(2, 4)
def test_abort():
    """Waiting kernels stop long before their timeout."""
    comm, other, away = pyncclx.Communicator().Dup(), pyncclx.Communicator(), WORLD.size - 1
    array = xp.zeros(6, "f4")
    prepare(comm, "Allreduce", array)
    if comm.rank != away:
        timer = threading.Timer(0.2, comm.team.errors.abort)
        timer.start()
        # Others may not have come by then either, or have aborted before, even before the first call.
        text = rf"Allreduce: rank {comm.rank} .*rank {away}" if comm.size == 2 else "Allreduce"

        def call_twice():
            comm.Allreduce(MPI.IN_PLACE, array)
            synchronize()
            comm.Allreduce(MPI.IN_PLACE, array)

        with pytest.raises(Aborted, match=text):
            call_twice()
        timer.join()
    WORLD.Barrier()
    works(other)
    comm.Free()


MISMATCHES = {
    "counts": lambda comm, a, odd: comm.Allreduce(MPI.IN_PLACE, a[: 3 + odd]),
    "operations": lambda comm, a, odd: comm.Bcast(a) if odd else comm.Allreduce(MPI.IN_PLACE, a),
    "operators": lambda comm, a, odd: comm.Allreduce(MPI.IN_PLACE, a, MPI.MAX if odd else MPI.SUM),
    "datatypes": lambda comm, a, odd: comm.Allreduce(MPI.IN_PLACE, a.view("i4") if odd else a),
    "roots": lambda comm, a, odd: comm.Bcast(a, odd),
    "lengths": lambda comm, a, odd: comm.Bcast(a[: 3 + odd]),
    "blocks": lambda comm, a, odd: comm.Gather(a[: 1 + odd].copy(), xp.zeros(comm.size, "f4")),
    "roots of Gatherv": lambda comm, a, odd: comm.Gatherv(a[:1], xp.zeros(comm.size, "f4"), odd),
    "counts of Allgatherv": lambda comm, a, odd: comm.Allgatherv(MPI.IN_PLACE, [a, [odd, *[1] * (comm.size - 1)]]),
    "counts of Reduce_scatter": lambda comm, a, odd: comm.Reduce_scatter(
        MPI.IN_PLACE, a[: comm.size], [1 + odd, *[1] * (comm.size - 2), 1 - odd]
    ),
    "operators of Scan": lambda comm, a, odd: comm.Exscan(MPI.IN_PLACE, a, MPI.MAX if odd else MPI.SUM),
    "nothing": lambda comm, a, odd: comm.Bcast(a[: 3 * odd]),
    "algorithms": lambda comm, a, odd: comm.Allreduce(MPI.IN_PLACE, a, algorithm="two_shot" if odd else "one_shot"),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("what", MISMATCHES)
def test_checked_mismatch(what, monkeypatch):
    """With PYNCCLX_CHECK=1 all ranks raise with the calls of all, nothing is launched, and the communicator goes on."""
    monkeypatch.setenv("PYNCCLX_CHECK", "1")
    comm, array = pyncclx.Communicator(WORLD.Dup()), xp.zeros(8, "f4")
    works(comm)
    with raises_everywhere(comm, CollectiveMismatch, match=r"rank 0: .*; rank 1: "):
        MISMATCHES[what](comm, array, int(comm.rank == 1))
    works(comm)
    comm.Free()


@pytest.mark.ranks(2)
def test_first_calls_that_differ():
    """Where ranks prepare kernels they meet, and learn it without PYNCCLX_CHECK."""
    comm = pyncclx.Communicator().Dup()
    with raises_everywhere(comm, CollectiveMismatch, match="rank 0: bcast.* rank 1: allreduce"):
        CALLS["Bcast" if comm.rank == 0 else "Allreduce"](comm, put(contributions(comm.size, 8)[comm.rank]))
    comm.Free()


@pytest.mark.parametrize(("variable", "value"), [("PYNCCLX_TIMEOUT", "soon"), ("PYNCCLX_BLOCKING", "never")])
def test_settings_that_are_none(variable, value, monkeypatch):
    monkeypatch.setenv(variable, value)
    comm = pyncclx.Communicator(MPI.Comm.Split(WORLD, 0, WORLD.rank))  # not a part of another one of ours
    with raises_everywhere(WORLD, ValueError, match=f"{variable} is '{value}'"):
        comm.Barrier(device=True)
    MPI.Comm.Free(comm)


def test_a_timeout_of_centuries(monkeypatch):
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "1e300")
    with pyncclx.Communicator().Dup() as comm:
        works(comm)


@pytest.mark.ranks(2)
def test_an_interrupted_compilation(monkeypatch):
    """The rank that compiles raises KeyboardInterrupt, the others an error that names it; then all go on."""
    comm = pyncclx.Communicator().Dup()
    comm.Barrier(device=True)

    def compile_image(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(kernels, "_loaded", {})
        context.setattr(kernels, "compile_image", compile_image)
        with pytest.raises(KeyboardInterrupt if comm.rank == 0 else RuntimeError):
            comm.Allreduce(MPI.IN_PLACE, xp.zeros(3, "f4"))
    works(comm)
    comm.Free()
