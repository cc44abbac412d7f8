"""A process that was started as one of several but has MPI.COMM_WORLD to itself is refused; a single process is not."""

import os
import subprocess
import sys

import pytest
from mpi4py import MPI

import mpi_bootstrap

STEP = {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"}


def check(environ: dict[str, str]) -> None:
    mpi_bootstrap.check_launch(MPI.COMM_WORLD, environ)


@pytest.mark.parametrize(
    ("environ", "finding"),
    [
        (STEP, "Slurm step of 4 tasks"),
        ({"SLURM_PROCID": "0", "SLURM_STEPID": "0", "SLURM_NTASKS": "3"}, "Slurm step of 3 tasks"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_SIZE=2"),
        ({"PMI_SIZE": "8", "PMI_RANK": "0"}, "PMI_SIZE=8"),
        ({"PMIX_RANK": "3", "PMIX_NAMESPACE": "job"}, "PMIX_RANK=3"),
        ({**STEP, "OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_SIZE=4"),
        ({**STEP, "PMI_SIZE": "4"}, "Slurm step of 4 tasks"),  # srun --mpi=pmi2
        ({**STEP, "PMI_SIZE": "8"}, "PMI_SIZE=8"),  # mpiexec, which Slurm has started
    ],
)
def test_one_of_several_alone_is_refused(environ: dict[str, str], finding: str) -> None:
    with pytest.raises(mpi_bootstrap.LaunchError, match=finding):
        check(environ)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        pytest.param({"SLURM_NTASKS": "4"}, id="salloc"),
        pytest.param({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, id="batch script"),
        pytest.param({**STEP, "SLURM_STEP_NUM_TASKS": "1"}, id="srun -n 1"),
        pytest.param({**STEP, "OMPI_COMM_WORLD_SIZE": "1"}, id="mpiexec -n 1 in a step"),
        pytest.param({key: STEP[key] for key in STEP if key != "SLURM_PROCID"}, id="opted out"),
        pytest.param({"PMIX_RANK": "0"}, id="PMIx, first rank"),
        pytest.param({"PMI_SIZE": "many"}, id="not a number"),
    ],
)
def test_one_process_on_purpose_is_accepted(environ: dict[str, str]) -> None:
    check(environ)


@pytest.mark.parametrize("fix", ["--mpi=", "mpiexec -n 4", "env -u SLURM_PROCID"])
def test_the_refusal_names_a_way_out(fix: str) -> None:
    with pytest.raises(mpi_bootstrap.LaunchError, match=fix):
        check(STEP)


def test_a_process_under_srun_refuses_itself() -> None:
    program = "import mpi_bootstrap as m, mpi4py.MPI as MPI; m.check_launch(MPI.COMM_WORLD)"
    child = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **STEP},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert child.returncode == 1
    assert "LaunchError: this process belongs to a Slurm step of 4 tasks" in child.stderr
