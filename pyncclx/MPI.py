"""All of `mpi4py.MPI`, with our communicators in it: a program that imports this instead needs no other change.

    from pyncclx import MPI

Communicators of this module never refuse a call that MPI allows. What no kernel does is done by MPI on a copy in host
memory (`comm.staging`); `comm.explain` says which calls those are.
"""

from __future__ import annotations

from typing import Any, cast

from mpi4py import MPI as _MPI
from mpi4py.MPI import *  # noqa: F403

from .communicator import (
    CONSTANTS,
    Cartcomm,
    Comm,
    Distgraphcomm,
    Graphcomm,
    Intercomm,
    Intracomm,
    Topocomm,
)
from .staging.requests import Prequest, Request

COMM_NULL: Comm = CONSTANTS["COMM_NULL"]
COMM_SELF = cast(Intracomm, CONSTANTS["COMM_SELF"])
COMM_WORLD = cast(Intracomm, CONSTANTS["COMM_WORLD"])

_REPLACED = ("Cartcomm", "Comm", "Distgraphcomm", "Graphcomm", "Intercomm", "Intracomm", "Prequest", "Request", "Topocomm")
__all__ = [*_REPLACED, *(name for name in dir(_MPI) if not name.startswith("_") and name not in _REPLACED)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    # What mpi4py keeps to itself but others use: _addressof, _handleof, _sizeof, __pyx_capi__ and so on.
    return getattr(_MPI, name)
