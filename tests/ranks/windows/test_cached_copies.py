"""Put and Get whose arguments came before are enqueued at once: when that is so, and when not."""

import gc
import weakref
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import backends
from pyncclx.windows import copies
from support.arrays import get, host_only, put, xp
from support.reference import comparing, labels
from support.window_memory import COUNT, Memory, opened

memory = pytest.fixture(opened)
pytestmark = pytest.mark.parametrize("comm", ["world"], indirect=True)
ROUNDS = 3


def refuse(*args, **kwargs):
    raise AssertionError("the arguments were looked at")


def neighbour(comm):
    return (comm.rank + 1) % comm.size


def written(comm, memory, put_it):
    """What is in this rank's memory after an epoch."""
    memory.win.Fence()
    put_it()
    memory.win.Fence()
    return memory.read()


def test_the_second_copy_is_a_look_up(comm, memory, monkeypatch):
    win, right = memory.win, neighbour(comm)
    send, back = put(labels(comm.rank, COUNT)), put(np.zeros(COUNT, "i8"))
    win.Lock_all()
    for turn in range(ROUNDS):
        send[...] = put(labels(comm.rank, COUNT, turn))
        win.Put(send, right)
        win.Rput([send, 4, MPI.INT64_T], right, [COUNT, 4]).Wait()
        win.Flush(right)
        back[...] = 0
        win.Get(back, target_rank=right, target=0)
        win.Flush(right)
        with comparing() as compare:
            compare(back, labels(comm.rank, COUNT, turn), f"round {turn}")
        if turn == 0:
            monkeypatch.setattr(copies, "buffer_of", refuse)
    with pytest.raises(AssertionError):
        win.Put(send, right, 1)
    win.Unlock_all()


def test_arrays_in_turn(comm, memory):
    """Of one shape, at one place: what is there is of the array of the last call."""
    arrays = [put(labels(comm.rank, COUNT, i)) for i in range(2)]
    left = (comm.rank - 1) % comm.size
    with comparing() as compare:
        for turn in range(2 * ROUNDS):
            found = written(comm, memory, lambda i=turn % 2: memory.win.Put(arrays[i], neighbour(comm)))
            compare(put(found[:COUNT]), labels(left, COUNT, turn % 2), f"turn {turn}")


def test_an_array_in_the_place_of_another(comm, memory):
    whole, left = put(labels(comm.rank, COUNT)), (comm.rank - 1) % comm.size
    with comparing() as compare:
        for length in (COUNT, 3, COUNT, 1, 7):
            memory.array[...] = 77
            found = written(comm, memory, lambda n=length: memory.win.Put(whole[:n], neighbour(comm)))
            expected = np.full(memory.count, 77)
            expected[:length] = labels(left, COUNT)[:length]
            compare(put(found), expected, f"{length} elements")


def test_a_target_that_is_changed(comm, memory):
    """A list of the program's, and numbers in an array, name another place later."""
    send, left = put(labels(comm.rank, 3)), (comm.rank - 1) % comm.size
    as_list, as_array = [0, 3], np.array(0)
    with comparing() as compare:
        for disp in (0, 5, 0, 9):
            as_list[0], as_array[...] = disp, disp + 20
            memory.array[...] = 77

            def put_both():
                memory.win.Put(send, neighbour(comm), as_list)
                memory.win.Put(send, neighbour(comm), as_array)

            found = written(comm, memory, put_both)
            expected = np.full(memory.count, 77)
            expected[disp : disp + 3] = expected[disp + 20 : disp + 23] = labels(left, 3)
            compare(put(found), expected, f"from element {disp} on")


def test_ranks_of_other_types(comm, memory):
    send = put(labels(comm.rank, 3))
    for _ in range(2):
        for rank in (neighbour(comm), np.int64(neighbour(comm)), MPI.PROC_NULL):
            memory.win.Put(send, rank)
        with pytest.raises(TypeError):
            memory.win.Put(send, [neighbour(comm)])
        with pytest.raises(MPI.Exception):
            memory.win.Put(send, comm.size)
    memory.win.Fence()


def test_an_array_that_becomes_read_only(comm, memory):
    if xp is not np:
        pytest.skip("only NumPy's arrays can")
    array = put(np.zeros(COUNT, "i8"))
    memory.win.Fence()
    for writeable in (True, False, True):
        array.flags.writeable = writeable
        memory.win.Put(array, neighbour(comm))
        if writeable:
            memory.win.Get(array, neighbour(comm))
        else:
            with pytest.raises(BufferError, match="read-only"):
                memory.win.Get(array, neighbour(comm))
    memory.win.Fence()


def test_other_windows_and_the_end_of_one(comm):
    """What a window has copied before is its own; a later one may be where it was."""
    send, left = put(labels(comm.rank, 3)), (comm.rank - 1) % comm.size
    with comm.Dup() as duplicate:
        for _ in range(ROUNDS):
            memories = [Memory(duplicate), Memory(duplicate)]
            with comparing() as compare:
                for turn in range(4):
                    each = memories[turn % 2]
                    each.array[...] = 77
                    found = written(duplicate, each, lambda each=each: each.win.Put(send, neighbour(comm)))
                    compare(put(found[:3]), labels(left, 3), f"turn {turn}")
            for each in memories:
                each.win.Free()
                with pytest.raises(MPI.Exception):
                    each.win.Put(send, neighbour(comm))
        left_over = Memory(duplicate)
        written(duplicate, left_over, lambda: left_over.win.Put(send, neighbour(comm)))
    win = left_over.win
    for use in lambda: win.Put(send, neighbour(comm)), win.tomemory, lambda: win.Shared_query(0), lambda: win.remote(0):
        with pytest.raises(MPI.Exception) as raised:
            use()
        assert raised.value.Get_error_class() == MPI.ERR_WIN
    left_over.win.Free()


def test_a_failure_since(comm, memory, monkeypatch):
    """A copy that came before raises what kernels have recorded, and has an entry in the flight recorder."""
    send, errors = put(labels(comm.rank, COUNT)), comm.team.errors
    for _ in range(2):
        written(comm, memory, lambda: memory.win.Put(send, neighbour(comm)))

    def failed():
        raise pyncclx.RankFailed((0,), (0,), "it ended")

    with monkeypatch.context() as patch:
        patch.setattr(errors, "check", failed)
        with pytest.raises(pyncclx.RankFailed):
            memory.win.Put(send, neighbour(comm))
    written(comm, memory, lambda: memory.win.Put(send, neighbour(comm)))


def test_each_copy_is_recorded(comm, memory):
    calls = memory.win._calls()
    if calls is None:
        pytest.skip("calls are not recorded")
    send = put(labels(comm.rank, COUNT))
    memory.win.Fence()
    entries = []
    for _ in range(ROUNDS):
        before = calls.ring._next()[1]
        memory.win.Put(send, neighbour(comm))
        entries.append(calls.ring._next()[1] - before - 1)
    memory.win.Fence()
    assert entries == [1] * ROUNDS


@host_only
def test_a_stream_that_is_named_later(comm, memory):
    """The copy comes after what the stream has, and the array is kept until then."""
    send, left = put(labels(comm.rank, COUNT)), (comm.rank - 1) % comm.size
    for _ in range(2):
        written(comm, memory, partial(memory.win.Put, send, neighbour(comm)))
    stream = comm.stream = backends.select().new_stream()
    try:
        later = labels(comm.rank, COUNT, 1)

        def change(array=send):
            array[...] = later

        memory.win.Fence()
        stream.enqueue(change)
        del change
        memory.win.Put(send, neighbour(comm))
        stream.wait(stream.given)
        held = weakref.ref(send)
        del send
        gc.collect()
        kept = held() is not None
        memory.win.Fence()
    finally:
        comm.stream = None
    assert kept
    with comparing() as compare:
        compare(put(get(memory.array)[:COUNT]), labels(left, COUNT, 1), "behind the stream")


def test_copies_keep_no_array(comm, memory):
    send = put(labels(comm.rank, COUNT))
    for _ in range(2):
        written(comm, memory, partial(memory.win.Put, send, neighbour(comm)))
    held = weakref.ref(send)
    del send
    gc.collect()
    assert held() is None
