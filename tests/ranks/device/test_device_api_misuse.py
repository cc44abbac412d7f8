"""Misuse of the device API raises: wrong arguments, too large grids, waits that do not end, a team after Free."""

import threading

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
import pyncclx.device as d
from pyncclx import Aborted, PeerTimeout
from support.arrays import get, gpu_only, put, synchronize, xp
from support.device_api import WORLD, checked_team, i4, kernels, launch, one_communicator
from support.everywhere import assert_everywhere, raises_everywhere
from support.impatient import impatient

TIMEOUT = 0.5 if WORLD.size <= 4 else 1.0
MEET = """
#include "pyncclx.cuh"
extern "C" __global__ void meet(pyncclx_team team, int first) {
    if (blockIdx.x >= first) pyncclx_grid_barrier(team, 5);
}
"""


@pytest.fixture
def team(comm):
    yield from checked_team(comm)


MISUSES = {
    0: r"pyncclx_put, called by a kernel: peer \d+ is no rank of the \d+ there are",
    1: "pyncclx_signal_set, .*: peer -1 is no rank",
    2: r"pyncclx_signal_add, .*: signal 1000 of 64; .*signals=",
    3: r"pyncclx_last_block, .*: counter 99 of 8; .*counters=",
    4: "pyncclx_put, .*: 8 bytes at 0x[0-9a-f]+ are not in an array",
    5: r"pyncclx_get, .*: \d+ bytes at .* are not in an array",
    6: "pyncclx_atomic_add, .*: the word at .* multiple of its 8 bytes",
    7: r"pyncclx_expect_size, .*: the kernel is made for \d+ ranks",
    8: "pyncclx_wait_until, .*: signal 64 of 64",
}


@one_communicator
def test_wrong_arguments_are_told_once(comm, team):
    inbox = comm.Alloc(4096, "u1")
    for which, text in MISUSES.items():
        result = xp.full(1, -1, "i4")
        launch("misuse", 1, 32, team, inbox, 4096, i4(which), result)
        with raises_everywhere(comm, ValueError, match=text):
            team.check()
        assert_everywhere(comm, int(get(result)[0]) == 0, f"{which} returned {get(result)}")
    array = put(np.ones(3, "f4"))
    comm.Allreduce(MPI.IN_PLACE, array)  # the communicator goes on
    assert get(array).tolist() == [comm.size] * 3


@one_communicator
@pytest.mark.parametrize("number", [1 << 64, -(1 << 63) - 1])
def test_integers_that_no_kernel_has(comm, number):
    with raises_everywhere(comm, ValueError, match=f"argument 1 is {number}; an integer has 64 bits"):
        launch("describe", 1, 32, 0, number)


@one_communicator
def test_a_grid_that_is_too_large(comm):
    small, out = comm.device_team(signals=1, blocks=2), xp.zeros(5, "i4")
    with raises_everywhere(comm, ValueError, match=r"a grid of 3 blocks, the team was made for 2; .*blocks="):
        launch("describe", 3, 32, small, out)
    launch("describe", 3, 32, small.pointer, out)  # on the host this is only a number
    with raises_everywhere(comm, ValueError, match="pyncclx_barrier, .*: a grid of 3 blocks, the team was made for 2"):
        small.check()
    launch("describe", 2, 32, small, out)
    small.check()


@one_communicator
def test_a_grid_that_the_gpu_cannot_run_at_once(comm, monkeypatch):
    kernel, team = kernels()["describe"], comm.device_team()
    monkeypatch.setattr(kernel._device, "most_blocks", lambda function, block: 20 * team.sharing)
    with raises_everywhere(comm, ValueError, match="a grid of 30 blocks of 64 threads, the GPU can run 20 at once"):
        kernel(30, 64, [team, xp.zeros(5, "i4")])
    assert kernel.most_blocks(64, comm) == 20
    kernel(20, 64, [team, xp.zeros(5, "i4")])


@one_communicator
def test_wrong_numbers(comm):
    for wrong in ({"signals": -1}, {"blocks": 4 + comm.rank if comm.size > 1 else -1}):
        with raises_everywhere(comm, ValueError, match="device_team: signals, blocks and counters are the same"):
            comm.device_team(**wrong)
    with raises_everywhere(comm, TypeError):
        kernels()["describe"](1, 32, [comm.device_team(), "no array"])


def test_a_team_after_free():
    comm = pyncclx.Communicator().Dup()
    team, out = comm.device_team(), xp.full(5, -1, "i4")
    kernel, address = kernels()["describe"], team.pointer
    held = comm.memory_report()["device teams"]
    assert held >= 64 * 128 * 2
    comm.Free()
    for use in (lambda: team.pointer, team.check, lambda: team.signal_words, lambda: kernel(1, 32, [team, out])):
        with raises_everywhere(WORLD, MPI.Exception, match="device_team: its communicator has been freed"):
            use()
    kernel(1, 32, [address, out])  # too late: it finds no team
    assert get(out).tolist() == [0, 0, 0, 0, 0]
    assert "freed" in repr(team)


@pytest.fixture
def brief():
    """A communicator whose kernels do not wait long."""
    comm = pyncclx.Communicator().Dup()
    impatient(comm, TIMEOUT)
    yield comm
    comm.Free()


def test_a_signal_that_never_comes(brief):
    team, result = brief.device_team(), xp.full(1, -1, "i4")
    launch("wait", 1, 64, team, i4(0), result)
    for look in (team.check, lambda: brief.team):
        with raises_everywhere(brief, PeerTimeout, match=r"wait_until \(signal 3\): .* for any rank .*signal 7"):
            look()
    assert get(result).tolist() == [0]


@pytest.mark.ranks(2)
def test_a_rank_that_does_not_come_to_the_barrier(brief):
    team, result, away = brief.device_team(), xp.full(1, -1, "i4"), brief.size - 1
    assert kernels()  # compiled
    WORLD.Barrier()
    if brief.rank != away:
        launch("wait", 1, 64, team, i4(1), result)
        with pytest.raises(PeerTimeout) as raised:
            team.check()
        assert (raised.value.operation, raised.value.peer) == ("pyncclx_barrier (block 0)", away)
        assert get(result).tolist() == [0]
    WORLD.Barrier()


too_many = pytest.param(20_000, 1024, 0, r"\d+ of 20000", marks=gpu_only)


@pytest.mark.parametrize(("grid", "block", "first", "come"), [(3, 32, 1, "2 of 3"), too_many])
def test_a_grid_barrier_to_which_blocks_do_not_come(brief, grid, block, first, come):
    """One has left, or the GPU cannot run all; the host has seen a number, no team, and could not refuse."""
    team = brief.device_team()
    d.kernel(MEET, "meet")(grid, block, [team.pointer, i4(first)])
    synchronize()
    with raises_everywhere(brief, PeerTimeout, match=rf"grid_barrier \(counter 5\): .* own grid, {come} had come"):
        team.check()


@pytest.mark.ranks(1, 4)
def test_abort():
    comm = pyncclx.Communicator().Dup()
    team, result = comm.device_team(), xp.full(1, -1, "i4")
    kernel = kernels()["wait"]
    timer = threading.Timer(0.2, comm.team.errors.abort)
    timer.start()
    kernel(1, 32, [team, i4(0), result])
    synchronize()
    timer.join()
    with raises_everywhere(comm, Aborted, match=r"pyncclx_wait_until \(signal 3\)"):  # its own, or a peer's before it
        team.check()
    comm.Free()
