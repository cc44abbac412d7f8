"""python -m pyncclx timeline: write a job's calls as a trace and as a picture.

The trace is in Chrome's format, which https://ui.perfetto.dev opens. A call that only enqueues has no end in the
record: it is drawn until the next call of its rank.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..observe import chrome_format, picture
from ..observe.job import load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folder", type=Path, help="of the dumps, or of a job in /dev/shm/pyncclx-UID")
    parser.add_argument("-o", "--output", type=Path, help="the trace, a JSON file")
    parser.add_argument("--png", type=Path, help="the picture; takes Matplotlib")
    parser.add_argument("--seconds", type=float, default=1.0, help="of the picture, the last ones; default: 1")


def run(arguments: argparse.Namespace) -> None:
    """Write the files."""
    if arguments.output is None and arguments.png is None:
        raise SystemExit("give the trace's file, -o trace.json, or the picture's, --png timeline.png")
    job = load(arguments.folder)
    if arguments.output is not None:
        chrome_format.write(job, arguments.output)
        print(f"{arguments.output}: open it in https://ui.perfetto.dev")
    if arguments.png is not None:
        picture.write(job, arguments.png, arguments.seconds)
        print(arguments.png)
