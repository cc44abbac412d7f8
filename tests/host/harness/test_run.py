"""The test harness: a failure, a hang or another set of tests on one rank fails the run, in bounded time."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import launch
import run
import steps
from support import crashes, sample
from support.mutants import MUTANTS

TESTS = Path(__file__).resolve().parents[2]

FAILS = """
from mpi4py.MPI import COMM_WORLD as world
def test_fails_on_one_rank():
    assert world.rank != 1, "the reason"
def test_goes_on_together():
    assert world.allreduce(1) == world.size
"""
STUCK = """
import pytest
from mpi4py.MPI import COMM_WORLD as world
@pytest.mark.timeout(2)
def test_others_wait_for_a_failed_rank():
    assert world.rank != 1, "the reason"
    world.Barrier()
"""
CRASHES = """
import faulthandler
from mpi4py.MPI import COMM_WORLD as world
def test_goes_on_together():
    assert world.allreduce(1) == world.size
def test_crashes_on_one_rank():
    if world.rank == 1:
        faulthandler._sigsegv()
    world.Barrier()
"""
DIFFERENT = """
import pytest
from mpi4py.MPI import COMM_WORLD as world
@pytest.mark.parametrize("rank", [world.rank])
def test_not_the_same_on_all_ranks(rank):
    world.Barrier()
"""


def on_two_ranks(folder: Path, program: str) -> tuple[int, str]:
    """Exit code and output of a test file on two ranks, under this repository's conftest.py."""
    shutil.copy(TESTS / "conftest.py", folder)
    (folder / "test_sample.py").write_text(program)
    pytest = ["-m", "pytest", "-q", "--color=no", "-p", "no:timeout", "-p", "no:cacheprovider"]
    child = launch.job(2, *pytest, str(folder), cwd=folder, PYNCCLX_TEST_LAST_WORDS=str(folder / "last_words"))
    return child.returncode, child.stdout + child.stderr


def test_a_failure_of_one_rank_is_reported_once(tmp_path: Path) -> None:
    code, output = on_two_ranks(tmp_path, FAILS)
    assert code != 0
    assert len(re.findall("^rank 1 of 2: AssertionError: the reason", output, re.MULTILINE)) == 1
    assert output.count("1 failed, 1 passed") == 1


def test_a_hang_ends_the_run_and_shows_the_failure_behind_it(tmp_path: Path) -> None:
    code, output = on_two_ranks(tmp_path, STUCK)
    assert code != 0
    reason = "the other ranks do not finish what failed here: AssertionError: the reason"
    assert re.search(f"rank 1 of 2: .*test_sample.py::test_[a-z_]+: {reason}", output)
    assert "rank 0 of 2: " in output
    assert "world.Barrier()" in output
    last_words = (tmp_path / "last_words").read_text()
    assert re.search(r"^rank 0 of 2: .*, in test_sample.py:\d+ test_[a-z_]+", last_words, re.MULTILINE)
    assert "world.Barrier()" in last_words


def test_a_crash_is_named_with_its_test_and_place(tmp_path: Path) -> None:
    code, _ = on_two_ranks(tmp_path, CRASHES)
    assert code != 0
    (line,) = [each for each in crashes.last_words(tmp_path / "last_words").splitlines() if each.startswith("rank ")]
    error = "Fatal Python error: Segmentation fault, in test_sample.py:8 test_crashes_on_one_rank"
    assert line == f"rank 1 of 2: test_sample.py::test_crashes_on_one_rank: {error}"


def test_ranks_that_collect_different_tests_do_not_start(tmp_path: Path) -> None:
    code, output = on_two_ranks(tmp_path, DIFFERENT)
    assert code != 0
    assert "the ranks have not collected the same tests" in output


def test_a_command_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "CLEANUP", 0.5)
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert launch.run(sleeper, launch.environment("host"), 0.5) == launch.TIMED_OUT


@pytest.mark.parametrize("verbose", [False, True])
def test_only_steps_that_fail_show_what_they_print(capfd: pytest.CaptureFixture[str], verbose: bool) -> None:
    def running() -> Iterator[steps.Result]:
        for name, text in (("one", "....s...  [ 50%]\nall is well"), ("two", "..F.  [100%]\nthe reason")):
            subprocess.run(["echo", f"==== {name}\n{text}"], check=True)
            yield steps.Result(name, passed=int(name == "one"), failed=int(name == "two"))

    assert [result.name for result in run.timed(running(), verbose=verbose)] == ["one", "two"]
    shown = capfd.readouterr().out
    assert ("all is well" in shown, "[ 50%]" in shown, "[100%]" in shown) == (verbose,) * 3
    assert shown.index("==== two") < shown.index("the reason") < shown.index("\ntwo ")


@pytest.mark.parametrize(
    ("code", "report", "expected"),
    [
        (0, '<testsuite tests="5" failures="0" errors="0" skipped="2"/>', (3, 0, 2)),
        (1, '<testsuite tests="5" failures="1" errors="1" skipped="0"/>', (3, 2, 0)),
        (137, '<testsuite tests="5" failures="0" errors="0" skipped="0"/>', (5, 1, 0)),
        (5, '<testsuite tests="0" failures="0" errors="0" skipped="0"/>', (0, 1, 0)),
        (launch.TIMED_OUT, None, (0, 1, 0)),
    ],
)
def test_a_run_that_went_wrong_is_a_failure(
    tmp_path: Path, code: int, report: str | None, expected: tuple[int, int, int]
) -> None:
    path = tmp_path / "report.xml"
    if report is not None:
        path.write_text(f"<testsuites>{report}</testsuites>")
    result = steps.judge("step", code, path)
    assert (result.passed, result.failed, result.skipped) == expected


def test_what_failed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    failed = '<testcase classname="tests.host.test_a" name="test_b[1]"><failure/></testcase>'
    suite = f'<testsuite tests="2" failures="1"><testcase classname="tests.host.test_a" name="test_c"/>{failed}'
    path.write_text(f"<testsuites>{suite}</testsuite></testsuites>")
    assert steps.judge("step", 1, path).failures == ["tests/host/test_a.py::test_b[1]"]


def test_a_step_without_selected_tests_is_no_failure(tmp_path: Path) -> None:
    """Of `make test K=subject` a subject may have no tests in one of the steps."""
    path = tmp_path / "report.xml"
    path.write_text('<testsuites><testsuite tests="0" failures="0" errors="0" skipped="0"/></testsuites>')
    assert steps.judge("step", steps.NO_TESTS, path, selected=True).failed == 0
    assert steps.judge("step", steps.NO_TESTS, path).failed == 1


def test_columns_run_every_step_once() -> None:
    parts = [run.parsed(each) for each in (run.FIRST, *run.COLUMNS)]
    assert sorted(step for part in parts for step in part.steps if step != "ranks") == sorted({*run.STEPS} - {"ranks"})
    assert sorted(ranks for part in parts if "ranks" in part.steps for ranks in part.ranks) == list(run.RANKS)


@pytest.mark.parametrize(
    ("processors", "load", "gpus", "expected"),
    [(2, 3.9, 0, True), (2, 4.0, 0, False), (1, 0.0, 0, False), (2, 0.0, 1, False)],
)
def test_columns_need_room(
    processors: int, load: float, gpus: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYNCCLX_DEVICE", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 9.0, 9.0))
    monkeypatch.setattr(launch, "gpus", lambda: gpus)
    assert run.has_room() == expected


BESIDE = """
import json, sys
print("what it prints")
if sys.argv[1] == "passes":
    open(sys.argv[3], "w").write(json.dumps([{"name": "step", "passed": 2}]))
sys.exit(3)
"""


@pytest.mark.parametrize("step", ["passes", "crashes"])
def test_what_ran_beside_others_is_counted(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(BESIDE)
    monkeypatch.setattr(run, "__file__", str(program))
    with run.beside([step], tmp_path) as others:
        (result,) = others()
    failed = steps.Result(step, 0, 1, note="ended with code 3")
    expected = steps.Result("step", passed=2) if step == "passes" else failed
    assert result == expected
    assert "what it prints" in capfd.readouterr().out


def test_what_runs_beside_others_ends_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, started = tmp_path / "program.py", tmp_path / "started"
    program.write_text(f"import os, time; open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    monkeypatch.setattr(run, "__file__", str(program))
    with run.beside([], tmp_path):
        while not (started.exists() and started.read_text()):
            time.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


def test_what_the_sample_leaves_out_exists() -> None:
    for each in (*sample.MOST_RANKS, *sample.ONE_LIBRARY):
        assert list((TESTS / "ranks").glob(f"{each}*")), each


def test_a_sample_has_each_value_of_each_parameter() -> None:
    cases = [{"type": i, "size": j, "root": k} for i in range(5) for j in range(4) for k in range(3)]
    chosen = sample.each_value(cases, "seed")
    assert len(chosen) <= 7
    for parameter in cases[0]:
        assert {cases[place][parameter] for place in chosen} == {case[parameter] for case in cases}
    assert chosen == sample.each_value(cases, "seed")
    assert sample.some([], 3) == []
    assert sample.some("abcdefg", 3) == ["a", "d", "g"] or sample.ALL
    assert chosen != sample.each_value(cases, "another")


def test_shares_have_all_values_between_them() -> None:
    cases = [{"type": i, "size": j} for i in range(5) for j in range(2)]
    parts = [(range(2), 5), (range(2, 4), 5), (range(4, 5), 5)]
    chosen = [sample.each_value(cases, "seed", part) for part in parts]
    assert [len(places) for places in chosen] == [2, 2, 1]
    for parameter in cases[0]:
        assert {cases[place][parameter] for places in chosen for place in places} == {case[parameter] for case in cases}
    assert sample.each_value([{}], "seed", (range(2, 3), 3)) == [0]


def test_which_numbers_of_ranks_share_values() -> None:
    anywhere, on_three = TESTS / "ranks/collectives/test_scan.py", TESTS / "ranks/bench/test_over_nodes.py"
    parts = [*[(range(1), 1)] * 2, (range(2), 5), (range(2, 4), 5), (range(4, 5), 5)]
    assert [sample.share(anywhere, ranks) for ranks in (1, 2, 3, 4, 8)] == parts
    assert [sample.share(anywhere, ranks, fewest=4) for ranks in (4, 8)] == [(range(2), 3), (range(2, 3), 3)]
    assert sample.share(on_three, 3, fewest=3) == (range(2), 2)
    assert sample.share(anywhere, 2, "MPICH") == (range(1), 3)


def test_on_which_ranks_a_test_is_in_the_sample() -> None:
    """On 1 and 2, and on one of 3, 4 and 8; what needs 3 or more, on all that it can have; half with another MPI."""
    anywhere, on_three = TESTS / "ranks/collectives/test_scan.py", TESTS / "ranks/bench/test_over_nodes.py"
    names = [f"{anywhere}::test_{number}" for number in range(500)]

    def chosen(name: str, file: Path, fewest: int = 1) -> list[int]:
        return [ranks for ranks in (1, 2, 3, 4, 8) if sample.has_test(name, file, ranks, fewest=fewest)]

    places = [chosen(name, anywhere) for name in names]
    assert all(ranks[:2] == [1, 2] and len(ranks) == 3 for ranks in places)
    counts = {ranks: sum(ranks in each for each in places) for ranks in (3, 4, 8)}
    for ranks, about in {3: 200, 4: 200, 8: 100}.items():
        assert abs(counts[ranks] - about) < 50, counts
    assert all(chosen(name, on_three) == [1, 2, 3] for name in names)
    assert all(chosen(name, anywhere, fewest=3)[2:] == [3, 4, 8] for name in names)
    assert 200 < sum(sample.has_test(name, anywhere, 2, "MPICH") for name in names) < 300


def test_planted_errors_have_their_places() -> None:
    for name, mutant in MUTANTS.items():
        assert (TESTS.parent / mutant.file).read_text().count(mutant.before) == 1, f"{name}: {mutant.file}"
        assert all((TESTS / each).exists() for each in mutant.tests.split()), f"{name}: {mutant.tests}"
