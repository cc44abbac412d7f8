"""A token shuffle with the inputs of all ranks, whose data names its origin, and the expected results."""

import ml_dtypes
import numpy as np
import pytest

from pyncclx.tokens import memory as token_memory
from pyncclx.tokens.over_nodes import programs
from support.arrays import get, put
from support.reference import nodes_of
from support.routing import Routing, as_float8

FLOAT8 = ml_dtypes.float8_e4m3fn
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture(name="regime", params=["few", "many", "both"])
def token_regime(request, monkeypatch, comm):
    """Tokens travel as lines if all ranks have few of them. Here the limit is high; 0; so that it is often passed,
    and of many tokens the blocks of a rank count together. Between nodes few rows are padded."""
    if request.param == "many":
        monkeypatch.setattr(token_memory, "FEW_NBYTES", 0)
        monkeypatch.setattr(programs, "PADDED_NBYTES", 0)
    if request.param == "both":
        monkeypatch.setattr(token_memory, "MOST_FEW_CHOICES", 3 * comm.size * 3)
        monkeypatch.setattr(token_memory, "ALONE_CHOICES", 0)
    return request.param


class Case:
    """A shuffle and what all ranks feed it; `draw` makes new data, the same on every rank."""

    def __init__(self, comm, random, k=2, experts=None, tokens=8, hidden=16, dtype="float32", **options):
        self.comm, self.random, self.k, self.hidden, self.dtype = comm, random, k, hidden, dtype
        self.experts = experts or 2 * comm.size + 1
        self.tokens, self.nodes = tokens, nodes_of(comm)
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
        """Draw tokens, weights, results and choices of all ranks; `experts(shape)` makes the choices."""
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
            assert rows.data.dtype == np.uint8
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
        return self.routing.combined(self.results, weights, self.own, DTYPES[self.dtype], self.nodes)

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
