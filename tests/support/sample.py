"""The sample of tests that `make test` runs; with PYNCCLX_TEST_ALL=1 (`make test-all`) there is none: all tests run.

A test on ranks with several parameters runs with each value of each of them, and not with every combination. Which
values meet depends on the number of ranks and on the MPI library, so the steps of one run of the suite see different
combinations. A list of cases is one parameter: all of them run. On 1 and 2 ranks that is so for each of these numbers.
A test that runs there runs on one of 3, 4 and 8 ranks, too, and every second one with another MPI library (`has_test`);
there it runs with a share of the values (`share`). What does not depend on the number of ranks runs on 1 and on 2
(`MOST_RANKS`), and what does not depend on the MPI library with one (`ONE_LIBRARY`). Tests marked `thorough` do not
run. The sample is the same in every run.
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
    "communicator/test_persistent_orders": 4,  # the small heap has no room for the tracks of more
    **dict.fromkeys(("arrays/", "derived/", "observe/", "staging/", "bench/test_bench"), 2),
    **dict.fromkeys(("communicator/test_bad_input", "communicator/test_dropin", "launch/test_cached_calls"), 2),
    **dict.fromkeys(("messages/test_message_requests", "messages/test_probe"), 2),
    **dict.fromkeys(("simulation/", "torch/test_training", "windows/test_win_arguments"), 2),
    **dict.fromkeys(("objects/", "operators/", "team/test_mismatch"), 3),
    **dict.fromkeys(("nodes/test_token_shuffles", "bench/test_over_nodes", "launch/test_kernels"), 3),
    **dict.fromkeys(("memory/test_register", "nodes/test_late_steps", "team/test_disagreement"), 3),
    **dict.fromkeys(("autograd/", "examples/test_decoding", "examples/test_training", "torch/"), 4),
    **dict.fromkeys(("device/test_device_api_misuse", "memory/test_window_failures", "team/test_failures"), 4),
    **dict.fromkeys(("nodes/test_host_exchange", "nodes/test_one_rank", "nodes/test_operators"), 4),
    **dict.fromkeys(("nodes/test_pinned", "team/test_comparison", "tuning/"), 4),
}

# What does the same with every MPI library: kernels, what is compiled for them, and what they find out.
ONE_LIBRARY = (
    *("autograd/", "bench/", "device/", "examples/", "launch/test_kernels", "numba_kernels/", "operators/", "tuning/"),
    *("recording/", "simulation/", "team/test_comparison", "team/test_failures", "team/test_mismatch", "torch/"),
)
OPEN_MPI = "Open MPI"
SHARING = {3: 2, 4: 2, 8: 1}  # numbers of ranks, and how many parts of the values each has: more where ranks take less

Item = TypeVar("Item")
Values = Mapping[object, object]  # of a test's parameters, by their names or places
Share = tuple[range, int]  # which ones of how many parts
ALL_VALUES = (range(1), 1)


def has_file(file: Path, ranks: int, library: str = OPEN_MPI) -> bool:
    """Whether the sample has tests of a file on a number of ranks with an MPI library."""
    most = {**MOST_RANKS, **(dict.fromkeys(ONE_LIBRARY, 0) if library != OPEN_MPI else {})}
    return all(f"/tests/ranks/{each}" not in str(file) or ranks <= number for each, number in most.items())


def has_test(function: str, file: Path, ranks: int, library: str = OPEN_MPI, fewest: int = 1) -> bool:
    """Whether the sample has a test on a number of ranks with an MPI library; it needs `fewest` ranks."""
    if not has_file(file, ranks, library):
        return False
    drawn = zlib.crc32(function.encode())
    if library != OPEN_MPI:
        return drawn % 2 == 0
    if ranks not in SHARING or fewest >= min(SHARING):
        return True
    places = [each for each, parts in SHARING.items() if has_file(file, each) for _ in range(parts)]
    return places[drawn % len(places)] == ranks


def share(file: Path, ranks: int, library: str = OPEN_MPI, fewest: int = 1) -> Share:
    """Return which share of a test's values the sample has on a number of ranks, of which it needs `fewest`."""
    if library != OPEN_MPI:
        return range(1), len(SHARING)
    sharing = [each for each in SHARING if fewest < min(SHARING) or (fewest <= each and has_file(file, each))]
    if ranks not in sharing:
        return ALL_VALUES
    begin = sum(SHARING[each] for each in sharing if each < ranks)
    return range(begin, begin + SHARING[ranks]), sum(SHARING[each] for each in sharing)


def each_value(cases: Sequence[Values], seed: object, part: Share = ALL_VALUES) -> list[int]:
    """Return the places of few cases in which every value of every parameter occurs, or those of one share do."""
    missing = _values(cases, zlib.crc32(repr(seed).encode()), part)
    places = list(range(len(cases)))
    random.Random(zlib.crc32(repr(seed).encode()) + part[0].start).shuffle(places)
    chosen = [] if missing else places[:1]
    while missing:
        best = max(places, key=lambda place: len(missing & cases[place].items()))
        chosen.append(best)
        missing -= cases[best].items()
    return sorted(chosen)


def _values(cases: Sequence[Values], offset: int, part: Share) -> set[tuple[object, object]]:
    """Return the values of a share, each with its parameter: of five parts, every fifth one of each parameter."""
    places, count = part
    values: dict[object, list[object]] = defaultdict(list)
    for parameter, value in dict.fromkeys(pair for case in cases for pair in case.items()):
        values[parameter].append(value)
    return {
        (each, value)
        for each, several in values.items()
        for number, value in enumerate(several)
        if (number - offset) % count in places
    }


def sampled(tests: Sequence[tuple[str, Values, Item, Share]], seed: object) -> list[Item]:
    """Return the tests of the sample, in the given order; each comes with its function, its values and their share."""
    by_function = defaultdict(list)
    for number, (function, *_) in enumerate(tests):
        by_function[function].append(number)
    kept: list[int] = []
    for function, numbers in by_function.items():
        part = tests[numbers[0]][3]
        chosen = each_value([tests[each][1] for each in numbers], (function, seed), part)
        kept += [numbers[each] for each in chosen]
    return [tests[number][2] for number in sorted(kept)]


def some(cases: Iterable[Item], count: int) -> list[Item]:
    """Return `count` of the cases for the sample, from the first on; all of them if all tests run."""
    every = list(cases)
    return every if ALL else every[:: max(1, -(-len(every) // count))]
