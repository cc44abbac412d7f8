"""Run mpi4jax's own tests on pyncclx.jax, which is offered to them as mpi4jax.

    python tests/conformance/mpi4jax_tests.py [-n ranks ...] [-k expression]

They come from the package index, into the cache. A test that does not pass is a failure, unless `OTHERS` has the reason
why it cannot pass. JAX must be installed; on machines without a GPU it runs on the host device.
"""

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

import launch  # noqa: E402
from support.clients.packages import Packages  # noqa: E402
from support.clients.runs import TOO_LONG, run  # noqa: E402

RELEASE = "mpi4jax==0.9.1.post2"
_INTERNALS = "looks into mpi4jax._src"
# Tests that cannot pass, by patterns of their names.
OTHERS = {
    r"test_abort_on_error": "wants the text of mpi4jax's error; pyncclx.jax raises an exception instead",
    r"test_deadlock_on_exit": "wants the output of a program that runs within 10 s",
    r"test_debug_logging|test_set_logging_from_envvar": _INTERNALS,
    r"test_mpi_abi_": _INTERNALS,
    r"test_decorators\.py::": _INTERNALS,
    r"test_versiontuple": _INTERNALS,
    r"test_version_warning": "wants a warning of mpi4jax about JAX's version",
    r"test_enforce_types": _INTERNALS,
}
RUNNER = ("-m", "pyncclx", "run", "--jax")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "support.clients.record")


def fetched() -> Path:
    """Return the folder of mpi4jax's sources."""
    packages = Packages()
    # pip needs both to read the metadata of a source package.
    failed = packages.install("setuptools") or packages.install("wheel")
    folder = Path()
    if not failed:
        failed, folder = packages.source(RELEASE)
    if failed:
        raise SystemExit(f"{RELEASE} cannot be fetched: {failed}")
    return folder


def reason(test: str) -> str | None:
    """Return why a test cannot pass; None if it should."""
    return next((why for pattern, why in OTHERS.items() if re.search(pattern, test)), None)


def failures(outcome: dict[str, Any]) -> list[str]:
    """Return the tests that should have passed, with their ranks and what they said."""
    found = []
    for rank, record in enumerate(outcome["records"]):
        for test, entry in record.items():
            if entry["outcome"] == "failed" and reason(test) is None:
                found.append(f"rank {rank}, {test}: {entry.get('why', '').strip().splitlines()[-1:]}")
    return found


def count(outcome: dict[str, Any], kind: str) -> int:
    """Return how many tests of rank 0 have an outcome."""
    return sum(entry["outcome"] == kind for entry in (outcome["records"] or [{}])[0].values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("-k", dest="expression", default="", help="of tests' names, as pytest's")
    parser.add_argument("--seconds", type=float, default=900.0, help="time limit of a job")
    options = parser.parse_args()
    folder = fetched()
    chosen = ["-k", options.expression] if options.expression else []
    words, wrong = (*RUNNER, *PYTEST, str(folder / "tests"), *chosen), 0
    for ranks in options.ranks:
        more = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        outcome = run(words, ranks, launch.device(ranks), more, options.seconds)
        found = failures(outcome)
        if outcome["code"] == TOO_LONG or not count(outcome, "passed"):
            found.append(f"the job ended with {outcome['code']}: {outcome['output'][-500:]}")
        wrong += len(found)
        numbers = ", ".join(f"{count(outcome, kind)} {kind}" for kind in ("passed", "failed", "skipped"))
        summary = f"{ranks} ranks: {numbers}; {len(found)} of the failed ones should pass"
        print(summary, *found, sep="\n    ", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
