"""python -m pyncclx run: run an unchanged mpi4py program on pyncclx's communicators.

Every `from mpi4py import MPI` in the program imports `pyncclx.MPI`. Calls on device arrays return when they are
complete, as MPI's do (with PYNCCLX_BLOCKING=stream in the environment: when they are enqueued). If a rank ends by an
exception, all ranks end.
"""

from __future__ import annotations

import argparse
import sys

import mpi4py
from mpi4py.run import run_command_line, set_abort_status

from ..communicator.communicator import COMM_WORLD
from ..observe.recorder import Recorder
from ..system import driver, settings

HELP = "run an mpi4py program on device arrays"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("--report", action="store_true", help="at the end, print what ran native, staged, on the host")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    parser.add_argument("program", help="file, or module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")


def run(arguments: argparse.Namespace) -> None:
    """Run the program that the command line names."""
    settings.BLOCKING.set_default("host")
    replace_mpi4py()
    recorder = Recorder() if arguments.report else None
    try:
        run_command_line([*(["-m"] if arguments.module else []), arguments.program, *arguments.arguments])
    except BaseException as error:
        set_abort_status(error)
        if recorder is not None and isinstance(error, SystemExit) and not error.code:
            recorder.print()
        raise
    if recorder is not None:
        recorder.print()


def replace_mpi4py() -> None:
    """Let every later ``from mpi4py import MPI`` import `pyncclx.MPI`, and select a GPU for each rank."""
    from .. import MPI  # noqa: PLC0415  a program that imports it may stage, which other commands must not

    sys.modules["mpi4py.MPI"] = MPI
    mpi4py.MPI = MPI
    if settings.DEVICE.get() != "host" and driver.count() > 1:
        COMM_WORLD.select_device()
