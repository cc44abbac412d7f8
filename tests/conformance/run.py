"""Run mpi4py's own tests on our module and on mpi4py itself, and compare.

    python tests/conformance/run.py [-n ranks ...] [--backend kind ...] [--files expression ...] [--json FILE]

A test that mpi4py passes and we do not is a failure, unless `ARTEFACTS` has the reason why it cannot pass.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

import launch  # noqa: E402
from conformance import suite  # noqa: E402

# Tests that notice that a module was put in the place of another, and nothing else.
ARTEFACTS = {
    "test_objmodel.TestObjModel.testCAPI": "the C API makes objects of mpi4py's classes, not of ours",
    "test_doc.TestDoc.testDoc": "checks the layout of mpi4py's docstrings",
}
# What `make test` has time for: communication and communicators, on NumPy arrays, which take the kernels' way.
QUICK = ("cco", "p2p_buf", "msgspec", "msgzero", "request", "test_comm", "subclass", "objmodel", "attributes")
QUICK += ("errhandler", "handle", "pickle", "doc", "win", "toplevel", "exceptions")
# A type of each kind: the rest would be kernels to compile, each type with each operator, which tests/ranks has.
QUICK_TYPECODES = "?idD"  # twin: SUITE of support/reduction_pairs.py
GPU_KINDS = ("cupy", "numba")
PROGRAM = Path(__file__).with_name("program.py")
MOST_STARTS = 10  # of one job; each goes on behind the test that ended the one before
WHOLE = "the whole job"  # where tests are named: it did not come to its end

Results = dict[str, dict[str, Any]]


def run(module: str, ranks: int, options: argparse.Namespace) -> Results:
    """The tests on one module and a number of ranks; by name, with outcome, reason and seconds."""
    where = "gpu" if any(kind.removeprefix("dlpack-") in GPU_KINDS for kind in options.backend) else "host"
    # mpi4py needs a CUDA-aware MPI for arrays on GPUs; the same tests on NumPy's give the expected results.
    backends = ["numpy"] if where == "gpu" and module == "mpi4py" else options.backend
    settings = {"PYNCCLX_TIMEOUT": "20", "PYNCCLX_BLOCKING": "host"} | (
        {"PYNCCLX_HEAP": "512K"} if where == "host" else {}
    )
    variables = {**settings, **launch.environment(where)}
    variables["PYTHONPATH"] = str(PROGRAM.parents[2])
    with tempfile.TemporaryDirectory() as scratch:
        record = Path(scratch) / "record"
        record.touch()
        arguments = [str(PROGRAM), str(suite.fetch()), str(record), "--module", module, "-k", options.expression]
        arguments += ["--backends", *backends, f"--typecodes={options.typecodes}", "--files", *options.files]
        for _ in range(MOST_STARTS):
            code = launch.run(launch.mpiexec(ranks, *arguments), variables, options.seconds)
            ended, pending = read(record)
            if code in (0, launch.TIMED_OUT) or not (ended or pending):
                break
            for test in pending:
                note = {"test": test, "outcome": "failed", "why": f"ended the job with code {code}", "seconds": 0.0}
                with record.open("a") as file:
                    print(json.dumps(note), file=file)
        results, _ = read(record)
    if code:
        results[WHOLE] = {"outcome": "failed", "why": f"ended with code {code}", "seconds": 0.0}
    return results


def read(record: Path) -> tuple[Results, list[str]]:
    """The tests that have ended, and those that have only begun."""
    ended: Results = {}
    begun: list[str] = []
    for line in record.read_text().splitlines():
        entry = json.loads(line)
        test = entry.pop("test")
        if "outcome" in entry:
            ended[test] = entry
        else:
            begun.append(test)
    return ended, [test for test in begun if test not in ended]


def compare(ours: Results, theirs: Results) -> list[str]:
    """What mpi4py passes and we do not, and the other way round."""
    names = sorted(set(ours) | set(theirs))
    missing = {"outcome": "missing", "why": "", "seconds": 0.0}
    worse = []
    for name in names:
        our, their = ours.get(name, missing), theirs.get(name, missing)
        differs = our["outcome"] not in ("passed", their["outcome"]) and name not in ARTEFACTS
        if differs or name == WHOLE:
            worse.append(f"{name}: {our['outcome']}, with mpi4py {their['outcome']}: {our['why']}")
    return worse


def count(results: Results) -> str:
    """Outcomes and seconds, in words."""
    outcomes = [each["outcome"] for each in results.values()]
    numbers = ", ".join(f"{outcomes.count(kind)} {kind}" for kind in ("passed", "failed", "skipped"))
    return f"{numbers}, {sum(each['seconds'] for each in results.values()):.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--backend", nargs="+", default=["all"], help="cupy, numba, numpy, array, all, or a class name")
    parser.add_argument("--files", nargs="+", default=[], metavar="EXPRESSION", help="of names of test files")
    parser.add_argument("--typecodes", default="", help="of arrays, as NumPy's; all if left out")
    parser.add_argument("-k", dest="expression", default="", help="part of the names of tests")
    parser.add_argument(
        "--quick", action="store_true", help="a part of the files, on NumPy arrays: what `make test` runs"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all outcomes")
    parser.add_argument("--seconds", type=float, default=3600.0, help="time limit of a job")
    options = parser.parse_args()
    if options.quick:
        options.backend, options.files, options.typecodes = ["numpy"], QUICK, QUICK_TYPECODES
    summary = {"passed": 0, "skipped": 0, "worse": 0}
    written: dict[str, Any] = {"mpi4py": suite.RELEASE, "backends": options.backend, "ranks": {}}
    for ranks in options.ranks:
        ours, theirs = (run(module, ranks, options) for module in ("pyncclx", "mpi4py"))
        differences = compare(ours, theirs)
        written["ranks"][ranks] = {"pyncclx": ours, "mpi4py": theirs}
        print(f"{ranks} ranks: pyncclx {count(ours)}; mpi4py {count(theirs)}; {len(differences)} differences")
        print("".join(f"  {difference}\n" for difference in differences), end="", flush=True)
        for outcome in ("passed", "skipped"):
            summary[outcome] += sum(each["outcome"] == outcome for each in ours.values())
        summary["worse"] += len(differences)
    if options.json:
        options.json.write_text(json.dumps({"summary": summary, **written}, indent=1) + "\n")
    return int(summary["worse"] > 0)


if __name__ == "__main__":
    sys.exit(main())
