"""The examples of overlap, small, on three ranks: they pass their own checks and draw."""

import subprocess
from pathlib import Path

import pytest

import launch

pytest.importorskip("matplotlib")
pytest.importorskip("ml_dtypes")
pytest.importorskip("tqdm")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ARGUMENTS = {
    "tensor_parallel.py": ["--hidden", "48", "--tokens", "24"],
    "jacobi_persistent.py": ["--size", "9", "--steps", "4"],
    "weight_transfer.py": ["--hidden", "13", "--versions", "3"],
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_passes(name: str, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    command = launch.mpiexec(3, str(EXAMPLES / name), *ARGUMENTS[name], "--output", str(picture))
    environment = {**launch.environment("host"), "PYNCCLX_HEAP": "512K", "PYNCCLX_TIMEOUT": "60"}
    environment["PYTHONPATH"] = str(EXAMPLES.parent)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "check: PASSED" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
