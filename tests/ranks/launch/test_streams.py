"""Streams: operations come after the work that produces their data, on the current stream; the host does not wait."""

import itertools
import threading

import numpy as np
import pytest

import pyncclx
from pyncclx.operators import ops
from support.arrays import Interface, Output, get, gpu_only, put, xp
from support.reference import comparing, contributions, fold

pytestmark = gpu_only

COUNT = 10_000
CYCLES = 50_000_000  # of the GPU's clock: about 30 ms

SLOW = r"""
extern "C" __global__ void slow_copy(const float* from, float* to, int count, long long cycles) {
    const long long begin = clock64();
    while (clock64() - begin < cycles) {}
    for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
}
"""


@pytest.fixture(scope="module")
def slow_copy():
    """A kernel that spins before it writes, on the current stream."""
    kernel = xp.RawKernel(SLOW, "slow_copy")
    warm = xp.zeros(1, "f4")
    kernel((1,), (32,), (warm, warm, np.int32(1), np.int64(0)))
    xp.cuda.Device().synchronize()
    return lambda source, to: kernel((1,), (256,), (source, to, np.int32(source.size), np.int64(CYCLES)))


@pytest.fixture
def streams():
    return [xp.cuda.Stream(non_blocking=True) for _ in range(3)]


def warm_up(comm):
    comm.Allreduce(put(np.zeros(COUNT, "f4")), xp.empty(COUNT, "f4"))
    comm.synchronize()


def test_slow_producer_on_the_current_stream(comm, slow_copy, streams):
    """The call is made while the kernel that writes its input still runs; what follows reads its output."""
    warm_up(comm)
    vectors = contributions(comm.size, COUNT)
    source, send = put(vectors[comm.rank]), xp.full(COUNT, -1, "f4")
    recv, after = Output(COUNT, "f4"), xp.empty(COUNT, "f4")
    xp.cuda.Device().synchronize()
    with streams[0]:
        slow_copy(source, send)
        comm.Allreduce(send, recv.array)
        xp.copyto(after, recv.array)
        send[...] = -2
    with comparing() as compare:
        compare(recv, fold(ops.SUM, vectors), "recv")
        compare(after, fold(ops.SUM, vectors), "what reads it next")


def test_slow_producer_on_its_own_stream(comm, slow_copy, streams):
    """The array names the stream that makes its data."""
    warm_up(comm)
    vectors = contributions(comm.size, COUNT)
    source, send = put(vectors[comm.rank]), xp.full(COUNT, -1, "f4")
    recv = Output(COUNT, "f4")
    xp.cuda.Device().synchronize()
    with streams[0]:
        slow_copy(source, send)
    with streams[1]:
        comm.Allreduce(Interface(send, stream=streams[0].ptr), recv.array)
    with comparing() as compare:
        compare(recv, fold(ops.SUM, vectors), "recv")


def test_slow_producer_on_some_ranks(comm, slow_copy, streams):
    """Ranks come late by turns, through calls for which no rank waits."""
    warm_up(comm)
    calls = [contributions(comm.size, COUNT, call=call) for call in range(4)]
    sources = [put(vectors[comm.rank]) for vectors in calls]
    sends, recvs = [xp.full(COUNT, -1, "f4") for _ in calls], [Output(COUNT, "f4") for _ in calls]
    xp.cuda.Device().synchronize()
    with streams[0]:
        for call, (source, send, recv) in enumerate(zip(sources, sends, recvs, strict=True)):
            if comm.rank % 2 == call % 2:
                slow_copy(source, send)
            else:
                xp.copyto(send, source)
            comm.Allreduce(send, recv.array)
    with comparing() as compare:
        for call, (vectors, recv) in enumerate(zip(calls, recvs, strict=True)):
            compare(recv, fold(ops.SUM, vectors), f"call {call}")


def test_two_streams_on_one_communicator(comm, slow_copy, streams):
    """The library orders them; the second call's data is there long before the first one's."""
    warm_up(comm)
    calls = [contributions(comm.size, COUNT, call=call) for call in range(6)]
    sources = [put(vectors[comm.rank]) for vectors in calls]
    sends, recvs = [xp.full(COUNT, -1, "f4") for _ in calls], [Output(COUNT, "f4") for _ in calls]
    xp.cuda.Device().synchronize()
    for call, (source, send, recv) in enumerate(zip(sources, sends, recvs, strict=True)):
        with streams[call % 3]:
            if call % 3 == comm.rank % 3:
                slow_copy(source, send)
            else:
                xp.copyto(send, source)
            comm.Allreduce(send, recv.array)
    with comparing() as compare:
        for call, (vectors, recv) in enumerate(zip(calls, recvs, strict=True)):
            compare(recv, fold(ops.SUM, vectors), f"call {call}")


def test_a_capture_between_two_streams(comm, slow_copy, streams):
    """Eager on the first stream, captured on the second, eager on the third: that waits for the first alone."""
    warm_up(comm)
    vectors = contributions(comm.size, COUNT)
    source, send, recv = put(vectors[comm.rank]), xp.full(COUNT, -1, "f4"), Output(COUNT, "f4")
    first, second, third = streams
    xp.cuda.Device().synchronize()
    for wait in (False, False, True):
        with first:
            slow_copy(source, send)
            comm.Allreduce(send, recv.array)
        with second:
            second.begin_capture()
            comm.Allreduce(send, recv.array)
            if wait:
                comm.synchronize()  # for nothing that is captured
                assert first.done
            second.end_capture()
        with third:
            comm.Barrier(device=True)
        third.synchronize()
        assert first.done
    with comparing() as compare:
        compare(recv, fold(ops.SUM, vectors), "recv")


def test_the_per_thread_default_stream_of_two_threads(comm, slow_copy):
    """One handle, and a stream in each thread: the second thread's call comes after the first one's."""
    warm_up(comm)
    calls = [contributions(comm.size, COUNT, call=call) for call in range(2)]
    sources = [put(vectors[comm.rank]) for vectors in calls]
    sends, recvs = [xp.full(COUNT, -1, "f4") for _ in calls], [Output(COUNT, "f4") for _ in calls]
    own, end = xp.cuda.Stream.ptds, xp.cuda.Event()
    device = xp.cuda.Device()
    device.synchronize()

    def slowly():
        with device, own:
            slow_copy(sources[0], sends[0])
            comm.Allreduce(sends[0], recvs[0].array)
            end.record(own)

    thread = threading.Thread(target=slowly)
    thread.start()
    thread.join()
    with own:
        xp.copyto(sends[1], sources[1])
        comm.Allreduce(sends[1], recvs[1].array)
        own.synchronize()
    assert end.done
    with comparing() as compare:
        for call, (vectors, recv) in enumerate(zip(calls, recvs, strict=True)):
            compare(recv, fold(ops.SUM, vectors), f"call {call}")


def test_several_communicators_at_once(slow_copy, streams):
    """Each on its own stream; on each rank another one waits for its data."""
    comms = [pyncclx.Communicator().Dup() for _ in streams]
    for each in comms:
        warm_up(each)
    calls = [contributions(each.size, COUNT, call=call) for call, each in enumerate(comms)]
    sources = [put(vectors[each.rank]) for vectors, each in zip(calls, comms, strict=True)]
    sends, recvs = [xp.full(COUNT, -1, "f4") for _ in calls], [Output(COUNT, "f4") for _ in calls]
    xp.cuda.Device().synchronize()
    for call, each in enumerate(comms):
        with streams[call]:
            if each.rank % len(comms) == call:
                slow_copy(sources[call], sends[call])
            else:
                xp.copyto(sends[call], sources[call])
            each.Allreduce(sends[call], recvs[call].array)
    with comparing() as compare:
        for call, (vectors, recv) in enumerate(zip(calls, recvs, strict=True)):
            compare(recv, fold(ops.SUM, vectors), f"communicator {call}")
    for each in comms:
        each.Free()


def test_two_communicators_in_another_order_on_each_rank(streams):
    """Of each one kernel may run while the next one waits on the GPU: they leave room for those of the other."""
    comms = [pyncclx.Communicator().Dup() for _ in range(2)]
    # few blocks; all, of 3, 8 and 16 warps; a long one
    counts = tuple(comms[0].size * each for each in (1 << 7, 1 << 13, 1 << 15, 1 << 16, 1 << 20))
    sends = {count: xp.full(count, 1 + comms[0].rank, "f4") for count in counts}
    recvs = [[xp.full(count, -1, "f4") for count in counts * 6] for _ in comms]

    def enqueue(index, outputs):
        for call, recv in enumerate(outputs):
            method = (comms[index].Allreduce, comms[index].Alltoall)[call // len(counts) % 2]
            method(sends[recv.size], recv)

    for index in range(2):  # kernels are loaded by all ranks together
        enqueue(index, recvs[index][: 2 * len(counts)])
        comms[index].synchronize()
    for first in range(4):
        for recv in (recv for each in recvs for recv in each):
            recv[...] = -1
        xp.cuda.Device().synchronize()
        for index in (0, 1) if (comms[0].rank + first) % 2 else (1, 0):
            with streams[index]:
                enqueue(index, recvs[index])
        with comparing() as compare:
            ranks = np.arange(comms[0].size)
            for index, call in itertools.product(range(2), range(6 * len(counts))):
                recv = recvs[index][call]
                block = np.repeat(1 + ranks, recv.size // ranks.size) if call // len(counts) % 2 else np.sum(1 + ranks)
                compare(recv, np.broadcast_to(block, recv.shape).astype("f4"), f"communicator {index}, call {call}")
    for each in comms:
        each.Free()


def test_blocking_on_the_host(comm, slow_copy, streams):
    """With blocking = "host" a call returns when its stream has done all its work."""
    warm_up(comm)
    vectors = contributions(comm.size, COUNT)
    source, send, recv = put(vectors[comm.rank]), xp.full(COUNT, -1, "f4"), Output(COUNT, "f4")
    comm.blocking = "host"
    try:
        with streams[0]:
            slow_copy(source, send)
            comm.Allreduce(send, recv.array)
        assert streams[0].done
    finally:
        comm.blocking = "stream"
    assert get(recv.array).tobytes() == fold(ops.SUM, vectors).tobytes()
