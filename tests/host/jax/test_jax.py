"""pyncclx.jax, in jobs of their own: JAX has threads, beside which tests that fork are not safe."""

import functools
import importlib.util
import json
import os
import subprocess
import sys

import pytest

import launch
from support import doc_blocks

ROOT = doc_blocks.ROOT
PROGRAM = ROOT / "tests" / "support" / "jax_program.py"
SUBJECTS = (
    *("moves", "reductions", "operators", "messages", "order", "gradients", "batches", "donated", "errors"),
    *("communicators", "stable_programs", "dynamic_exchange", "dynamic_gradient", "token_shuffles", "shuffle_options"),
    *("shuffle_overflows", "shuffle_gradients", "shuffle_gradients_of_pieces", "shuffle_control_flow"),
    *("shuffle_errors", "stable_shuffles", "shuffles_over_nodes"),
)
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs JAX: pip install pyncclx[jax]")
SETTINGS = {"JAX_PLATFORMS": "cpu", "PYNCCLX_HEAP": "512K"}


def job(ranks, *arguments, seconds=280.0):
    """Run Python on some ranks, with JAX on the CPU."""
    return launch.job(ranks, *arguments, seconds=seconds, **SETTINGS)


@functools.cache
def outcomes(ranks):
    """What is wrong in each subject on each rank, and what the job has printed."""
    done = job(ranks, "-m", "mpi4py", str(PROGRAM))
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank"')]
    return {(line["subject"], line["rank"]): line["wrong"] for line in lines}, done.stdout + done.stderr


@needs_jax
@pytest.mark.timeout(320)
@pytest.mark.parametrize("ranks", [2, 3, *(pytest.param(ranks, marks=pytest.mark.thorough) for ranks in (1, 4))])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_on_ranks(subject, ranks):
    found, output = outcomes(ranks)
    for rank in range(ranks):
        assert found.get((subject, rank), f"rank {rank} has not come here: {output}") == ""


RUN = """
import mpi4jax
from mpi4jax import allreduce
from mpi4py import MPI
import jax, jax.numpy as jnp
comm = MPI.COMM_WORLD.Split(0, -MPI.COMM_WORLD.rank)
total = jax.jit(lambda x: allreduce(x, op=MPI.SUM, comm=comm))(jnp.arange(3) + comm.rank)
print(mpi4jax.__name__, MPI.__name__, [int(each) for each in total])
"""


@needs_jax
def test_programs_of_mpi4jax_run_as_they_are(tmp_path):
    (tmp_path / "program.py").write_text(RUN)
    done = job(2, "-m", "pyncclx", "run", "--jax", str(tmp_path / "program.py"))
    assert done.stdout.splitlines() == ["pyncclx.jax pyncclx.MPI [1, 3, 5]"] * 2, done.stderr


ENDS = """
import sys, time
from mpi4py import MPI
import jax, jax.numpy as jnp
import pyncclx.jax as pj
rank = MPI.COMM_WORLD.rank
def late(x):  # a receive that begins when the program has gone on
    y = jnp.ones((400, 400)) * x[0]
    for _ in range(20):
        y = jnp.sin(y @ y)
    return pj.recv(x + 0 * y[0, 0], 0) if rank else x
compiled = jax.jit(late).lower(jnp.ones(3)).compile()
pj.barrier()
y = compiled(jnp.ones(3))
if rank and "raises" in sys.argv:
    raise ValueError("rank 1 stops")
time.sleep(0.5)
if "raises" in sys.argv:
    MPI.COMM_WORLD.Barrier()
elif not rank:
    pj.send(jnp.zeros(3), 1)
print("ended", flush=True)
"""


@needs_jax
@pytest.mark.parametrize("how", ["waits", "raises"])
def test_the_end_of_a_program(tmp_path, how):
    """It waits for compiled programs; after an exception on one rank the job ends, too."""
    (tmp_path / "program.py").write_text(ENDS)
    done = job(2, "-m", "mpi4py", str(tmp_path / "program.py"), how, seconds=100.0)
    if how == "waits":
        assert (done.returncode, done.stdout.split()) == (0, ["ended"] * 2), done.stderr
    else:
        assert done.returncode not in (0, launch.TIMED_OUT), done.stderr
        assert "rank 1 stops" in done.stderr


def test_without_jax():
    """The module can be imported; JAX is imported when it is used."""
    program = "import sys, pyncclx.jax as pj; print('jax' in sys.modules, pj.has_cuda_support(), pj.__version__)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "0.9.1"]
