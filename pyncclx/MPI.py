"""All of `mpi4py.MPI`, with communicators that take device arrays.

    from pyncclx import MPI

A program that imports this module in place of mpi4py's needs no other change. Its communicators accept every call that
MPI allows: if there is no kernel for a call, MPI works on copies in host memory (`comm.staging`). `comm.explain`
describes how a call would run.
"""

# ruff: noqa: PLC0414
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI as _MPI
from mpi4py.MPI import *  # noqa: F403
from mpi4py.MPI import _addressof as _addressof
from mpi4py.MPI import _handleof as _handleof
from mpi4py.MPI import _sizeof as _sizeof

from .communicator import public as _public  # noqa: F401  # injects the faults that the environment sets
from .communicator.communicator import COMM_NULL as COMM_NULL
from .communicator.communicator import COMM_SELF as COMM_SELF
from .communicator.communicator import COMM_WORLD as COMM_WORLD
from .communicator.communicator import Cartcomm as Cartcomm
from .communicator.communicator import Comm as Comm
from .communicator.communicator import Distgraphcomm as Distgraphcomm
from .communicator.communicator import Graphcomm as Graphcomm
from .communicator.communicator import Intercomm as Intercomm
from .communicator.communicator import Intracomm as Intracomm
from .communicator.communicator import Topocomm as Topocomm
from .derived import datatype as _datatype
from .derived.datatype import Datatype as Datatype
from .messages.matched import MESSAGE_NO_PROC as MESSAGE_NO_PROC
from .messages.matched import MESSAGE_NULL as MESSAGE_NULL
from .messages.matched import Message as Message
from .staging import stage as _stage
from .staging.requests import REQUEST_NULL as REQUEST_NULL
from .staging.requests import Grequest as Grequest
from .staging.requests import Prequest as Prequest
from .staging.requests import Request as Request
from .staging.stage import Op as Op
from .team.handlers import follow_handlers as _follow_handlers
from .team.state import STAGES_BY_DEFAULT as _STAGES_BY_DEFAULT
from .windows.win import WIN_NULL as WIN_NULL
from .windows.win import Win as Win

# A program that imports this module expects every call of MPI to work.
_STAGES_BY_DEFAULT.set(True)
_follow_handlers((Datatype, Op))
globals().update(_stage.Op.constants)  # SUM and all the others
globals().update(_datatype.Datatype.constants)  # INT and all the others

# Programs find MPI's functions by ctypes.CDLL(MPI.__file__).
__file__ = _MPI.__file__

__all__ = [name for name in dir(_MPI) if not name.startswith("_")]


# Type checkers must report missing names, which this function would hide.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        # Private names of mpi4py that other packages use: _addressof, _handleof, _sizeof, __pyx_capi__ and so on.
        return getattr(_MPI, name)
