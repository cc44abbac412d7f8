"""python -m pyncclx status: show where the ranks of a running job are.

It reads the flight recorders of the processes on this host while they run, and names what is wrong. Without a job's
name, exactly one job must be running; otherwise all are listed. With --prometheus the file is for the node exporter's
textfile collector, with the names of NCCL's inspector where it has them.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from ...recording import folders
from ..observe import prometheus
from ..observe.analysis import analyse
from ..observe.job import load
from .analyze import report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("job", nargs="?", help="its name, or its folder; default: the one that runs")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="print again and again")
    parser.add_argument("--prometheus", type=Path, metavar="FILE", help="write metrics, and print nothing")


def run(arguments: argparse.Namespace) -> None:
    """Print the state of the job, once or again and again."""
    folder = _folder(arguments.job)
    while True:
        try:
            job = load(folder)
        except FileNotFoundError:
            raise SystemExit(f"{folder} has ended") from None
        if arguments.prometheus is not None:
            prometheus.write(job, arguments.prometheus)
        else:
            print(report(job, analyse(job)), flush=True)
        if arguments.every is None:
            return
        time.sleep(arguments.every)


def _folder(name: str | None) -> Path:
    """Return the folder of a job."""
    if name is not None:
        return Path(name) if Path(name).is_dir() else folders.base() / name
    running = [folder for folder in folders.jobs() if _is_running(folder)]
    if len(running) == 1:
        return running[0]
    print("no job runs here" if not running else "several jobs run here:", file=sys.stderr)
    for folder in folders.jobs():
        print(f"  {folder.name}{'' if folder in running else ' (over)'}", file=sys.stderr)
    raise SystemExit(2)


def _is_running(folder: Path) -> bool:
    headers = map(folders.header_of, folders.files(folder))
    return any(header is not None and folders.condition(header.pid, header.started) for header in headers)
