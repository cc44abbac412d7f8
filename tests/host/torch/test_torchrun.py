"""The backend of torch.distributed under torchrun, in jobs of their own."""

import importlib.util
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mpi4py import MPI

import launch
import steps

PROGRAM = Path(steps.ROOT, "tests", "support", "torchrun_program.py")
IS_MPICH = MPI.get_vendor()[0] == "MPICH"
MPICH = {"MPI4PY_LIBMPI": str(steps.MPICH)} if steps.MPICH.exists() and not IS_MPICH else {}
SECONDS = 100.0
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
needs_mpich = pytest.mark.skipif(
    not (IS_MPICH or steps.MPICH.exists()), reason=f"needs MPICH: pip install --prefix {steps.MPICH.parent} mpich"
)
pytestmark = needs_torch


def torchrun(ranks, name, folder, *options, **variables):
    """Run a program of `torchrun_program.py`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--monitor-interval=0.1"]
    paths = map(str, filter(None, (steps.ROOT, os.environ.get("PYTHONPATH"))))
    added = {"PYTHONPATH": os.pathsep.join(paths), "PYNCCLX_HEAP": "512K", "PYNCCLX_TIMEOUT": "60"} | MPICH | variables
    command += [*options, str(PROGRAM), name, str(folder)]
    return launch.ended(command, launch.environment("host") | added, SECONDS, capture_output=True)


def check(done, folder, ranks, attempt=0):
    """Each rank has written that nothing is wrong."""
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    found = {path.name: path.read_text() for path in folder.iterdir()}
    assert found == {f"{attempt}-{rank}": "" for rank in range(ranks)}, output
    assert "pmi_server" not in output


@needs_mpich
def test_on_one_node(tmp_path):
    check(torchrun(2, "works", tmp_path), tmp_path, 2)


@needs_mpich
def test_on_two_nodes(tmp_path):
    """Two agents, of two processes and of one; for MPI and for pyncclx these are two nodes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def agent(node, ranks):
        options = [f"--node-rank={node}", "--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={port}"]
        return torchrun(ranks, "works", tmp_path, *options, PYNCCLX_NODE=f"node {node}")

    with ThreadPoolExecutor(2) as agents:
        for done in agents.map(agent, (0, 1), (2, 1)):
            assert done.returncode == 0, done.stdout + done.stderr
    check(done, tmp_path, 3)


@needs_mpich
def test_restarts(tmp_path):
    """torchrun sees each failed attempt at once, and starts the next one."""
    done = torchrun(2, "restarts", tmp_path, "--max-restarts=3")
    check(done, tmp_path, 2, attempt=3)
    for text in ("rank 1 raises", "exitcode: 5", "exitcode: 4"):
        assert text in done.stderr


@needs_mpich
def test_errors_in_the_first_group(tmp_path):
    check(torchrun(2, "errors", tmp_path, PYNCCLX_TIMEOUT="2"), tmp_path, 2)


def test_a_program_for_another_backend(tmp_path):
    check(torchrun(2, "others", tmp_path), tmp_path, 2)


START = """
import pyncclx.torch
try:
    pyncclx.torch.torchrun.start(None, 2)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("from mpi4py import MPI", "Import pyncclx.torch before mpi4py.MPI"),
        pytest.param(
            "", "MPI must be MPICH, but mpi4py has loaded Open MPI", marks=pytest.mark.skipif(IS_MPICH, reason="MPICH")
        ),
    ],
)
def test_a_program_that_cannot_start(before, text):
    variables = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "2", "PYTHONPATH": str(steps.ROOT)}
    command, environment = [sys.executable, "-c", before + START], launch.environment("host") | variables
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert text in done.stdout, done.stderr
