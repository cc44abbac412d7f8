"""Persistent collectives that each rank starts in an order of its own: MPI matches them by their preparation."""

from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.team.tracks import MOST_TRACKS
from support.arrays import Output, put
from support.everywhere import raises_everywhere
from support.forms import NAMES, arguments, spec, total
from support.reference import comparing, labels

COUNT = 37
STEPS = 3


@pytest.fixture
def own(comm):
    """A duplicate for one test, whose tracks go with it. (pytest would keep one named as the parametrized `comm`.)"""
    with comm.Dup() as own:
        yield own


def prepared(comm, name, number):
    """A request of a collective, its send buffer and output, and what mpi4py makes of labels of a call."""
    sent, received, more, named = arguments(comm, name, COUNT)
    send, output = put(labels(comm.rank, total(sent))), Output(total(received), "i8")
    request = getattr(comm, f"{name}_init")(spec(send, sent), spec(output.array, received), *more, **named)

    def expected(step):
        values, into = labels(comm.rank, total(sent), 100 * number + step), np.full(total(received), output.read()[0])
        getattr(MPI.Intracomm, name)(comm, spec(values, sent), spec(into, received), *more, **named)
        return values, into

    return request, send, output, expected


def orders(comm, count):
    """The order of this rank at each step: rotated, and reversed on every other rank."""
    for step in range(STEPS):
        order = np.roll(np.arange(count), comm.rank + step)
        yield step, order[:: -1 if (comm.rank + step) % 2 else 1]


def test_first_call_of_a_communicator_packs_at_root_alone(own):
    """Root makes the communicator's memory before its data is packed, the others when the call gets a track."""
    strided = MPI.DOUBLE.Create_vector(COUNT, 1, 2).Commit()
    send, output = put(np.arange(2.0 * COUNT * own.size)), Output(COUNT, "f8")
    request = own.Scatter_init([send, 1, strided] if own.rank == 0 else None, output.array, 0)
    request.Start()
    request.Wait()
    with comparing() as compare:
        begin = own.rank * (2 * COUNT - 1)
        compare(output, np.arange(begin, begin + 2.0 * COUNT, 2), "the block")
    request.Free()
    strided.Free()


def start_in_other_orders(comm, made, how="Start"):
    """Start requests, wait for them, and compare what they have brought, several times."""
    with comparing() as compare:
        for step, order in orders(comm, len(made)):
            results = []
            for _, send, output, expected in made:
                output.poison()
                values, result = expected(step)
                send[...] = put(values)
                results.append(result)
            requests = [made[number][0] for number in order]
            if how == "Startall":
                pyncclx.Prequest.Startall(requests)
            else:
                for request in requests:
                    request.Start()
            pyncclx.Request.Waitall(requests[::-1])
            comm.synchronize()
            for number, ((_, _, output, _), result) in enumerate(zip(made, results, strict=True)):
                compare(output, result, f"request {number}, step {step}")
    for request, *_ in made:
        request.Free()


@pytest.mark.parametrize("how", ["Start", "Startall"])
@pytest.mark.parametrize("names", [("Allreduce",) * 3, ("Allgather", "Alltoall", "Scan"), NAMES])
def test_any_order(own, names, how):
    start_in_other_orders(own, [prepared(own, name, number) for number, name in enumerate(names)], how)


def test_one_waits_before_it_starts_the_next(own):
    """A rank waits for each in turn; the others start all before they wait, in another order."""
    made = [prepared(own, "Allreduce", number) for number in range(3)]
    with comparing() as compare:
        for step in range(STEPS):
            results = []
            for _, send, output, expected in made:
                output.poison()
                values, result = expected(step)
                send[...] = put(values)
                results.append(result)
            if own.rank == step % own.size:
                for request, *_ in reversed(made):
                    request.Start()
                    while not request.Test():
                        pass
            else:
                for request, *_ in made:
                    request.Start()
                for request, *_ in made:
                    request.Wait()
            own.synchronize()
            for (_, _, output, _), result in zip(made, results, strict=True):
                compare(output, result, f"step {step}")
    for request, *_ in made:
        request.Free()


def test_beside_other_calls(own):
    """A start may come before or after nonblocking and blocking calls, whatever the other ranks do."""
    request, send, output, expected = prepared(own, "Allreduce", 0)
    other, blocks = put(labels(own.rank, COUNT)), Output(COUNT, "i8")
    barrier = own.Barrier_init(device=True)
    with comparing() as compare:
        for step in range(2 * STEPS):
            output.poison()
            blocks.poison()
            values, result = expected(step)
            send[...] = put(values)
            begin = [request.Start, barrier.Start, partial(own.Iallreduce, other, blocks.array)]
            begun = [begin[number]() for number in np.roll(np.arange(3), own.rank + step)]
            pyncclx.Request.Waitall([request, barrier, *filter(None, begun)])
            own.synchronize()
            compare(output, result, f"started, step {step}")
            compare(blocks, sum(labels(rank, COUNT) for rank in range(own.size)), f"nonblocking, step {step}")
    request.Free()
    barrier.Free()


def test_neighbors(own):
    ring = own.Create_cart([own.size], periods=[True])
    below, above = ring.Shift(0, 1)
    sends = [put(np.zeros(COUNT, "i8")) for _ in range(2)]
    outputs = [Output((2, COUNT), "i8") for _ in range(2)]
    requests = [
        ring.Neighbor_allgather_init(send, output.array) for send, output in zip(sends, outputs, strict=True)
    ]
    with comparing() as compare:
        for step in range(STEPS):
            for number, (send, output) in enumerate(zip(sends, outputs, strict=True)):
                output.poison()
                send[...] = put(labels(ring.rank, COUNT, 10 * step + number))
            for request in requests[:: -1 if ring.rank % 2 else 1]:
                request.Start()
            pyncclx.Request.Waitall(requests)
            ring.synchronize()
            for number, output in enumerate(outputs):
                both = [labels(rank, COUNT, 10 * step + number) for rank in (below, above)]
                compare(output, np.stack(both), f"request {number}, step {step}")
    for request in requests:
        request.Free()
    ring.Free()


def test_prepared_while_another_is_under_way(own):
    """The preparation waits for no request that a rank has started, and others have not."""
    first, send, output, expected = prepared(own, "Allreduce", 0)
    values, result = expected(0)
    send[...] = put(values)
    if own.rank == 0:
        first.Start()
    second, *_ = prepared(own, "Allreduce", 1)
    if own.rank > 0:
        first.Start()
    first.Wait()
    own.synchronize()
    with comparing() as compare:
        compare(output, result, "the first")
    first.Free()
    second.Free()


def test_many_one_after_the_other(own):
    """Requests that are freed, or dropped, leave their tracks to the next ones."""
    for number in range(40):
        request, send, output, expected = prepared(own, "Allreduce", number)
        values, result = expected(0)
        send[...] = put(values)
        request.Start()
        request.Wait()
        own.synchronize()
        if number % 2:
            request.Free()
        with comparing() as compare:
            compare(output, result, f"request {number}")


@pytest.mark.ranks(2)
def test_more_than_have_tracks(own):
    """MPI takes those that have none, where it may."""
    own.staging = True
    start_in_other_orders(own, [prepared(own, "Allreduce", number) for number in range(MOST_TRACKS + 3)])


@pytest.mark.ranks(2)
def test_orders_that_were_promised():
    """Without tracks another order is found, whatever the operations are."""
    comm = pyncclx.Communicator(MPI.COMM_WORLD)
    with comm.Dup() as other:
        other.ordered_starts = True
        a, b = (other.Allreduce_init(put(np.ones(COUNT)), Output(COUNT, "f8").array) for _ in range(2))
        for request in (a, b):
            request.Start()
        pyncclx.Request.Waitall([a, b])
        other.synchronize()
        MPI.COMM_WORLD.Barrier()  # a rank that looks late would find what the others do next
        with raises_everywhere(comm, pyncclx.CollectiveMismatch, match="request"):
            for request in (a, b) if other.rank else (b, a):
                request.Start()
            pyncclx.Request.Waitall([a, b])
            other.synchronize()


@pytest.mark.one_node
def test_dropped_communicators_with_requests(own):
    """More than the heap has room for: a dropped one goes with its tracks."""
    for number in range(40):
        other = own.Dup()
        request, send, output, expected = prepared(other, "Allreduce", number)
        values, result = expected(0)
        send[...] = put(values)
        request.Start()
        request.Wait()
        other.synchronize()
        with comparing() as compare:
            compare(output, result, f"communicator {number}")
        del other, request, expected
