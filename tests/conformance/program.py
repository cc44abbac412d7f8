"""mpi4py's tests on the ranks of one job, with its module or with ours in its place.

    mpiexec -n 2 python tests/conformance/program.py FOLDER RECORD --module pyncclx --backends numpy --files cco p2p

RECORD is a file of JSON lines, one when a test begins and one when it has ended, written by rank 0. Tests that it
names already are left out: a job that was ended by a test is started again and goes on behind it.
"""

import argparse
import faulthandler
import json
import os
import re
import sys
import time
import traceback
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpu_arrays
import mpi4py
from mpi4py import MPI

WORLD = MPI.COMM_WORLD.Dup()  # mpi4py's own: what is under test must not carry the verdicts
# Their tests start processes that import the main script again, write files, or take apart mpi4py's package.
EXCLUDED = r"test_(io|file|spawn|dynproc|util_pool|package)\.py"
TIMEOUT = 300.0  # a reduction that is not in the cache yet takes minutes to compile
# After these the communicator is lost, and with it the tests that come after.
FATAL = re.compile(r"PeerTimeout|Aborted")
BROKEN = 3  # exit code: start again
ORDER = {"passed": 0, "skipped": 1, "failed": 2}


class Outcome(unittest.TestResult):
    """What came out of one test on this rank."""

    def __init__(self) -> None:
        super().__init__()
        self.outcome, self.why = "passed", ""

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._note("skipped", reason)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._note("failed", _last(err))

    addFailure = addError

    def addSubTest(self, test: unittest.TestCase, subtest: Any, err: Any) -> None:
        if err is not None:
            self._note("failed", f"{subtest._subDescription()} {_last(err)}")

    def _note(self, outcome: str, why: str) -> None:
        if ORDER[outcome] > ORDER[self.outcome]:
            self.outcome, self.why = outcome, why


def _last(err: Any) -> str:
    """The exception, and the two innermost places it came through."""
    kind, value, trace = err
    places = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(trace)]
    return f"{kind.__name__}: {value} ({' > '.join(places[-3:])})"


def swap() -> None:
    """Put our module in the place of mpi4py's, for every import that comes."""
    from pyncclx.tools.cli.run import Swap  # noqa: PLC0415  not on the way of plain mpi4py

    Swap().swap()


def prepare(folder: Path, module: str, backends: list[str], typecodes: str, device_libraries: bool) -> None:
    """Make mpi4py's tests importable, on arrays of these kinds and types."""
    if not device_libraries:  # arrayimpl would try to make arrays on a GPU
        sys.modules["cupy"] = sys.modules["numba"] = None  # type: ignore[assignment]
    if module == "pyncclx":
        swap()
    sys.path.insert(0, str(folder / "test"))
    import arrayimpl  # noqa: PLC0415
    import mpiunittest  # noqa: PLC0415

    mpiunittest.is_mpi_gpu = lambda predicate, array: False  # it leaves out what other libraries fail at
    kinds = arrayimpl.ArrayBackends
    kinds[:] = [kind for kind in kinds if backends == ["all"] or kind.__name__ in backends or kind.backend in backends]
    for kind in kinds if typecodes else []:
        kind.TypeMap = {code: datatype for code, datatype in kind.TypeMap.items() if code in typecodes}
    gpu_arrays.copy_all_at_once(arrayimpl)
    if not kinds:
        raise SystemExit(f"no arrays of the kinds {backends}")


def tests(folder: Path, files: list[str], typecodes: str) -> Iterator[unittest.TestCase]:
    """The tests in files whose name matches one of the expressions, on these types of those that a class has."""
    pattern = re.compile("|".join(files) or ".")
    for path in sorted((folder / "test").glob("test_*.py")):
        if pattern.search(path.name) and not re.fullmatch(EXCLUDED, path.name):
            for case in _flat(unittest.defaultTestLoader.loadTestsFromName(path.stem)):
                if typecodes and hasattr(case, "TYPECODES"):
                    type(case).TYPECODES = "".join(code for code in case.TYPECODES if code in typecodes)
                yield case


def _flat(suite: Any) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from _flat(each)
        else:
            yield each


def run(case: unittest.TestCase) -> dict[str, Any]:
    """Run one test; the worst outcome over all ranks. Collective."""
    result = Outcome()
    began = time.monotonic()
    faulthandler.dump_traceback_later(TIMEOUT, exit=True)
    unittest.TestSuite([case]).run(result)
    if result.outcome == "failed":  # the others may be stuck without this rank
        print(f"rank {WORLD.rank}: {case.id()}: {result.why}", file=sys.stderr, flush=True)
    everywhere = WORLD.allgather((result.outcome, result.why))
    faulthandler.cancel_dump_traceback_later()
    rank, (outcome, why) = max(enumerate(everywhere), key=lambda item: ORDER[item[1][0]])
    why = f"rank {rank}: {why}" if outcome == "failed" else why
    return {"outcome": outcome, "why": why, "seconds": round(time.monotonic() - began, 3)}


def main() -> int:
    parser = argparse.ArgumentParser(description="run mpi4py's tests")
    parser.add_argument("folder", type=Path)
    parser.add_argument("record", type=Path)
    parser.add_argument("--module", choices=["mpi4py", "pyncclx"], default="pyncclx")
    parser.add_argument("--backends", nargs="+", default=["all"])
    parser.add_argument("--typecodes", default="")
    parser.add_argument("--files", nargs="*", default=[])
    parser.add_argument("-k", dest="expression", default="")
    options = parser.parse_args()
    on_gpu = any(kind.removeprefix("dlpack-") in ("cupy", "numba") for kind in options.backends)
    prepare(options.folder, options.module, options.backends, options.typecodes, on_gpu)
    done = {json.loads(line)["test"] for line in options.record.read_text().splitlines()}
    WORLD.Barrier()
    with options.record.open("a" if WORLD.rank == 0 else "r") as record:
        for case in tests(options.folder, options.files, options.typecodes):
            if case.id() in done or options.expression not in case.id():
                continue
            if WORLD.rank == 0:
                print(json.dumps({"test": case.id()}), file=record, flush=True)
            ended = {"test": case.id(), **run(case)}
            if WORLD.rank == 0:
                print(json.dumps(ended), file=record, flush=True)
            if FATAL.search(ended["why"]):
                return BROKEN
    return 0


if __name__ == "__main__":
    mpi4py.rc.finalize = None
    code = main()
    sys.stderr.flush()
    if code:
        os._exit(code)  # kernels of this job may wait for each other; there is nothing left to meet for
