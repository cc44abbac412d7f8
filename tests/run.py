"""The test suite: linters, tests of one process, tests on 1 to 8 ranks, protocol tests, mpi4py's own tests.

Tests on 2 ranks are run with a second MPI library, too. Without --all a sample of the tests is run, see
support/sample.py.

    python tests/run.py [step ...] [-n ranks ...] [-k expression] [--all]

Steps whose tests wait much or use one processor run beside others, in processes of their own, where the whole sample
is run and little else runs on the machine; what they print comes when they are done. Elsewhere one step runs after
another.

The last line is `N passed, N failed[, N skipped]`; the exit code is 0 if nothing failed. A step that
hangs is ended and counts as a failure.
"""

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import launch
import steps
from steps import Result
from support.quiet import quiet

ROOT = Path(__file__).resolve().parent
RANKS = (1, 2, 3, 4, 8)
STEPS = ("checks", "kernels", "host", "ranks", "nodes", "mpich", "faults", "protocol", "conformance", "programs")
# By the number of ranks: how many random programs are in the sample, and how many there are every night.
PROGRAMS = {2: (50, 1000), 3: (25, 600), 4: (25, 300), 1: (25, 100)}
# As command lines: what is first, since it keeps two processors busy (beside other work, ranks that wait for each other
# take half as much time again), and columns that run beside each other and take about as long as each other.
FIRST = ("checks", "kernels", "ranks", "-n", "8")
COLUMNS = (
    ("ranks", "-n", "2", "3", "4"),
    ("host", "protocol"),
    ("ranks", "nodes", "faults", "mpich", "conformance", "programs", "-n", "1"),
)


def results(options: argparse.Namespace) -> Iterator[Result]:
    """Run the steps one after another."""
    arguments = ["-k", options.expression] if options.expression else []
    for step in options.steps:
        if step == "checks":
            print("==== ruff, mypy", flush=True)
            yield steps.check("ruff", "check", ".")
            yield steps.check("mypy")
        elif step == "kernels":
            yield steps.kernels()
        elif step == "conformance":
            yield steps.conformance()
            yield steps.demos()
        elif step == "programs":
            for size, counts in PROGRAMS.items():
                if count := counts[options.all]:
                    yield steps.programs(size, count)
        elif step == "nodes":
            for nodes in steps.NODES if options.all else steps.NODES[:2]:
                once = steps.ONCE_OVER_NODES if options.all or nodes == steps.NODES[0] else ()
                yield steps.over_nodes(nodes, arguments, once + (steps.MORE_OVER_NODES if options.all else ()))
        elif step == "mpich":
            yield from steps.mpich(arguments, everything=options.all)
        elif (ROOT / step).is_dir():
            for ranks in options.ranks if step == "ranks" else [None]:
                yield steps.tests(step, ranks, arguments, None)


def timed(running: Iterator[Result], *, verbose: bool) -> Iterator[Result]:
    """Run steps; print the line of each when it is done, and before it what a step printed that failed."""
    while True:
        began, used = time.monotonic(), cpu_seconds()
        with contextlib.nullcontext("") if verbose else quiet() as text:
            result = next(running, None)
        if result is None:
            return
        if result.failed:
            print(text, flush=True)
        result.seconds, result.cpu_seconds = time.monotonic() - began, cpu_seconds() - used
        print(line(result), flush=True)
        yield result


def has_room() -> bool:
    """Return whether steps may run beside each other: on several processors, of which others use few, and no GPU."""
    processors = len(os.sched_getaffinity(0))
    return processors > 1 and os.getloadavg()[0] < 2 * processors and launch.device(1) == "host"


def several_at_once(*, verbose: bool) -> Iterator[Result]:
    """Run all steps, some of them beside others."""
    yield from timed(results(parsed(FIRST)), verbose=verbose)
    here, *there = COLUMNS
    with contextlib.ExitStack() as ends:
        folders = [Path(ends.enter_context(tempfile.TemporaryDirectory())) for _ in there]
        option = ["--verbose"] * verbose
        others = [
            ends.enter_context(beside([*names, *option], folder)) for names, folder in zip(there, folders, strict=True)
        ]
        yield from timed(results(parsed(here)), verbose=verbose)
        for finished in others:
            yield from finished()


@contextlib.contextmanager
def beside(names: Sequence[str], folder: Path) -> Iterator[Callable[[], list[Result]]]:
    """Run steps in another process; what it yields waits for their end, prints their output and returns the results."""
    output, report = folder / "output", folder / "results.json"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, __file__, *names, "--json", str(report)],
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
        return [Result(" ".join(names), failed=1, note=f"ended with code {code}")]

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
    parser.add_argument("--verbose", action="store_true", help="print all that the steps print, not only what failed")
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    return parser.parse_args(arguments)


def main() -> int:
    options = parsed()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # some hundred processes import the same modules
    if options.all:
        os.environ["PYNCCLX_TEST_ALL"] = "1"
    verbose = options.verbose
    is_whole_sample = options == parsed(["--verbose"] * verbose)
    at_once = is_whole_sample and has_room()
    finished = list(several_at_once(verbose=verbose) if at_once else timed(results(options), verbose=verbose))
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in finished]))
    for each in finished:
        if each.last_words:
            print(f"\n==== {each.name}, last words\n{each.last_words}")
    print(f"\n{'':34}{'passed':>8}{'failed':>8}{'skipped':>8}{'seconds':>9}{'CPU':>9}")
    for each in finished:
        print(line(each))
    for each in finished:
        for failure in each.failures:
            print(f"{each.name}: {failure}")
    passed, failed, skipped = (sum(getattr(each, key) for each in finished) for key in ("passed", "failed", "skipped"))
    print(f"\n{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    return int(failed > 0 or passed == 0)


if __name__ == "__main__":
    sys.exit(main())
