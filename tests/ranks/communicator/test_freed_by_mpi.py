"""Free waits for no other rank: a communicator's memory is kept until all its ranks have left it."""

import weakref

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import backends
from pyncclx.failures.detector import DETECTOR
from pyncclx.memory.heap import HEAP
from pyncclx.team.state import state_of
from support.arrays import HOST, get, put, xp
from support.everywhere import assert_everywhere
from support.leases import leases

WORLD = MPI.COMM_WORLD


def works(comm):
    """An operation, at whose first call on a communicator the ranks meet."""
    recv = xp.zeros(1000, "i8")
    comm.Allreduce(put(np.full(1000, comm.rank)), recv)
    return (get(recv) == sum(range(comm.size))).all()


def meet():
    """Let all ranks meet."""
    with pyncclx.Communicator().Dup() as comm:
        assert_everywhere(WORLD, works(comm))


def free_by_handle(comm):
    MPI.Comm.f2py(comm.py2f()).Free()


def by_handle(comm):
    return lambda: free_by_handle(comm)


def by_attribute(comm):
    """In a callback of MPI's, while it frees another communicator that has the communicator as an attribute."""
    keyval = MPI.Comm.Create_keyval(delete_fn=lambda _, key, held: free_by_handle(held))
    holder = MPI.Comm.Dup(WORLD)
    holder.Set_attr(keyval, comm)
    MPI.Comm.Free_keyval(keyval)
    return holder.Free


def by_free(comm):
    return comm.Free


@pytest.mark.parametrize("way", [by_handle, by_attribute, by_free])
def test_the_lease_waits_for_all_ranks(way):
    meet()  # about what earlier tests have left
    comm, last = pyncclx.Communicator().Dup(), WORLD.rank == WORLD.size - 1
    assert_everywhere(WORLD, works(comm))
    team, heap = comm.team, comm.team.heap
    shuffle = comm.Create_token_shuffle(4, 16, 16, "f4", k=1, max_tokens=4)
    shuffle.explain()  # allocates
    comm.device_team()
    # `Free` of a communicator with windows waits for all ranks, so it gets none in that case.
    if way is not by_free:
        comm.Alloc(5000)
    free = way(comm)
    # This must not wait for the last rank, which frees the communicator later.
    if not last:
        free()
    is_kept = team.lease in heap.leases and list(heap.abandoned) == ([] if last else [team.id])
    assert_everywhere(WORLD, is_kept and (last or not (team.device_teams or team.dependents)))
    report = pyncclx.Communicator().memory_report()
    assert_everywhere(WORLD, last or report["abandoned"] >= team.lease.nbytes + 20_000)
    meet()
    assert_everywhere(WORLD, team.lease in heap.leases)
    if last:
        free()
    WORLD.Barrier()
    assert_everywhere(WORLD, pyncclx.Communicator().memory_report()["abandoned"] == 0)
    assert_everywhere(WORLD, team.lease not in heap.leases and not heap.abandoned)


@pytest.mark.ranks(2)
def test_more_communicators_than_a_page_lists():
    """If the list is full, the ranks' next rendezvous tells which ones they have left."""
    meet()
    comm, presence = pyncclx.Communicator().Dup(), DETECTOR.get().presence
    assert_everywhere(WORLD, works(comm))
    team, heap, others = comm.team, comm.team.heap, [number.to_bytes(16, "big") for number in range(1, 300)]
    for each in others:
        presence.enter(each)
    comm.Free()
    WORLD.Barrier()
    heap.sweep()
    assert_everywhere(WORLD, team.id in heap.abandoned)
    meet()
    assert_everywhere(WORLD, team.id not in heap.abandoned)
    for each in others:
        presence.leave(each)
    WORLD.Barrier()
    heap.sweep()
    assert_everywhere(WORLD, not heap.abandoned)


@pytest.mark.ranks(3)
def test_frees_that_a_rank_does_not_see():
    """Other ranks make and free many communicators before a rank looks at their pages."""
    meet()
    comm, first = pyncclx.Communicator().Dup(), WORLD.rank == 0
    others = pyncclx.Communicator().Split(int(first))
    assert_everywhere(WORLD, works(comm) and works(others))
    team, heap = comm.team, comm.team.heap
    if first:
        comm.Free()
    WORLD.Barrier()
    if not first:
        comm.Free()
        for _ in range(300):
            with others.Dup() as another:
                assert works(another)
    leases(heap)
    assert_everywhere(WORLD, team.id not in heap.abandoned)
    others.Free()


@pytest.mark.ranks(2)
def test_a_rank_that_has_not_left():
    """Ranks may meet elsewhere before the last one frees the communicator: its kernels may still run."""
    comm, last = pyncclx.Communicator().Dup(), WORLD.rank == WORLD.size - 1
    assert_everywhere(WORLD, works(comm))
    team, heap = comm.team, comm.team.heap
    if not last:
        state_of(comm).abandon()
    meet()
    assert_everywhere(WORLD, team.lease in heap.leases and (team.id in heap.abandoned) != last)
    free_by_handle(comm)
    assert_everywhere(WORLD, True)
    heap.sweep()
    assert_everywhere(WORLD, team.lease not in heap.leases and not heap.abandoned)


@pytest.mark.ranks(2)
def test_some_have_met_and_some_have_not():
    """Where ranks meet to free it, some may have waited too long for the others: nothing is kept for ever."""
    meet()
    comm, last = pyncclx.Communicator().Dup(), WORLD.rank == WORLD.size - 1
    assert_everywhere(WORLD, works(comm))
    team, heap = comm.team, comm.team.heap
    (state_of(comm).abandon if last else state_of(comm).close)()
    free_by_handle(comm)
    WORLD.Barrier()
    heap.sweep()
    assert_everywhere(WORLD, team.lease not in heap.leases and not heap.abandoned)


def test_registered_arrays_wait_too():
    comm, device = pyncclx.Communicator().Dup(), backends.select()
    array = device.array(device.allocate_exported(1000).memory, (1000,), "u1") if HOST else xp.zeros(1000, "u1")
    held = weakref.ref(array)
    comm.Register(array)
    del array
    last = WORLD.rank == WORLD.size - 1
    if not last:
        free_by_handle(comm)
    assert_everywhere(WORLD, held() is not None)
    if last:
        free_by_handle(comm)
    WORLD.Barrier()
    HEAP.get().sweep()
    assert_everywhere(WORLD, held() is None)


@pytest.mark.ranks(2)
def test_a_rank_that_has_failed(monkeypatch):
    """As after Shrink: the others give the lease back without it, and the next communicator has all of it."""
    meet()
    comm, last = pyncclx.Communicator().Dup(), WORLD.rank == WORLD.size - 1
    shrunk = pyncclx.Communicator().Split(int(last))
    assert_everywhere(WORLD, works(comm))
    team, heap = comm.team, comm.team.heap
    if last:
        free_by_handle(comm)
    else:
        for name in ("_failed", "_failed_world"):  # what it finds here is not true
            monkeypatch.setattr(DETECTOR.get(), name, {})
        monkeypatch.setattr(DETECTOR.get(), "gone", lambda: {team.members[-1].uid})
        comm._give_up((WORLD.size - 1,))
        with pytest.raises(pyncclx.RankFailed, match=f"rank {WORLD.size - 1} "):
            comm.Barrier(device=True)
        comm.Free()
        assert works(shrunk)
    assert_everywhere(WORLD, last or (team.id not in heap.abandoned and shrunk.team.lease == team.lease))
    shrunk.Free()
    WORLD.Barrier()
    heap.sweep()
    assert_everywhere(WORLD, team.lease not in heap.leases)
