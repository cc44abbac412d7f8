"""comm.Register makes windows of existing arrays, which become ordinary arrays again."""

import os
import resource
import weakref
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import backends
from pyncclx.operators import ops
from support.arrays import HOST, Output, get, put, xp
from support.everywhere import assert_everywhere, raises_everywhere
from support.reference import comparing, contributions, fold, labels

pytestmark = pytest.mark.parametrize("comm", ["reversed"], indirect=True)


def shareable(nbytes):
    """An array that other processes can open: any of CuPy's; of NumPy's, one in memory that was made for it."""
    if not HOST:
        return xp.zeros(nbytes, "u1")
    device = backends.select()
    return device.array(device.allocate_exported(nbytes).memory, (nbytes,), "u1")


def unshareable(nbytes):
    """An array that they cannot open."""
    if HOST:
        return np.zeros(nbytes, "u1")
    with xp.cuda.using_allocator(xp.cuda.MemoryAsyncPool().malloc):
        return xp.zeros(nbytes, "u1")


def address(array):
    return array.ctypes.data if HOST else array.data.ptr


def long_count(comm, itemsize):
    """Elements of which each rank's part is no message of packets."""
    return comm.size * (comm.team.layout.packet_nbytes + 1000) // itemsize + 5


def check_operations(comm, send, recv, call):
    """Long operations between these arrays, wherever they are."""
    count, me = long_count(comm, 4), comm.rank
    vectors = contributions(comm.size, count, call=call)
    from_here = send[: 4 * count].view("f4")
    with comparing() as compare:
        from_here[...] = put(vectors[me])
        output = Output(count, "f4", 1, recv)
        comm.Allreduce(from_here, output.array)
        compare(output, fold(ops.SUM, vectors), "Allreduce")
        block = count // comm.size
        output = Output(block * comm.size, "f4", 0, recv)
        comm.Alltoall(from_here[: block * comm.size], output.array)
        compare(output, np.concatenate([v[me * block : (me + 1) * block] for v in vectors]), "Alltoall")
        output = Output(block * comm.size, "f4", 0, recv)
        comm.Allgather(from_here[:block], output.array)
        compare(output, np.concatenate([v[:block] for v in vectors]), "Allgather")


@pytest.mark.parametrize("who", ["all", "odd"])
def test_register(comm, who):
    nbytes = 4 * long_count(comm, 4) + 1024
    send, recv, other = shareable(nbytes), shareable(nbytes), shareable(nbytes)
    registrations = [comm.Register(send), comm.Register(recv)]
    mapped = who == "all" or comm.rank % 2 == 1
    assert_everywhere(comm, all(comm.team.windows.at(address(each)) is not None for each in (send, recv[100:])))
    check_operations(comm, send, recv if mapped else other, 1)
    for registration in registrations:
        registration.Free()
        registration.Free()  # nothing is left to do
    assert_everywhere(comm, comm.team.windows.at(address(send)) is None and comm.team.windows.at(address(recv)) is None)
    check_operations(comm, send, recv, 2)


def test_messages(comm):
    count, right, left = 20_000, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    send, recv = shareable(8 * count).view("i8"), xp.zeros(count, "i8")
    send[...] = put(labels(comm.rank, count))
    with comm.Register(send), comparing() as compare:
        comm.Sendrecv(send, right, recvbuf=recv, source=left)
        compare(recv, labels(left, count), "from the left")


def test_some_ranks_have_nothing(comm):
    count = long_count(comm, 1)
    memory = shareable(count * comm.size)
    with comm.Register(memory if comm.rank != 0 else memory[:0]), comparing() as compare:
        comm.Allgather(put(np.full(count, comm.rank + 1, "u1")), memory)
        compare(memory, np.repeat(np.arange(1, comm.size + 1, dtype="u1"), count), "Allgather")


def test_memory_that_cannot_be_opened(comm):
    last = comm.rank == comm.size - 1
    array = unshareable(1000) if last else shareable(1000)
    with raises_everywhere(comm, pyncclx.NotSupported, match="comm.Alloc"):
        comm.Register(array)
    recv = xp.zeros(10, "i8")
    comm.Allreduce(put(np.ones(10, "i8")), recv, MPI.SUM)
    assert_everywhere(comm, (get(recv) == comm.size).all())


def test_the_array_is_held(comm):
    array = shareable(1000)
    held = weakref.ref(array)
    registration = comm.Register(array)
    del array
    assert_everywhere(comm, held() is not None)
    registration.Free()
    assert_everywhere(comm, held() is None)


def test_the_communicator_is_freed_first(comm):
    duplicate = comm.Dup()
    array = shareable(1000)
    registration = duplicate.Register(array)
    held = duplicate.memory_report()["windows"]
    duplicate.Free()
    registration.Free()
    array[...] = 7
    assert_everywhere(comm, held == 0 and (get(array) == 7).all())


def resident():
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_cycles_take_no_memory(comm):
    """Numbers are used again, and tables change in place."""
    duplicate = comm.Dup()
    duplicate.device_team()
    kept, array, x = duplicate.Register(shareable(5000)), shareable(1000), duplicate.Alloc(100)
    for _ in range(10):
        duplicate.Register(array).Free()
    windows, before, descriptors = duplicate.team.windows, resident(), len(os.listdir("/proc/self/fd"))
    number, table = windows.next_number, windows.table
    for _ in range(200):
        with duplicate.Register(array):
            duplicate.Allreduce(MPI.IN_PLACE, x)
    assert_everywhere(comm, (windows.next_number, windows.table) == (number, table))
    assert_everywhere(comm, resident() - before < 8 << 20)
    assert_everywhere(comm, len(os.listdir("/proc/self/fd")) == descriptors)
    kept.Free()
    first = duplicate.Register(array)  # in the place of the one that was freed
    with comparing() as compare:
        count = duplicate.team.layout.packet_nbytes + 1000
        send, recv = shareable(count), duplicate.Alloc(count * comm.size, "u1")
        send[...] = comm.rank + 1
        with duplicate.Register(send):
            duplicate.Allgather(send, recv)
            compare(recv, np.repeat(np.arange(1, comm.size + 1, dtype="u1"), count), "Allgather")
    first.Free()
    duplicate.Free()


def test_an_array_that_is_none_on_one_rank(comm):
    last = comm.rank == comm.size - 1
    with raises_everywhere(comm, TypeError, match="Register"):
        comm.Register("no array" if last else shareable(1000))
