"""Nonblocking calls that are the first of their kind return at once, so that ranks may begin them in any order.

Without that each of these programs, which MPI allows, ends with RanksMissing.
"""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import backends
from pyncclx.errors import RanksMissing
from support.arrays import Output, get, host_only, put, xp
from support.everywhere import assert_everywhere, raises_everywhere
from support.reference import labels

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
COUNT, TAG = 37, 5
IS_FIRST = RANK == 0
pytestmark = [pytest.mark.one_node, pytest.mark.ranks(2, 3), pytest.mark.timeout(100)]
Waitall = pyncclx.Request.Waitall


def parent():
    """A communicator that has made no call on device arrays."""
    return pyncclx.Communicator(WORLD.Dup())


class Call:
    """A call that has begun, with its output and what that has to be in the end."""

    def __init__(self, request, out, expected):
        self.request, self.out, self.expected = request, out, expected

    @property
    def is_right(self):
        """Whether the output is as MPI defines it, and nothing beside it was written."""
        return bool((self.out.read() == self.expected).all()) and not self.out.damage()


def of_ranks(call):
    return np.stack([labels(rank, COUNT, call) for rank in range(SIZE)])


def iallreduce(comm, call=0):
    out = Output(COUNT, "i8")
    return Call(comm.Iallreduce(put(labels(comm.rank, COUNT, call)), out.array), out, of_ranks(call).sum(0))


def iallgather(comm, call=0):
    out = Output((SIZE, COUNT), "i8")
    return Call(comm.Iallgather(put(labels(comm.rank, COUNT, call)), out.array), out, of_ranks(call))


def ibcast(comm, call=0):
    root = call % SIZE
    out, expected = Output(COUNT, "i8"), labels(root, COUNT, call)
    if comm.rank == root:
        out.fill(expected)
    return Call(comm.Ibcast(out.array, root), out, expected)


def iscan(comm, call=0):
    out = Output(COUNT, "i8")
    own = put(labels(comm.rank, COUNT, call))
    return Call(comm.Iscan(own, out.array), out, of_ranks(call)[: comm.rank + 1].sum(0))


def ialltoallv(comm, call=0):
    out, counts = Output((SIZE, COUNT), "i8"), [COUNT] * SIZE
    sent = np.concatenate([labels(comm.rank, COUNT, call + to) for to in range(SIZE)])
    request = comm.Ialltoallv([put(sent), counts], [out.array.reshape(-1), counts])
    return Call(request, out, np.stack([labels(rank, COUNT, call + comm.rank) for rank in range(SIZE)]))


def ireduce_scatter(comm, call=0):
    """In place: all ranks but the first need memory of the communicator for that."""
    out = Output((SIZE, COUNT), "i8").fill(of_ranks(call) + comm.rank)
    expected = SIZE * of_ranks(call)[comm.rank] + sum(range(SIZE))
    request = comm.Ireduce_scatter(MPI.IN_PLACE, out.array.reshape(-1), [COUNT] * SIZE)
    whole = of_ranks(call) + comm.rank
    whole[0] = expected
    return Call(request, out, whole)


def every_second(comm, call=0):
    """A derived datatype at root alone."""
    vector = MPI.INT64_T.Create_vector(COUNT, 1, 2).Commit()
    own, expected = labels(0, 2 * COUNT, call), labels(0, 2 * COUNT, call)[::2]
    if comm.rank == 0:
        out, expected = Output(2 * COUNT, "i8").fill(own), own
        return Call(comm.Ibcast([out.array, 1, vector], 0), out, expected)
    out = Output(COUNT, "i8")
    return Call(comm.Ibcast(out.array, 0), out, expected)


def ibarrier(comm, call=0):
    return Call(comm.Ibarrier(device=True), Output(0, "i8"), np.zeros(0, "i8"))


CALLS = [iallreduce, iallgather, ibcast, iscan, ialltoallv, ireduce_scatter, every_second, ibarrier]


def begin_in_two_orders(begin, one, other):
    """Begin a call on each of two communicators: rank 0 in one order, the others in the other one."""
    calls = [begin(comm) for comm in ((one, other) if IS_FIRST else (other, one))]
    Waitall([call.request for call in calls])
    assert_everywhere(WORLD, all(call.is_right for call in calls))


@pytest.mark.parametrize("begin", CALLS, ids=lambda begin: begin.__name__)
def test_in_two_orders(begin):
    with parent() as comm, comm.Dup() as other:
        begin_in_two_orders(begin, comm, other)


def idup(comm):
    made, request = comm.Idup()
    request.Wait()
    return made


MAKERS = {
    "Split": lambda comm: comm.Split(0, comm.rank),
    "Create": lambda comm: comm.Create(comm.Get_group()),
    "Create_group": lambda comm: comm.Create_group(comm.Get_group()),
    "Create_cart": lambda comm: comm.Create_cart([SIZE], periods=[True]),
    "Idup": idup,
    "mpi4py": lambda comm: pyncclx.Communicator(MPI.Intracomm(comm).Dup()),
}


@pytest.mark.parametrize("name", MAKERS)
def test_of_communicators_made_in_all_ways(name):
    with parent() as comm, MAKERS[name](comm) as one, MAKERS[name](comm) as other:
        begin_in_two_orders(iallreduce, one, other)


def test_with_neighbors():
    def begin(comm):
        out, sides = Output((2, COUNT), "i8"), [(comm.rank - 1) % SIZE, (comm.rank + 1) % SIZE]
        request = comm.Ineighbor_allgather(put(labels(comm.rank, COUNT)), out.array)
        return Call(request, out, of_ranks(0)[sides])

    with parent() as comm, MAKERS["Create_cart"](comm) as one, MAKERS["Create_cart"](comm) as other:
        begin_in_two_orders(begin, one, other)


def test_kernels_of_another_kind():
    """Both communicators have made calls before."""
    with parent() as comm, comm.Dup() as other:
        for each in (comm, other):
            call = iallreduce(each)
            call.request.Wait()
        begin_in_two_orders(iscan, comm, other)


@pytest.mark.parametrize("on_device", [True, False], ids=["device", "host"])
@pytest.mark.parametrize("begin", [iallreduce, iscan], ids=["first", "second"])
def test_a_message_between(begin, on_device):
    """The other ranks begin the call after a message that rank 0 sends after it, on the same communicator."""
    with parent() as comm:
        if begin is iscan:
            iallreduce(comm).request.Wait()
        data, call = (put(labels(0, COUNT)) if on_device else bytearray(b"any")), None
        if IS_FIRST:
            call = begin(comm)
            for rank in range(1, SIZE):
                comm.Send(data, rank, TAG)
        else:
            got = xp.zeros(COUNT, "i8") if on_device else bytearray(3)
            comm.Recv(got, 0, TAG)
            call = begin(comm)
        call.request.Wait()
        assert_everywhere(WORLD, call.is_right)


def test_a_blocking_call_on_another_communicator():
    with parent() as comm, comm.Dup() as other:
        out = Output(COUNT, "i8")
        call = iallreduce(comm) if IS_FIRST else None
        other.Allreduce(put(labels(RANK, COUNT, 1)), out.array)
        call = call or iallreduce(comm)
        call.request.Wait()
        assert_everywhere(WORLD, call.is_right and (out.read() == of_ranks(1).sum(0)).all())


def test_later_calls_follow():
    """Calls of other kinds and equal ones, before any rank has made one on this communicator together with others."""
    with parent() as comm, comm.Dup() as other:
        ahead = [] if IS_FIRST else [iallreduce(other, 9)]
        begins = iallreduce, ibcast, iallreduce, iscan, iallreduce
        calls = [begin(comm, number) for number, begin in enumerate(begins)]
        out = Output((SIZE, COUNT), "i8")
        comm.Allgather(put(labels(RANK, COUNT, 7)), out.array)
        calls += ahead or [iallreduce(other, 9)]
        Waitall([call.request for call in reversed(calls)])
        assert_everywhere(WORLD, all(call.is_right for call in calls) and (out.read() == of_ranks(7)).all())


def test_persistent_calls_follow():
    with parent() as comm:
        call, out = iallreduce(comm), Output(COUNT, "i8")
        request = comm.Allreduce_init(put(labels(RANK, COUNT, 1)), out.array)
        request.Start()
        Waitall([request, call.request])
        assert_everywhere(WORLD, call.is_right and (out.read() == of_ranks(1).sum(0)).all())


def test_token_shuffles_follow():
    """Their cached moves, too."""
    with parent() as comm:
        rows = put(np.full((4, 16), RANK + 1.0, "f4"))
        experts = put(np.full((4, 1), (RANK + 1) % SIZE, "i8"))
        shuffle = comm.Create_token_shuffle(SIZE, 4, 16, "float32", k=1, max_tokens=4)
        for begin in (iallreduce, iscan, ibcast, iallgather):
            call = begin(comm)
            received, _ = shuffle.dispatch(rows, experts)
            comm.synchronize()
            call.request.Wait()
            assert_everywhere(WORLD, call.is_right)
            got = get(received.data).reshape(-1, 16)[:4]
            assert_everywhere(WORLD, (got == (RANK - 1) % SIZE + 1).all(), str(got))
        shuffle.Free()


def test_collectives_of_mpi_between():
    """Those of mpi4py on the same communicator, also nonblocking ones, match among themselves."""
    with parent() as comm, comm.Dup() as other:
        plain, results, requests = MPI.Intracomm(comm), [np.full(3, -1.0) for _ in range(4)], []
        sent = np.full(3, RANK + 1.0)
        calls = [iallreduce(each) for each in ((comm, other) if IS_FIRST else (other, comm))]
        for result in results:
            requests.append(plain.Iallreduce(sent, result))
            calls.append(iallreduce(comm, len(calls)))
        plain.Barrier()
        MPI.Request.Waitall(requests)
        Waitall([call.request for call in calls])
        assert_everywhere(WORLD, all(call.is_right for call in calls))
        assert_everywhere(WORLD, all((result == SIZE * (SIZE + 1) / 2).all() for result in results), str(results))


def test_calls_of_test_alone_complete_it():
    with parent() as comm, comm.Dup() as other:
        calls = [iallreduce(each) for each in ((comm, other) if IS_FIRST else (other, comm))]
        while sum(call.request.Test() for call in calls) < len(calls):
            pass
        assert_everywhere(WORLD, all(call.is_right for call in calls))


@host_only
def test_the_work_of_the_stream_comes_before():
    """A stream is busy until all ranks have begun; only then it has the data."""
    with parent() as comm:
        comm.stream, begun = backends.select().new_stream(), MPI.Comm.Barrier
        own, out = put(np.zeros(COUNT, "i8")), Output(COUNT, "i8")

        def produce():
            begun(WORLD)
            own[:] = labels(RANK, COUNT)

        comm.stream.enqueue(produce)
        call = Call(comm.Iallreduce(own, out.array), out, of_ranks(0).sum(0))
        call.request.Wait()
        comm.synchronize()
        assert_everywhere(WORLD, call.is_right)


def test_kernels_of_another_kind_with_staging():
    """The first call on a communicator finds, with all ranks, whether kernels can do it; later ones need not wait."""
    with parent() as comm, comm.Dup() as other:
        for each in (comm, other):
            each.staging = True
            call = iallreduce(each)
            call.request.Wait()
        begin_in_two_orders(iscan, comm, other)


def test_wrong_arguments_raise_at_once():
    with parent() as comm, comm.Dup() as other:
        with raises_everywhere(WORLD, MPI.Exception):
            comm.Ibcast(put(np.zeros(3)), SIZE)
        with raises_everywhere(WORLD, ValueError):
            comm.Iallreduce(put(np.zeros(3)), xp.empty(2))
        begin_in_two_orders(iallreduce, comm, other)


def test_a_rank_that_never_calls(monkeypatch):
    """Wait names it. Afterwards all calls raise, also its own, since the ranks have made different numbers of them."""
    comm, late = parent(), SIZE - 1
    call = None
    with monkeypatch.context() as patch:
        patch.setenv("PYNCCLX_TIMEOUT", "1")
        if late != RANK:
            calls = [iallreduce(comm), iscan(comm)]
            for call in calls:
                with pytest.raises(RanksMissing, match=f"timed out waiting for rank {late}") as raised:
                    call.request.Wait()
                assert raised.value.missing == (late,)
    WORLD.Barrier()
    error = pyncclx.Aborted if late == RANK else RanksMissing
    for _ in range(2):
        with pytest.raises(error):
            iallreduce(comm, 3).request.Wait()
        with pytest.raises(error):
            comm.Allreduce(xp.ones(3), xp.zeros(3))
    comm.Free()


def test_dropped_requests():
    """The calls are made all the same, and the communicator can be freed."""
    with parent() as comm, comm.Dup() as other:
        calls = [iallreduce(each) for each in ((comm, other) if IS_FIRST else (other, comm))]
        for call in calls:
            del call.request
        comm.synchronize()
        other.synchronize()
        assert_everywhere(WORLD, all(call.is_right for call in calls))


def test_free_waits_for_the_call():
    comm = parent()
    call = iallreduce(comm)
    comm.Free()
    call.request.Wait()
    assert_everywhere(WORLD, call.is_right)


def test_dropped_communicators_are_found():
    """Otherwise the heap would be full soon."""
    with parent() as comm:
        for number in range(70):
            call = iallreduce(comm.Dup(), number)
            call.request.Wait()
            assert_everywhere(WORLD, call.is_right)
