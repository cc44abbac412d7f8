"""Tables of limits: how they are computed from times, found, read, and used."""

import dataclasses
import itertools
import json
from math import inf
from pathlib import Path

import pytest

from pyncclx import tuning
from pyncclx.collectives import CHOOSE
from pyncclx.memory.layout import plan
from pyncclx.tokens.memory import grid_of
from pyncclx.tools.bench import tune

SHIPPED = sorted(Path(tuning.__file__).parent.glob("tuned-*.json"))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PYNCCLX_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([[1, 2], [1, 2], [2, 1], [3, 1]], [0, 0, 1, 1]),
        ([[1, 2], [2, 1.9], [1, 2], [3, 1]], [0, 0, 0, 1]),  # one size that does not fit in
        ([[2, 1], [3, 1]], [1, 1]),
        ([[1, 2], [1, 2]], [0, 0]),
        ([[1, 3, 4], [2, 1, 4], [4, 2, 1]], [0, 1, 2]),
        ([[1, 3, 2], [3, 2.5, 1], [inf, 2, 1]], [0, 2, 2]),  # the one between is never best
        ([[1, 2], [1, inf], [1, 2]], [0, 0, 0]),
    ],
)
def test_best_cuts(times, expected):
    assert tune.best_cuts(times) == expected


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [([0, 1, 2], [10, 20]), ([2, 2, 2], [0, 0]), ([0, 0, 0], [30, 30]), ([0, 2, 2], [10, 10]), ([1, 1, 2], [0, 20])],
)
def test_limits_of(chosen, expected):
    times = [[1.0, 1.0, 1.0]] * 3
    assert tune.limits_of([10, 20, 30], times, chosen) == expected


def test_all_that_an_algorithm_can_move():
    times = [[1.0, 2.0, 3.0], [inf, 1.0, 3.0], [inf, inf, 1.0]]
    assert tune.limits_of([10, 20, 30], times, [0, 1, 2]) == [19, 29]
    assert tune.limits_of([10, 20, 30], times, [0, 2, 2]) == [19, 19]


@pytest.mark.parametrize("operation", tuning.ALGORITHMS)
def test_algorithms_are_those_of_the_operations(operation):
    with pytest.raises(ValueError, match="it can be") as raised:
        CHOOSE[operation.capitalize()](plan(1 << 20, 4, 4), 8, "none")
    names = str(raised.value).split("it can be ")[1].split(", or None")[0]
    assert names == " or ".join(map(repr, tuning.ALGORITHMS[operation]))


@pytest.mark.parametrize("operation", ["allreduce", "reduce", "bcast", "scan"])
def test_limits_are_obeyed(operation):
    algorithms = tuning.ALGORITHMS[operation]
    kernels = [f"{operation}_{algorithm}" for algorithm in algorithms]
    layout = plan(1 << 20, 4, 4)
    limits = tuple(zip(kernels, (100, 200), strict=False))
    tuned = dataclasses.replace(layout, limits=limits)
    chosen = [CHOOSE[operation.capitalize()](tuned, nbytes).kernel for nbytes in (100, 101, 200, 201)]
    assert chosen == [kernels[0], kernels[1], kernels[1], kernels[min(2, len(kernels) - 1)]]


def test_tables_are_found(cache):
    """This user's comes before the one that is shipped; what it does not have is left to the rules."""
    assert tuning.limits("No GPU", 4) == ()
    table = {"environment": {}, "limits": {"4": {"bcast_direct": 77}}}
    (cache / tuning.file_name("No GPU")).write_text(json.dumps(table))
    assert tuning.limits("No GPU", 4) == (("bcast_direct", 77),)
    assert tuning.limits("No GPU", 3) == ()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"limits": []}', '{"limits": {"4": {"bcast_direct": "x"}}}'])
def test_bad_tables(cache, text):
    path = cache / tuning.file_name("No GPU")
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"{path.name} is not a table of limits .*; remove it"):
        tuning.limits("No GPU", 4)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_tables(path):
    """They name kernels that there are, and where they come from; 0 is a kernel that was not measured."""
    table = tuning.read(path)
    kernels = [[f"{operation}_{each}" for each in all_of[:-1]] for operation, all_of in tuning.ALGORITHMS.items()]
    for size, limits in table["limits"].items():
        assert list(limits) == list(itertools.chain(*kernels))
        for own in kernels:
            measured = [limits[kernel] for kernel in own if limits[kernel] > 0]
            assert measured == sorted(measured)
        about = table["environment"][size]
        assert about["ranks"] == int(size)
        assert tuning.file_name(about["device"]) == path.name
        assert about["date"] > "2026"
        assert about["program"].startswith("python -m pyncclx tune")


def test_provenance_of_all_tables(cache):
    """Shipped ones, those of this user, and files without a date."""
    (cache / tuning.file_name("No GPU")).write_text('{"limits": {}}')
    (cache / tuning.file_name("A GPU")).write_text(
        json.dumps({"environment": {"2": {"ranks": 2, "date": "2026-01-02", "device": "A GPU"}}, "limits": {}})
    )
    first, second, *shipped = tuning.provenance()
    assert first == f"A GPU: 2 ranks on 2026-01-02 ({cache / 'tuned-A-GPU.json'})"
    assert second == f"{cache / 'tuned-No-GPU.json'}: without the device and date of its measurement"
    assert [line.partition(":")[0] for line in shipped] == ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]


@pytest.mark.parametrize("operation", ["Alltoallv", "Gatherv", "Scatterv"])
def test_threads_are_what_the_own_buffers_can_fill_and_channels_are_all(operation):
    """Each rank chooses by its own buffers: they may have other threads, but not another grid."""
    layout = plan(48 << 20, 4, 32)
    choices = [CHOOSE[operation](layout, nbytes) for nbytes in (1, 32 << 10, 64 << 10)]
    assert [choice.threads for choice in choices] == [5 * 32, 8 * 32, None]
    assert {choice.grid for choice in choices} == {32}


def threads_of(choose, *sized, windows=False):
    """Of an operation on 2 ranks with 64 channels."""
    layout = dataclasses.replace(plan(96 << 20, 2, 64), windows=windows)
    return choose(layout, *sized).threads


def test_kernels_of_all_channels_have_few_threads_while_early_launches_are_worth_more():
    """Two blocks of 256 threads share a multiprocessor: then the kernel takes no more of them than one of 32 blocks."""
    moves, folds = CHOOSE["Alltoall"], CHOOSE["Allreduce"]
    assert threads_of(moves, 64 << 10) is None  # on 32 channels, which are launched early anyway
    assert [threads_of(moves, nbytes) for nbytes in (128 << 10, 1 << 20, 3 << 20)] == [256, 256, None]
    assert [threads_of(moves, 4 << 20, windows=windows) for windows in (False, True)] == [None, 256]
    assert [threads_of(folds, nbytes) for nbytes in (1200 << 10, 2 << 20)] == [None, None]
    assert [threads_of(folds, nbytes, "two_shot_lines") for nbytes in (256 << 10, 512 << 10)] == [256, None]
    announced = [
        [threads_of(CHOOSE["Alltoallv"], nbytes << 20, windows=windows) for nbytes in (1, 2, 4)]
        for windows in (False, True)
    ]
    assert announced == [[256, None, None], [256, None, 256]]


@pytest.mark.parametrize(
    ("tokens", "wanted", "expected"),
    [(4, None, (32, 256)), (5, None, (64, 256)), (16, 33, (33, 256)), (16, 32, (32, None)), (17, None, (64, None))],
)
def test_shuffles_of_some_tokens_have_few_threads_where_all_blocks_are_launched_early(tokens, wanted, expected):
    assert grid_of(tokens, 2, 64, wanted) == expected


@pytest.mark.parametrize("windows", [False, True])
def test_a_long_reduce_is_a_chain_of_lines(windows):
    """Among 3 or 4 ranks that have lines, where a chain can be; others have two shots or a chain of pieces."""
    nbytes = [2 << 20, 8 << 20, 32 << 20, 128 << 20]

    def chosen(size, *, chained=True, device="NVIDIA H200", lines=True):
        limits, layout = tuning.limits(device, size), plan(96 << 20, size, 64, lines)
        layout = dataclasses.replace(layout, limits=limits, windows=windows)
        return [CHOOSE["Reduce"](layout, each, None, chained).kernel.removeprefix("reduce_") for each in nbytes]

    by_lines = ["two_shot_lines", "chain_lines", "chain_lines", "chain_lines"]
    assert chosen(4) == chosen(4, device="No GPU") == chosen(3, device="No GPU") == by_lines
    assert chosen(4, lines=False) == ["two_shot"] * 4
    for size, others in ((4, {"chained": False}), (8, {}), (8, {"device": "No GPU"}), (2, {})):
        assert "chain_lines" not in chosen(size, **others)
