"""The process group of the backend "pyncclx", its registration, and its processes.

`find_by_mpi` lets a program's processes find each other. `communicator_of` returns the communicator of a group.
"""

from __future__ import annotations

import importlib
import socket
import sys
import zlib
from collections.abc import Iterator
from types import FrameType
from typing import Any, cast
from urllib.parse import urlparse

import torch
from mpi4py import MPI
from torch import distributed
from torch._C import _distributed_c10d as c10d

import mpi_bootstrap

from ..communicator.adopting import Communicator
from ..communicator.communicator import Intracomm
from ..communicator.methods import launch_as_nonblocking
from ..system import settings
from ..system.process import PerProcess
from . import torchrun
from .calls import Moves, Reductions

__all__ = ["PyncclxGroup", "communicator_of", "find_by_mpi", "register"]

MOST_TAG = 32767  # the largest tag that every MPI allows
#: The communicator from which sub-groups are made. The program does not use it, because Open MPI sends messages on it
#: when it makes a group.
PARENT = PerProcess(MPI.COMM_WORLD.Dup, lasting=True)


def find_by_mpi() -> None:
    """Let `init_process_group("pyncclx")` take rank, size and store from MPI.

    PyTorch's own rendezvous remains in use for other backends, and if the environment has torchrun's variables
    (MASTER_ADDR), or the program passes rank and size.
    """
    # PyTorch hides the module behind its function of the same name.
    handlers = importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers
    of_environment = handlers["env"]

    def find(url: str, **options: Any) -> Iterator[tuple[Any, int, int]]:
        is_asked = "MASTER_ADDR" not in settings.environment() and not urlparse(url).query
        if is_asked and "pyncclx" in _backend_of(sys._getframe(1)):
            yield _store(**options), MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        else:
            yield from of_environment(url, **options)

    handlers["env"] = find


def _backend_of(caller: FrameType | None) -> str:
    """Return the name of the backend for which `init_process_group` calls, or "".

    PyTorch does not pass the name on, so this reads it from the frame of the call.
    """
    while caller is not None and caller.f_code.co_name != "init_process_group":
        caller = caller.f_back
    return "" if caller is None else str(caller.f_locals.get("backend") or "")


def _store(**options: Any) -> Any:
    """Return a store that rank 0 of MPI.COMM_WORLD serves. Collective over it."""
    world = MPI.COMM_WORLD
    one_node = mpi_bootstrap.topology(world, pretended=False).node_count == 1
    host = world.bcast("127.0.0.1" if one_node else socket.gethostname())

    def serve() -> Any:
        return distributed.TCPStore(host, 0, is_master=True, wait_for_workers=False, **options)

    served = mpi_bootstrap.agree(world, lambda: serve() if world.rank == 0 else None)
    port = world.bcast(served and served.port)
    return served or distributed.TCPStore(host, port, is_master=False, **options)


def communicator_of(store: Any, rank: int, size: int, name: str) -> Intracomm:
    """Return a new communicator for a process group. Collective over its ranks.

    `store`, `rank`, `size` and `name` are the group's. Calls without a kernel go through MPI, because PyTorch programs
    expect all calls to work. The communicator's memory is made immediately, because the first call may be a message
    between two of its ranks. Raises RuntimeError if MPI has started fewer processes than the group has ranks.
    """
    if size > MPI.COMM_WORLD.size:
        raise RuntimeError(f"{size} ranks, but MPI has started {MPI.COMM_WORLD.size}: start the program by mpiexec")
    store.set(f"{rank}", f"{MPI.COMM_WORLD.rank}")
    comm = Communicator(_of_processes([int(store.get(f"{each}")) for each in range(size)], name))
    comm.staging = True
    comm.state.first_calls = launch_as_nonblocking  # each rank chooses `async_op` for itself
    comm.Bcast(torch.zeros(1, dtype=torch.uint8, device="cuda" if comm.device == "gpu" else "cpu"))
    return comm


def _of_processes(processes: list[int], name: str) -> MPI.Intracomm:
    """Return a new mpi4py communicator of the given ranks of MPI.COMM_WORLD.

    Collective over these ranks. `name` is the name of the process group.
    """
    if len(processes) == MPI.COMM_WORLD.size:
        return cast(MPI.Intracomm, PARENT.get().Split(0, processes.index(MPI.COMM_WORLD.rank)))
    parent = PARENT.made or MPI.COMM_WORLD
    return parent.Create_group(parent.Get_group().Incl(processes), zlib.crc32(name.encode()) % MOST_TAG)


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
        """Whether calls from `start_coalescing` to `end_coalescing` share one work object."""
        return True

    def _get_backend(self, device: Any) -> PyncclxGroup:
        return self

    def shutdown(self) -> None:
        """Free the communicator. Collective over the group."""
        self.comm.free()


def register() -> None:
    """Register the backend, and let its processes find each other through MPI."""
    distributed.Backend.register_backend("pyncclx", _create, extended_api=True, devices=["cpu", "cuda"])
    find_by_mpi()


def _create(place: Any, options: Any) -> PyncclxGroup:
    """Return a new group that PyTorch describes by `place`. Collective."""
    if distributed.is_torchelastic_launched():
        torchrun.start(place.store, place.group_size)
    return PyncclxGroup(communicator_of(place.store, place.group_rank, place.group_size, str(place.group_id)))
