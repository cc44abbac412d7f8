"""Run mpi4py's demo programs and its benchmark, as they are, under our runner and without it, and compare.

    python tests/conformance/demos.py [-n ranks ...] [--json FILE] [name ...]

A program must end with the same code and print the same, but for numbers (many print times) and the order of lines.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

import launch  # noqa: E402
from conformance import suite  # noqa: E402

# Not among them: what needs a compiler, a display or a CUDA-aware MPI, and nxtval-mpi3.py, which sets its counter to 0
# while others may already count.
PROGRAMS = ("helloworld.py", "osu_*.py", "compute-pi/cpi-cco.py", "compute-pi/cpi-rma.py", "mpi-ref-v1/ex-*.py")
PROGRAMS += ("nxtval/nxtval-onesided.py", "nxtval/nxtval-scalable.py", "nxtval/nxtval-dynproc.py", "init-fini/*.py")
PROGRAMS += ("nxtval/nxtval-threads.py", "reductions/test_reductions.py", "sequential/test_seq.py")
PROGRAMS += ("threads/sendrecv.py", "profiling/ring.py")
MODULES = (
    ("mpi4py.bench", "helloworld", "-q"),
    ("mpi4py.bench", "ringtest", "-q"),
    ("mpi4py.bench", "pingpong", "-m", "1024", "-n", "65536", "--loop", "10", "--skip", "1"),
    ("mpi4py.bench", "pingpong", "-a", "numpy", "-n", "65536", "--loop", "10", "--skip", "1"),
)
INPUT = "100\n0\n"  # intervals, for those that ask; 0 ends them
SECONDS = 120.0
RUNNER = ("-m", "pyncclx", "run")


def programs(folder: Path, names: list[str]) -> list[tuple[str, ...]]:
    """What comes after "python": a script, or -m and a module with its arguments."""
    scripts = [(str(path),) for pattern in PROGRAMS for path in sorted((folder / "demo").glob(pattern))]
    every = scripts + [("-m", *module) for module in MODULES]
    return [words for words in every if not names or any(name in " ".join(words) for name in names)]


def outcome(ranks: int, words: tuple[str, ...]) -> dict[str, Any]:
    """What a run ended with and printed: numbers masked, lines sorted."""
    settings = {"PYNCCLX_TIMEOUT": "20", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    environment = {**os.environ, **launch.environment("host"), **settings}
    with tempfile.TemporaryFile("w+") as given:
        given.write(INPUT)
        given.seek(0)
        done = launch.ended(launch.mpiexec(ranks, *words), environment, SECONDS, stdin=given, capture_output=True)
    if done.returncode == launch.TIMED_OUT:
        return {"code": "took too long", "lines": [], "errors": ""}
    masked = re.sub(r"[-+]?\d[\d.,e+-]*", "#", done.stdout)
    lines = sorted(" ".join(line.split()) for line in masked.splitlines())
    return {"code": done.returncode, "lines": [line for line in lines if line], "errors": done.stderr[-2000:]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help="part of a program's name")
    parser.add_argument("-n", "--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all outcomes")
    options = parser.parse_args()
    folder, different, results = suite.fetch(), 0, []
    for ranks in options.ranks:
        for words in programs(folder, options.names):
            ours, theirs = outcome(ranks, (*RUNNER, *words)), outcome(ranks, words)
            same = ours["code"] == theirs["code"] and ours["lines"] == theirs["lines"]
            different += not same
            name = " ".join(words).removeprefix(f"{folder}/demo/")
            print(f"{'same' if same else 'DIFFERENT':10}{ranks} ranks: {name}", flush=True)
            if not same:
                print(f"    with code {ours['code']}, mpi4py {theirs['code']}\n{ours['errors']}", flush=True)
            results.append({"program": name, "ranks": ranks, "same": same, "pyncclx": ours, "mpi4py": theirs})
    print(f"{len(results) - different} passed, {different} failed")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
