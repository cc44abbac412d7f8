"""Run several nets at once, each with jobs and seeds of its own."""

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import launch

SEEDS_EACH = 1_000_000  # from the first seed of one net to that of the next
RUN = str(Path(__file__).resolve().parent / "run.py")


def run(arguments: Sequence[str], jobs: int, programs: int, seed: int) -> dict[str, Any]:
    """Run nets with the given arguments; return one summary of all."""
    with tempfile.TemporaryDirectory() as folder:
        running, reports = [], []
        for number in range(jobs):
            report = Path(folder) / f"{number}.json"
            own = ["--programs", str(-(-programs // jobs)), "--seed", str(seed + number * SEEDS_EACH)]
            command = [sys.executable, "-u", RUN, *arguments, *own, "--json", str(report)]
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                preexec_fn=launch.end_with_parent,  # noqa: PLW1509  it takes no lock
            )
            reader = threading.Thread(target=_print, args=(process,))
            reader.start()
            running.append((process, reader))
            reports.append(report)
        for process, reader in running:
            reader.join()
            process.wait()
        return summary([json.loads(report.read_text()) for report in reports if report.exists()], len(reports))


def _print(process: subprocess.Popen[str]) -> None:
    """Print what a net prints, each finding as a whole."""
    lines: list[str] = []
    for line in process.stdout or ():
        lines.append(line)
        if line.startswith(")") or " programs, seeds " in line:
            print("".join(lines), end="", flush=True)
            lines.clear()
    print("".join(lines), end="", flush=True)


def summary(reports: Sequence[dict[str, Any]], expected: int) -> dict[str, Any]:
    """Return the sum of several summaries; a net that has left none counts as a finding."""
    found = [each for report in reports for each in report["found"]]
    lost = [{"seed": "?", "texts": ["a net ended without a summary"], "listing": ""}] * (expected - len(reports))
    return {
        "programs": sum(report["programs"] for report in reports),
        "seconds": max((report["seconds"] for report in reports), default=0.0),
        "found": found + lost,
    }
