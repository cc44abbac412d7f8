"""python -m pyncclx run and info, and mpi4py's own programs under the first."""

import subprocess
import sys
from pathlib import Path

import pytest

import launch
from pyncclx.system import settings

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
import numpy as np
from mpi4py import MPI
import mpi4py.MPI
comm = MPI.COMM_WORLD
assert mpi4py.MPI is MPI and MPI.__name__ == "pyncclx.MPI" and __name__ == "__main__" and __file__ == sys.argv[0]
x, y = np.ones(1000), np.zeros(1000)
comm.Allreduce(x, y)
assert comm.blocking == "host" and (y == comm.size).all() and comm.allreduce(1) == comm.size
request = comm.Allgather_init(x[:1], y[: comm.size])
for _ in range(3):
    MPI.Prequest.Startall([request])
    request.Wait()
win = MPI.Win.Allocate(8000, 8, comm=comm)
win.Fence()
win.Put(x, 0)
win.Fence()
win.Free()
if sys.argv[1] == "raise" and comm.rank == comm.size - 1:
    raise ValueError("the reason")
if sys.argv[1] == "raise":
    comm.recv(source=comm.size - 1)
sys.exit(0)
"""


def ranks(count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m pyncclx` on some ranks of the host device."""
    command = launch.mpiexec(count, "-m", "pyncclx", *arguments)
    variables = {**launch.environment("host"), "PYTHONPATH": str(ROOT), "PYNCCLX_HEAP": "512K"}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_an_exception_ends_all_ranks(program: str) -> None:
    done = ranks(2, "run", program, "raise")
    assert done.returncode != 0
    assert "the reason" in done.stderr


@pytest.mark.parametrize("module", ["helloworld", "ringtest", "pingpong"])
def test_mpi4py_bench(module: str) -> None:
    short = ["-n", "8", "-l", "10", "-s", "0"] if module == "pingpong" else []
    done = ranks(2, "run", "-m", "mpi4py.bench", module, *short)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_info_without_mpiexec() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pyncclx", "info"], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for word in ("GPUs:", "MPI:", "Launcher:", "Kernel cache:", "Host compiler:", "NCCL"):
        assert word in done.stdout
    assert lines[-1].startswith("-> ")
    assert len(lines) < 24 + len(settings.SETTINGS)
