"""python -m pyncclx: what can be done from the command line."""

from __future__ import annotations

import argparse

from .. import bench
from ..bench import beside, shuffle, tune
from . import info, run


def main() -> None:
    """Parse the command and run it."""
    parser = argparse.ArgumentParser(prog="python -m pyncclx", description="GPU collectives for mpi4py programs.")
    commands = parser.add_subparsers(required=True, metavar="command")
    run.add_command(commands)
    info.add_command(commands)
    bench.add_command(commands)
    shuffle.add_command(commands)
    beside.add_command(commands)
    tune.add_command(commands)
    arguments = parser.parse_args()
    arguments.run(arguments)
