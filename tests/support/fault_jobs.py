"""Jobs whose ranks fail: started under an MPI that goes on then, ended if they hang, and looked through afterwards."""

import json
import os
import subprocess
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
PROMISED_S = 1.0  # from a death to the exceptions
SLACK_S = 10.0  # that a busy machine adds


@dataclass
class Job:
    """What came of a job."""

    outcomes: dict[int, dict[str, Any]]  # by rank, of those that lived to write it
    code: int
    output: str
    left: list[str]  # processes that it has left behind

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
    timeout_s: float = 300,
    **settings: str,
) -> Job:
    """Run an operation on several ranks, with faults; `settings` are environment variables.

    `timeout_s` becomes PYNCCLX_TIMEOUT once all ranks have started.
    """
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as folder:
        program, *arguments = launch.mpiexec(ranks, str(PROGRAM), operation, str(calls))
        tests = {"FOLDER": folder, "SECONDS": str(SECONDS), "SHRINK": str(int(shrink)), "MARK": mark}
        tests["TIMEOUT"] = str(timeout_s)
        environment = {
            **launch.environment("host"),
            **{f"PYNCCLX_TEST_{name}": value for name, value in tests.items()},
            "PYNCCLX_FAULT": fault,
            "PYNCCLX_HEAP": "2M",
            "PYTHONPATH": os.pathsep.join(sys.path),
            **settings,
        }
        command = [program, *(OPTIONS if tolerant else []), *arguments]
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS + 30, check=False
        )
        files = Path(folder).glob("rank*")
        outcomes = {int(file.name[4:]): json.loads(file.read_text()) for file in files}
        stacks = "\n".join(file.read_text() for file in Path(folder).glob("stacks*"))
    output = (done.stdout + done.stderr).decode(errors="replace") + stacks
    return Job(outcomes, done.returncode, output, _processes(mark))


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
