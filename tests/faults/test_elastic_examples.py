"""Programs of examples/elastic and examples/training with ranks that die; each compares its result with one rank's."""

import re
from pathlib import Path

import pytest

import launch
from support import fault_jobs as jobs
from support.sample import some

FOLDER = Path(__file__).resolve().parents[2] / "examples"
JACOBI = {  # faults: 4 ranks and 100 steps have 210 calls of Sendrecv each
    "between two checkpoints": "rank=1,call=Sendrecv,nth=60,do=kill",
    "while it waits": "rank=0,call=Sendrecv,nth=70,do=delay:0.5;rank=2,call=Sendrecv,nth=70,do=kill,after=0.2",
    "in a checkpoint": "rank=3,call=Sendrecv,nth=42,do=kill",
    "rank 0, then another": "rank=0,call=Sendrecv,nth=60,do=kill;rank=2,call=Sendrecv,nth=150,do=kill",
    "at the first step": "rank=3,call=Sendrecv,nth=2,do=kill",
    "nobody": "",
}
TRAINING = {  # 3 ranks
    "before the sum": "rank=1,call=Allreduce,nth=20,do=kill",
    "in the sum": "rank=0,call=Allreduce,nth=20,do=delay:0.5;rank=2,call=Allreduce,nth=20,do=kill,after=0.2",
    "after the sum": "rank=1,call=synchronize,nth=20,do=kill",
    "one after the other": "rank=2,call=Allreduce,nth=20,do=kill;rank=1,call=Allreduce,nth=40,do=kill",
    "nobody": "",
}
GRID = {  # 4 ranks and 8 steps of examples/training; 2 replicas of 2 stages, of 3 micro-batches each
    "at its flag": "",
    "in the pipeline": "rank=1,call=Recv,nth=20,do=kill",
    "while gradients are summed": "rank=2,call=Reduce_scatter,nth=5,do=kill",
    "while weights are gathered": "rank=3,call=Allgatherv,nth=4,do=kill",
    "in the copy of its state": "rank=0,call=Sendrecv,nth=4,do=kill",
    "beside a late rank": "rank=3,call=allreduce,nth=4,do=delay:0.5;rank=0,call=Reduce_scatter,nth=4,do=kill",
}

pytestmark = pytest.mark.skipif(not jobs.TOLERANT, reason="needs an MPI that goes on when ranks fail")


def last_line(folder, ranks, fault, program, *arguments):
    """What the program prints in the end, on the ranks that live; they dump into the folder."""
    settings = {"PYNCCLX_FAULT": fault, "PYNCCLX_DUMP": str(folder), "PYNCCLX_HEAP": "2M"}
    program = str(FOLDER / program)
    done = launch.job(ranks, program, *arguments, options=jobs.OPTIONS, seconds=jobs.SECONDS, **settings)
    lines = [line for line in done.stdout.splitlines() if " steps, " in line]
    assert len(lines) == 1, done.stdout + done.stderr
    return lines[0]


@pytest.mark.parametrize("when", some(JACOBI, 1))
def test_jacobi(tmp_path, when):
    fault = JACOBI[when]
    line = last_line(tmp_path, 4, fault, "elastic/elastic_jacobi.py", "--steps", "100", "--size", "31")
    failures = fault.count("kill")
    assert line.startswith(f"100 steps, {failures} failures, {4 - failures} ranks"), line
    assert line.endswith("the bits of one rank"), line


@pytest.mark.thorough
@pytest.mark.parametrize("grow", [False, True])
@pytest.mark.parametrize("when", TRAINING)
def test_training(tmp_path, when, grow):
    """A death costs one step at most."""
    fault = TRAINING[when]
    line = last_line(tmp_path, 3, fault, "elastic/elastic_training.py", *["--grow"] * grow)
    failures = fault.count("kill")
    assert line.startswith(f"60 steps, {failures} failures, {3 if grow else 3 - failures} ranks"), line
    repeated, error = re.search(r"(\d+) steps repeated, losses differ by (\S+)", line).groups()
    assert int(repeated) <= failures, line
    assert float(error) < 1e-9, line


@pytest.mark.parametrize("when", some(GRID, 1))
def test_a_replica_is_lost(tmp_path, when):
    """The ranks of the other replica go on from the last step that they all have, and the cut still moves."""
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    how = ["--keep"] if GRID[when] else ["--kill=rank=1,at=5"]
    small = [
        "--grid=2,1,2",
        "--steps=8",
        "--batch=6",
        "--blocks=3",
        "--every=2",
        f"--output={tmp_path / 'picture.png'}",
    ]
    settings = {"PYNCCLX_FAULT": GRID[when], "PYNCCLX_DUMP": str(tmp_path), "PYNCCLX_HEAP": "2M"}
    program = str(FOLDER / "training/training.py")
    done = launch.job(4, program, *small, *how, options=jobs.OPTIONS, seconds=jobs.SECONDS, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "check: PASSED" in done.stdout, done.stdout
    assert "2 ranks at the end" in done.stdout, done.stdout
    assert "1 of 2 replicas lost" in done.stdout, done.stdout
