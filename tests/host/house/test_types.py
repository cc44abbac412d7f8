"""Types: mypy --strict finds nothing in a right program, and each mistake of a wrong one."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SUPPORT = ROOT / "tests" / "support"


def found(program, folder):
    """The lines where mypy finds something in a program outside of the tree, with the codes of its errors."""
    copy = folder / program
    copy.write_text((SUPPORT / program).read_text())
    settings = folder / "mypy.ini"
    # As if the package were installed, with errors of its own left out.
    settings.write_text(f"[mypy]\nstrict = True\nmypy_path = {ROOT}\nfollow_imports = silent\n")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(settings),
        "--cache-dir",
        str(folder / "cache"),
        str(copy),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    pattern = rf"^{re.escape(program)}:(\d+): error: .*\[([\w-]+)\]$"
    return {(int(line), code) for line, code in re.findall(pattern, done.stdout, re.MULTILINE)}


def test_a_right_program_has_no_errors(tmp_path):
    assert found("typed_program.py", tmp_path) == set()


def test_mistakes_are_found(tmp_path):
    lines = (SUPPORT / "mistyped_program.py").read_text().splitlines()
    planted = {(number, line.rpartition("# error: ")[2]) for number, line in enumerate(lines, 1) if "# error: " in line}
    assert found("mistyped_program.py", tmp_path) == planted
