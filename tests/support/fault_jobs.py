"""Jobs whose ranks fail: started under an MPI that goes on then, ended if they hang, and looked through afterwards."""

import contextlib
import functools
import json
import os
import signal
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpi4py import MPI

import launch

PROGRAM = Path(__file__).parents[1] / "faults" / "program.py"
TOLERANT = MPI.get_vendor()[0] == "Open MPI"
OPTIONS = ["--with-ft", "ulfm", "--mca", "pml", "ob1"]
SECONDS = 150.0  # after which a rank shows its stacks and ends
COMPILATION_S = 60.0  # of a kernel for the host device
PROMISED_S = 1.0  # from a death to the exceptions
SLACK_S = 10.0  # that a busy machine adds


@dataclass
class Job:
    """What came of a job."""

    outcomes: dict[int, dict[str, Any]]  # by rank, of those that lived to write it
    ended: list[int]  # ranks that lived to MPI_Finalize
    code: int
    output: str
    left: list[str]  # processes and shared memory that it has left behind

    def explain(self) -> str:
        """All that is known of it."""
        outcomes = json.dumps(self.outcomes, indent=1)
        return f"code {self.code}, ended {self.ended}, left {self.left}, {outcomes}\n{self.output}"


def run(
    ranks: int,
    operation: str,
    fault: str,
    *,
    calls: int = 8,
    tolerant: bool = True,
    shrink: bool = False,
    timeout_s: float | None = None,
    stopped: int | None = None,
    killed_at_exit: int | None = None,
    **settings: str,
) -> Job:
    """Run an operation on several ranks, with faults; `settings` are environment variables.

    `timeout_s` becomes PYNCCLX_TIMEOUT once all ranks have made a call. A rank that the fault stops goes on when all
    others have written their outcomes. One that is killed at the end of its program dies while the others are in
    MPI_Finalize, or on their way; Open MPI's may then wait for ever, so the job is ended when they are there.
    """
    with tempfile.TemporaryDirectory() as folder:
        program, *arguments = launch.mpiexec(ranks, str(PROGRAM), operation, str(calls))
        command = [program, *(OPTIONS if tolerant else []), *arguments]
        mark = uuid.uuid4().hex
        tests = {"FOLDER": folder, "SECONDS": str(SECONDS), "SHRINK": str(int(shrink)), "MARK": mark}
        if timeout_s is not None:
            tests["TIMEOUT"] = str(timeout_s)
        if killed_at_exit is not None:
            tests["KILLED_AT_EXIT"] = str(killed_at_exit)
        environment = {
            **launch.environment("host"),
            **{f"PYNCCLX_TEST_{name}": value for name, value in tests.items()},
            "PYNCCLX_FAULT": fault,
            "PYNCCLX_HEAP": "4M",
            "PYNCCLX_DUMP": f"{folder}/dumps",
            "PYTHONPATH": os.pathsep.join(sys.path),
            **settings,
        }
        with (Path(folder) / "output").open("w+b") as output:
            until = functools.partial(_is_over, Path(folder), ranks, stopped, killed_at_exit)
            done = launch.ended(command, environment, SECONDS + 30, until=until, stdout=output, stderr=output)
        return _job(Path(folder), done.returncode, mark)


def _is_over(folder: Path, ranks: int, stopped: int | None, killed_at_exit: int | None) -> bool:
    """Let a stopped rank go on once the others have written their outcomes; return whether the job may be ended."""
    if stopped is not None and set(_ranks(folder, "rank")) >= set(range(ranks)) - {stopped}:
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            os.kill(_process(folder, stopped), signal.SIGCONT)
    if killed_at_exit is None or set(_ranks(folder, "ended")) != set(range(ranks)) - {killed_at_exit}:
        return False
    return not Path(f"/proc/{_process(folder, killed_at_exit)}").exists()


def _ranks(folder: Path, kind: str) -> list[int]:
    """Ranks that have written a file of a kind."""
    return sorted(int(file.name.removeprefix(kind)) for file in folder.glob(f"{kind}[0-9]*"))


def _process(folder: Path, rank: int) -> int:
    return int((folder / f"pid{rank}").read_text())


def _job(folder: Path, code: int, mark: str) -> Job:
    """What has come of a job."""
    outcomes = {rank: json.loads((folder / f"rank{rank}").read_text()) for rank in _ranks(folder, "rank")}
    texts = [folder / "output", *folder.glob("stacks*")]
    output = "\n".join(file.read_text(errors="replace") for file in texts)
    return Job(outcomes, _ranks(folder, "ended"), code, output, _processes(mark) + _shared_memory())


def _shared_memory() -> list[str]:
    """Files of the host device that have kept a name; only flight recorders do."""
    return [str(path) for path in Path("/dev/shm").glob("pyncclx*") if not path.is_dir()]


def _processes(mark: str) -> list[str]:
    """Processes of a job that are there some time after its end."""
    end = time.monotonic() + SLACK_S
    while (left := [each for each in Path("/proc").glob("[0-9]*") if _belongs(each, mark)]) and time.monotonic() < end:
        time.sleep(0.05)
    return [(each / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace") for each in left]


def _belongs(process: Path, mark: str) -> bool:
    try:
        return mark.encode() in (process / "environ").read_bytes()
    except OSError:
        return False
