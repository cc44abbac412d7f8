"""Run programs that people have for mpi4py, on mpi4py and on pyncclx, and compare results and times.

    python tests/clients.py [name ...] [-n ranks ...] [--json FILE]

Programs come from the package index into the cache, and stay there; what cannot be had is reported as not available.
Each runs with mpi4py alone, under ``python -m pyncclx run`` ("runner"), and with `pyncclx.MPI` in the place of
`mpi4py.MPI` ("import"). It does so without a device, where NumPy's arrays are mpi4py's ("none"), on the host device,
where kernels move them ("host"), and on GPUs where there are any. "same" is said of results, tests that pass, and the
end of the program; a ratio is pyncclx's time to mpi4py's, of what the program itself measures. mpi4py's demos and tests
run by the programs in tests/conformance.
"""

import argparse
import datetime
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import launch

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS.parent)]

from pyncclx.system import driver  # noqa: E402
from support.clients.packages import Packages  # noqa: E402
from support.clients.runs import TOO_LONG, cause, differences, median, ratio, run, tests  # noqa: E402

PROGRAMS = TESTS / "support" / "clients"
WAYS = {"runner": ("-m", "pyncclx", "run"), "import": (str(PROGRAMS / "swapped.py"),)}
PLUGIN = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "support.clients.record")
# Where it runs: without a device, where host arrays are mpi4py's; with NumPy's arrays on the host device; on GPUs.
ON_CPUS = ("none", "host")
PLACES = (*ON_CPUS, "gpu")


@dataclass(frozen=True)
class Client:
    """A program, and what it needs.

    Attributes
    ----------
    name : str
    words : tuple of str
        What comes after "python"; {NAME} is the folder of the source package NAME.
    packages : tuple of str
        Requirements of pip, with what they need; those that begin with "=" come alone.
    source : str
        A requirement whose source package has the program.
    on : tuple of str
        Some of `PLACES`.
    on_gpu : mapping
        Environment on GPUs: switches that tell the program that MPI takes device arrays.
    """

    name: str
    words: tuple[str, ...]
    packages: tuple[str, ...] = ()
    source: str = ""
    on: tuple[str, ...] = PLACES
    on_gpu: Mapping[str, str] = field(default_factory=dict)


def clients(torch: str) -> tuple[Client, ...]:
    """All programs; `torch` is the requirement by which PyTorch is installed where there is none."""
    fft = "mpi4py-fft==2.0.6"  # is compiled, with FFTW
    building = ("setuptools", "cython", "=" + fft)
    fbpic = ("scipy", "h5py", "pyfftw", "fbpic==0.27.1")
    heat = (torch, "scipy", "=heat>=1.8,<2")
    program = {path.stem: (str(path),) for path in PROGRAMS.glob("*.py")}
    fft_tests = tuple(f"{{mpi4py_fft}}/tests/test_{name}.py" for name in ("darray", "libfft", "pencil"))
    aware = {"CLIENT_GPU_AWARE": "1", "PYLOPS_MPI_CUDA_AWARE": "1"}
    return (
        Client("numba-mpi", program["numba_mpi_calls"], ("numba", "numba-mpi==1.3.1"), on=ON_CPUS),
        Client("pylops-mpi", program["pylops_mpi_solve"], ("pylops-mpi==0.8.0",), on_gpu=aware),
        Client("mpi4py-fft", program["fft_transforms"], building, on=ON_CPUS),
        Client("mpi4py-fft's tests", (*PLUGIN, *fft_tests), (*building, "pytest"), fft, ON_CPUS),
        Client("heat", program["heat_operations"], heat, on_gpu=aware),
        Client("FBPIC", program["fbpic_plasma_wave"], fbpic, on=("gpu",), on_gpu={"FBPIC_ENABLE_GPUDIRECT": "1"}),
        Client("PyFR", program["pyfr_taylor_green"], ("gimmik==3.2.1", "pyfr==3.1"), on=("gpu",), on_gpu=aware),
    )


def prepared(client: Client, packages: Packages) -> tuple[str, tuple[str, ...]]:
    """Fetch a program; return why it is not available, or "", and its command."""
    for requirement in client.packages:
        module = re.split("[=<>]", requirement.removeprefix("="))[0].replace("-", "_")
        if importlib.util.find_spec(module) is None and (failed := packages.install(requirement)):
            return f"{requirement.removeprefix('=')}: {failed}", ()
    words = client.words
    if client.source:
        failed, folder = packages.source(client.source)
        if failed:
            return failed, ()
        words = tuple(word.format(mpi4py_fft=folder) for word in words)
    return "", words


# ---- all of them -----------------------------------------------------------------------------------------------------


def compared(
    client: Client, words: tuple[str, ...], ranks: int, options: argparse.Namespace, site: str
) -> Iterator[dict[str, Any]]:
    """The rows of a program on some ranks: one for each way to run it on pyncclx, and each device."""
    for group in (ON_CPUS, ("gpu",)):
        places = [where for where in group if where in client.on and where in options.devices]
        if not places:
            continue
        cases = [(where, way) for where in places for way in options.ways]
        turns = [list(turn(client, words, ranks, places[0], cases, options, site)) for _ in range(options.turns)]
        plain, *all_ours = map(median, zip(*turns, strict=True))
        for (where, way), ours in zip(cases, all_ours, strict=True):
            yield {"client": client.name, "ranks": ranks, "device": where, "way": way, **verdict(ours, plain)}


def turn(
    client: Client,
    words: tuple[str, ...],
    ranks: int,
    plain_on: str,
    cases: list[tuple[str, str]],
    options: argparse.Namespace,
    site: str,
) -> Iterator[dict[str, Any]]:
    """One run with mpi4py alone, then one in each place and way."""
    yield run(words, ranks, plain_on, {"PYTHONPATH": site}, options.seconds)
    for where, way in cases:
        more = {"PYTHONPATH": site, **(client.on_gpu if where == "gpu" else {})}
        yield run((*WAYS[way], *words), ranks, where, more, options.seconds)


def verdict(ours: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """What is said of two runs."""
    found = differences(ours, plain)
    share, times = ratio(ours, plain)
    words = "different" if found else "same"
    if TOO_LONG in (ours["code"], plain["code"]):
        words = TOO_LONG
    elif not found and plain["code"] != 0:
        words, found = "fails with mpi4py, too", [cause(plain["output"])]
    return {"verdict": words, "why": found[:5], "ratio": share, "times": times, "tests": tests(plain)}


def conformance(name: str, ranks: int) -> dict[str, Any]:
    """The row of mpi4py's demos or tests: programs of tests/conformance run and compare them."""
    demos = "demo" in name
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "results.json"
        command = [str(TESTS / "conformance" / ("demos.py" if demos else "run.py")), "-n", str(ranks)]
        command += ["--json", str(file), *([] if demos else ["--quick"])]
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        row = {"client": name, "ranks": ranks, "device": "host", "way": "runner" if demos else "import"}
        if not file.exists():
            return {**row, "verdict": "not available here", "why": [cause(done.stdout + done.stderr)]}
        results = json.loads(file.read_text())
    late: list[str] = []
    if demos:
        differ, many = [each for each in results if not each["same"]], len(results)
        late = [each["program"] for each in differ if TOO_LONG in (each["pyncclx"]["code"], each["mpi4py"]["code"])]
        odd = [each["program"] for each in differ if each["program"] not in late]
    else:
        many = results["summary"]["passed"]
        odd = [line.strip() for line in done.stdout.splitlines() if ", with mpi4py " in line]
    words = "different" if odd else "same"
    if late:
        odd += [f"{TOO_LONG}: {', '.join(late)}"]
        words += f", but for {len(late)} that {TOO_LONG}"
    return {**row, "verdict": words, "why": odd[:5], "tests": many}


def line(row: dict[str, Any]) -> str:
    """A row in words."""
    share, many = row.get("ratio"), row.get("tests")
    pace = "" if share is None else f"{share:.2f} times mpi4py's time"
    place = f"{row['ranks']} ranks, {row['device']}, {row['way']}" if "ranks" in row else ""
    reasons = "".join(f"\n    {why}" for why in row["why"])
    return f"{row['client']:22}{place:26}{row['verdict']:24}{pace}{f' {many} tests' if many else ''}{reasons}"


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of all programs that are asked for."""

    def wanted(name: str) -> bool:
        return not options.names or any(part in name for part in options.names)

    for name in filter(wanted, ("mpi4py's demos", "mpi4py's tests")):
        if "host" in options.devices:
            yield from (conformance(name, ranks) for ranks in options.ranks)
    packages = Packages()
    for client in clients(options.torch):
        if wanted(client.name):
            missing, words = prepared(client, packages)
            if missing:
                yield {"client": client.name, "verdict": "not available here", "why": [missing]}
            for ranks in [] if missing else options.ranks:
                yield from compared(client, words, ranks, options, str(packages.site))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help="parts of programs' names")
    parser.add_argument("-n", "--ranks", type=int, nargs="+", default=[2, 3, 4])
    there = PLACES if launch.gpus() else ON_CPUS
    parser.add_argument("--devices", nargs="+", choices=PLACES, default=there, help="default: all that are here")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), help="default: both")
    parser.add_argument("--turns", type=int, default=1, metavar="N", help="run all ways in turn, N times; take medians")
    parser.add_argument("--seconds", type=float, default=300.0, help="time limit of a run (default %(default)s)")
    parser.add_argument("--torch", default="torch", help="how to install PyTorch where there is none")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows, after each")
    options = parser.parse_args()
    made: list[dict[str, Any]] = []
    about = {"date": datetime.date.today().isoformat(), "python": platform.python_version(), "cpus": os.cpu_count()}
    about["gpus"] = [driver.name(number) for number in range(driver.count())]
    about["mps"] = "CUDA_MPS_PIPE_DIRECTORY" in os.environ
    for row in rows(options):
        made.append(row)
        print(line(row), flush=True)
        if options.json:
            options.json.write_text(json.dumps({"environment": about, "rows": made}, indent=1) + "\n")
    return int(any(row["verdict"] == "different" for row in made))


if __name__ == "__main__":
    sys.exit(main())
