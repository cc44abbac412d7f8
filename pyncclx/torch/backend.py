"""The process group of the backend "pyncclx", and its registration."""

from __future__ import annotations

from typing import Any

from torch import distributed
from torch._C import _distributed_c10d as c10d

from ..communicator.communicator import Intracomm
from .calls import Moves, Reductions
from .processes import communicator_of, find_by_mpi

__all__ = ["PyncclxGroup", "register"]


def _base() -> Any:
    """Return PyTorch's class to derive from: `Backend`, or before 2.14 `ProcessGroup`.

    Python could not derive from `Backend` before. A backend can be one of several in a group ("cpu:gloo,cuda:pyncclx").
    """
    try:
        c10d.Backend(0, 1)
    except TypeError:
        return distributed.ProcessGroup
    return c10d.Backend


class PyncclxGroup(Reductions, Moves, _base()):  # type: ignore[misc]  # without PyTorch it is Any
    """A process group of torch.distributed on a communicator of pyncclx.

    PyTorch makes it in `init_process_group("pyncclx")` and `new_group`, and calls its methods.

    Parameters
    ----------
    comm : pyncclx.Intracomm
        The communicator of the group's ranks. `shutdown` frees it.
    """

    def __init__(self, comm: Intracomm) -> None:
        super().__init__(comm.rank, comm.size)
        self.comm, self._name = comm, ""

    def getBackendName(self) -> str:
        """Return the backend's name."""
        return "pyncclx"

    def setGroupName(self, name: str) -> None:
        """Set the name by which PyTorch's functional collectives find the group."""
        self._name = name

    def getGroupName(self) -> str:
        """Return the group's name."""
        return self._name

    @property
    def supports_coalescing(self) -> bool:
        """Whether calls between `start_coalescing` and `end_coalescing` have one work."""
        return True

    def _get_backend(self, device: Any) -> PyncclxGroup:
        return self

    def shutdown(self) -> None:
        """Free the communicator. Collective over the group."""
        self.comm.free()


def register() -> None:
    """Register the backend, and MPI as the place where its processes find each other."""
    distributed.Backend.register_backend("pyncclx", _create, extended_api=True, devices=["cpu", "cuda"])
    find_by_mpi()


def _create(place: Any, options: Any) -> PyncclxGroup:
    """Return a new group for PyTorch's description of it. Collective."""
    return PyncclxGroup(communicator_of(place.store, place.group_rank, place.group_size, str(place.group_id)))
