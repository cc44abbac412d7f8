"""Orders that MPI allows: a collective that has begun does not stand in the way of what its process does next.

The ranks of a pair do the same things in opposite orders (MPI 4.1, section 6.14, has such programs). The first calls
are alike on all ranks, for they load kernels.
"""

import itertools

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.staging import requests as staged
from support import sample
from support.arrays import Output, gpu_only, put, xp
from support.reference import comparing, labels

COUNTS = (5, 40_000)  # a short message is copied; for a long one the sender waits until it has been read


@pytest.fixture(scope="module")
def comms():
    """Communicators of all ranks with their kernels loaded; where the ranks are in pairs, a call may come first."""
    several = [pyncclx.Communicator(MPI.COMM_WORLD).Dup() for _ in range(3)]
    for comm, count in itertools.product(several, COUNTS):
        Gathering(comm, count).begin().Wait()
        comm.Barrier(device=True)
        comm.synchronize()
    yield several
    for comm in several:
        comm.Free()


class Gathering:
    """An Allgather, with what it is to give."""

    def __init__(self, comm, count, call=0):
        self.comm, self.send = comm, put(labels(comm.rank, count, call))
        self.recv = Output(count * comm.size, "i8")
        self.expected = np.concatenate([labels(rank, count, call) for rank in range(comm.size)])

    def begin(self):
        return self.comm.Iallgather(self.send, self.recv.array)

    def prepare(self):
        return self.comm.Allgather_init(self.send, self.recv.array)


def checked(gatherings):
    with comparing() as compare:
        for number, each in enumerate(gatherings):
            compare(each.recv, each.expected, f"gathering {number}")


def partner_of(comm):
    """The other rank of the pair; MPI.PROC_NULL for the last of an odd number."""
    partner = comm.rank ^ 1
    return partner if partner < comm.size else MPI.PROC_NULL


def is_first(comm):
    return comm.rank % 2 == 0


def wait(request, how):
    """Wait for a request: at once, or by looking again and again."""
    if how == "Wait":
        request.Wait()
    while not request.Test():
        pass


@pytest.mark.parametrize("how", ["Wait", "Test"])
@pytest.mark.parametrize("count", COUNTS)
def test_a_blocking_message_between(comms, count, how):
    """One begins the collective and sends; the other receives, then begins it."""
    comm, *_ = comms
    gathering, partner = Gathering(comm, COUNTS[0]), partner_of(comm)
    message, room = put(labels(comm.rank, count)), Output(count, "i8")
    if is_first(comm):
        request = gathering.begin()
        comm.Send(message, partner)
    else:
        comm.Recv(room.array, partner)
        request = gathering.begin()
    wait(request, how)
    checked([gathering])
    with comparing() as compare:
        if not is_first(comm):
            compare(room, labels(partner, count), "message")


@pytest.mark.parametrize("count", COUNTS)
def test_two_communicators(comms, count):
    """Begun in opposite orders, and waited for in both."""
    for back in (False, True):
        gatherings = [Gathering(comm, count, call) for call, comm in enumerate(comms[:2])]
        mine = gatherings if is_first(comms[0]) else gatherings[::-1]
        requests = [each.begin() for each in mine]
        for request in reversed(requests) if back else requests:
            request.Wait()
        checked(gatherings)


@pytest.mark.parametrize("together", [False, True])
def test_persistent_ones_of_two_communicators(comms, together):
    gatherings = [Gathering(comm, COUNTS[0], call) for call, comm in enumerate(comms)]
    prepared = [each.prepare() for each in gatherings]
    mine = prepared if is_first(comms[0]) else prepared[::-1]
    for _ in range(3):
        for each in gatherings:
            each.recv.poison()
        if together:
            pyncclx.Prequest.Startall(mine)
        for request in () if together else mine:
            request.Start()
        for request in prepared:
            request.Wait()
        checked(gatherings)
    for request in prepared:
        request.Free()


def test_several_of_one_communicator(comms):
    """All under way before the partner begins, with blocking ones of another communicator and a message between."""
    comm, other, _ = comms
    gatherings = [Gathering(comm, COUNTS[call % 2], call) for call in range(6)]
    beside, partner, word = Gathering(other, COUNTS[1], 9), partner_of(comm), put(np.zeros(1))
    if is_first(comm):
        requests = [each.begin() for each in gatherings]
        other.Allgather(beside.send, beside.recv.array)
        comm.Send(word, partner)
    else:
        other.Allgather(beside.send, beside.recv.array)
        comm.Recv(word, partner)
        requests = [each.begin() for each in gatherings]
    for request in requests[::2] + requests[1::2]:
        request.Wait()
    checked([*gatherings, beside])


def test_a_barrier_of_another_communicator(comms):
    comm, other, _ = comms
    for device in (True, False):
        gathering = Gathering(comm, COUNTS[1])
        if not is_first(comm):
            other.Barrier(device=device)
        request = gathering.begin()
        if is_first(comm):
            other.Barrier(device=device)
        request.Wait()
        checked([gathering])


def test_blocking_after_nonblocking(comms):
    """The blocking call comes after the one that has begun: they work on the same array."""
    comm, *_ = comms
    value = Output(3, "i8").fill(labels(comm.rank, 3))
    requests = [comm.Ibcast(value.array)]
    comm.Allreduce(MPI.IN_PLACE, value.array)
    requests.append(comm.Iallreduce(MPI.IN_PLACE, value.array))
    comm.Allreduce(MPI.IN_PLACE, value.array)
    pyncclx.Request.Waitall(requests)
    with comparing() as compare:
        compare(value, labels(0, 3) * comm.size**3, "value")


@pytest.mark.ranks(2)
def test_a_request_that_is_not_over_is_not_freed(comms):
    comm, *_ = comms
    gathering, partner = Gathering(comm, COUNTS[0]), partner_of(comm)
    if comm.rank == 0:
        request = gathering.begin()
        with pytest.raises(MPI.Exception, match="Free"):  # MPI allows it for messages alone
            request.Free()
        assert not request.Get_status()
        comm.send(None, partner)
    else:
        if comm.rank == 1:
            comm.recv(source=partner)
        request = gathering.begin()
    while not request.Get_status():
        pass
    request.Free()
    assert not request
    checked([gathering])


@pytest.mark.parametrize("count", COUNTS)
def test_among_messages_and_staged_requests(comms, count):
    """One Waitall for collectives, messages of device and host arrays, MPI's own requests and staged ones."""
    comm, other, third = comms
    gatherings, partner = [Gathering(comm, count), Gathering(other, count, 1)], partner_of(comm)
    word, heard = np.array([comm.rank]), np.array([-1])
    message, room = put(labels(comm.rank, count, 2)), Output(count, "i8")
    own, total, third.staging = put(np.array([comm.rank])), Output(1, "i8"), True
    operator = MPI.Op.Create(lambda a, b, _: np.add(np.frombuffer(a, "i8"), b := np.frombuffer(b, "i8"), b), True)
    begin = [
        gatherings[0].begin,
        gatherings[1].begin,
        lambda: comm.Irecv(room.array, partner, 7),
        lambda: comm.Isend(message, partner, 7),
        lambda: third.Iallreduce(own, total.array, operator),
        lambda: comm.Irecv(heard, partner, 8),
        lambda: comm.Isend(word, partner, 8),
        lambda: MPI.Intracomm.Ibarrier(third),
    ]
    requests = [each() for each in (begin if is_first(comm) else [*begin[3::-1], *begin[4:]])]
    staged.Request.Waitall(requests)
    operator.Free()
    third.staging = None
    checked(gatherings)
    with comparing() as compare:
        compare(total, np.array([sum(range(comm.size))]), "staged")
        if partner != MPI.PROC_NULL:
            compare(room, labels(partner, count, 2), "message")
            assert heard[0] == partner


@pytest.mark.parametrize("seed", sample.some(range(8), 4))
def test_random_orders(comms, seed):
    """What begins on the communicators, among messages of the pairs, in an order that each rank draws for itself."""
    shared, own = np.random.default_rng(seed), np.random.default_rng([seed, MPI.COMM_WORLD.rank])
    lists = [[Gathering(comm, COUNTS[shared.integers(2)], call) for call in range(4)] for comm in comms]
    partner, count = partner_of(comms[0]), COUNTS[shared.integers(2)]
    message, room = put(labels(comms[0].rank, count)), Output(count, "i8")
    turns = own.permutation([index for index, each in enumerate(lists) for _ in each]).tolist()
    talk = int(own.integers(len(turns)))
    left, requests = [iter(each) for each in lists], []
    for turn, index in enumerate(turns):
        requests.append(next(left[index]).begin())
        if turn == talk and is_first(comms[0]):
            comms[0].Send(message, partner)
            comms[0].Recv(room.array, partner)
        elif turn == talk:
            comms[0].Recv(room.array, partner)
            comms[0].Send(message, partner)
    for number in own.permutation(len(requests)):
        requests[number].Wait()
    checked(each for several in lists for each in several)
    with comparing() as compare:
        if partner != MPI.PROC_NULL:
            compare(room, labels(partner, count), "message")


def test_a_request_that_is_dropped_while_its_kernel_waits(comms):
    """Its arrays are kept: the kernel will read and write them."""
    comm, *_ = comms
    gathering = Gathering(comm, COUNTS[0])
    request = gathering.prepare()
    comm.Barrier()
    if is_first(comm):
        request.Start()
        del request
    comm.Barrier()
    if not is_first(comm):
        request.Start()
        request.Wait()
        request.Free()
    comm.synchronize()
    checked([gathering])


@gpu_only
def test_opposite_orders_in_graphs(comms):
    """Captured in opposite orders, and waited for in the capture; then replayed."""
    gatherings = [Gathering(comm, COUNTS[1], call) for call, comm in enumerate(comms[:2])]
    mine = gatherings if is_first(comms[0]) else gatherings[::-1]
    stream = xp.cuda.Stream(non_blocking=True)
    xp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        pyncclx.Request.Waitall([each.begin() for each in mine])
        graph = stream.end_capture()
        for _ in range(5):
            for each in gatherings:
                each.recv.poison()
            graph.launch(stream)
            stream.synchronize()
            checked(gatherings)


@gpu_only
def test_the_callers_stream_goes_on(comms):
    """What the stream is given after the call is done before the partner has begun; Wait makes it wait."""
    comm, *_ = comms
    gathering, after = Gathering(comm, COUNTS[0]), Output(COUNTS[0] * comm.size, "i8")
    stream = xp.cuda.Stream(non_blocking=True)
    gathering.send + 1  # loads CuPy's kernel: CUDA loads none while another kernel runs
    xp.cuda.Device().synchronize()
    comm.Barrier()
    with stream:
        if is_first(comm):
            request = gathering.begin()
            gathering.send + 1
            stream.synchronize()
        comm.Barrier()
        if not is_first(comm):
            request = gathering.begin()
        request.Wait()
        xp.copyto(after.array, gathering.recv.array)
    with comparing() as compare:
        compare(after, gathering.expected, "what the stream reads")
