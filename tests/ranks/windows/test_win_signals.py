"""Signals of windows: after a wait the data that was put with the signal is there, and no host takes part."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import NotSupported, PeerTimeout, backends
from pyncclx.launch import kernels
from support.arrays import get, gpu_only, host_only, put, synchronize, xp
from support.everywhere import assert_everywhere, raises_everywhere
from support.impatient import impatient
from support.reference import comparing, labels
from support.window_memory import COUNT, opened

memory = pytest.fixture(opened)


@pytest.mark.parametrize("nbytes", [0, 8, 4003, 70_001])
def test_put_signal_and_wait_signal(comm, nbytes):
    """Around the ring, three times and then all at once: what has been waited for is there."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    inbox = comm.Alloc(max(4 * nbytes, 1), "u1")
    win = pyncclx.Win.Create(inbox, 1, comm=comm)
    sends = [put(labels(comm.rank, nbytes, call).astype("u1")) for call in range(4)]
    taken = []
    for call in range(4):
        win.Put_signal(sends[call], float(right) if call == 3 else right, call * nbytes, signal=63)
        if call < 2:
            win.Wait_signal(63)
            taken.append(inbox[call * nbytes :][:nbytes].copy())
    win.Wait_signal(63, 2)
    taken += [inbox[call * nbytes :][:nbytes].copy() for call in (2, 3)]
    win.Wait_signal(63, 0)
    synchronize()
    comm.synchronize()
    win.Free()
    with comparing() as compare:
        for call, found in enumerate(taken):
            compare(found, labels(left, nbytes, call).astype("u1"), f"put {call}")


@pytest.mark.parametrize("comm", ["world"], indirect=True)
def test_put_signal_of_a_long_message(comm):
    """By a copy engine."""
    right, left, count = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, (2 << 20) + 1
    win = pyncclx.Win.Create(comm.Alloc(count, "i8"), 8, comm=comm)
    win.Put_signal(put(labels(comm.rank, count)), right)
    win.Wait_signal()
    found = get(win.tomemory()).view("i8")
    win.Free()
    with comparing() as compare:
        compare(put(found), labels(left, count), "put")


def test_signals_count_what_all_ranks_put(comm, memory):
    """All ranks put to rank 0, each to its own place and one signal."""
    win = memory.win
    win.Put_signal(put(labels(comm.rank, COUNT)), 0, comm.rank * COUNT, signal=5)
    if comm.rank == 0:
        win.Wait_signal(5, comm.size)
        expected = np.concatenate([labels(rank, COUNT) for rank in range(comm.size)])
        found = memory.read()[: COUNT * comm.size]
    with comparing() as compare:
        if comm.rank == 0:
            compare(put(found), expected, "put")


def test_signals_are_counted_apart(comm, memory):
    win, none = memory.win, put(np.empty(0, "i8"))
    for signal in (1, 0):
        win.Put_signal(none, (comm.rank + 1) % comm.size, signal=signal)
    for signal in (1, 0):
        win.Wait_signal(signal)
        synchronize()
    comm.synchronize()


@gpu_only
@pytest.mark.ranks(2)
def test_what_a_signal_comes_with_is_loaded_before(comm, monkeypatch):
    """Each rank's signal comes behind a Put, its first one, while its other stream waits for one."""
    monkeypatch.setattr(kernels, "_loaded", {})
    duplicate, right = comm.Dup(), (comm.rank + 1) % comm.size
    duplicate.team.members = [replace(member, timeout_s=20.0) for member in duplicate.team.members]
    duplicate.team.forget_structs()
    inbox = duplicate.Alloc(8, "u2")
    win = pyncclx.Win.Create(inbox, 2, comm=duplicate)
    waiting, working = xp.cuda.Stream(non_blocking=True), xp.cuda.Stream(non_blocking=True)
    values, none = put(np.full(8, 5 + comm.rank, "u2")), put(np.empty(0, "u2"))
    synchronize()
    MPI.Comm.Barrier(comm)
    with waiting:
        win.Wait_signal()
    with working:
        win.Put(values, right)
        win.Put_signal(none, right)
    synchronize()
    duplicate.synchronize()  # raises PeerTimeout if loading waited for the other stream
    assert (get(inbox) == 5 + (comm.rank - 1) % comm.size).all()
    win.Free()
    duplicate.Free()


@gpu_only
def test_signals_in_a_graph(comm, memory):
    """A captured ring, replayed with other data."""
    win, right = memory.win, (comm.rank + 1) % comm.size
    send, stream, seen = put(np.zeros(COUNT, "i8")), xp.cuda.Stream(non_blocking=True), []
    synchronize()
    with stream:
        stream.begin_capture()
        win.Put_signal(send, right, 0)
        win.Wait_signal()
        graph = stream.end_capture()
        for call in range(50):
            send[...] = xp.asarray(labels(comm.rank, COUNT, call))
            graph.launch(stream)
            seen.append(memory.array[:COUNT].copy())
            win.Put_signal(send[:0], (comm.rank - 1) % comm.size, signal=1)  # what is here has been read
            win.Wait_signal(1)
        stream.synchronize()
    with comparing() as compare:
        for call, found in enumerate(seen):
            compare(found, labels((comm.rank - 1) % comm.size, COUNT, call), f"replay {call}")


def test_signals_refuse(comm, memory):
    win, one = memory.win, put(np.zeros(1, "i8"))
    for call in (lambda: win.Put_signal(one, 0, 0, 64), lambda: win.Wait_signal(-1), lambda: win.Wait_signal(0, -2)):
        with raises_everywhere(comm, ValueError, match="signal: "):
            call()
    plain = pyncclx.Win.Allocate(8, 8, comm=comm)
    with raises_everywhere(comm, NotSupported, match="device memory"):
        plain.Wait_signal()
    plain.Free()


def test_signal_that_no_rank_puts(comm):
    """The wait ends, and its error names what it was for."""
    with comm.Dup() as dup:
        impatient(dup, 0.5)
        win = pyncclx.Win.Create(dup.Alloc(4, "i8"), 8, comm=dup)
        win.Wait_signal(7)
        synchronize()
        with raises_everywhere(comm, PeerTimeout, match=r"Wait_signal \(signal 7\)"):
            win.Wait_signal(7)
        win.Free()


@host_only
@pytest.mark.parametrize("comm", ["world"], indirect=True)
def test_a_signal_is_under_way(comm, memory):
    """Until the stream has come to it: `Free` waits for it, and so do looks for work that is under way."""
    begin, stream = threading.Event(), backends.select().new_stream()
    synchronize()
    comm.stream = stream
    stream.enqueue(lambda: begin.wait(20))
    memory.win.Put_signal(put(labels(comm.rank, 1)), comm.rank)
    busy = comm.team.order.is_busy()
    begin.set()
    memory.win.Wait_signal()
    comm.synchronize()
    comm.team.order.finish()
    assert_everywhere(comm, busy and not comm.team.order.is_busy())
    comm.stream = None
