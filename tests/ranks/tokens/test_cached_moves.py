"""Dispatches and combines whose arguments came before are launched at once: when that is so, and when not."""

import gc
import weakref

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.tokens import calls
from support.arrays import put
from support.reference import NODES, comparing

HIDDEN, TOKENS, ROUNDS = 16, 6, 3
pytestmark = pytest.mark.skipif(bool(NODES), reason="over nodes each move is made anew")


@pytest.fixture(scope="module")
def comm():
    with pyncclx.Communicator(MPI.COMM_WORLD.Dup()) as comm:
        yield comm


@pytest.fixture
def shuffle(comm):
    with made(comm) as shuffle:
        yield shuffle


def made(comm):
    """A shuffle with one expert a rank."""
    return comm.Create_token_shuffle(comm.size, TOKENS * comm.size, HIDDEN, "float32", k=1, max_tokens=TOKENS)


def tokens_of(rank, turn, count=TOKENS):
    rows = np.arange(count, dtype="f4")[:, None] + 100 * rank + 1000 * turn
    return np.repeat(rows, HIDDEN, axis=1)


def ids_of(comm, rank, turn, count=TOKENS):
    return ((np.arange(count) * (turn + 1) + rank) % comm.size).reshape(count, 1)


def expected_rows(comm, turn, count=TOKENS, of_ids=None):
    """What comes to this rank: the tokens for its expert, those of rank 0 first."""
    ranks, of_ids = range(comm.size), turn if of_ids is None else of_ids
    wanted = [ids_of(comm, rank, of_ids, count)[:, 0] == comm.rank for rank in ranks]
    return np.concatenate([tokens_of(rank, turn, count)[wanted[rank]] for rank in ranks])


def check_rows(compare, comm, rows, turn, count=TOKENS, of_ids=None):
    expected = expected_rows(comm, turn, count, of_ids)
    compare(rows.data[: len(expected)], expected, f"rows, turn {turn}")
    compare(rows.total, np.array([len(expected)]), f"their number, turn {turn}")


def refuse(*args, **kwargs):
    raise AssertionError("the arguments were looked at")


def test_the_second_move_is_a_look_up(comm, shuffle, monkeypatch):
    tokens, ids = put(tokens_of(comm.rank, 0)), put(ids_of(comm, comm.rank, 0))
    results, own = put(np.zeros((TOKENS, HIDDEN), "f4")), put(np.zeros((TOKENS * comm.size, HIDDEN), "f4"))
    with comparing() as compare:
        for turn in range(ROUNDS):
            tokens[...], ids[...] = put(tokens_of(comm.rank, turn)), put(ids_of(comm, comm.rank, turn))
            rows, handle = shuffle.dispatch(tokens, ids)
            check_rows(compare, comm, rows, turn)
            own[...] = 2 * rows.data
            for out in (None, results):
                results[...] = 0
                found = shuffle.combine(own, handle, out=out)
                compare(found, 2 * tokens_of(comm.rank, turn), f"combine, turn {turn}")
            assert found is results
            again, handle = shuffle.dispatch(tokens, handle=handle)
            check_rows(compare, comm, again, turn)
            if turn == 0:
                monkeypatch.setattr(calls, "resolve", refuse)
    with pytest.raises(AssertionError):
        shuffle.dispatch(tokens[1:], ids[1:])


def test_each_dispatch_has_a_handle_of_its_own(comm, shuffle):
    tokens, ids, found = put(tokens_of(comm.rank, 0)), put(ids_of(comm, comm.rank, 0)), []
    for turn in range(ROUNDS):
        ids[...] = put(ids_of(comm, comm.rank, turn))
        found.append(shuffle.dispatch(tokens, ids))
    with comparing() as compare:
        for turn, (rows, handle) in enumerate(found):
            compare(rows.total, np.array([len(expected_rows(comm, turn))]), f"turn {turn}")
            tokens[...] = put(tokens_of(comm.rank, turn))
            again, _ = shuffle.dispatch(tokens, handle=handle)
            check_rows(compare, comm, again, turn)
            results = shuffle.combine(again.data, handle)
            compare(results, tokens_of(comm.rank, turn), f"combine, turn {turn}")


def test_arrays_in_turn_and_parts_of_them(comm, shuffle):
    arrays = [(put(tokens_of(comm.rank, i)), put(ids_of(comm, comm.rank, i))) for i in range(2)]
    with comparing() as compare:
        for turn, count in enumerate((TOKENS, TOKENS, 2, 1, TOKENS, 2)):
            tokens, ids = arrays[turn % 2]
            rows, handle = shuffle.dispatch(tokens[:count], ids[:count])
            check_rows(compare, comm, rows, turn % 2, count)
            results = shuffle.combine(rows.data, handle)
            compare(results, tokens_of(comm.rank, turn % 2)[:count], f"combine, turn {turn}")


@pytest.mark.parametrize("of_ids", [0, 1])
def test_tokens_in_turn(comm, shuffle, of_ids):
    arrays, ids = [put(tokens_of(comm.rank, i)) for i in range(2)], put(ids_of(comm, comm.rank, of_ids))
    with comparing() as compare:
        for turn in (0, 1, 0, 1):
            rows, _ = shuffle.dispatch(arrays[turn], ids)
            check_rows(compare, comm, rows, turn, of_ids=of_ids)


def test_weights_and_whether_they_count(comm, shuffle):
    tokens, ids = put(tokens_of(comm.rank, 0)), put(ids_of(comm, comm.rank, 0))
    weights = put(np.full((TOKENS, 1), 3, "f4"))
    with comparing() as compare:
        for turn in range(2 * ROUNDS):
            given = weights if turn % 2 else None
            rows, handle = shuffle.dispatch(tokens, ids, given)
            for weighted in (True, False):
                factor = 3 if weighted and given is not None else 1
                found = shuffle.combine(rows.data, handle, weighted=weighted)
                compare(found, factor * tokens_of(comm.rank, 0), f"turn {turn}, weighted: {weighted}")


def test_handles_that_do_not_fit(comm, shuffle):
    tokens, ids = put(tokens_of(comm.rank, 0)), put(ids_of(comm, comm.rank, 0))
    with made(comm) as other:
        _, handle = shuffle.dispatch(tokens, ids)
        _, of_other = other.dispatch(tokens, ids)
        _, short = shuffle.dispatch(tokens[:2], ids[:2])
        for _ in range(2):
            rows, handle = shuffle.dispatch(tokens, handle=handle)
            results = shuffle.combine(rows.data, handle)
            for wrong in (of_other, short):
                with pytest.raises(ValueError, match="handle"):
                    shuffle.dispatch(tokens, handle=wrong)
            with pytest.raises(ValueError, match="another shuffle"):
                shuffle.combine(rows.data, of_other)
            with pytest.raises(TypeError):
                shuffle.combine(rows.data, "handle")
            with pytest.raises(ValueError, match="shape"):
                shuffle.combine(rows.data, short, out=results)
    with comparing() as compare:
        compare(results, tokens_of(comm.rank, 0), "after it")


def test_after_a_move_that_has_begun_and_after_free(comm):
    tokens, ids = put(tokens_of(comm.rank, 0)), put(ids_of(comm, comm.rank, 0))
    shuffle = made(comm)
    for _ in range(2):
        rows, handle = shuffle.dispatch(tokens, ids)
        shuffle.combine(rows.data, handle)
    shuffle.dispatch_begin(tokens, ids)
    for call in (lambda: shuffle.dispatch(tokens, ids), lambda: shuffle.combine(rows.data, handle)):
        with pytest.raises(RuntimeError, match="dispatch_begin"):
            call()
    with comparing() as compare:
        check_rows(compare, comm, shuffle.dispatch_end()[0], 0)
    shuffle.Free()
    for call in (lambda: shuffle.dispatch(tokens, ids), lambda: shuffle.dispatch(tokens, handle=handle)):
        with pytest.raises(ValueError, match="freed"):
            call()


def test_a_failure_since(comm, shuffle, monkeypatch):
    tokens, ids = put(tokens_of(comm.rank, 0)), put(ids_of(comm, comm.rank, 0))
    for _ in range(2):
        shuffle.dispatch(tokens, ids)

    def failed():
        raise pyncclx.RankFailed((0,), (0,), "it ended")

    with monkeypatch.context() as patch:
        patch.setattr(comm.team.errors, "check", failed)
        with pytest.raises(pyncclx.RankFailed):
            shuffle.dispatch(tokens, ids)
    with comparing() as compare:
        check_rows(compare, comm, shuffle.dispatch(tokens, ids)[0], 0)


def test_each_move_is_recorded(comm, shuffle):
    calls_of = comm.state.calls(comm)
    if calls_of is None:
        pytest.skip("calls are not recorded")
    tokens, ids = put(tokens_of(comm.rank, 0)), put(ids_of(comm, comm.rank, 0))
    rows, handle = shuffle.dispatch(tokens, ids)
    shuffle.combine(rows.data, handle)
    for _ in range(ROUNDS):
        number, skipped = calls_of.last, calls_of.skipped
        rows, handle = shuffle.dispatch(tokens, ids)
        shuffle.combine(rows.data, handle)
        assert (calls_of.last - number, calls_of.skipped - skipped) == (2, 2)


def test_moves_keep_no_array(comm, shuffle):
    tokens, ids = put(tokens_of(comm.rank, 0)), put(ids_of(comm, comm.rank, 0))
    for _ in range(2):
        rows, handle = shuffle.dispatch(tokens, ids)
        results = shuffle.combine(rows.data, handle)
    comm.synchronize()
    held = [weakref.ref(each) for each in (tokens, ids, results, handle)]
    del tokens, ids, results, handle, rows
    gc.collect()
    assert [each() for each in held] == [None] * 4
