"""Commands of python -m pyncclx; each is a module.

A command's module is imported when the command is given. Most modules import `mpi4py.MPI`, which initializes MPI, while
`run` leaves that to the program that it runs.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any

#: Module in pyncclx.tools, and one line of help, by command. The module has the functions `add_arguments`, which
#: takes the command's parser, and `run`, which takes the parsed arguments. Its docstring is the description.
COMMANDS = {
    "run": ("cli.run", "run an mpi4py program on device arrays"),
    "info": ("cli.info", "print what this machine has"),
    "doctor": ("cli.doctor", "try what programs use on the ranks of this job"),
    "build": ("cli.build", "compile kernels beforehand, for a cluster or an image"),
    "analyze": ("observe.analysis", "name what is wrong, from what the ranks of a job have left"),
    "status": ("observe.status", "show where the ranks of a running job are"),
    "timeline": ("observe.timeline", "write what the ranks did as a trace for Perfetto, and as a picture"),
    "bench": ("bench.operations", "time operations over message sizes"),
    "bench-shuffle": ("bench.shuffle", "time token shuffles over tokens a rank"),
    "bench-beside": ("bench.beside", "slowdown of a matrix product by a collective"),
    "simulate": ("simulation.command", "how long making a communicator takes on many thousand ranks"),
    "tune": ("bench.tune", "measure which algorithm is best for which length"),
}


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line without the program's name; import the command's module."""
    parser = argparse.ArgumentParser(prog="python -m pyncclx", description="GPU collectives for mpi4py programs.")
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, (module, text) in COMMANDS.items():
        if name in words[:1]:
            command: Any = importlib.import_module(f"..{module}", __package__)
            own = commands.add_parser(name, help=text, description=command.__doc__)
            command.add_arguments(own)
            own.set_defaults(run=command.run)
        else:
            commands.add_parser(name, help=text)
    return parser.parse_args(words)


def main() -> None:
    """Parse the command line and run the command."""
    arguments = parse(sys.argv[1:])
    arguments.run(arguments)
