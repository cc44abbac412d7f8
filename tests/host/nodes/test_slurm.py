"""Jobs of two nodes under a real Slurm, which is started for each test and leaves nothing behind."""

import os
import shutil
import sys
import uuid
from pathlib import Path

import pytest
from mpi4py import MPI

import launch

TESTS = Path(__file__).resolve().parents[2]
SLURM, PROGRAM = TESTS / "support" / "slurm_nodes", TESTS / "support" / "over_nodes.py"
CANNOT = 77  # the exit code of SLURM where it cannot be started
MPICH = Path(sys.prefix) / "mpich" / "lib"
SRUN = f"srun -N 2 -n 4 --ntasks-per-node=2 --kill-on-bad-exit=1 --mpi={{}} {sys.executable} -m mpi4py"
# Rank 0 waits for the others in an exchange between the nodes, for ever; a line for each rank that has come so far.
WAITING = """
import sys, time
import numpy as np
from mpi4py import MPI
import pyncclx
comm = pyncclx.Communicator()
x = np.ones(1000, "f4")
comm.Allreduce(x, np.zeros_like(x))
comm.synchronize()
open(f"{sys.argv[1]}/came.{comm.rank}", "w").close()
if comm.rank > 0:
    time.sleep(1000)
comm.Allreduce(x, np.zeros_like(x))
comm.synchronize()
"""
COME = 'until [ "$(ls {folder}/came.* 2>/dev/null | wc -l)" = 4 ]; do sleep 0.1; done'


@pytest.fixture
def folder(tmp_path):
    """A folder with a short path: those of sockets are in it."""
    short = Path(f"/tmp/slurm-{uuid.uuid4().hex[:8]}")
    short.mkdir()
    yield short
    shutil.rmtree(short)


def on_slurm(folder, script, **variables):
    """Run a script on the controller of a Slurm of two nodes; what it printed."""
    if os.geteuid():
        pytest.skip("only root can start a Slurm with nodes of its own")
    file = folder / "script"  # no process but those of the job has its words in its command
    file.write_text(script)
    environment = {**launch.environment("host"), "PYTHONPATH": str(TESTS.parent), "PYNCCLX_TIMEOUT": "120", **variables}
    command = [str(SLURM), str(folder / "slurm"), "bash", "-eu", str(file)]
    done = launch.ended(command, environment, 400, capture_output=True)
    if done.returncode == CANNOT:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def processes(mark):
    """Processes whose command has a mark."""
    commands = (each / "cmdline" for each in Path("/proc").glob("[0-9]*"))
    return [each for each in commands if each.exists() and mark in each.read_bytes().decode(errors="replace")]


def test_srun(folder):
    """Kernels inside the nodes, MPI between them."""
    if MPI.get_vendor()[0] != "Open MPI":
        pytest.skip("srun --mpi=pmix takes Open MPI")
    printed = on_slurm(folder, f"{SRUN.format('pmix')} {PROGRAM}")
    assert "right on nodea nodea nodeb nodeb native: " in printed
    assert "4 ranks on 2 nodes, 2 rails" in printed
    assert not processes(str(folder))


@pytest.mark.thorough
def test_srun_with_mpich(folder):
    if not MPICH.exists():
        pytest.skip(f"MPICH is not installed in {MPICH.parent}")
    printed = on_slurm(
        folder, f"{SRUN.format('pmi2')} {PROGRAM}", MPI4PY_LIBMPI=str(MPICH / "libmpi.so.12"), UCX_NET_DEVICES="eth0"
    )
    assert "right on nodea nodea nodeb nodeb native: " in printed


@pytest.mark.thorough
def test_scancel(folder):
    """The job ends at once, while a rank waits, and nothing of it is left on the nodes."""
    (folder / "waiting.py").write_text(WAITING)
    script = f"""
        sbatch -N 2 -n 4 -o {folder}/output --wrap '{SRUN.format("pmix")} {folder}/waiting.py {folder}' >&2
        {COME.format(folder=folder)}
        scancel 1
        until [ -z "$(squeue -h)" ]; do sleep 0.1; done
        scontrol show job 1 | grep -o 'JobState=[A-Z]*'
        pgrep -c -f {folder}/waiting.py || true
    """
    assert on_slurm(folder, script).split() == ["JobState=CANCELLED", "0"]


@pytest.mark.thorough
def test_a_time_limit(folder):
    (folder / "waiting.py").write_text(WAITING)
    script = f"""
        sbatch -N 2 -n 4 -t 1 -o {folder}/output --wrap '{SRUN.format("pmix")} {folder}/waiting.py {folder}' >&2
        until [ -z "$(squeue -h)" ]; do sleep 0.5; done
        scontrol show job 1 | grep -o 'JobState=[A-Z]*'
        pgrep -c -f {folder}/waiting.py || true
        ls {folder}/came.* | wc -l
    """
    assert on_slurm(folder, script).split() == ["JobState=TIMEOUT", "0", "4"]
    assert "DUE TO TIME LIMIT" in (folder / "output").read_text()
