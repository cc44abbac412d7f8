"""Runs programs in which a process dies, and the others go on: Open MPI does, started so."""

import subprocess

import pytest
from mpi4py import MPI

import launch

needs_survivors = pytest.mark.skipif(
    MPI.get_vendor()[0] != "Open MPI", reason="needs Open MPI, started so that jobs outlive processes"
)


def run_with_survivors(program: str, *arguments: str, ranks: int, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a program, given as text, on the host device; skip the test if MPI cannot go on without a process."""
    done = launch.job(ranks, "-c", program, *arguments, options=["--with-ft", "ulfm"], seconds=timeout_s)
    if "unknown" in done.stderr.lower() and "ulfm" in done.stderr:
        pytest.skip("this Open MPI cannot go on without a process")
    return done
