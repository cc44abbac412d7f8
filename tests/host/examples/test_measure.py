"""examples/benchmarks/measure.py: its steps leave files, its time is limited, and a failed step stops no other."""

import json
import subprocess
import sys
from pathlib import Path

import launch

PROGRAM = Path(__file__).parents[3] / "examples" / "benchmarks" / "measure.py"


def measure(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), "-n", "2", *arguments]
    variables = launch.environment("host")
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=250, check=False)


def test_steps_leave_files(tmp_path):
    """Every step that is asked for, in this order; names with spaces do no harm."""
    folder = tmp_path / "some results"
    done = measure("put-signal", "allreduce-int32", "--folder", str(folder), "--most", "128")
    assert done.returncode == 0, done.stdout + done.stderr
    written = {path.name: json.loads(path.read_text()) for path in folder.iterdir()}
    assert sorted(written) == ["host-x2-allreduce-int32.json", "host-x2-put-signal.json"]
    results = written["host-x2-allreduce-int32.json"]["results"]
    assert [(row["nbytes"], row["datatype"]) for row in results] == [(8, "int32"), (32, "int32"), (128, "int32")]
    assert all(row["in_place"]["wrong"] == 0 for row in results)
    assert [line.split()[0] for line in done.stdout.splitlines()[-2:]] == ["put-signal", "allreduce-int32"]


def test_time_is_kept(tmp_path):
    """What has no time left is named, and not begun."""
    done = measure("links", "--folder", str(tmp_path), "--seconds", "1")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].split(maxsplit=1) == ["links", "no time left"]
    assert not list(tmp_path.iterdir())


def test_a_step_that_fails(tmp_path):
    """The others are still done."""
    done = measure("put-signal", "links", "--folder", str(tmp_path), "--most", "much")
    assert done.returncode == 1
    last = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[-2:])
    assert "failed with code" in last["put-signal"]
    assert "failed" not in last["links"]


def test_an_unknown_step(tmp_path):
    done = measure("nothing", "--folder", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "there is no 'nothing'" in done.stderr
    assert not list(tmp_path.iterdir())
