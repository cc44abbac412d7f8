"""examples/benchmarks/hops.py: the hops of a call add up to all of it but the launch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_hops_add_up(tmp_path: Path) -> None:
    table = tmp_path / "hops.json"
    command = [sys.executable, str(ROOT / "examples/benchmarks/hops.py"), "--json", str(table)]
    variables = {**os.environ, "PYNCCLX_DEVICE": "host", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    *hops, whole, _ = json.loads(table.read_text())["microseconds"].items()
    assert whole[0] == "all but the launch"
    assert sum(us for _, us in hops) == pytest.approx(whole[1])
    names = [line.rsplit(maxsplit=1)[0] for line in done.stdout.splitlines()[1:-1]]
    assert names == [name for name, _ in [*hops, whole]]
