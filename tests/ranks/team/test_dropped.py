"""Communicators that a program has dropped and not freed: the next one of the same ranks takes over their memory."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import backends
from pyncclx.team import dropped
from pyncclx.team.attachment import Attachment
from support.arrays import HOST, get, gpu_only, own_gpu, put, xp
from support.everywhere import assert_everywhere, raises_everywhere

WORLD = MPI.COMM_WORLD
COUNT = 1000


def works(comm, call=0):
    """Whether the ranks' elements arrive in the right order, and what came before is not there any more."""
    recv = xp.full(COUNT * comm.size, -1, "i8")
    comm.Allgather(put(np.arange(COUNT) + 10_000 * comm.rank + 1_000_000 * call), recv)
    expected = np.add.outer(10_000 * np.arange(comm.size), np.arange(COUNT)).ravel() + 1_000_000 * call
    return bool(((recv if HOST else xp.asnumpy(recv)) == expected).all())  # waits for the current stream alone


def name_of(comm):
    """The name of a communicator's memory, after a call."""
    assert works(comm)
    return comm.team.id


def free(handle):
    """Free a communicator by MPI: what it holds goes at the next meeting."""
    MPI.Comm.f2py(handle).Free()


def halves(comm):
    return comm.Split(comm.rank * 2 // comm.size, -comm.rank)


@pytest.fixture
def parent():
    """A communicator of all ranks, when nothing is left of earlier ones."""
    comm = pyncclx.Communicator().Dup()
    assert works(comm)
    yield comm
    comm.Free()


class Attaching(Attachment):
    """Another thread uses its communicator for the first time, just as this one is asked."""

    def __init__(self, attachments):
        self.attachments = attachments

    def is_idle(self):
        self.attachments[f"another {len(self.attachments)}"] = Attachment()
        return True


def test_another_thread_uses_its_communicator(parent):
    """A new communicator looks at the others, which other threads may use meanwhile."""
    for comm in (parent, parent.Dup()):
        comm.state.attachments["attaching"] = Attaching(comm.state.attachments)
    with parent.Dup() as new:
        assert_everywhere(WORLD, works(new), "new")
    comm.Free()


def test_the_next_one_takes_over(parent):
    """More than fit into the memory of the process; duplicates and halves in turn."""
    names, leases = set(), []
    for call in range(60):
        for make in (parent.Dup, lambda: halves(parent)):
            comm = make()
            assert_everywhere(WORLD, works(comm, call), f"call {call} of {make}")
            names.add(comm.team.id)
            comm = None
        leases.append(len(parent.team.heap.leases))
    is_right = len(names) == min(parent.size, 2) and leases[1:] == leases[:-1]
    assert_everywhere(WORLD, is_right, f"{len(names)} names, leases {leases}")


def begun(comm):
    recv = xp.zeros(COUNT * comm.size, "i8")
    comm.Iallgather(put(np.arange(COUNT)), recv).Wait()


def prepared(comm):
    recv = xp.zeros(COUNT * comm.size, "i8")
    request = comm.Allgather_init(put(np.arange(COUNT)), recv)
    request.Start()
    request.Wait()
    request.Free()


def among_neighbors(comm):
    comm = comm.Create_cart([comm.size], [True])
    comm.Neighbor_allgather(put(np.arange(COUNT)), xp.zeros(2 * COUNT, "i8"))
    return comm


@pytest.mark.parametrize("call", [begun, prepared, among_neighbors])
def test_after_calls_that_prepare_something(parent, call, monkeypatch):
    """Where kernels cannot be loaded beside others, a call that is not waited for prepares what messages need."""
    if HOST:
        monkeypatch.setattr(backends.select(), "loads_beside_kernels", False)
    leases = []
    for _ in range(8):
        comm = parent.Dup()
        comm = call(comm) or comm
        assert_everywhere(WORLD, works(comm))
        comm.synchronize()
        comm = None
        leases.append(len(parent.team.heap.leases))
    assert_everywhere(WORLD, leases[2:] == leases[1:-1], f"leases {leases}")


def test_a_request_holds_it(parent):
    """One that can be started again needs the memory; it has it to itself."""
    comm, send, recv = parent.Dup(), put(np.full(COUNT, parent.rank)), xp.zeros(COUNT, "i8")
    name, request = name_of(comm), comm.Allreduce_init(send, recv)
    comm, other = None, parent.Dup()
    assert_everywhere(WORLD, name_of(other) != name)
    request.Start()
    request.Wait()
    assert_everywhere(WORLD, (get(recv) == sum(range(parent.size))).all(), f"{get(recv)}")
    other.Free()


def test_one_rank_holds_it(parent):
    comm = parent.Dup()
    name = name_of(comm)
    held = comm if parent.rank == parent.size - 1 else None
    comm = None
    other = parent.Dup()
    assert_everywhere(WORLD, name_of(other) != name and (held is None or held.team.id == name))
    held = None
    assert_everywhere(WORLD, name_of(parent.Dup()) == name)
    other.Free()


def test_another_object_of_its_handle(parent):
    """It gets new memory at its next call."""
    comm = parent.Dup()
    name, handle = name_of(comm), comm.py2f()
    comm = None
    taken = parent.Dup()
    assert_everywhere(WORLD, name_of(taken) == name)
    again = pyncclx.Communicator(MPI.Comm.f2py(handle))
    assert_everywhere(WORLD, name_of(again) != name and works(taken, 1) and works(again, 2))
    again.Free()
    taken.Free()


def test_an_object_of_mpi4py(parent):
    """The program has it, and may make another of ours from it: nothing is taken over."""
    theirs = MPI.Comm.Dup(WORLD)
    name = name_of(pyncclx.Communicator(theirs))
    assert_everywhere(WORLD, name_of(parent.Dup()) != name)
    assert_everywhere(WORLD, name_of(pyncclx.Communicator(theirs)) == name)
    theirs.Free()


@pytest.mark.ranks(2)
def test_of_other_ranks(parent):
    """What the ranks here cannot take over is closed."""
    name_of(halves(parent))
    before = len(parent.team.heap.leases)
    comm = parent.Dup()
    assert_everywhere(WORLD, works(comm) and len(parent.team.heap.leases) == before)
    comm.Free()


@pytest.mark.ranks(2)
def test_other_calls_on_one_rank(parent):
    """Its words in memory are not those that the others expect: it stays as it is."""
    comm, few = parent.Dup(), put(np.arange(4))
    name = name_of(comm)
    comm.Bcast(few, 0)  # all load its kernel
    if comm.rank == 0:
        comm.Bcast(few, 0)  # root does not wait
    comm.synchronize()
    comm, handle = None, comm.py2f()
    assert_everywhere(WORLD, name_of(parent.Dup()) != name)
    free(handle)


def test_other_settings(parent, monkeypatch):
    name = name_of(parent.Dup())
    with monkeypatch.context() as context:
        context.setenv("PYNCCLX_TIMEOUT", "77")
        other = parent.Dup()
        assert_everywhere(WORLD, name_of(other) != name and other.team.timeout_ns == 77e9)
        other.Free()


def test_windows_hold_it(parent):
    comm = parent.Dup()
    name, array = name_of(comm), comm.Alloc(COUNT, "i8")
    comm, handle = None, comm.py2f()
    assert_everywhere(WORLD, name_of(parent.Dup()) != name and array.size == COUNT)
    free(handle)


@gpu_only
@pytest.mark.parametrize("is_warm", [False, True])
def test_a_graph_holds_it(parent, is_warm):
    """That of a stream which has had no call before, or has."""
    comm, stream = parent.Dup(), xp.cuda.Stream(non_blocking=True)
    send, recv = put(np.full(COUNT, parent.rank)), xp.zeros(COUNT, "i8")
    name = name_of(comm)
    with stream if is_warm else nullcontext():
        comm.Allreduce(send, recv)
    comm.synchronize()
    recv[...] = -1
    xp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        comm.Allreduce(send, recv)
        graph = stream.end_capture()
        comm, handle = None, comm.py2f()
        assert_everywhere(WORLD, name_of(parent.Dup()) != name)
        graph.launch(stream)
        stream.synchronize()
    free(handle)
    assert_everywhere(WORLD, (get(recv) == sum(range(parent.size))).all(), f"{get(recv)}")


def test_one_rank_cannot_take_over(parent, monkeypatch):
    """All ranks raise, and the next communicator takes over."""
    name = name_of(parent.Dup())

    def world_ranks(_):
        raise MemoryError("no more")

    with monkeypatch.context() as context:
        if parent.rank == parent.size - 1:
            context.setattr(dropped.ulfm, "world_ranks", world_ranks)
        with raises_everywhere(parent, MemoryError, match=f"no more .failed on rank {parent.size - 1} of"):
            works(parent.Dup())
    assert_everywhere(WORLD, name_of(parent.Dup()) == name)


def test_two_threads(parent):
    """Each makes communicators of its own; none gets the memory of the other's."""
    parents = [parent.Dup() for _ in range(2)]
    device = own_gpu()

    def run(index):
        with device, nullcontext() if HOST else xp.cuda.Stream(non_blocking=True):
            return [works(parents[index].Dup(), 100 * index + call) for call in range(20)]

    with ThreadPoolExecutor(2 if MPI.Query_thread() == MPI.THREAD_MULTIPLE else 1) as threads:
        results = list(threads.map(run, range(2)))
    assert_everywhere(WORLD, np.all(results), f"by thread and call: {results}")
    for each in parents:
        each.Free()
