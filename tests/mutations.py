"""Plant errors in a copy of the sources, one at a time, and see whether the tests notice.

    python tests/mutations.py [--only text ...] [--json FILE]

For each error: the tests of its subject from the sample that `make test` runs; where they pass, those from
`make test-all`, too. tests/README.md has the last table. The tests of the subject also run once without an error.
Errors in the protocols between ranks are those of tests/protocol/test_mutations.py; here the tests have to notice that
are made for programs without errors.
"""

import argparse
import functools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest import mock

import launch
import steps
from pyncclx.system.cache_folders import cache_directory
from support.mutants import MUTANTS
from support.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "protocol"))
import test_mutations  # noqa: E402

PROTOCOLS = "protocol/test_protocol.py"
COPIED = ("pyncclx", "mpi_bootstrap", "cuda", "tests", "examples", "docs", "pyproject.toml", "setup.cfg")
PYTEST = ("-m", "pytest", "-q", "-x", "--color=no", "-p", "no:cacheprovider")
SECONDS = 600.0  # that the tests of one subject may take
# A rank that waits for what will not come gives up soon. The code of pytest without tests is one that MPI aborts with.
PATIENCE = {"PYNCCLX_TIMEOUT": "5", "PYNCCLX_HEAP": "512K", "PYNCCLX_TEST_MAY_BE_NONE": "1"}


@dataclass
class Outcome:
    """Whether the tests noticed a mutant; None: not tried, since the sample did."""

    name: str
    by_sample: bool
    by_all: bool | None
    seconds: float


class Copy:
    """The sources in a folder of their own, with compiled kernels of the unchanged ones at hand."""

    def __init__(self, folder: Path) -> None:
        self.root, self.cache = folder / "tree", folder / "cache"
        self.root.mkdir(parents=True)
        for name in COPIED:
            source, target = ROOT / name, self.root / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        self.cache.mkdir()
        for compiled in cache_directory().iterdir():
            if compiled.is_file() and compiled.suffix != ".lock":
                (self.cache / compiled.name).symlink_to(compiled)

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """Change the sources for a while."""
        path = self.root / mutant.file
        text = path.read_text()
        if text.count(mutant.before) != 1:
            raise SystemExit(f"{mutant.file} has {text.count(mutant.before)} times {mutant.before!r}, expecting once")
        path.write_text(text.replace(mutant.before, mutant.after))
        yield
        path.write_text(text)

    def passes(self, tests: str, ranks: int, mpich: bool, every: bool, number: int = 0) -> bool:
        """Run tests, up to the first that fails; `number` is that of an error in the protocols."""
        on_ranks = [f"tests/{each}" for each in tests.split() if each.startswith("ranks")]
        alone = [f"tests/{each}" for each in tests.split() if not each.startswith("ranks")]
        variables = launch.environment("host") | PATIENCE | {"PYNCCLX_TEST_MUTANT": str(number)}
        variables |= {"MPI4PY_LIBMPI": str(steps.MPICH)} if mpich else {}
        variables |= {"PYTHONPATH": f"{self.root}", "PYNCCLX_CACHE": f"{self.cache}", "PYNCCLX_TEST_ALL": f"{every:d}"}
        commands = [[sys.executable, *PYTEST, *alone]] * bool(alone)
        with mock.patch.dict(os.environ, {"MPI4PY_LIBMPI": str(steps.MPICH)} if mpich else {}):
            commands += [launch.mpiexec(ranks, *PYTEST, *on_ranks)] * bool(on_ranks)
        codes = (launch.run(["env", "-C", str(self.root), *each], variables, SECONDS) for each in commands)
        return not any(codes)

    def plant_protocols(self) -> None:
        """Plant all errors of the protocols, of which PYNCCLX_TEST_MUTANT switches one on."""
        shutil.rmtree(self.root / "cuda")
        test_mutations.write(self.root)
        driver = self.root / "tests/protocol/driver.cpp"
        text = driver.read_text().replace("int mutation = 0;", 'int mutation = atoi(getenv("PYNCCLX_TEST_MUTANT"));')
        driver.write_text(f"#define MUTATIONS\n{text}")


Passes = Callable[[bool], bool]  # runs the tests of the sample, or all; whether they pass


def attempt(name: str, passes: Passes) -> Outcome:
    """Run the tests of the sample, then all if these pass."""
    began = time.monotonic()
    by_sample = not passes(False)
    by_all = None if by_sample else not passes(True)
    return Outcome(name, by_sample, by_all, time.monotonic() - began)


def attempts(chosen: Callable[[str], bool], folder: Path) -> Iterator[Outcome]:
    """Try the mutants whose names are chosen."""
    copy, mutants = Copy(folder / "one"), {name: each for name, each in MUTANTS.items() if chosen(name)}
    for subject in dict.fromkeys((each.tests, each.ranks, each.mpich) for each in mutants.values()):
        if not copy.passes(*subject, every=False):
            raise SystemExit(f"these tests fail without a mutant: {subject}")
    for name, mutant in mutants.items():
        with copy.planted(mutant):
            yield attempt(name, functools.partial(copy.passes, mutant.tests, mutant.ranks, mutant.mpich))
    copy = Copy(folder / "protocols")
    copy.plant_protocols()
    for name in filter(chosen, test_mutations.MUTATIONS):
        number = test_mutations.number(name)
        yield attempt(name, functools.partial(copy.passes, PROTOCOLS, 1, False, number=number))


def row(outcome: Outcome) -> str:
    """A line of the table."""
    by_all = outcome.by_sample or outcome.by_all
    words = {True: "yes", False: "NO"}
    return f"| {outcome.name} | {words[outcome.by_sample]} | {words[bool(by_all)]} | {outcome.seconds:.0f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="parts of the names of mutants")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes")
    options = parser.parse_args()
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for outcome in attempts(lambda name: any(part in name for part in options.only), Path(folder)):
            outcomes.append(outcome)
            print(row(outcome), flush=True)
            if options.json:
                options.json.write_text(json.dumps([asdict(each) for each in outcomes], indent=1) + "\n")
    caught = sum(each.by_sample for each in outcomes)
    print(f"{caught} of {len(outcomes)} by the sample, {caught + sum(bool(each.by_all) for each in outcomes)} by all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
