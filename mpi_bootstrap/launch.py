"""Detect launches whose processes are separate MPI worlds, and jobs on one node."""

import os
from collections.abc import Mapping

from mpi4py import MPI

from .identity import VARIABLE

# Environment variables with the number of processes that a launcher has started on this node.
_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE")
# Environment variables with the number of processes that a launcher has started, and the launcher's name.
_LAUNCHERS = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpiexec",
    "MV2_COMM_WORLD_SIZE": "MVAPICH's mpiexec",
    "PMI_SIZE": "an mpiexec of the MPICH family",
}


class LaunchError(RuntimeError):
    """Several processes were started, but each of them is an MPI world of its own."""


def check_launch(comm: MPI.Comm, environ: Mapping[str, str] = os.environ) -> None:
    """Raise LaunchError if this process is alone in a job of several processes.

    If launcher and MPI library have different protocols, each process becomes an MPI world of size one: all of them
    compute, nothing is exchanged, and MPI raises no error. Not collective.

    Parameters
    ----------
    comm : MPI.Comm
        Any communicator of the process. A communicator of one rank is accepted if MPI.COMM_WORLD has several.
    environ : mapping of str to str, default os.environ

    Raises
    ------
    LaunchError
        Its text names the variable that shows the job's size, and how to start the program instead.

    Examples
    --------
    >>> check_launch(MPI.COMM_WORLD)
    """
    if max(comm.size, MPI.COMM_WORLD.size) > 1:
        return
    tasks = _slurm_tasks(environ)
    if tasks > 1 and _number(environ, "PMI_SIZE") == tasks:  # srun --mpi=pmi2, with a library that lacks it
        raise LaunchError(_unwired_step(tasks))
    for name, launcher in _LAUNCHERS.items():
        if _number(environ, name) > 1:
            raise LaunchError(_wrong_launcher(name, environ[name], launcher))
    if any(name in environ for name in _LAUNCHERS):
        return  # a launcher started this one process, perhaps inside a larger Slurm job
    if tasks > 1:
        raise LaunchError(_unwired_step(tasks))
    if _number(environ, "PMIX_RANK") > 0:
        raise LaunchError(_wrong_launcher("PMIX_RANK", environ["PMIX_RANK"], "a PMIx launcher"))


def is_job_on_one_node(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the launcher has put all ranks of MPI.COMM_WORLD on one node.

    Not collective, but the result is the same on all ranks. It is False if PYNCCLX_NODE is set, and if no
    environment variable of a launcher shows the number of processes.

    Examples
    --------
    >>> is_job_on_one_node({})
    False
    """
    if VARIABLE in environ:
        return False
    if any(_number(environ, name) == MPI.COMM_WORLD.size for name in _LOCAL_SIZES):
        return True
    return _slurm_tasks(environ) == MPI.COMM_WORLD.size and _number(environ, "SLURM_STEP_NUM_NODES") == 1


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else 0


def _slurm_tasks(environ: Mapping[str, str]) -> int:
    """Return the number of tasks of this process's Slurm step; 0 outside of a step.

    A batch script also has SLURM_PROCID and SLURM_NTASKS, but is one process on purpose. Only srun adds the SLURM_STEP
    variables.
    """
    if "SLURM_PROCID" not in environ:
        return 0
    if "SLURM_STEP_NUM_TASKS" in environ:
        return _number(environ, "SLURM_STEP_NUM_TASKS")
    in_step = "SLURM_STEP_ID" in environ or "SLURM_STEPID" in environ
    return _number(environ, "SLURM_NTASKS") if in_step else 0


def _library() -> str:
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


def _unwired_step(tasks: int) -> str:
    fix = "srun --mpi=pmix" if MPI.get_vendor()[0] == "Open MPI" else "srun --mpi=pmi2"
    return (
        f"this process belongs to a Slurm step of {tasks} tasks, but MPI ({_library()}) has no other: srun "
        f"and MPI have different protocols. Start with `{fix} -n {tasks} ...` (`srun --mpi=list` shows "
        f"what there is), or with `mpiexec -n {tasks} ...` inside salloc or sbatch. If the {tasks} tasks are "
        "meant to be independent programs, start each with `env -u SLURM_PROCID`."
    )


def _wrong_launcher(name: str, value: str, launcher: str) -> str:
    return (
        f"{launcher} started this process as one of several ({name}={value}), but MPI ({_library()}) has no "
        "other: launcher and MPI library are of different makes. Use the mpiexec of the MPI library "
        "(`python -m mpi4py --mpi-lib-version` names it, and a wheel's mpiexec lies beside python), or have "
        "mpi4py load the launcher's library (MPI4PY_MPIABI, MPI4PY_LIBMPI)."
    )
