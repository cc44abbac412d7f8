"""Token shuffles: rows land where the routing says, whatever it is, and the sums that come back have the exact bits."""

import os

import ml_dtypes
import numpy as np
import pytest

from arrays import POISON, Output, get, gpu_only, put, xp
from everywhere import assert_everywhere, raises_everywhere
from pyncclx import CapacityExceeded, CollectiveMismatch, NotSupported, token_layout
from reference import comparing
from routing import Routing, as_float8

REPLAYS = int(os.environ.get("PYNCCLX_TEST_REPLAYS", "50"))
ROUTINGS = int(os.environ.get("PYNCCLX_TEST_ROUTINGS", "16"))  # of each seed and communicator
FLOAT8 = ml_dtypes.float8_e4m3fn
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture(params=["few", "many", "both"])
def regime(request, monkeypatch, comm):
    """Tokens travel as packets if all ranks have few of them. Here the limit is high; 0; so that it is often passed,
    and of many tokens the blocks of a rank count together."""
    if request.param == "many":
        monkeypatch.setattr(token_layout, "FEW_NBYTES", 0)
    if request.param == "both":
        monkeypatch.setattr(token_layout, "MOST_FEW_CHOICES", 3 * comm.size * 3)
        monkeypatch.setattr(token_layout, "ALONE_CHOICES", 0)
    return request.param


class Case:
    """A shuffle and what all ranks feed it; `draw` makes new data, the same on every rank."""

    def __init__(self, comm, random, k=2, experts=None, tokens=8, hidden=16, dtype="float32", **options):
        self.comm, self.random, self.k, self.hidden, self.dtype = comm, random, k, hidden, dtype
        self.experts = experts or 2 * comm.size + 1
        self.tokens = tokens
        self.placement = options.get("placement")
        if self.placement is None:
            self.placement = [[e * comm.size // self.experts] for e in range(self.experts)]
        options.setdefault("capacity", max(1, tokens * k * comm.size))
        self.layout, self.overflow = options.get("layout", "expert"), options.get("overflow", "raise")
        self.capacity = options.pop("capacity")
        self.rows_dtype = options.get("rows_dtype") or dtype
        self.shuffle = comm.Create_token_shuffle(
            self.experts, self.capacity, hidden, dtype, k=k, max_tokens=tokens, **options
        )

    def draw(self, counts=None, experts=None):
        """Tokens that say whose they are, and choices; `experts(shape)` makes choices."""
        size, random = self.comm.size, self.random
        counts = random.integers(0, self.tokens + 1, size) if counts is None else counts
        choose = experts or (lambda shape: random.integers(-1, self.experts, shape))
        ids = [choose((n, self.k)) for n in counts]
        self.routing = Routing(ids, self.placement, size, self.capacity, self.layout, self.overflow)
        of = DTYPES[self.dtype]
        self.values = [random.standard_normal((n, self.hidden)).astype("f4").astype(of) for n in counts]
        self.weights = [random.random((n, self.k), "f4") for n in counts]
        self.results = [random.standard_normal((n, self.k, self.hidden)).astype("f4").astype(of) for n in counts]
        return self

    @property
    def own(self):
        return self.comm.rank

    def dispatch(self, ids_dtype="i8", weighted=True):
        ids, weights = put(self.routing.ids[self.own].astype(ids_dtype)), put(self.weights[self.own])
        return self.shuffle.dispatch(put(self.values[self.own]), ids, weights if weighted else None)

    def check_rows(self, compare, rows, what, values=None):
        """Everything that a dispatch gives."""
        mine, total = self.routing.rows[self.own], len(self.routing.rows[self.own])
        offsets = np.concatenate([[0], self.routing.counts[self.own].cumsum()])
        compare(rows.total, np.array([total]), f"{what}: total")
        compare(rows.counts, self.routing.counts[self.own], f"{what}: counts")
        compare(rows.offsets, offsets, f"{what}: offsets")
        compare(rows.dropped, self.routing.dropped[self.own], f"{what}: dropped")
        experts, weights = np.full(self.capacity, -1, "i4"), np.zeros(self.capacity, "f4")
        experts[:total] = [row[3] for row in mine]
        weights[:total] = [self.weights[s][t, c] for s, t, c, _ in mine]
        compare(rows.experts, experts, f"{what}: experts")
        compare(rows.weights, weights, f"{what}: weights")
        self.check_data(compare, rows, values or self.values, what)

    def check_data(self, compare, rows, values, what):
        mine = self.routing.rows[self.own]
        data = np.array([values[s][t] for s, t, _, _ in mine], DTYPES[self.dtype]).reshape(-1, self.hidden)
        if self.rows_dtype == "float8_e4m3":
            data, scales = as_float8(data, FLOAT8)
            compare(rows.scales[: len(mine)], scales, f"{what}: scales")
        else:
            data = data.astype(DTYPES[self.rows_dtype])
        bits = f"u{data.itemsize}"
        compare(get(rows.data)[: len(mine)].view(bits), data.view(bits), f"{what}: data")

    def expert_out(self):
        """Results of the rows here; what follows them would spoil a sum."""
        out = np.full((self.capacity, self.hidden), np.nan, DTYPES[self.dtype])
        for number, (s, t, c, _) in enumerate(self.routing.rows[self.own]):
            out[number] = self.results[s][t, c]
        return put(out)

    def combined(self, weighted=True):
        weights = self.weights if weighted else [np.ones_like(w) for w in self.weights]
        return self.routing.combined(self.results, weights, self.own, DTYPES[self.dtype])

    def check_sums(self, compare, out, what, weighted=True, dtype=None):
        expected = self.combined(weighted).astype(dtype or DTYPES[self.dtype])
        bits = f"u{expected.itemsize}"
        compare(get(out).view(bits), expected.view(bits), f"{what}: sums")

    def round_trip(self, compare, what):
        rows, handle = self.dispatch()
        self.check_rows(compare, rows, what)
        self.check_sums(compare, self.shuffle.combine(self.expert_out(), handle), what)
        return rows, handle


def generator(comm, seed=0):
    return np.random.default_rng([seed, comm.size])


def placements(comm, random, experts):
    """Some ways to place experts: all on one rank, at random, several times."""
    size = comm.size
    yield "default", None, [[e * size // experts] for e in range(experts)]
    one = [[size - 1]] * experts
    yield "one rank", np.array(one)[:, 0], one
    some = [[int(rank)] for rank in random.integers(0, size, experts)]
    yield "random", some, some
    twice = [sorted({int(rank) for rank in random.integers(0, size, 2)}) for _ in range(experts)]
    yield "replicas", [[*ranks, -1][:2] for ranks in twice], [(ranks * 2)[:2] for ranks in twice]


@pytest.mark.timeout(120 + ROUTINGS / 5)
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


def test_stages(comm):
    """More tokens of a block than are announced together."""
    case = Case(comm, generator(comm), k=3, tokens=70, blocks=1)
    with case.shuffle, comparing() as compare:
        for number in range(3):
            case.draw().round_trip(compare, f"routing {number}")


def test_placements(comm):
    random = generator(comm)
    for name, given, ranks in placements(comm, random, 7):
        case = Case(comm, random, k=3, experts=7, placement=given)
        case.placement = ranks
        with case.shuffle, comparing() as compare:
            for number in range(5):
                case.draw().round_trip(compare, f"{name}, routing {number}")


@pytest.mark.parametrize("regime", ["few", "many"], indirect=True)
@pytest.mark.parametrize("hidden", [16, 128, 528])
@pytest.mark.parametrize("dtype", DTYPES)
def test_types(comm, regime, dtype, hidden):
    rows = {"float32": ["float32", "float16", "bfloat16"], "float16": ["float16"], "bfloat16": ["bfloat16"]}[dtype]
    for rows_dtype in [*rows, "float8_e4m3"]:
        case = Case(comm, generator(comm), hidden=hidden, dtype=dtype, rows_dtype=rows_dtype, experts=3)
        with case.shuffle, comparing() as compare:
            case.draw()
            for values in case.values:  # groups without a largest value, and far from 1
                values[::3] = 0
                values[1::3] *= DTYPES[dtype](1e-3)
            _, handle = case.round_trip(compare, rows_dtype)
            out = Output((len(case.values[comm.rank]), hidden), "f4")
            case.shuffle.combine(case.expert_out(), handle, out=out.array)
            case.check_sums(compare, out.array, f"{rows_dtype}, in single precision", dtype=np.float32)
            assert not out.damage()


@pytest.mark.parametrize("regime", ["few", "many"], indirect=True)
def test_any_alignment(comm, regime):
    case = Case(comm, generator(comm), hidden=32, dtype="bfloat16")

    with case.shuffle, comparing() as compare:
        case.draw()
        ids, weights = put(case.routing.ids[comm.rank]), put(case.weights[comm.rank])
        rows, handle = case.shuffle.dispatch(put(case.values[comm.rank], 1), ids, weights)
        case.check_rows(compare, rows, "shifted tokens")
        case.check_sums(compare, case.shuffle.combine(put(get(case.expert_out()), 1), handle), "shifted results")


def test_int32_and_weights(comm):
    case = Case(comm, generator(comm))
    with case.shuffle, comparing() as compare:
        case.draw()
        for kind in ("i4", "i8"):
            rows, handle = case.dispatch(kind)
            case.check_rows(compare, rows, kind)
            out = case.shuffle.combine(case.expert_out(), handle, weighted=False)
            case.check_sums(compare, out, f"{kind}, not weighted", weighted=False)
        case.weights = [np.ones_like(weights) for weights in case.weights]
        rows, handle = case.dispatch(weighted=False)
        case.check_rows(compare, rows, "without weights")
        case.check_sums(compare, case.shuffle.combine(case.expert_out(), handle), "without weights")


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


def test_experts_that_do_not_exist(comm):
    case = Case(comm, generator(comm))
    with case.shuffle, comparing() as compare:
        for bad in (case.experts, -2, 2**40, -(2**31)):
            case.draw([4] * comm.size)
            case.routing.ids[comm.size - 1][2, 1] = bad
            case.routing.__post_init__()
            rows, handle = case.dispatch()
            said = ""
            try:
                comm.synchronize()
            except ValueError as error:
                said = str(error)
            expected = f"token 2 of rank {comm.rank} chose expert {bad};" if comm.rank == comm.size - 1 else ""
            assert_everywhere(comm, expected in said and bool(said) == bool(expected), said)
            case.check_rows(compare, rows, f"expert {bad}")
            case.check_sums(compare, case.shuffle.combine(case.expert_out(), handle), f"expert {bad}")


def test_nothing_past_the_rows_is_written(comm):
    case = Case(comm, generator(comm), hidden=32)
    with case.shuffle, comparing() as compare:
        rows, _ = case.draw().dispatch()
        rows.data.view("u1")[...] = POISON
        case.draw()
        rows, _ = case.dispatch()
        total = len(case.routing.rows[comm.rank])
        case.check_rows(compare, rows, "rows")
        assert (get(rows.data)[total:].view("u1") == POISON).all()


def test_memory(comm):
    before = comm.memory_report()["shuffles"]
    case = Case(comm, generator(comm), tokens=100, hidden=64)
    assert_everywhere(comm, comm.memory_report()["shuffles"] == before, "memory before the first dispatch")
    case.draw().dispatch()
    held = comm.memory_report()["shuffles"] - before
    rows = 64 * 4 * (case.capacity + 100 * min(case.k, comm.size))
    most = rows + 16 * case.capacity + token_layout.FEW_NBYTES + (4 << 20)  # packets; pages
    assert_everywhere(comm, rows <= held <= most, f"{held} bytes for {rows} of rows")
    case.shuffle.Free()
    case.shuffle.Free()
    assert_everywhere(comm, comm.memory_report()["shuffles"] == before, "memory after Free")
    with raises_everywhere(comm, ValueError, "freed"):
        case.dispatch()


def test_a_communicator_frees_its_shuffles(comm):
    other = comm.Dup()
    case = Case(other, generator(comm))
    case.draw().dispatch()
    other.Free()
    case.shuffle.Free()


def test_bad_parameters(comm):
    def make(**changes):
        given = {"num_experts": 4, "capacity": 8, "hidden": 16, "dtype": "f4", "k": 2, "max_tokens": 8} | changes
        comm.Create_token_shuffle(**given)

    for error, match, changes in (
        (ValueError, "num_experts is 0", {"num_experts": 0}),
        (ValueError, "capacity is -1", {"capacity": -1}),
        (ValueError, "k is 0", {"k": 0}),
        (ValueError, "blocks is 65", {"blocks": 65}),
        (NotSupported, "hidden is 20", {"hidden": 20}),
        (ValueError, "dtype is 'int32'", {"dtype": "i4"}),
        (ValueError, "rows_dtype is 'float32'", {"dtype": "f2", "rows_dtype": "f4"}),
        (ValueError, "layout is 'slots'", {"layout": "slots"}),
        (ValueError, "overflow is 'ignore'", {"overflow": "ignore"}),
        (ValueError, "placement has the shape", {"placement": [0, 0]}),
        (ValueError, "expert 1 is on ranks", {"placement": [0, comm.size, 0, 0]}),
        (NotSupported, "at most 1024", {"num_experts": 2000}),
        (TypeError, "integer", {"k": "two"}),
    ):
        with raises_everywhere(comm, error, match):
            make(**changes)
    if comm.size > 1:
        with raises_everywhere(comm, CollectiveMismatch, "capacity"):
            make(capacity=8 + comm.rank)


def test_bad_arguments(comm):
    case = Case(comm, generator(comm), tokens=4)
    case.draw([4] * comm.size)
    tokens, ids = put(case.values[comm.rank]), put(case.routing.ids[comm.rank])
    with case.shuffle as shuffle:
        _, handle = shuffle.dispatch(tokens, ids)
        for error, match, arguments, options in (
            (TypeError, "float64", (tokens.astype("f8"), ids), {}),
            (ValueError, "has the shape", (tokens[:, :-1].copy(), ids), {}),
            (ValueError, "has the shape", (tokens, ids[:2].copy()), {}),
            (TypeError, "topk_ids is an array of int16", (tokens, ids.astype("i2")), {}),
            (TypeError, "topk_weights is an array of int64", (tokens, ids, ids), {}),
            (ValueError, "max_tokens is 4", (put(np.zeros((5, 16), "f4")), ids), {}),
            (ValueError, "Fortran", (put(np.zeros((16, 4), "f4")).T, ids), {}),
            (TypeError, "handle", (tokens,), {}),
            (TypeError, "handle", (tokens, ids), {"handle": handle}),
            (ValueError, "the handle is of 4", (tokens[:3],), {"handle": handle}),
        ):
            with raises_everywhere(comm, error, match):
                shuffle.dispatch(*arguments, **options)
        with raises_everywhere(comm, ValueError, "expert_out has the shape"):
            shuffle.combine(tokens, handle)
        with raises_everywhere(comm, TypeError, "out is an array of"):
            shuffle.combine(case.expert_out(), handle, out=tokens.astype("f8"))
        out = shuffle.combine(case.expert_out(), handle, weighted=False)  # it goes on
        assert_everywhere(comm, out.shape == tokens.shape)
