"""Windows that one rank cannot make or free: all ranks raise, or none, and no rank keeps anything."""

import gc
import os

import numpy as np
import pytest

import pyncclx
from pyncclx import backends
from pyncclx.launch import kernels
from support.arrays import get, put, xp
from support.everywhere import assert_everywhere, raises_everywhere
from support.reference import comparing

pytestmark = pytest.mark.parametrize("comm", ["reversed"], indirect=True)
NOT_CALLED = (("upload", "Alloc"), ("array", "device_team"))


def works(comm):
    """An operation in a new window."""
    recv = comm.Alloc(comm.size * 5000, "u1")
    with comparing() as compare:
        comm.Allgather(put(np.full(5000, comm.rank + 1, "u1")), recv)
        compare(recv, np.repeat(np.arange(1, comm.size + 1, dtype="u1"), 5000), "Allgather")


@pytest.mark.parametrize("shape", [(-1, "f4"), ("three", "f4"), (3, "no type"), (3, "O")])
def test_arguments_that_are_none_on_one_rank(comm, shape):
    arguments = shape if comm.rank == comm.size - 1 else (3, "f4")
    with raises_everywhere(comm, (TypeError, ValueError), match=f"failed on rank {comm.size - 1} of"):
        comm.Alloc(*arguments)
    works(comm)


@pytest.mark.parametrize("method", ["allocate_shared", "map_peer", "upload", "copy", "array"])
@pytest.mark.parametrize("make", ["Alloc", "device_team"])
def test_alloc_that_fails_on_one_rank(comm, monkeypatch, method, make):
    """All ranks raise, no rank keeps memory or descriptors, and the next one works."""
    duplicate, device = comm.Dup(), backends.select()
    works(duplicate)
    windows, last = len(duplicate.team.windows), comm.rank == comm.size - 1
    unused = getattr(device, method)

    def fail(*arguments):
        if method == "map_peer" and isinstance(arguments[0], int):
            os.close(arguments[0])
        raise MemoryError(method)

    before = descriptors()
    with monkeypatch.context() as context:
        if last:
            context.setattr(device, method, fail)
        if (method == "map_peer" and comm.size == 1) or (method, make) in NOT_CALLED:
            assert callable(unused)  # is not called
        else:
            with raises_everywhere(comm, MemoryError, match=f"{method} .failed on rank {comm.size - 1} of"):
                getattr(duplicate, make)(*[1000] * (make == "Alloc"))
            assert_everywhere(comm, descriptors() == before, f"{descriptors()}, before {before}")
    assert_everywhere(comm, len(duplicate.team.windows) == windows and not duplicate.team.device_teams)
    works(duplicate)
    duplicate.Free()


def descriptors():
    """The number of this process's open descriptors."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("numbers", [("four", 1, 1), (-1, 1, 1)])
def test_device_team_of_no_numbers_on_one_rank(comm, numbers):
    with raises_everywhere(comm, (TypeError, ValueError)):
        comm.device_team(*numbers if comm.rank == comm.size - 1 else (1, 1, 1))


MAKERS = {
    "Alloc": lambda comm, memory: comm.Alloc(10),
    "Register": lambda comm, memory: comm.Register(xp.zeros(10)),
    "device_team": lambda comm, memory: comm.device_team(),
    "Win.Create": lambda comm, memory: pyncclx.Win.Create(memory, comm=comm),
}


@pytest.mark.parametrize("make", MAKERS)
def test_what_a_kernel_of_one_rank_has_recorded(comm, monkeypatch, make):
    """All ranks raise it, where they meet."""
    duplicate = comm.Dup()
    memory = duplicate.Alloc(10)

    def check():
        raise pyncclx.PeerTimeout("Allreduce", 1, comm.rank, 0, 1, 0)

    if comm.rank == comm.size - 1:
        monkeypatch.setattr(duplicate.team.errors, "check", check)
    with raises_everywhere(comm, pyncclx.PeerTimeout):
        MAKERS[make](duplicate, memory)
    duplicate.Free()


def test_a_window_whose_kernels_do_not_compile(comm, monkeypatch):
    """One rank compiles them, or each some of them: all ranks raise, and the next window works."""
    memory = comm.Alloc(10)
    before = len(comm.team.device_teams)

    def compile_image(*_):
        raise RuntimeError("no compiler")

    with monkeypatch.context() as context:
        context.setattr(kernels, "_loaded", {})
        context.setattr(kernels, "compile_image", compile_image)
        with raises_everywhere(comm, RuntimeError, match="no compiler .failed on rank"):
            pyncclx.Win.Create(memory, comm=comm)
    assert_everywhere(comm, len(comm.team.device_teams) == before)
    win = pyncclx.Win.Create(memory, comm=comm)
    win.Fence()
    win.Free()


def test_token_shuffle_of_no_number_on_one_rank(comm):
    with raises_everywhere(comm, (TypeError, ValueError), match=f"failed on rank {comm.size - 1} of"):
        comm.Create_token_shuffle(4, 16, 16, k=0 if comm.rank == comm.size - 1 else 1, max_tokens=4)


def test_a_token_shuffle_that_one_rank_cannot_free(comm, monkeypatch):
    """All ranks raise, and the memory goes with the communicator."""
    duplicate = comm.Dup()
    shuffle = duplicate.Create_token_shuffle(4, 16, 16, "f4", k=1, max_tokens=4)
    shuffle.explain()  # allocates

    def fail():
        raise MemoryError("the device has failed")

    with monkeypatch.context() as context:
        if comm.rank == comm.size - 1:
            context.setattr(duplicate.team, "finish", fail)
        with raises_everywhere(comm, MemoryError, match=f"failed on rank {comm.size - 1} of"):
            shuffle.Free()
    assert_everywhere(comm, len(duplicate.team.dependents) == 1)
    shuffle.Free()
    duplicate.Free()


def test_a_view_of_a_peers_memory_outlives_the_communicator(comm):
    """On one rank alone: no rank may raise. On a GPU the view must not be used then."""
    duplicate = comm.Dup()
    memory = duplicate.Alloc(100, "u1")
    memory[...] = put(np.arange(100, dtype="u1") + comm.rank + 1)
    duplicate.synchronize()
    win = pyncclx.Win.Create(memory, comm=duplicate)
    win.Fence()
    view = win.remote(0) if comm.rank == comm.size - 1 else None
    found = np.arange(100) + 1 if view is None else get(view)
    win.Fence()
    win.Free()
    duplicate.Free()
    assert_everywhere(comm, not win and not duplicate and (found == np.arange(100) + 1).all(), str(found))
    works(comm)
    del view
    gc.collect()
    works(comm)
