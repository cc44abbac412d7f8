"""The kernels that pack and unpack: every datatype, in graphs, and at absolute addresses."""

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx import backends
from pyncclx.derived import packing
from pyncclx.derived.batches import Part
from pyncclx.derived.packing import PACK, UNPACK, Packing, packing_of
from pyncclx.derived.typemap import typemap_of
from support.arrays import Output, gpu_only, host_only, put, xp
from support.columns import INT64
from support.reference import comparing, labels
from support.reversed_ranks import reversed_ranks
from support.typemaps import DATATYPES, packed_by_mpi, unpacked_by_mpi

comm = pytest.fixture(reversed_ranks, scope="module")


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_kernels(offset):
    """Three elements of each datatype, in memory of any alignment, there and back."""
    device = backends.select()
    stream = device.current_stream()
    with comparing() as compare:
        for name, make in DATATYPES.items():
            datatype = make().Commit()
            repeated = datatype.Create_contiguous(3).Commit()
            lower, length = repeated.Get_true_extent()
            values = np.random.default_rng(1).integers(0, 256, max(length, 1), np.uint8)
            part = Part(typemap_of(datatype), 3, -lower, 0)
            packed, memory = Output(repeated.Get_size(), "u1", offset), Output(values.size, "u1", offset)
            for kernel, array in ((PACK, put(values, offset)), (UNPACK, memory.array)):
                addresses = pointer(array), pointer(packed.array)
                for launch in packing_of(device).launches(kernel, (part,), *addresses, stream):
                    device.launch(*launch, stream)
            expected, back = packed_by_mpi(values, repeated), Output(values.size, "u1").read()
            unpacked_by_mpi(expected, back, repeated)
            compare(packed, expected, f"{name}, packed")
            if name != "overlapping":  # where MPI leaves open which byte is the last
                compare(memory, back, f"{name}, unpacked")
            datatype.Free()
            repeated.Free()


def pointer(array):
    return array.data.ptr if hasattr(array.data, "ptr") else array.ctypes.data


@host_only
def test_tables_stay_in_a_capture(monkeypatch):
    """When there are many they are forgotten after a wait for the device, which no capture allows."""
    device = backends.select()
    irregular = INT64.Create_indexed([1 + i % 3 for i in range(20)], [4 * i for i in range(20)]).Commit()
    launches = Packing(device).launches
    arguments = PACK, (Part(typemap_of(irregular), 1, 0, 0),), 1 << 20, 1 << 21, device.current_stream()
    before = list(launches(*arguments))

    def refuse():
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(packing, "MOST_TABLES_NBYTES", 0)
    monkeypatch.setattr(device, "is_capturing", lambda stream: True)
    monkeypatch.setattr(device, "synchronize", refuse)
    assert list(launches(*arguments)) == before
    irregular.Free()


@gpu_only
def test_graph(comm):
    """Captured once, replayed with other data: packed memory outlives the capture."""
    size, me = comm.size, comm.rank
    column = INT64.Create_vector(50, 1, size).Create_resized(0, 8).Commit()
    irregular = INT64.Create_indexed([1 + i % 3 for i in range(20)], [4 * i for i in range(20)]).Commit()
    x, y = xp.zeros((50, size), "i8"), Output((50, size), "i8")
    z = Output(80, "i8")
    stream = xp.cuda.Stream(non_blocking=True)

    def operations():
        comm.Alltoall([x, 1, column], [y.array, 1, column])
        comm.Bcast([z.array, 1, irregular], size - 1)

    with stream:
        operations()
        stream.synchronize()
        stream.begin_capture()
        operations()
        graph = stream.end_capture()
        comm.Bcast([xp.zeros(80, "i8"), 1, irregular], 0)
    irregular.Free()
    with comparing() as compare:
        for number in range(3):
            values, last = labels(me, 50 * size, number).reshape(50, size), labels(size - 1, 80, number)
            with stream:
                x.set(values)
                z.fill(last if me == size - 1 else np.full(80, -1))
                graph.launch(stream)
            whole = [labels(rank, 50 * size, number).reshape(50, size)[:, me] for rank in range(size)]
            compare(y, np.stack(whole, axis=1), f"replay {number}")
            named = np.concatenate([np.arange(4 * i, 4 * i + 1 + i % 3) for i in range(20)])
            wanted = last if me == size - 1 else np.full(80, -1)
            wanted[named] = last[named]
            compare(z, wanted, f"replay {number}, irregular")
    column.Free()


def address_of(array):
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def test_absolute_addresses(comm):
    """MPI.BOTTOM, and datatypes that name elements of several arrays."""
    size, rank = comm.size, comm.rank
    first, second = (put(labels(rank, 3 * size, call)) for call in (0, 1))
    output = put(np.full(6 * size, -1))
    here, there = address_of(first), address_of(second)
    sends = [
        MPI.Datatype.Create_struct([1, 2], [here + 24 * peer, there + 24 * peer + 8], [INT64, INT64]).Commit()
        for peer in range(size)
    ]
    receives = [INT64.Create_hindexed([3], [address_of(output) + 48 * peer]).Commit() for peer in range(size)]
    counts = [1] * size, [0] * size
    comm.Alltoallw([MPI.BOTTOM, counts, sends], [MPI.BOTTOM, counts, receives])
    comm.synchronize()
    expected = np.full((size, 6), -1)
    for peer in range(size):
        values = labels(peer, 3 * size, 0), labels(peer, 3 * size, 1)
        expected[peer, :3] = values[0][3 * rank], values[1][3 * rank + 1], values[1][3 * rank + 2]
    for datatype in (*sends, *receives):
        datatype.Free()
    with comparing() as compare:
        compare(output, expected.ravel(), "Alltoallw")
