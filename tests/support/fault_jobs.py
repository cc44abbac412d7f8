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
    code: int
    output: str
    left: list[str]  # processes and shared memory that it has left behind

    def explain(self) -> str:
        """All that is known of it."""
        return f"code {self.code}, left {self.left}, {json.dumps(self.outcomes, indent=1)}\n{self.output}"


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
    **settings: str,
) -> Job:
    """Run an operation on several ranks, with faults; `settings` are environment variables.

    `timeout_s` becomes PYNCCLX_TIMEOUT once all ranks have made a call. A rank that the fault stops goes on when all
    others have written their outcomes.
    """
    with tempfile.TemporaryDirectory() as folder:
        program, *arguments = launch.mpiexec(ranks, str(PROGRAM), operation, str(calls))
        command = [program, *(OPTIONS if tolerant else []), *arguments]
        mark = uuid.uuid4().hex
        tests = {"FOLDER": folder, "SECONDS": str(SECONDS), "SHRINK": str(int(shrink)), "MARK": mark}
        if timeout_s is not None:
            tests["TIMEOUT"] = str(timeout_s)
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
            let_go_on = functools.partial(_let_go_on, Path(folder), ranks, stopped)
            files = {"stdout": output, "stderr": output}
            done = launch.ended(command, environment, SECONDS + 30, until=let_go_on, **files)
        return _job(Path(folder), done.returncode, mark)


def _let_go_on(folder: Path, ranks: int, stopped: int | None) -> bool:
    """Let a stopped rank go on when the others have written their outcomes; the job goes on in any case."""
    there = {rank for rank in range(ranks) if (folder / f"rank{rank}").exists()}
    if stopped is not None and there >= set(range(ranks)) - {stopped}:
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            os.kill(int((folder / f"pid{stopped}").read_text()), signal.SIGCONT)
    return False


def _job(folder: Path, code: int, mark: str) -> Job:
    """What has come of a job."""
    outcomes = {int(file.name[4:]): json.loads(file.read_text()) for file in folder.glob("rank*")}
    texts = [folder / "output", *folder.glob("stacks*")]
    output = "\n".join(file.read_text(errors="replace") for file in texts)
    return Job(outcomes, code, output, _processes(mark) + _shared_memory())


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
