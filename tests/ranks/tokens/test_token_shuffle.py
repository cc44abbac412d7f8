"""Token shuffles: rows land where the routing sends them, and the sums that come back have the exact bits.

There are few routings by default. For more, and for more replays of a graph on GPUs:

    PYNCCLX_TEST_ROUTINGS=1400 PYNCCLX_TEST_REPLAYS=1000 python tests/run.py ranks -n 3 -k "random_routings or replays"
"""

import os
from contextlib import suppress

import numpy as np
import pytest

from pyncclx import CapacityExceeded
from support.arrays import get, gpu_only, put, synchronize, xp
from support.everywhere import assert_everywhere, raises_everywhere
from support.reference import comparing
from support.token_case import Case, generator, token_regime  # noqa: F401

REPLAYS = int(os.environ.get("PYNCCLX_TEST_REPLAYS", "50"))
ROUTINGS = int(os.environ.get("PYNCCLX_TEST_ROUTINGS", "16"))  # of each seed and communicator


def placements(comm, random, experts):
    """Some ways to place experts: all on one rank, at random, several times."""
    size = comm.size
    yield "default", None, [[e * size // experts] for e in range(experts)]
    one = [[size - 1]] * experts
    yield "one rank", np.array(one)[:, 0], one
    some = [[int(rank)] for rank in random.integers(0, size, experts)]
    yield "random", some, some
    twice = [sorted({int(rank) for rank in random.integers(0, size, 2)}) for _ in range(experts)]
    yield "replicas", [[*ranks, -1][:2] for ranks in twice], twice
    several = [random.permutation(size)[: 1 + expert % size].tolist() for expert in range(experts)]
    yield "unequal numbers of replicas", [[-1] * (size - len(ranks)) + ranks for ranks in several], several


@pytest.mark.timeout(300 + ROUTINGS / 5)
@pytest.mark.parametrize("layout", ["expert", "source"])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_random_routings(comm, regime, layout, k):
    random = generator(comm, k)
    case = Case(comm, random, k=k, layout=layout)
    with case.shuffle, comparing() as compare:
        for number in range(ROUTINGS):
            counts = random.integers(0, 5, comm.size) if number % 2 else None  # few of all ranks, or not
            case.draw(counts).round_trip(compare, f"routing {number}")


@pytest.mark.parametrize("layout", ["expert", "source"])
def test_hard_routings(comm, layout):
    """Nobody sends, one receives all, one sends all, nothing is chosen, the same expert k times."""
    random = generator(comm)
    size, k, most = comm.size, 3, 40
    case = Case(comm, random, k=k, tokens=most, layout=layout)
    last = case.experts - 1
    alone = np.eye(size, dtype=int)[0] * most
    hard = {
        "no tokens": ([0] * size, None),
        "one receives": ([most] * size, lambda shape: np.full(shape, last)),
        "one sends": (alone, None),
        "nothing chosen": ([most] * size, lambda shape: np.full(shape, -1)),
        "as many as fit": ([most] * size, None),
    }
    with case.shuffle, comparing() as compare:
        for what, (counts, experts) in hard.items():
            case.draw(counts, experts).round_trip(compare, what)


@pytest.mark.parametrize("comm", ["world"], indirect=True)
def test_many_experts(comm):
    """Of 8 ranks they are too many for packets: no rank has few tokens, even with none."""
    case = Case(comm, generator(comm), experts=1000, tokens=3)
    with case.shuffle, comparing() as compare:
        case.draw([0] * comm.size).round_trip(compare, "no tokens")
        case.draw().round_trip(compare, "some tokens")


def test_stages(comm):
    """More tokens of a block than are announced together."""
    case = Case(comm, generator(comm), k=3, tokens=70, blocks=1)
    with case.shuffle, comparing() as compare:
        for number in range(3):
            case.draw().round_trip(compare, f"routing {number}")


@pytest.mark.parametrize("comm", ["world"], indirect=True)
def test_stages_of_many_tokens(comm):
    """So many that stages are longer, not more."""
    case = Case(comm, generator(comm), k=1, tokens=550, blocks=1)
    with case.shuffle, comparing() as compare:
        case.draw([550 if rank == 0 else 60 for rank in range(comm.size)]).round_trip(compare, "routing")


def test_placements(comm):
    random = generator(comm)
    for name, given, ranks in placements(comm, random, 7):
        case = Case(comm, random, k=3, experts=7, placement=given)
        case.placement = ranks
        with case.shuffle, comparing() as compare:
            for number in range(5):
                case.draw().round_trip(compare, f"{name}, routing {number}")


@pytest.mark.parametrize("layout", ["expert", "source"])
def test_handles_can_be_used_again(comm, regime, layout):
    """Other tokens on the same ways, and an earlier handle after a later dispatch."""
    case = Case(comm, generator(comm), k=3, layout=layout, experts=comm.size)
    with case.shuffle, comparing() as compare:
        early = case.draw().dispatch()[1]
        routing, weights, results = case.routing, case.weights, case.results
        case.draw().round_trip(compare, "another routing")
        case.routing, case.weights, case.results = routing, weights, results
        values = [case.random.standard_normal((len(ids), case.hidden)).astype("f4") for ids in routing.ids]
        rows, handle = case.shuffle.dispatch(put(values[comm.rank]), handle=early)
        case.check_rows(compare, rows, "again", values)
        case.check_sums(compare, case.shuffle.combine(case.expert_out(), handle), "again")


def test_begin_and_end(comm, regime):
    case = Case(comm, generator(comm))
    with case.shuffle as shuffle, comparing() as compare:
        for number in range(5):
            case.draw()
            ids, weights = put(case.routing.ids[comm.rank]), put(case.weights[comm.rank])
            shuffle.dispatch_begin(put(case.values[comm.rank]), ids, weights)
            with raises_everywhere(comm, RuntimeError, "combine_end without combine_begin"):
                shuffle.combine_end()
            rows, handle = shuffle.dispatch_end()
            case.check_rows(compare, rows, f"routing {number}")
            shuffle.combine_begin(case.expert_out(), handle)
            with raises_everywhere(comm, RuntimeError, "call combine_end before"):
                shuffle.combine(case.expert_out(), handle)
            case.check_sums(compare, shuffle.combine_end(), f"routing {number}")


def test_an_end_that_raises_can_be_made_again(comm, regime):
    """What the first half has recorded is raised instead of the second, on the ranks that have it; nothing is lost."""
    case = Case(comm, generator(comm), k=3, experts=comm.size, capacity=6)
    with case.shuffle as shuffle, comparing() as compare:
        case.draw([8] * comm.size, lambda shape: np.full(shape, comm.size - 1))  # for the last rank, which has no room
        tokens, ids, weights = (
            put(array) for array in (case.values[comm.rank], case.routing.ids[comm.rank], case.weights[comm.rank])
        )
        shuffle.dispatch_begin(tokens, ids, weights)
        synchronize()
        try:  # which half counts rows depends on the number of tokens
            rows, handle = shuffle.dispatch_end()
        except CapacityExceeded:
            rows, handle = shuffle.dispatch_end()
        case.check_rows(compare, rows, "what fits")
        synchronize()
        with suppress(CapacityExceeded):
            comm.synchronize()
        case.check_sums(compare, shuffle.combine(case.expert_out(), handle), "what fits")


def test_handles_of_other_shuffles(comm):
    """Their rows are in another memory, whatever the settings: refused by name, and nothing is moved."""
    case = Case(comm, generator(comm), k=3)
    other = comm.Split(0, -comm.rank)
    others = [
        Case(comm, generator(comm), k=3),
        Case(comm, generator(comm), k=3, hidden=32, rows_dtype="float8_e4m3"),
        Case(comm, generator(comm), k=3, capacity=5, overflow="drop"),
        Case(other, generator(comm), k=3),
    ]
    with case.shuffle, comparing() as compare:
        _, handle = case.draw().dispatch()
        for like in others:
            rows, own = like.draw([len(ids) for ids in case.routing.ids]).dispatch()
            tokens, results = put(like.values[like.own] + 1), put(np.ones((like.capacity, like.hidden), "f4"))
            for name, arguments in {
                "dispatch": (tokens,),
                "dispatch_begin": (tokens,),
                "combine": (results,),
                "combine_begin": (results,),
                "collect": (put(np.zeros(like.capacity, "f4")),),
            }.items():
                with raises_everywhere(comm, ValueError, "the handle is of another shuffle"):
                    getattr(like.shuffle, name)(*arguments, handle=handle)
            like.check_rows(compare, rows, "rows of a shuffle that refused a handle")
            like.shuffle.combine(results, own)
            like.shuffle.Free()
    other.Free()


def test_handles_that_are_none(comm):
    case = Case(comm, generator(comm), k=3)
    results, values = put(np.zeros((case.capacity, 16), "f4")), put(np.zeros(case.capacity, "f4"))
    with case.shuffle as shuffle:
        rows, handle = case.draw().dispatch()
        for wrong in (None, rows, (rows, handle)):
            with raises_everywhere(comm, TypeError, "expecting the handle"):
                shuffle.combine(results, wrong)
            with raises_everywhere(comm, TypeError, "expecting the handle"):
                shuffle.collect(values, wrong)
        with raises_everywhere(comm, TypeError, "expecting the handle"):
            shuffle.dispatch(put(case.values[comm.rank]), handle=rows)


@gpu_only
@pytest.mark.parametrize("layout", ["expert", "source"])
def test_replays_with_other_routings(comm, regime, layout):
    """One graph of a dispatch and a combine, captured once, with other tokens, choices and weights each time."""
    case = Case(comm, generator(comm), k=3, layout=layout, overflow="drop", capacity=20)
    shape, stream = (case.tokens, case.k), xp.cuda.Stream(non_blocking=True)
    tokens, expert_out = xp.zeros((case.tokens, case.hidden), "f4"), xp.zeros((case.capacity, case.hidden), "f4")
    ids, weights, out = xp.zeros(shape, "i8"), xp.zeros(shape, "f4"), xp.empty(tokens.shape, "f4")

    def call():
        rows, handle = case.shuffle.dispatch(tokens, ids, weights)
        case.shuffle.combine(expert_out, handle, out=out)
        return rows, handle

    with case.shuffle, comparing() as compare:
        with stream:
            call()  # for preparation; what it returns is free again, so that the capture allocates nothing
            stream.synchronize()
            stream.begin_capture()
            rows, _handle = call()
            graph = stream.end_capture()
        for number in range(REPLAYS):
            case.draw([case.tokens] * comm.size)
            with stream:
                tokens.set(case.values[comm.rank])
                ids.set(case.routing.ids[comm.rank])
                weights.set(case.weights[comm.rank])
                expert_out.set(get(case.expert_out()))
                graph.launch(stream)
            case.check_rows(compare, rows, f"replay {number}")
            case.check_sums(compare, out, f"replay {number}")


@pytest.mark.parametrize("layout", ["expert", "source"])
def test_rows_without_room_are_dropped(comm, regime, layout):
    random = generator(comm)
    for capacity in (1, 5, 12):
        case = Case(comm, random, k=3, experts=comm.size, capacity=capacity, layout=layout, overflow="drop")
        with case.shuffle, comparing() as compare:
            for number in range(10):
                case.draw().round_trip(compare, f"capacity {capacity}, routing {number}")
        comm.synchronize()


@pytest.mark.parametrize("comm", ["world"], indirect=True)
def test_ranks_without_experts_share_nothing(comm, regime):
    """Of one expert only the first rank has rows; the others have no capacity to divide."""
    case = Case(comm, generator(comm), experts=1, capacity=5, overflow="drop")
    with case.shuffle, comparing() as compare:
        for number in range(2):
            case.draw().round_trip(compare, f"routing {number}")


@pytest.mark.parametrize("layout", ["expert", "source"])
def test_rows_without_room_are_an_error(comm, regime, layout):
    case = Case(comm, generator(comm), k=3, experts=comm.size, capacity=6, layout=layout)
    with case.shuffle, comparing() as compare:
        case.draw([8] * comm.size, lambda shape: case.random.integers(0, case.experts, shape))
        rows, handle = case.dispatch()
        case.check_rows(compare, rows, "what fits")
        dropped = case.routing.dropped[comm.rank]
        source = int(np.flatnonzero(dropped)[0])
        wanted = sum(row[0] == source for row in case.routing.arriving()[comm.rank])
        with raises_everywhere(comm, CapacityExceeded) as raised:
            comm.synchronize()
        error = raised.value
        found = (error.rank, error.source, error.wanted, error.capacity)
        assert_everywhere(comm, found == (comm.rank, source, wanted, wanted - dropped[source]), str(found))
        case.check_sums(compare, case.shuffle.combine(case.expert_out(), handle), "what fits")
        case.draw([1] * comm.size, lambda shape: np.full(shape, -1)).round_trip(compare, "afterwards")
        case.draw([8] * comm.size, lambda shape: case.random.integers(0, case.experts, shape)).dispatch()
        with raises_everywhere(comm, CapacityExceeded):  # and once more
            comm.synchronize()


def test_collect(comm, regime):
    """Every choice gets its row's number back, and 0 if it has no row."""
    case = Case(comm, generator(comm), k=3, experts=comm.size, capacity=12, overflow="drop")
    with case.shuffle, comparing() as compare:
        for number in range(10):
            _, handle = case.draw().dispatch()
            values = np.full(case.capacity, np.nan, "f4")
            for row, (s, t, c, _) in enumerate(case.routing.rows[comm.rank]):
                values[row] = 1 + c + 10 * t + 1000 * s + 1e5 * number
            expected = np.zeros(case.routing.ids[comm.rank].shape, "f4")
            for (t, c), _ in np.ndenumerate(expected):
                if (comm.rank, t, c) in case.routing.row_of:
                    expected[t, c] = 1 + c + 10 * t + 1000 * comm.rank + 1e5 * number
            compare(case.shuffle.collect(put(values), handle), expected, f"routing {number}")
