"""Token shuffles: types, alignments, weights, memory, and arguments that are wrong."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import CollectiveMismatch, NotSupported, backends
from pyncclx.tokens import memory as token_memory
from support.arrays import POISON, Output, get, put
from support.everywhere import assert_everywhere, raises_everywhere
from support.reference import comparing
from support.token_case import DTYPES, Case, generator, token_regime  # noqa: F401


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


@pytest.mark.parametrize("comm", ["world"], indirect=True)
def test_steps_of_scaled_rows(comm):
    """A warp has several steps, and the last group of a row is none of 128: its scale is that of its own elements."""
    case = Case(comm, generator(comm), hidden=1040, rows_dtype="float8_e4m3", tokens=12, blocks=1)
    with case.shuffle, comparing() as compare:
        case.draw([12] * comm.size)
        for values in case.values:
            values[:, 1024:] *= np.float32(1e-3)
        case.check_rows(compare, case.dispatch()[0], "short last groups")


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


def test_experts_that_do_not_exist(comm):
    case = Case(comm, generator(comm))
    with case.shuffle, comparing() as compare:
        for bad in (case.experts, -2, 2**40, -(2**31)):
            case.draw([4] * comm.size)
            case.routing.ids[comm.size - 1][2, 1] = bad
            case.routing.__post_init__()
            rows, handle = case.dispatch()
            raised = ""
            try:
                comm.synchronize()
            except ValueError as error:
                raised = str(error)
            expected = f"token 2 of rank {comm.rank} chose expert {bad};" if comm.rank == comm.size - 1 else ""
            assert_everywhere(comm, expected in raised and bool(raised) == bool(expected), raised)
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
    most = rows + 16 * case.capacity + token_memory.FEW_NBYTES + (4 << 20)  # packets; pages
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
        (ValueError, "num_experts is 65537", {"num_experts": (1 << 16) + 1, "layout": "source"}),
        (ValueError, "capacity is -1", {"capacity": -1}),
        (ValueError, "k is 0", {"k": 0}),
        (ValueError, "max_tokens is", {"max_tokens": (1 << 30) // comm.size + 1}),
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


@pytest.mark.ranks(2)
@pytest.mark.parametrize("comm", ["reversed"], indirect=True)
def test_a_handle_on_some_ranks_only(comm, monkeypatch):
    """With PYNCCLX_CHECK=1 all ranks raise, and both ways work afterwards."""
    monkeypatch.setenv("PYNCCLX_CHECK", "1")
    checked = pyncclx.Communicator(MPI.Comm.Dup(comm))
    case = Case(checked, generator(comm), k=2)
    with case.shuffle, comparing() as compare:
        _, handle = case.draw().dispatch()
        tokens, ids = put(case.values[comm.rank]), put(case.routing.ids[comm.rank])
        mine = {"handle": handle} if comm.rank == 0 else {"topk_ids": ids}
        with raises_everywhere(comm, CollectiveMismatch, "by a handle"):
            case.shuffle.dispatch(tokens, **mine)
        again, _ = case.shuffle.dispatch(tokens, handle=handle)
        case.check_rows(compare, again, "by a handle")
        case.draw().round_trip(compare, "by choices")
    checked.Free()


@pytest.mark.one_node
@pytest.mark.parametrize("comm", ["reversed"], indirect=True)
def test_more_blocks_than_fit(comm, monkeypatch):
    """Blocks wait for each other: there are as many as can run at once, whatever is asked for."""
    monkeypatch.setattr(backends.select(), "multiprocessors", 3)
    with comm.Dup() as small:
        case = Case(small, generator(comm), blocks=64)
        with case.shuffle as shuffle, comparing() as compare:
            case.draw().round_trip(compare, "64 blocks")
            most = max(1, 3 // small.team.layout.sharing)
            assert_everywhere(comm, shuffle.memory().blocks == most, shuffle.explain())
