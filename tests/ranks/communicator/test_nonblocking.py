"""Nonblocking collectives: the results of mpi4py's on host copies, in every way to wait."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.operators import ops
from support.arrays import Output, get, gpu_only, put, xp
from support.everywhere import raises_everywhere
from support.forms import COUNT, NAMES, arguments, spec, total
from support.reference import comparing, contributions, fold, labels, named


@pytest.mark.parametrize("name", NAMES)
def test_as_mpi4py(comm, name):
    """Three calls in flight, waited for in the opposite order."""
    sent, received, more, named = arguments(comm, name)
    name = f"I{name.lower()}"
    with comparing() as compare:
        calls = []
        for call in range(3):
            values = labels(comm.rank, total(sent), call)
            output = Output(total(received), "i8")
            expected = output.read()
            getattr(MPI.Intracomm, name)(comm, spec(values, sent), spec(expected, received), *more, **named).Wait()
            send = put(values)
            request = getattr(comm, name)(spec(send, sent), spec(output.array, received), *more, **named)
            calls.append((request, send, values, output, expected))
        for call, (request, send, values, output, expected) in reversed(list(enumerate(calls))):
            assert isinstance(request, pyncclx.Request)
            request.Wait()
            assert not request
            compare(output, expected, f"call {call}")
            compare(send, values, f"call {call}: sendbuf")


def test_bcast(comm):
    with comparing() as compare:
        for root in range(comm.size):
            buf = Output(COUNT, "i8").fill(labels(comm.rank, COUNT))
            comm.Ibcast(buf.array, root=root).Wait()
            compare(buf, labels(root, COUNT), f"root {root}")


def test_barrier(comm):
    request = comm.Ibarrier(device=True)
    assert isinstance(request, pyncclx.Request)
    request.Wait()
    comm.Ibarrier().Wait()


@pytest.mark.parametrize("waitall", [MPI.Request.Waitall, pyncclx.Request.Waitall], ids=["mpi4py", "ours"])
def test_lists(comm, waitall):
    """Ours, nothing to do, and mpi4py's, in one list."""
    vectors = contributions(comm.size, COUNT)
    recv, nothing = Output(COUNT, "f4"), Output(0, "f4")
    requests = [
        comm.Iallreduce(put(vectors[comm.rank]), recv.array),
        MPI.Intracomm.Ibarrier(comm),
        comm.Iallreduce(put(np.empty(0, "f4")), nothing.array),
    ]
    waitall(requests)
    assert not any(requests)
    with comparing() as compare:
        compare(recv, fold(ops.SUM, vectors), "recv")


def test_testing_until_over(comm):
    vectors, recv = contributions(comm.size, COUNT), Output(COUNT, "f4")
    request, status = comm.Iallreduce(put(vectors[comm.rank]), recv.array), MPI.Status()
    while not request.Test(status):
        pass
    assert not request
    assert status.Get_count(MPI.BYTE) == 0
    assert request.Test()
    with comparing() as compare:
        compare(recv, fold(ops.SUM, vectors), "recv")


def test_a_new_communicator_waits_for_no_collective(comm):
    """One that other ranks begin only after the first call on the new one."""
    values, whole, other_whole = labels(comm.rank, COUNT), Output(COUNT, "i8"), Output(COUNT, "i8")
    x = put(values)
    expected = sum(labels(rank, COUNT) for rank in range(comm.size))
    comm.Iallreduce(x, whole.array).Wait()
    whole.poison()
    request = comm.Iallreduce(x, whole.array) if comm.rank == 0 else None
    other = comm.Dup()
    other.Allreduce(x, other_whole.array)
    request = request or comm.Iallreduce(x, whole.array)
    request.Wait()
    other.Free()
    with comparing() as compare:
        compare(other_whole, expected, "the first call")
        compare(whole, expected, "the nonblocking one")


def test_blocking_host(comm):
    vectors, recv = contributions(comm.size, COUNT), Output(COUNT, "f4")
    comm.blocking = "host"
    try:
        comm.Iallreduce(put(vectors[comm.rank]), recv.array, algorithm=named("two_shot")).Wait()
    finally:
        comm.blocking = "stream"
    with comparing() as compare:
        compare(recv, fold(ops.SUM, vectors), "recv")


def test_bad_input_is_refused_at_once(comm):
    recv = Output(COUNT, "f4")
    with raises_everywhere(comm, ValueError, match="mismatch in send count"):
        comm.Iallreduce(put(np.zeros(COUNT + 1, "f4")), recv.array)
    with raises_everywhere(comm, MPI.Exception, match="root is"):
        comm.Ibcast(recv.array, root=comm.size)


def test_free_before_waiting(comm):
    vectors, recv = contributions(comm.size, COUNT), Output(COUNT, "f4")
    other = comm.Dup()
    request = other.Iallreduce(put(vectors[comm.rank]), recv.array)
    other.Free()
    request.Wait()
    with comparing() as compare:
        compare(recv, fold(ops.SUM, vectors), "recv")


def test_explain(comm):
    assert comm.explain("Ireduce_scatter_block", 64) == comm.explain("Reduce_scatter_block", 64)
    assert comm.explain("Iallreduce", 64).startswith("native: Allreduce")


@gpu_only
def test_the_stream_that_waits(comm):
    """Launched on one stream behind a slow kernel, waited for on another."""
    vectors, recv = contributions(comm.size, COUNT), Output(COUNT, "f4")
    first, second = (xp.cuda.Stream(non_blocking=True) for _ in range(2))
    source, send, after = put(vectors[comm.rank]), xp.full(COUNT, -1, "f4"), xp.empty(COUNT, "f4")
    spin = xp.RawKernel(
        'extern "C" __global__ void spin(long long n) { long long t = clock64(); while (clock64() - t < n) {} }', "spin"
    )
    comm.Allreduce(source, recv.array)
    comm.synchronize()
    recv.poison()
    xp.cuda.Device().synchronize()
    with first:
        spin((1,), (1,), (np.int64(50_000_000),))
        xp.copyto(send, source)
        request = comm.Iallreduce(send, recv.array)
    assert not request.Get_status()
    with second:
        request.Wait()
        xp.copyto(after, recv.array)
    with comparing() as compare:
        compare(get(after), fold(ops.SUM, vectors), "what the second stream reads")


@gpu_only
def test_captured_in_a_graph(comm):
    """Begun and waited for in a capture; replayed with other data."""
    first, second = (xp.cuda.Stream(non_blocking=True) for _ in range(2))
    send, recv, after = xp.zeros(COUNT, "f4"), xp.empty(COUNT, "f4"), Output(COUNT, "f4")
    comm.Allreduce(send, recv)
    comm.synchronize()
    with first:
        first.begin_capture()
        request = comm.Iallreduce(send, recv)
        assert request.Get_status()
        request.Wait()
        xp.copyto(after.array, recv)
        graph = first.end_capture()
    with comparing() as compare:
        for replay in range(3):
            vectors = contributions(comm.size, COUNT, call=replay)
            send.set(vectors[comm.rank])
            xp.cuda.Device().synchronize()
            graph.launch(second)
            second.synchronize()
            compare(after, fold(ops.SUM, vectors), f"replay {replay}")
    comm.synchronize()
