"""Calls that are made again and again with the same arrays, which launch in another way from some time on."""

import numpy as np
from mpi4py import MPI

from arrays import Output, gpu_only, put, xp
from pyncclx import ops, repeats
from reference import comparing, contributions, fold

COUNT = 37


def check_calls(comm, arrays, calls, first=0):
    """Reduce other data by each call, with each pair of arrays in turn, and by each with two operators."""
    with comparing() as compare:
        for call in range(first, first + calls):
            vectors = contributions(comm.size, COUNT, call=call)
            for number, (send, recv) in enumerate(arrays):
                for op, expected in ((MPI.SUM, ops.SUM), (MPI.MAX, ops.MAX)):
                    send[...] = put(vectors[comm.rank])
                    recv.poison()
                    comm.Allreduce(send, recv.array, op)
                    compare(recv, fold(expected, vectors), f"call {call}, {number}. arrays, {expected.name}")


def test_same_arrays(comm):
    arrays = [(put(np.zeros(COUNT, "f4")), Output(COUNT, "f4")) for _ in range(3)]
    check_calls(comm, arrays, repeats.TIMES + 2)


def test_a_window_later(comm):
    """What kernels are told of the communicator changes with a window."""
    arrays = [(put(np.zeros(COUNT, "f4")), Output(COUNT, "f4"))]
    check_calls(comm, arrays, repeats.TIMES + 1)
    arrays.append((comm.Alloc(COUNT), Output(COUNT, "f4", 0, comm.Alloc(4096, "u1"))))
    check_calls(comm, arrays, repeats.TIMES + 1, first=10)


def test_more_than_are_kept(comm, monkeypatch):
    monkeypatch.setattr(repeats, "MOST", 4)
    send, recv = put(np.full(7, comm.rank + 1, "f4")), Output(1, "f4")
    with comparing() as compare:
        for begin in range(7):
            for _ in range(repeats.TIMES):
                recv.poison()
                comm.Allreduce(send[begin : begin + 1], recv.array)
            compare(recv, np.array([comm.size * (comm.size + 1) / 2], "f4"), f"element {begin}")


@gpu_only
def test_streams_and_capture(comm):
    """On one stream and the other, and captured in a graph."""
    streams = [xp.cuda.Stream(non_blocking=True) for _ in range(2)]
    send, recv = xp.zeros(COUNT, "f4"), Output(COUNT, "f4")
    xp.cuda.Device().synchronize()
    with comparing() as compare:
        for call in range(2 * repeats.TIMES + 2):
            vectors, stream = contributions(comm.size, COUNT, call=call), streams[call % 2]
            with stream:
                send.set(vectors[comm.rank], stream=stream)
                comm.Allreduce(send, recv.array)
            stream.synchronize()
            compare(recv, fold(ops.SUM, vectors), f"call {call}")
        with streams[0]:
            streams[0].begin_capture()
            comm.Allreduce(send, recv.array)
            graph = streams[0].end_capture()
        for replay in range(3):
            vectors = contributions(comm.size, COUNT, call=20 + replay)
            send.set(vectors[comm.rank])
            xp.cuda.Device().synchronize()
            graph.launch(streams[0])
            streams[0].synchronize()
            compare(recv, fold(ops.SUM, vectors), f"replay {replay}")
