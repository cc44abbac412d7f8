"""How a program's processes find each other, and communicators of their groups."""

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

import mpi_bootstrap

from ..communicator.adopting import Communicator
from ..communicator.communicator import Intracomm
from ..system import settings
from ..system.process import PerProcess

__all__ = ["communicator_of", "find_by_mpi"]

MOST_TAG = 32767  # the largest that every MPI allows
#: The communicator that sub-groups are made from. The program has no messages on it: Open MPI makes groups by some.
PARENT = PerProcess(MPI.COMM_WORLD.Dup, lasting=True)


def find_by_mpi() -> None:
    """Let `init_process_group("pyncclx")` take rank, size and store from MPI.

    PyTorch's own way remains for other backends, and where the environment has torchrun's variables (MASTER_ADDR) or
    the program passes rank and size.
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

    `store`, `rank`, `size` and `name` are the group's. Calls that kernels cannot do go through MPI, since programs for
    PyTorch expect that all calls work. The communicator's memory is made at once, because the first call may be a
    message between two of its ranks. With fewer processes of MPI than ranks a RuntimeError says what to do.
    """
    if size > MPI.COMM_WORLD.size:
        raise RuntimeError(f"{size} ranks, but MPI has started {MPI.COMM_WORLD.size}: start the program by mpiexec")
    store.set(f"{rank}", f"{MPI.COMM_WORLD.rank}")
    comm = Communicator(_of_processes([int(store.get(f"{each}")) for each in range(size)], name))
    comm.staging = True
    comm.Bcast(torch.zeros(1, dtype=torch.uint8, device="cuda" if comm.device == "gpu" else "cpu"))
    return comm


def _of_processes(processes: list[int], name: str) -> MPI.Intracomm:
    """Return mpi4py's communicator of ranks of MPI.COMM_WORLD. Collective over them."""
    if len(processes) == MPI.COMM_WORLD.size:
        return cast(MPI.Intracomm, PARENT.get().Split(0, processes.index(MPI.COMM_WORLD.rank)))
    parent = PARENT.made or MPI.COMM_WORLD
    return parent.Create_group(parent.Get_group().Incl(processes), zlib.crc32(name.encode()) % MOST_TAG)
