"""`Communicator`, which makes a pyncclx communicator from any of mpi4py's."""

from __future__ import annotations

from typing import cast

from mpi4py import MPI

from ..team.handlers import note_handler
from ..team.state import numbered
from .communicator import COMM_WORLD, Comm, CommType, Intracomm, adopt


class _CommunicatorType(CommType):
    """Metaclass; every pyncclx communicator is an instance of `Communicator`."""

    def __instancecheck__(cls, instance: object) -> bool:
        return type.__instancecheck__(Comm if cls is Communicator else cls, instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return type.__subclasscheck__(Comm if cls is Communicator else cls, subclass)


class Communicator(Intracomm, metaclass=_CommunicatorType):
    """Return a communicator whose operations also take device arrays.

    The result has the handle and group of `comm`, and pyncclx's class for it: `Intracomm`, `Cartcomm`, `Intercomm` and
    so on. For `isinstance`, all communicators of pyncclx are instances of this class. A subclass returns
    intracommunicators of that subclass.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, default MPI.COMM_WORLD

    Raises
    ------
    TypeError
        If comm is not an mpi4py communicator.

    Examples
    --------
    >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
    >>> x = comm.Alloc(4)
    >>> comm.Allreduce(MPI.IN_PLACE, x)
    >>> isinstance(comm.Create_cart([1]), pyncclx.Communicator)
    True
    """

    def __new__(cls, comm: MPI.Comm | None = None) -> Communicator:
        comm = COMM_WORLD if comm is None else comm
        if not isinstance(comm, MPI.Comm):
            raise TypeError(f"{cls.__name__}: comm is {comm!r}; expecting an mpi4py communicator")
        made = adopt(comm) if cls is Communicator else super().__new__(cls, comm)
        if made != MPI.COMM_NULL and MPI.Is_initialized():
            note_handler(made.Get_errhandler())
        return cast(Communicator, numbered(made))
