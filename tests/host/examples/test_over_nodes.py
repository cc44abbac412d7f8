"""Examples as they are, over two pretend nodes of unequal size: they pass their own checks."""

import sys
from pathlib import Path

import pytest

import launch

pytest.importorskip("matplotlib")
pytest.importorskip("tqdm")
ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = {
    "moe/token_shuffle.py": ["--steps=3"],
    "moe/moe_layer.py": ["--tokens=32"],
    "decoding/decoding.py": ["--steps=3", "--repeat=1"],
    "solvers/jacobi.py": ["--size=10", "--steps=30"],
    "solvers/cg.py": ["--size=12", "--steps=40"],
    "solvers/fft3d.py": ["--size=6", "--steps=1"],
    "data/sample_sort.py": ["--rows=500", "--repeat=1"],
}
WITHOUT_PICTURE = ("data/sample_sort.py",)


def command(program: list[str]) -> list[str]:
    """The command for three ranks, the first of which is alone on its node."""
    start, *rest = launch.mpiexec(1, *program)
    python = [sys.executable, *program]
    first = rest[: rest.index(sys.executable)]
    return [start, *first, "env", "PYNCCLX_NODE=a", *python, ":", "-n", "2", "env", "PYNCCLX_NODE=b", *python]


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROGRAMS)
def test_passes(name: str, tmp_path: Path) -> None:
    picture = [] if name in WITHOUT_PICTURE else [f"--output={tmp_path / 'picture.png'}"]
    environment = {**launch.environment("host"), "PYTHONPATH": str(ROOT), "PYNCCLX_TIMEOUT": "120"}
    program = command([str(ROOT / "examples" / name), *PROGRAMS[name], *picture])
    done = launch.ended(program, environment, 600, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED" in done.stdout
    assert "FAILED" not in done.stdout
