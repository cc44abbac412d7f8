"""python -m pyncclx run: an mpi4py program, unchanged, on our communicators."""

from __future__ import annotations

import sys

import mpi4py

from . import MPI


def replace_mpi4py() -> None:
    """Let every ``from mpi4py import MPI`` that comes give `pyncclx.MPI`."""
    sys.modules["mpi4py.MPI"] = MPI
    mpi4py.MPI = MPI
