"""The kernels between ranks that are threads, under ThreadSanitizer, AddressSanitizer and UBSan.

ThreadSanitizer finds missing orders, also where the results are right; the other build has the emulator's
hostile memory, which delays and reorders stores. `driver.cpp` runs and checks it.
"""

import pytest

from support import sample

pytestmark = pytest.mark.timeout(600)  # the first test waits for the compiler

PROGRAMS = {
    "tsan": ("-O1", "-fsanitize=thread"),
    "asan": ("-Og", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),  # -O1 compiles much longer
}
# Operations that have gone before: none; about to pass 2^31, where differences change their sign; long past it;
# about to begin anew.
SCHEDULES = 3 if sample.ALL else 1  # of each case
EPOCHS = (0, 0x7FFFFFF8, 0x90000000, 0xFFFFFFF8)


@pytest.fixture(scope="module")
def programs(build):
    return build(PROGRAMS)


@pytest.mark.parametrize("epoch", EPOCHS, ids=hex)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_no_access_is_unordered(programs, ranks, epoch):
    for seed in range(min(2, SCHEDULES)):
        done = programs["tsan"](ranks=ranks, epoch=epoch, seed=10 * ranks + seed, calls=40)
        assert done.returncode == 0, f"seed {10 * ranks + seed}: {done.stderr[:6000]}"


@pytest.mark.parametrize("hostile", [0, 1], ids=["orderly", "hostile"])
@pytest.mark.parametrize("epoch", EPOCHS, ids=hex)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_results_and_addresses_are_right(programs, ranks, epoch, hostile):
    for seed in range(SCHEDULES):
        done = programs["asan"](ranks=ranks, epoch=epoch, hostile=hostile, seed=10 * ranks + seed, calls=60)
        assert done.returncode == 0, f"seed {10 * ranks + seed}: {done.stderr[:6000]}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_more_ranks_than_four(programs, name):
    """Loops over ranks take four or eight at a time, and folds are other ones."""
    for seed in range(SCHEDULES):
        done = programs[name](ranks=6, seed=seed, calls=60, hostile=int(name == "asan"))
        assert done.returncode == 0, f"seed {seed}: {done.stderr[:6000]}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_long_spans_go_straight_though_they_would_fit_lines(programs, name):
    """Of two ranks with room for more lines than kStraightNbytes; chunks are long, too."""
    done = programs[name](ranks=2, kib=384, hostile=1, seed=7, calls=60)
    assert done.returncode == 0, done.stderr[:6000]
