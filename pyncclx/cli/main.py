"""python -m pyncclx: its commands, each of which is a module."""

from __future__ import annotations

import argparse
from typing import Protocol

from ..bench import beside, operations, shuffle, tune
from . import build, info, run


class Command(Protocol):
    """A module that is a command; its docstring is the description."""

    __doc__: str | None
    HELP: str  # one line

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""

    def run(self, arguments: argparse.Namespace) -> None:
        """Run the command."""


COMMANDS: dict[str, Command] = {
    "run": run,
    "info": info,
    "build": build,
    "bench": operations,
    "bench-shuffle": shuffle,
    "bench-beside": beside,
    "tune": tune,
}


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands."""
    parser = argparse.ArgumentParser(prog="python -m pyncclx", description="GPU collectives for mpi4py programs.")
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, command in COMMANDS.items():
        own = commands.add_parser(name, help=command.HELP, description=command.__doc__)
        command.add_arguments(own)
        own.set_defaults(run=command.run)
    return parser


def main() -> None:
    """Parse the command line and run the command."""
    arguments = make_parser().parse_args()
    arguments.run(arguments)
