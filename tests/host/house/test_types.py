"""The types that a program's type checker sees: nothing wrong in a right program, and every planted error is found."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "support" / "typed_program.py"
LINES = PROGRAM.read_text().splitlines()
PLANTED = re.compile(r"^( *)# wrong: (.*)$")


def complaints(lines: list[str], folder: Path) -> dict[int, str]:
    """What `mypy --strict` finds in a program outside of the checkout, by line."""
    (folder / "program.py").write_text("\n".join(lines))
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file=", "program.py"]
    command += ["--cache-dir", str(folder / "cache")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    found = (re.match(r"program\.py:(\d+): error: (.*)", line) for line in done.stdout.splitlines())
    return {int(each[1]): each[2] for each in found if each}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("typed")


def test_a_right_program_has_no_error(folder: Path) -> None:
    assert complaints(LINES, folder) == {}


def test_every_planted_error_is_found(folder: Path) -> None:
    """All at once, each on a line of its own: in a branch that is not known to be left out."""
    planted = [PLANTED.match(line) for line in LINES]
    assert sum(each is not None for each in planted) >= 35
    wrong = [f"{each[1]}{each[2]}" if each else line for line, each in zip(LINES, planted, strict=True)]
    found = complaints(wrong, folder)
    missed = [each[2] for number, each in enumerate(planted, 1) if each and number not in found]
    assert missed == []
    assert {number for number in found if planted[number - 1] is None} == set()


def test_the_program_runs(folder: Path) -> None:
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0 ")
