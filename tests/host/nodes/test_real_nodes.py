"""Jobs of several nodes on this machine: MPI's launcher starts a daemon for each, under a host name of its own."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mpi4py import MPI

import launch

TESTS = Path(__file__).resolve().parents[2]
AGENT, PROGRAM = TESTS / "support" / "launch_agent", TESTS / "support" / "over_nodes.py"
MPICH = Path(sys.prefix) / "mpich"  # where the Makefile has pip install it
UNSHARES = ("unshare --uts", "unshare -Ur --uts")  # as root, and in a user namespace


def unshare() -> str:
    """The command that gives a process a host name of its own."""
    for command in UNSHARES:
        if (
            shutil.which("unshare")
            and not subprocess.run([*command.split(), "hostname", "nodea"], capture_output=True, check=False).returncode
        ):
            return command
    pytest.skip("this system lets no process have a host name of its own")


def run(nodes: str, ranks: int) -> str:
    """Run the program on pretended machines; its output."""
    if MPI.get_vendor()[0] != "Open MPI" or MPI.get_vendor()[1] < (5,):
        pytest.skip("takes the launch agent of Open MPI 5")
    variables = {"PYTHONPATH": str(TESTS.parent), "UNSHARE": unshare(), "PYNCCLX_TIMEOUT": "60"}
    command, _, *python = launch.mpiexec(ranks, "-m", "mpi4py", str(PROGRAM))
    exported = [part for name in (*variables, "PYNCCLX_DEVICE", "PATH") for part in ("-x", name)]
    environment = launch.environment("host")
    del environment["PRTE_MCA_rmaps_default_mapping_policy"]  # would put all ranks on the first node
    options = "--prtemca", "plm_ssh_agent", str(AGENT), "--host", nodes, "-n", *python[:1], *exported
    transports = "--map-by", "slot", "--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp"
    whole = [command, *options, *transports, *python[1:]]
    ended = launch.ended(whole, {**environment, **variables}, 150, capture_output=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    ("nodes", "ranks", "names"),
    [
        ("nodea:2,nodeb:2", 4, "nodea nodea nodeb nodeb"),
        pytest.param("nodea:1,nodeb:2,nodec:1", 4, "nodea nodeb nodeb nodec", marks=pytest.mark.thorough),
    ],
)
def test_a_job_of_several_nodes(nodes, ranks, names):
    text = run(nodes, ranks)
    assert f"right on {names} native: " in text
    assert f"{ranks} ranks on {len(set(names.split()))} nodes" in text


def test_a_job_of_two_nodes_with_mpich():
    """Its launcher takes the same agent; its ranks are on nodes of two names, so that they send through a network."""
    mpiexec, library = MPICH / "bin" / "mpiexec", MPICH / "lib" / "libmpi.so.12"
    if not library.exists():
        pytest.skip(f"MPICH is not installed in {MPICH}")
    variables = {"PYTHONPATH": str(TESTS.parent), "UNSHARE": unshare(), "PYNCCLX_TIMEOUT": "60"}
    launcher = ["-launcher", "ssh", "-launcher-exec", str(AGENT), "-iface", "lo", "-hosts", "nodea:2,nodeb:2"]
    command = [str(mpiexec), *launcher, "-n", "4", sys.executable, "-m", "mpi4py", str(PROGRAM)]
    variables = {**launch.environment("host"), **variables, "MPI4PY_LIBMPI": str(library)}
    ended = launch.ended(command, variables, 140, capture_output=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "right on nodea nodea nodeb nodeb native: " in ended.stdout
    assert "4 ranks on 2 nodes" in ended.stdout
