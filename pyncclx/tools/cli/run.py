"""python -m pyncclx run: run an mpi4py program on pyncclx's communicators.

The program is unchanged: every `from mpi4py import MPI` imports `pyncclx.MPI`. Calls on device arrays return when they
are complete, as in MPI; with PYNCCLX_BLOCKING=stream in the environment, when they are enqueued. MPI is initialised
when the program imports it, by `mpi4py.rc` as it is then, or by the program itself. If a rank ends by an exception, all
ranks end. Processes that the program spawns with Python run under this command, too.
"""

from __future__ import annotations

import argparse
import os

from mpi4py.run import run_command_line, set_abort_status

from ...system import settings
from . import gpu_aware
from .swap import Swap


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("--report", action="store_true", help="at the end, print what ran native, staged, on the host")
    parser.add_argument(
        "--gpu-aware",
        action="store_true",
        help="programs that stage device arrays themselves give them to MPI: heat, and pylops-mpi",
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("-m", dest="kind", action="store_const", const="-m", help="the program is a module")
    kinds.add_argument("-c", dest="kind", action="store_const", const="-c", help="the program is code")
    parser.add_argument("program", help="file, module with -m, code with -c, or - for code on standard input")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")


def run(arguments: argparse.Namespace) -> None:
    """Run the program that the command line names."""
    settings.BLOCKING.set_default("host")
    if arguments.gpu_aware:
        gpu_aware.switch_on()
    swap = Swap(report=arguments.report, words=["--gpu-aware"] if arguments.gpu_aware else [])
    swap.begin()
    try:
        run_command_line(_words(arguments))
    except BaseException as error:
        set_abort_status(error)
        if isinstance(error, SystemExit) and not error.code:
            swap.end()
        raise
    swap.end()


def _words(arguments: argparse.Namespace) -> list[str]:
    """Return the command line for `python -m mpi4py`.

    A file's name is absolute, as in Python's ``__file__``.
    """
    program = arguments.program
    if arguments.kind is not None:
        return [arguments.kind, program, *arguments.arguments]
    return [program if program == "-" else os.path.abspath(program), *arguments.arguments]
