"""The sample of tests that `make test` runs; with PYNCCLX_TEST_ALL=1 (`make test-all`) there is none: all tests run.

A test on ranks with several parameters runs with each value of each of them, and not with every combination. Which
values meet depends on the number of ranks and on the MPI library, so the steps of one run of the suite see different
combinations. A list of cases is one parameter: all of them run. What does not depend on the number of ranks runs on 1
and on 2 (`MOST_RANKS`), and what does not depend on the MPI library with one (`ONE_LIBRARY`). Tests marked `thorough`
do not run. The sample is the same in every run.
"""

import os
import random
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

ALL = os.environ.get("PYNCCLX_TEST_ALL") == "1"

# Of tests/ranks: folders, and beginnings of files, and the most ranks on which their tests are in the sample; on
# more they would be the same. Operators of a program's own need 3, for the order in which they are applied.
MOST_RANKS = {
    **dict.fromkeys(("arrays/", "derived/", "observe/", "staging/", "bench/test_bench"), 2),
    **dict.fromkeys(("communicator/test_bad_input", "communicator/test_dropin", "launch/test_remembered_calls"), 2),
    **dict.fromkeys(("messages/test_message_requests", "messages/test_probe"), 2),
    **dict.fromkeys(("simulation/", "windows/test_win_arguments"), 2),
    **dict.fromkeys(("objects/", "operators/", "team/test_mismatch"), 3),
    **dict.fromkeys(("nodes/test_token_shuffles", "bench/test_over_nodes", "launch/test_kernels"), 3),
    **dict.fromkeys(("memory/test_register", "nodes/test_late_steps", "team/test_disagreement"), 3),
    **dict.fromkeys(("device/test_device_api_misuse", "memory/test_window_failures", "team/test_failures"), 4),
    **dict.fromkeys(("nodes/test_one_rank", "nodes/test_operators", "nodes/test_pinned", "nodes/test_short"), 4),
    **dict.fromkeys(("team/test_comparison", "tuning/"), 4),
}

# What does the same with every MPI library: kernels, what is compiled for them, and what they find out.
ONE_LIBRARY = (
    *("bench/", "device/", "examples/", "launch/test_kernels", "numba_kernels/", "operators/", "tuning/"),
    *("recording/", "simulation/", "team/test_comparison", "team/test_failures", "team/test_mismatch"),
)
OPEN_MPI = "Open MPI"

Item = TypeVar("Item")
Values = Mapping[str, object]  # of a test's parameters, by their names


def has_file(file: Path, ranks: int, library: str = OPEN_MPI) -> bool:
    """Whether the sample has tests of a file on a number of ranks with an MPI library."""
    most = {**MOST_RANKS, **(dict.fromkeys(ONE_LIBRARY, 0) if library != OPEN_MPI else {})}
    return all(f"/tests/ranks/{each}" not in str(file) or ranks <= number for each, number in most.items())


def each_value(cases: Sequence[Values], seed: object) -> list[int]:
    """Return the places of few cases in which every value of every parameter occurs."""
    missing = {pair for case in cases for pair in case.items()}
    places = list(range(len(cases)))
    random.Random(zlib.crc32(repr(seed).encode())).shuffle(places)
    chosen = []
    while missing:
        best = max(places, key=lambda place: len(missing & cases[place].items()))
        chosen.append(best)
        missing -= cases[best].items()
    return sorted(chosen)


def sampled(tests: Sequence[tuple[str, Values, Item]], seed: object) -> list[Item]:
    """Return the tests of the sample, in the given order; each comes with its function and the parameters' values."""
    by_function = defaultdict(list)
    for place, (function, _, _) in enumerate(tests):
        by_function[function].append(place)
    kept: list[int] = []
    for function, places in by_function.items():
        chosen = each_value([tests[place][1] for place in places], (function, seed))
        kept += [places[each] for each in chosen] or places
    return [tests[place][2] for place in sorted(kept)]


def some(cases: Iterable[Item], count: int) -> list[Item]:
    """Return `count` of the cases for the sample, from the first on; all of them if all tests run."""
    every = list(cases)
    return every if ALL else every[:: max(1, -(-len(every) // count))]
