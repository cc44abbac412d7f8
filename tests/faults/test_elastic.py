"""Rank after rank is killed, the others shrink and grow: nothing piles up."""

import ast
from pathlib import Path

import pytest

import launch
from support import fault_jobs as jobs

PROGRAM = Path(__file__).with_name("elastic.py")


@pytest.mark.skipif(not jobs.TOLERANT, reason="needs an MPI that goes on when ranks fail")
@pytest.mark.parametrize("kills", [3, pytest.param(25, marks=[pytest.mark.thorough, pytest.mark.timeout(900)])])
def test_kills_in_a_row(tmp_path, kills):
    seconds = 150 + 20 * kills
    settings = {"PYNCCLX_HEAP": "2M", "PYNCCLX_DUMP": str(tmp_path), "PYNCCLX_TEST_SECONDS": str(seconds)}
    done = launch.job(3, str(PROGRAM), str(kills), options=jobs.OPTIONS, seconds=seconds + 30, **settings)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("done")] or pytest.fail(done.stderr)
    before, after, size = ast.literal_eval(f"[{line[5:].replace(') (', '), (').replace(') ', '), ')}]")
    assert size == 3, done.stderr
    assert after[2:] == before[2:], line
    assert after[0] <= before[0] + 4, line  # MPI's own of spawned processes
    assert after[1] <= before[1] + 40, line
