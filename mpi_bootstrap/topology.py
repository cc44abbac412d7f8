"""Where the ranks of a communicator run: nodes, local ranks, and launches in which MPI was not wired up."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from mpi4py import MPI

# The number of processes a launcher says it started, and whose word it is.
_LAUNCHERS = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpiexec",
    "MV2_COMM_WORLD_SIZE": "MVAPICH's mpiexec",
    "PMI_SIZE": "an mpiexec of the MPICH family",
}


class LaunchError(RuntimeError):
    """Several processes were started, but each of them is an MPI world of its own."""


@dataclass(frozen=True)
class Topology:
    """The place of one rank among the nodes of a communicator.

    Parameters
    ----------
    rank, size : int
        As in the communicator.
    node : int
        Index of this rank's node; nodes are numbered by the lowest rank that runs on them.
    local_rank, local_size : int
        Index of this rank among the ranks of its node (in rank order), and their number.
    hostname : str
        Name of the node, for messages.
    nodes : tuple of int, length size
        Node index of every rank.
    """

    rank: int
    size: int
    node: int
    local_rank: int
    local_size: int
    hostname: str
    nodes: tuple[int, ...]

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The ranks that run on this rank's node, this one included, in rank order."""
        return tuple(rank for rank, node in enumerate(self.nodes) if node == self.node)


def topology(comm: MPI.Intracomm) -> Topology:
    """Find out which ranks of `comm` share a node. Collective.

    Notes
    -----
    A node is what MPI says ranks can share memory on (`COMM_TYPE_SHARED`): ranks in different
    containers of one machine count as different nodes with most MPI libraries. The communicator
    that this takes is freed before the call returns.
    """
    local = _node_of(comm)
    try:
        local_rank, local_size = local.rank, local.size
        lowest = local.bcast(comm.rank)
    finally:
        local.Free()
    lowest_of = MPI.Comm.allgather(comm, lowest)
    index = {rank: node for node, rank in enumerate(sorted(set(lowest_of)))}
    nodes = tuple(index[rank] for rank in lowest_of)
    hostname = MPI.Get_processor_name()
    return Topology(comm.rank, comm.size, nodes[comm.rank], local_rank, local_size, hostname, nodes)


def _node_of(comm: MPI.Intracomm) -> MPI.Comm:
    """The ranks of this rank's node; mpi4py's own communicator, whatever subclass `comm` is of."""
    return MPI.Comm.Split_type(comm, MPI.COMM_TYPE_SHARED, key=comm.rank)


def check_launch(comm: MPI.Comm, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse to go on alone in a job of several processes.

    With a launcher that the MPI library does not understand, each process quietly becomes an MPI
    world of size one: all of them compute, nothing is exchanged, and nobody says so.

    Parameters
    ----------
    comm : MPI.Comm
        Any communicator of the process. A communicator of one rank is fine in a world of several.
    environ : mapping, default os.environ

    Raises
    ------
    LaunchError
        With what was found and how to start the program instead. Not collective.
    """
    if max(comm.size, MPI.COMM_WORLD.size) > 1:
        return
    tasks = _slurm_tasks(environ)
    if tasks > 1 and _number(environ, "PMI_SIZE") == tasks:  # srun --mpi=pmi2, and a library that does not speak it
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


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else 0


def _slurm_tasks(environ: Mapping[str, str]) -> int:
    """Tasks of the Slurm step that this process belongs to, 0 outside of a step.

    A batch script has SLURM_PROCID and SLURM_NTASKS too, but is one process on purpose: the
    SLURM_STEP variables are what srun adds.
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
        f"this process belongs to a Slurm step of {tasks} tasks, but MPI ({_library()}) sees it alone: srun "
        f"and MPI do not speak the same protocol. Start with `{fix} -n {tasks} ...` (`srun --mpi=list` shows "
        f"what there is), or with `mpiexec -n {tasks} ...` inside salloc or sbatch. If the {tasks} tasks are "
        "meant to be independent programs, start each with `env -u SLURM_PROCID`."
    )


def _wrong_launcher(name: str, value: str, launcher: str) -> str:
    return (
        f"{launcher} started this process as one of several ({name}={value}), but MPI ({_library()}) sees it "
        "alone: launcher and MPI library are of different makes. Use the mpiexec of the MPI library "
        "(`python -m mpi4py --mpi-lib-version` names it, and a wheel's mpiexec lies beside python), or have "
        "mpi4py load the launcher's library (MPI4PY_MPIABI, MPI4PY_LIBMPI)."
    )
