"""Communicators: mpi4py's class tree, with operations on device arrays.

Each class is a subclass of mpi4py's class, and every method that makes a communicator returns a pyncclx one. The
operations are in mixin classes, one for each family of methods. In the method resolution order a mixin comes before
mpi4py's class, so ``super()`` in a mixin calls mpi4py.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from mpi4py import MPI

from mpi_bootstrap.groups import made_of_groups
from mpi_bootstrap.interrupts import interrupts_deferred
from mpi_bootstrap.plain import note_duplication
from mpi_bootstrap.polls import WHILE_FREED_S, polls_stopped

from ..collectives.neighbors import meet_neighbors
from ..failures.policy import explains_failures
from ..messages.progress.pending_sends import going_on
from ..staging.stand_ins import StandInType, given_ours
from ..system import driver, settings
from ..system.mpi_library import MEMORY_KINDS, with_cuda
from ..team.base import Base
from ..team.state import STAGES_BY_DEFAULT, state_of
from .collectives import Collectives
from .explain import Explained
from .extensions import Extensions
from .fault_tolerance import FaultTolerance
from .neighborhood import Neighbors
from .object_collectives import ObjectCollectives
from .objects import ObjectMessages
from .over_nodes import OverNodes
from .point_to_point import PointToPoint
from .probes import Probes
from .reductions import Reductions
from .spawned import arguments_under_runner, each_under_runner
from .staged import StagedCollectives, StagedMessages, StagedNeighbors

_Method = TypeVar("_Method", bound=Callable[..., Any])
_Comm = TypeVar("_Comm", bound="Comm")


def _makes_ours(method: _Method) -> _Method:
    """Wrap an mpi4py method so that it returns a pyncclx communicator."""
    of_mpi = explains_failures(method)

    @functools.wraps(method)
    def make(self: Comm, *args: Any, **kwargs: Any) -> Any:
        made = of_mpi(self, *args, **kwargs)
        if isinstance(made, tuple):  # (communicator, request): no attribute can be set before the request completes
            return adopt(made[0]), made[1]
        return adopt(made, self)

    return cast(_Method, make)


def _with_own_topology(method: _Method) -> _Method:
    """Wrap an mpi4py method so that MPI calls its result a distributed graph.

    If the parent is Cartesian or a graph, Open MPI (5.0.11) gives the distributed graph the parent's kind of topology,
    and crashes in its neighbourhood collectives. A duplicate has the right kind.
    """

    @functools.wraps(method)
    def make(self: Comm, *args: Any, **kwargs: Any) -> MPI.Distgraphcomm:
        graph = method(self, *args, **kwargs)
        if graph.topology == MPI.DIST_GRAPH:
            return cast(MPI.Distgraphcomm, graph)
        duplicate = graph.Dup()
        with polls_stopped(WHILE_FREED_S):
            graph.Free()
        return cast(MPI.Distgraphcomm, duplicate)

    return cast(_Method, make)


def _makes_graph(method: _Method) -> _Method:
    """Wrap an mpi4py method so that it returns a pyncclx distributed graph."""
    of_ours = _makes_ours(_with_own_topology(method))

    # If a handler raised between these steps, the other ranks would wait for this one.
    @functools.wraps(method)
    @interrupts_deferred()
    def make(self: Comm, *args: Any, **kwargs: Any) -> Any:
        graph = of_ours(self, *args, **kwargs)
        meet_neighbors(graph)  # collective now, because a rank without neighbours may make no later call
        return graph

    return cast(_Method, make)


def _class_makes_ours(method: _Method) -> _Method:
    """Wrap an mpi4py class method so that it returns a pyncclx communicator."""

    @functools.wraps(method)
    def make(cls: type[MPI.Comm], *args: Any, **kwargs: Any) -> Any:
        return adopt(method(*args, **kwargs))

    return cast(_Method, classmethod(make))


class CommType(StandInType):
    """Metaclass; after `import pyncclx.MPI`, mpi4py communicators are instances, too."""

    def __instancecheck__(cls, instance: object) -> bool:
        if STAGES_BY_DEFAULT.get():
            return super().__instancecheck__(instance)
        return type.__instancecheck__(cls, instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        if STAGES_BY_DEFAULT.get():
            return super().__subclasscheck__(subclass)
        return type.__subclasscheck__(cls, subclass)


class Comm(
    FaultTolerance, ObjectMessages, Probes, PointToPoint, StagedMessages, Explained, MPI.Comm, metaclass=CommType
):
    """An `mpi4py.MPI.Comm` whose operations also take device arrays.

    Calls with host arrays are mpi4py's own. Calls with device arrays (CuPy, Numba, PyTorch, JAX, anything with DLPack
    or `__cuda_array_interface__`) launch one GPU kernel on the current stream. Later work on that stream sees the
    result.

    Making a communicator costs nothing: memory is allocated and kernels are compiled at the first operation on device
    arrays. Messages are never collective; any other first operation is, even if it is not collective in MPI.

    Raises
    ------
    TypeError, ValueError, BufferError, KeyError, MPI.Exception
        From every operation, before anything is launched, for arguments that mpi4py rejects too.
    NotSupported
        From every operation that kernels do not support, if `staging` is false.
    PeerTimeout, Aborted
        From every call after a kernel's wait for a peer has timed out or was aborted.
    """

    # Instances of this mpi4py class count as instances of the pyncclx class; see `CommType`.
    like = MPI.Comm

    Dup = _makes_ours(MPI.Comm.Dup)
    Create = _makes_ours(MPI.Comm.Create)
    Split = _makes_ours(MPI.Comm.Split)
    Split_type = _makes_ours(MPI.Comm.Split_type)
    Get_parent = _class_makes_ours(MPI.Comm.Get_parent)
    Join = _class_makes_ours(MPI.Comm.Join)
    fromhandle = _class_makes_ours(MPI.Comm.fromhandle)
    fromint = _class_makes_ours(MPI.Comm.fromint)
    f2py = _class_makes_ours(MPI.Comm.f2py)

    def Idup(self, info: MPI.Info | None = None) -> tuple[Any, MPI.Request]:
        """Begin to duplicate the communicator; return the copy and its request."""
        made, request = super().Idup(info)
        note_duplication(self, request)
        return made, going_on(request)

    def Idup_with_info(self, info: MPI.Info) -> tuple[Any, MPI.Request]:
        """Begin to duplicate the communicator with new info; see `Idup`."""
        return self.Idup(info)

    def _adopted(self, made: MPI.Comm) -> Comm:
        return adopt(made, self)

    def Get_info(self) -> MPI.Info:
        """Return the info; with a GPU, its key `mpi_memory_alloc_kinds` includes CUDA."""
        info = super().Get_info()
        if settings.DEVICE.get() != "host" and driver.count():
            info.Set(MEMORY_KINDS, with_cuda(info.Get(MEMORY_KINDS)))
        return info

    @classmethod
    def Create_keyval(cls, copy_fn: Any = None, delete_fn: Any = None, nopython: bool = False) -> int:
        """Create an attribute key; its callbacks receive communicators of pyncclx."""
        return super().Create_keyval(given_ours(copy_fn, adopt), given_ours(delete_fn, adopt), nopython)

    @classmethod
    def Create_errhandler(cls, errhandler_fn: Callable[[MPI.Comm, int], None]) -> MPI.Errhandler:
        """Create an error handler; its callback receives communicators of pyncclx."""
        return super().Create_errhandler(given_ours(errhandler_fn, adopt))


class Intracomm(
    OverNodes, ObjectCollectives, Collectives, Reductions, Extensions, StagedCollectives, MPI.Intracomm, Comm
):
    """An `mpi4py.MPI.Intracomm` whose operations also take device arrays; see `Comm`."""

    like = MPI.Intracomm

    Create_group = _makes_ours(MPI.Intracomm.Create_group)
    Create_from_group = _class_makes_ours(made_of_groups(MPI.Intracomm.Create_from_group))
    Create_intercomm = _makes_ours(MPI.Intracomm.Create_intercomm)
    Create_cart = _makes_ours(MPI.Intracomm.Create_cart)
    Create_graph = _makes_ours(MPI.Intracomm.Create_graph)
    Create_dist_graph = _makes_graph(MPI.Intracomm.Create_dist_graph)
    Create_dist_graph_adjacent = _makes_graph(MPI.Intracomm.Create_dist_graph_adjacent)
    Accept = _makes_ours(MPI.Intracomm.Accept)
    Connect = _makes_ours(MPI.Intracomm.Connect)

    def Spawn(self, command: Any, args: Any = None, *rest: Any, **kwargs: Any) -> Intercomm:
        """Start processes, and return an intercommunicator to them. Collective.

        Takes the arguments of mpi4py's `Spawn`. If ``python -m pyncclx run`` runs this program, it also runs the
        Python programs that this program spawns.
        """
        made = super().Spawn(command, arguments_under_runner(command, args), *rest, **kwargs)
        return cast(Intercomm, adopt(made, self))

    def Spawn_multiple(self, command: Any, args: Any = None, *rest: Any, **kwargs: Any) -> Intercomm:
        """Start processes of several programs; see `Spawn` and mpi4py's `Spawn_multiple`."""
        made = super().Spawn_multiple(command, each_under_runner(command, args), *rest, **kwargs)
        return cast(Intercomm, adopt(made, self))


class Topocomm(Neighbors, StagedNeighbors, MPI.Topocomm, Intracomm):
    """An `mpi4py.MPI.Topocomm` whose operations also take device arrays; see `Comm`."""

    like = MPI.Topocomm


class Cartcomm(MPI.Cartcomm, Topocomm):
    """An `mpi4py.MPI.Cartcomm` whose operations also take device arrays; see `Comm`."""

    like = MPI.Cartcomm

    Sub = _makes_ours(MPI.Cartcomm.Sub)


class Graphcomm(MPI.Graphcomm, Topocomm):
    """An `mpi4py.MPI.Graphcomm` whose operations also take device arrays; see `Comm`."""

    like = MPI.Graphcomm


class Distgraphcomm(MPI.Distgraphcomm, Topocomm):
    """An `mpi4py.MPI.Distgraphcomm` with operations on device arrays; see `Comm`."""

    like = MPI.Distgraphcomm


class Intercomm(MPI.Intercomm, Comm):
    """An `mpi4py.MPI.Intercomm` whose operations also take device arrays; see `Comm`."""

    like = MPI.Intercomm

    Create_from_groups = _class_makes_ours(made_of_groups(MPI.Intercomm.Create_from_groups))
    Merge = _makes_ours(MPI.Intercomm.Merge)


_TREE: tuple[tuple[type[MPI.Comm], type[Comm]], ...] = (  # derived classes before their bases
    (MPI.Cartcomm, Cartcomm),
    (MPI.Graphcomm, Graphcomm),
    (MPI.Distgraphcomm, Distgraphcomm),
    (MPI.Topocomm, Topocomm),
    (MPI.Intercomm, Intercomm),
    (MPI.Intracomm, Intracomm),
    (MPI.Comm, Comm),
)


def _with_handle(cls: type[_Comm], comm: MPI.Comm) -> _Comm:
    """Return an object of a class for the handle of an mpi4py communicator."""
    # The constructor would ask MPI what kind of communicator this is. MPI may not be initialised yet, and Open MPI
    # (5.0.11) gives some distributed graphs another kind; see `_with_own_topology`.
    own = cls()
    ctypes.memmove(MPI._addressof(own), MPI._addressof(comm), MPI._sizeof(comm))
    return own


COMM_NULL = Comm(MPI.COMM_NULL)
COMM_SELF = _with_handle(Intracomm, MPI.COMM_SELF)
COMM_WORLD = _with_handle(Intracomm, MPI.COMM_WORLD)
Comm.constants = {"COMM_NULL": COMM_NULL, "COMM_SELF": COMM_SELF, "COMM_WORLD": COMM_WORLD}


def adopt(comm: MPI.Comm, parent: Comm | None = None) -> Comm:
    """Return the pyncclx communicator for an mpi4py one, with `parent`'s settings."""
    if not isinstance(comm, Base):
        cls = next(cls for base, cls in _TREE if isinstance(comm, base))
        constants = [constant for constant in Comm.constants.values() if type(constant) is cls and constant == comm]
        comm = constants[0] if constants else _with_handle(cls, comm)
    own = cast(Comm, comm)
    if parent is not None and comm != MPI.COMM_NULL:
        state_of(own, parent).made_here = True
    return own
