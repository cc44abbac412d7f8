"""examples/decoding as a program: over pretend nodes of its own flag, with all that it writes."""

import json
import sys
from pathlib import Path

import pytest

import launch

pytest.importorskip("matplotlib")
ROOT = Path(__file__).resolve().parents[3]
PROGRAM = str(ROOT / "examples/decoding/decoding.py")


def test_over_nodes_of_its_flag(tmp_path: Path) -> None:
    """The check passes, the file has a row for each exchange and batch, and the ranks were on two nodes."""
    picture, table = tmp_path / "folder" / "decoding.png", tmp_path / "decoding.json"
    small = ["--batch", "1", "3", "--steps=2", "--repeat=1", "--nodes=a,b"]
    command = launch.mpiexec(2, PROGRAM, *small, f"--output={picture}", f"--json={table}")
    environment = {**launch.environment("host"), "PYTHONPATH": str(ROOT), "PYNCCLX_TIMEOUT": "120"}
    done = launch.ended(command, environment, 300, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "check: PASSED" in done.stdout
    assert "these times mean nothing" in done.stdout
    written = json.loads(table.read_text())
    assert written["environment"]["nodes"] == 2
    rows = written["results"]
    ways = ["pyncclx", "mpi4py for NCCL, all-gather", "mpi4py for NCCL, padded", "mpi4py"]
    assert [(row["batch"], row["way"]) for row in rows] == [(batch, way) for batch in (1, 3) for way in ways]
    assert all(row["pyncclx_faster_percent"] == 0 for row in rows if row["way"] == "pyncclx")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_nodes_that_do_not_fit_the_ranks() -> None:
    """A list of another length is refused on all ranks, with the reason."""
    command = [sys.executable, PROGRAM, "--nodes=a,b"]
    environment = {**launch.environment("host"), "PYTHONPATH": str(ROOT)}
    done = launch.ended(command, environment, 100, capture_output=True)
    assert done.returncode == 1
    assert "--nodes a,b names 2 nodes for 1 ranks" in done.stderr
