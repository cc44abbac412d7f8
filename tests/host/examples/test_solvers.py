"""The solvers among the examples, small, on three ranks: they pass their own checks, with pyncclx and with mpi4py."""

import subprocess
import sys
from pathlib import Path

import pytest

import launch

pytest.importorskip("matplotlib")
pytest.importorskip("tqdm")
ROOT = Path(__file__).resolve().parents[3]
SOLVERS = ROOT / "examples" / "solvers"
# Small enough for the emulator; conjugate gradients need three steps for each row.
ARGUMENTS = {"jacobi.py": (10, 30), "jacobi_partitioned.py": (12, 20), "cg.py": (12, 40), "fft3d.py": (6, 1)}
OTHER_WAYS = [("jacobi.py", ["--mpi4py"]), ("jacobi_partitioned.py", ["--messages"])]


@pytest.mark.parametrize(("name", "flags"), [*((name, []) for name in ARGUMENTS), *OTHER_WAYS])
def test_passes(name: str, flags: list[str], tmp_path: Path) -> None:
    size, steps = ARGUMENTS[name]
    picture = tmp_path / "picture.png"
    arguments = f"--size={size}", f"--steps={steps}", f"--output={picture}", *flags
    settings = {"PYNCCLX_HEAP": "512K", "PYNCCLX_TIMEOUT": "60"}
    done = launch.job(3, str(SOLVERS / name), *arguments, seconds=120, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED" in done.stdout
    assert f"by {'mpi4py' if '--mpi4py' in flags else 'pyncclx'}" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("wrong", [["--size=0"], ["--graph", "--mpi4py"]], ids=["size", "graph"])
def test_bad_flags(wrong: list[str]) -> None:
    command = [sys.executable, str(SOLVERS / "jacobi.py"), *wrong]
    environment = {**launch.environment("host"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert wrong[0].partition("=")[0] in done.stderr
