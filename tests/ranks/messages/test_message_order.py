"""Many messages: matched as MPI matches, in order, and no circle of ranks waits for each other."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import Request
from pyncclx.messages.memory import bounce
from support.arrays import Output, get, put, xp
from support.labelled_messages import EAGER, LARGE, WORLD, data_of, label_of, map_peers, map_peers_if
from support.reference import comparing
from support.reversed_ranks import ring


@pytest.mark.parametrize("count", [1, 700, LARGE])
def test_halo_with_crossed_tags(comm, count):
    """To both neighbours at once, with tags; receives are posted and waited for in other orders than sends."""
    right, left = ring(comm)
    with comparing() as compare:
        for index in range(3):
            recvs = {tag: Output(count, "i8") for tag in range(4)}
            requests = [comm.Irecv(recvs[tag].array, (left, right)[tag % 2], tag) for tag in (2, 1, 3, 0)]
            for tag in (0, 3, 2, 1):
                requests.append(comm.Isend(put(data_of(comm.rank, tag, index, count)), (right, left)[tag % 2], tag))
            order = np.random.default_rng(index + comm.rank).permutation(len(requests))
            if index == 0:
                Request.Waitall([requests[i] for i in order])
            elif index == 1:
                MPI.Request.Waitall([requests[i] for i in order])
            else:
                for i in order:
                    requests[i].Wait()
            for tag, recv in recvs.items():
                compare(recv, data_of((left, right)[tag % 2], tag, index, count), f"exchange {index}, tag {tag}")


@pytest.mark.ranks(2)
def test_storm(comm):
    """Every rank sends to every rank, and receives from any: each message once, and those of a rank in order."""
    rounds, tags = 12, (3, 4)
    sizes = [1, 50, EAGER + 1]
    outgoing = [
        comm.Isend(put(data_of(comm.rank, tag, index, sizes[index % 3])), dest, tag)
        for index in range(rounds)
        for dest in range(comm.size)
        for tag in tags
    ]
    seen = {(source, tag): [] for source in range(comm.size) for tag in tags}
    for _ in range(rounds * comm.size * len(tags)):
        recv, status = xp.full(EAGER + 1, -1, "i8"), MPI.Status()
        comm.Recv(recv, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        values = get(recv)
        source, tag, index = label_of(values)
        count = status.Get_count(MPI.INT64_T)
        assert (source, tag, sizes[index % 3]) == (status.source, status.tag, count)
        assert values[:count].tobytes() == data_of(source, tag, index, count).tobytes()
        assert (values[count:] == -1).all()
        seen[source, tag].append(index)
    Request.Waitall(outgoing)
    assert all(indices == list(range(rounds)) for indices in seen.values()), seen


@pytest.mark.ranks(2)
@pytest.mark.parametrize("count", [5, LARGE])
def test_posted_wildcards_match_in_order(comm, count):
    """Receives from any rank take the messages in the order in which both were posted."""
    if comm.rank == 0:
        for dest in range(1, comm.size):
            requests = [
                comm.Isend(put(data_of(0, 1 + index % 2, index, count)), dest, 1 + index % 2) for index in range(6)
            ]
            Request.Waitall(requests)
    else:
        recvs, statuses = [Output(count, "i8") for _ in range(6)], [MPI.Status() for _ in range(6)]
        Request.Waitall([comm.Irecv(recv.array) for recv in recvs], statuses)
        with comparing() as compare:
            for index, (recv, status) in enumerate(zip(recvs, statuses, strict=True)):
                compare(recv, data_of(0, 1 + index % 2, index, count), f"receive {index}")
                assert (status.source, status.tag, status.Get_count(MPI.INT64_T)) == (0, 1 + index % 2, count)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("count", [3, LARGE])
def test_many_before_any_receive(comm, count):
    """More messages than there are slots wait for a receiver who takes the last one first."""
    map_peers(comm)
    number = bounce.SLOTS + 20 if count < EAGER else 40
    right, left = ring(comm)
    sends = [put(data_of(comm.rank, index, index, count)) for index in range(number)]
    requests = [comm.Isend(send, right, index) for index, send in enumerate(sends)]
    MPI.Comm.Barrier(comm)
    with comparing() as compare:
        for index in reversed(range(number)):
            recv = Output(count, "i8")
            comm.Recv(recv.array, left, index)
            compare(recv, data_of(left, index, index, count), f"message {index}")
    Request.Waitall(requests)


@pytest.mark.ranks(2)
def test_no_place_left(comm, monkeypatch):
    """Without slots, and without places for offers, data goes through MPI."""
    map_peers(comm)
    right, left = ring(comm)
    bounce_memory = comm.endpoint.context.bounce
    for places in ("slots", "tickets"):
        monkeypatch.setattr(getattr(bounce_memory, places), "take", lambda *_: None)
        with comparing() as compare:
            for count in (4, LARGE):
                recv, request = Output(count, "i8"), comm.Isend(put(data_of(comm.rank, 1, 0, count)), right, 1)
                comm.Recv(recv.array, left, 1)
                request.Wait()
                compare(recv, data_of(left, 1, 0, count), f"{count} elements without {places}")


@pytest.mark.ranks(2)
def test_only_two_of_all(comm):
    """Nothing is collective: ranks that do not communicate need not come."""
    own = pyncclx.Communicator(MPI.Intracomm(comm).Dup())
    if own.rank < 2 <= own.size:
        recv = Output(LARGE, "i8")
        own.Sendrecv(put(data_of(own.rank, 0, 0, LARGE)), 1 - own.rank, 0, recv.array, 1 - own.rank, 0)
        with comparing() as compare:
            compare(recv, data_of(1 - own.rank, 0, 0, LARGE), "the two")
    own.synchronize()
    own.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("order", ["send first", "receive first", "blocking send", "receive between"])
def test_long_messages_wait_for_nobody_in_a_circle(comm, order):
    """The receive is posted, so the send may be waited for first, in any order of ranks."""
    map_peers(comm)
    right, left = ring(comm)
    with comparing() as compare:
        for index in range(3):
            recv, send = Output(LARGE, "i8"), put(data_of(comm.rank, 1, index, LARGE))
            receive = comm.Irecv(recv.array, left, 1)
            if order == "blocking send":
                comm.Send(send, right, 1)
            else:
                request = comm.Isend(send, right, 1)
                if order == "receive between":  # the long message comes before this one, and is not waited for yet
                    short = Output(3, "i8")
                    comm.Sendrecv(put(data_of(comm.rank, 2, index, 3)), right, 2, short.array, left, 2)
                    compare(short, data_of(left, 2, index, 3), f"the short one, {index}")
                if order != "receive first":
                    request.Wait()
            receive.Wait()
            if order == "receive first":
                request.Wait()
            compare(recv, data_of(left, 1, index, LARGE), f"message {index}")


@pytest.mark.ranks(3)
def test_a_chain_of_three(comm):
    """Rank 0 has posted both receives: 2 sends to 0 and then to 1, and 1 sends to 0 when it has a message of 2."""
    map_peers(comm)
    with comparing() as compare:
        for index in range(3 if comm.size >= 3 else 0):
            recvs = [Output(LARGE, "i8") for _ in range(2)]
            if comm.rank == 0:
                requests = [comm.Irecv(recv.array, source, 1) for source, recv in zip((1, 2), recvs, strict=True)]
                for request in requests:
                    request.Wait()
                compare(recvs[0], data_of(1, 1, index, LARGE), f"from 1, {index}")
                compare(recvs[1], data_of(2, 1, index, LARGE), f"from 2, {index}")
            elif comm.rank == 1:
                comm.Recv(recvs[0].array, 2, 1)
                compare(recvs[0], data_of(2, 1, index, LARGE), f"from 2 to 1, {index}")
                comm.Send(put(data_of(1, 1, index, LARGE)), 0, 1)
            elif comm.rank == 2:
                comm.Send(put(data_of(2, 1, index, LARGE)), 0, 1)
                comm.Send(put(data_of(2, 1, index, LARGE)), 1, 1)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("known", [False, True], ids=["strangers", "acquainted"])
def test_short_sends_head_to_head(known, monkeypatch):
    """Short sends need no receiver: both send first, and receive then. Also the first messages ever between two."""
    comm = pyncclx.Communicator().Split(WORLD.rank // 2)
    map_peers_if(comm, known, monkeypatch)
    with comparing() as compare:
        for index in range(5):
            comm.Send(put(data_of(comm.rank, 1, index, EAGER)), comm.size - 1 - comm.rank, 1)
        for index in range(5):
            recv = Output(EAGER, "i8")
            comm.Recv(recv.array, comm.size - 1 - comm.rank, 1)
            compare(recv, data_of(comm.size - 1 - comm.rank, 1, index, EAGER), f"message {index}")
    comm.Free()


@pytest.mark.parametrize("counts", [(5, 7), (5, LARGE), (LARGE, 5), (0, 5)])
def test_exchanges_of_any_lengths(comm, counts):
    """A short message leaves by the kernel that takes one which is there already; a long one is ready before that."""
    map_peers(comm)
    right, left = ring(comm)
    with comparing() as compare:
        for index in range(4):
            count = counts[left % 2]
            recv = Output(count, "i8")
            sent = put(data_of(comm.rank, 0, index, counts[comm.rank % 2]))
            comm.Sendrecv(sent, right, index, recv.array, left, index)
            compare(recv, data_of(left, 0, index, count), f"message {index}")
