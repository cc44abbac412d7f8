"""python -m pyncclx run: an mpi4py program, unchanged, on our communicators.

Every `from mpi4py import MPI` in the program gives `pyncclx.MPI`. Calls on device arrays have been completed when they
return, as MPI has it (PYNCCLX_BLOCKING=stream in the environment: as soon as they are enqueued). If a rank raises an
exception that nobody catches, all ranks end.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import mpi4py
from mpi4py.run import run_command_line, set_abort_status

from ..communicator.communicator import COMM_WORLD
from ..observe.recorder import Recorder
from ..system import driver, settings


def add_command(commands: Any) -> None:
    """Add `run` to the subcommands of an argument parser."""
    parser = commands.add_parser("run", help="run an mpi4py program on device arrays", description=__doc__)
    parser.add_argument("--report", action="store_true", help="at the end, say what ran natively, staged, on the host")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    parser.add_argument("program", help="file, or module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the program that the command line names."""
    settings.BLOCKING.set_default("host")
    replace_mpi4py()
    recorder = Recorder() if arguments.report else None
    try:
        run_command_line([*(["-m"] if arguments.module else []), arguments.program, *arguments.arguments])
    except SystemExit as end:
        set_abort_status(end)
        if recorder is not None and not end.code:
            recorder.print()
        raise
    except BaseException as error:
        set_abort_status(error)
        raise
    if recorder is not None:
        recorder.print()


def replace_mpi4py() -> None:
    """Let every ``from mpi4py import MPI`` that comes give `pyncclx.MPI`, and give each rank a GPU of its own."""
    from .. import MPI  # noqa: PLC0415  importing it says that MPI may stage what has no kernel

    sys.modules["mpi4py.MPI"] = MPI
    mpi4py.MPI = MPI
    if settings.DEVICE.get() != "host" and driver.count() > 1:
        COMM_WORLD.select_device()
