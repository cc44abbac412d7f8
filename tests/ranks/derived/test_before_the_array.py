"""Datatypes that reach before the first byte of the array that a call is given, within the memory it is a part of."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.derived.datatype import Datatype
from support.arrays import HOST, Output, get, host_only, put
from support.columns import INT64
from support.everywhere import raises_everywhere
from support.forms import FORMS, call
from support.reference import comparing, labels
from support.reversed_ranks import reversed_ranks, ring

comm = pytest.fixture(reversed_ranks, scope="module")
ring = pytest.fixture(ring)
ROWS = 5


@pytest.fixture(params=["backwards", "around", "indexed"])
def datatype(request):
    """Of ROWS elements: each the second before the last one; on both sides; in no order."""
    made = {
        "backwards": lambda: INT64.Create_hvector(ROWS, 1, -16),
        "around": lambda: INT64.Create_hindexed_block(1, [8 * each for each in (2, 1, 0, -1, -2)]),
        "indexed": lambda: INT64.Create_hindexed([2, 1, 1, 1], [8 * each for each in (-9, 1, -5, -3)]),
    }[request.param]()
    resized = made.Create_resized(0, 8 * 16).Commit()
    yield resized
    for each in (made, resized):
        each.Free()


def middle(whole):
    """What calls are given: the elements from the tenth of the memory on."""
    return whole[10:]


@pytest.mark.parametrize("name", ["Bcast", "Gather", "Scatter", "Allgather", "Alltoall", "Allgatherv", "Alltoallw"])
@pytest.mark.parametrize("form", FORMS)
def test_collectives(comm, datatype, name, form):
    size = comm.size
    span = 16 * size + 10
    sent, received = put(labels(comm.rank, span)), Output(span, "i8")
    if name == "Bcast":
        received.fill(labels(comm.rank, span))
    expected = received.read()

    def specs(send, receive):
        if name == "Bcast":
            return [[middle(receive), size, datatype], size - 1]
        if name == "Alltoallw":
            each = ([1] * size, [128 * rank for rank in range(size)]), [datatype] * size
            return [[middle(send), *each], [middle(receive), *each]]
        if name == "Allgatherv":
            counts = [1] * size, list(reversed(range(size)))
            return [[middle(send), 1, datatype], [middle(receive), counts, datatype]]
        return [[middle(send), 1, datatype], [middle(receive), 1, datatype]]

    getattr(MPI.Intracomm, name)(comm, *specs(labels(comm.rank, span), expected))
    call(comm, form, name, *specs(sent, received.array))
    with comparing() as compare:
        compare(received, expected, f"{name}, {form}")


def test_messages(comm, ring, datatype):
    """Blocking, nonblocking, persistent ones, with a status, and in place."""
    above, below = ring
    with comparing() as compare:
        for number in range(3):
            sent, received = put(labels(comm.rank, 40, number)), Output(40, "i8")
            expected, status = received.read(), MPI.Status()
            own, theirs = [middle(sent), 1, datatype], [middle(received.array), 1, datatype]
            values, source = labels(comm.rank, 40, number), labels(below, 40, number)
            MPI.Intracomm(comm).Sendrecv(
                [middle(values), 1, datatype], above, recvbuf=[middle(expected), 1, datatype], source=below
            )
            assert set(expected) & set(source), "nothing was sent"
            if number == 0:
                comm.Sendrecv(own, above, recvbuf=theirs, source=below, status=status)
                assert status.Get_count(datatype) == 1
            elif number == 1:
                pyncclx.Request.Waitall([comm.Irecv(theirs, below), comm.Isend(own, above)])
            else:
                requests = [comm.Recv_init(theirs, below), comm.Send_init(own, above)]
                for request in requests:
                    request.Start()
                pyncclx.Request.Waitall(requests)
            compare(received, expected, f"message {number}")
            replaced, expected = Output(40, "i8").fill(values), labels(comm.rank, 40, number)
            MPI.Intracomm(comm).Sendrecv_replace([middle(expected), 1, datatype], above, source=below)
            comm.Sendrecv_replace([middle(replaced.array), 1, datatype], above, source=below)
            compare(replaced, expected, f"replaced {number}")


def test_pack(datatype):
    datatype = Datatype(datatype)
    values, packed, back = labels(0, 26), np.zeros(ROWS, "i8"), Output(26, "i8")
    sent, target = put(values), put(packed)
    MPI.Datatype.Pack(datatype, middle(values), packed, 0, MPI.COMM_SELF)
    assert datatype.Pack(middle(sent), target, 0, MPI.COMM_SELF) == 8 * ROWS
    assert (get(target) == packed).all()
    expected = back.read()
    MPI.Datatype.Unpack(datatype, packed, 0, middle(expected), MPI.COMM_SELF)
    datatype.Unpack(target, 0, middle(back.array), MPI.COMM_SELF)
    with comparing() as compare:
        compare(back, expected, "Unpack")


@pytest.mark.parametrize("elements", [1, 2])
@pytest.mark.parametrize("name", ["Gatherv", "Scatterv", "Allgatherv", "Alltoallv"])
@pytest.mark.parametrize("form", FORMS)
def test_blocks_without_gaps(comm, name, form, elements):
    """Their displacements are negative. Of a second pair of arrays, too: calls are cached."""
    size, root = comm.size, comm.size - 1
    datatype = INT64 if elements == 1 else INT64.Create_contiguous(elements).Commit()
    places = [2, 0][: size - 1] + [-2 * rank - 2 for rank in range(max(size - 2, 1))]
    begin, counts = 4 * size * elements, [2 - rank % 2 for rank in range(size)]
    span = begin + 8 * elements

    def specs(send, receive):
        mine, all_of = (counts[comm.rank], 0), (counts, places)
        sides = {"Gatherv": (mine, all_of), "Scatterv": (all_of, mine), "Allgatherv": (mine, all_of)}
        own = [counts[comm.rank]] * size, places
        given = sides.get(name, (all_of, own))
        return [[array[begin:], side, datatype] for array, side in zip((send, receive), given, strict=True)]

    rooted = (root,) if name in ("Gatherv", "Scatterv") else ()
    with comparing() as compare:
        for number in range(2):
            values, received = labels(comm.rank, span, number), Output(span, "i8")
            expected = received.read()
            getattr(MPI.Intracomm, name)(comm, *specs(values, expected), *rooted)
            call(comm, form, name, *specs(put(values), received.array), *rooted)
            compare(received, expected, f"{name}, {form}, {number}")
        whole = put(labels(comm.rank, span))
    if HOST:  # on a GPU the memory pool's may begin before the array
        with raises_everywhere(comm, ValueError, match=r"from element -\d+"):
            comm.Allgatherv([whole[:2], 2, INT64], [whole, ([2] * size, range(-2 * size, 0, 2)), INT64])
    if elements > 1:
        datatype.Free()


@pytest.mark.parametrize("name", ["Alltoallw", "Neighbor_alltoallv", "Neighbor_alltoallw"])
def test_blocks_without_gaps_of_several_datatypes(comm, name):
    """Of exchanges whose blocks are sorted by rank."""
    with comm.Create_cart([comm.size], [True]) as cart, comparing() as compare:
        blocks = comm.size if name == "Alltoallw" else 2
        bytes_of = 8 if name.endswith("w") else 1
        side = [2] * blocks, [bytes_of * place for place in range(-2 * blocks, 0, 2)]
        types = [INT64] * blocks if name.endswith("w") else INT64
        begin = 2 * blocks
        values, received = labels(comm.rank, begin + 4), Output(begin + 4, "i8")
        expected = received.read()
        arguments = [values[begin:], side, types], [expected[begin:], side, types]
        if name == "Alltoallw":  # on one rank, the blocking one of Open MPI writes outside of the array
            MPI.Cartcomm.Ialltoallw(cart, *arguments).Wait()
        else:
            getattr(MPI.Cartcomm, name)(cart, *arguments)
        sent, target = put(values), received.array
        for _ in range(2):
            getattr(cart, name)([sent[begin:], side, types], [target[begin:], side, types])
        compare(received, expected, name)


@host_only  # on a GPU the memory pool's may begin before the array
def test_outside_of_the_memory(comm, datatype):
    """Refused on all ranks before anything is launched, and the communicator goes on."""
    whole = put(labels(comm.rank, 40))
    for array in (whole, whole[1:]):
        with raises_everywhere(comm, ValueError, match="takes those from -"):
            comm.Bcast([array, 1, datatype])
    comm.Bcast([whole[10:], 1, datatype])
