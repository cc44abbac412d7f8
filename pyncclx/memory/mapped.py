"""Windows: memory of each rank that all ranks of a communicator have mapped.

Kernels read and write it in place. `comm.Alloc` allocates it; `comm.Register` registers existing arrays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from mpi4py import MPI

import mpi_bootstrap

from ..backends import Device, Exported, Peer, Shared
from ..errors import NotSupported
from .retired import RETIRED

Key = TypeVar("Key")
Handle = TypeVar("Handle", int, bytes, int | bytes)


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Memory of each rank of a communicator, of any length, mapped by all ranks.

    Attributes
    ----------
    number : int
        Number of the window, from 0; equal on all ranks. A new window reuses the number of a freed one.
    memory : Shared or Exported
        This rank's memory.
    owner : object
        Object that keeps this rank's memory alive. The window refers to it until the communicator is freed, and each
        array over the memory does too. None for registered memory, which belongs to an array.
    bases : tuple of int
        Every rank's address in this process's mapping; this rank's is `memory.address`.
    addresses : tuple of int
        Every rank's address in that rank's process.
    sizes : tuple of int
        Every rank's length in bytes.
    peers : tuple of Peer
        Mappings that `close` unmaps.
    """

    number: int
    memory: Shared | Exported
    owner: object
    bases: tuple[int, ...]
    addresses: tuple[int, ...]
    sizes: tuple[int, ...]
    peers: tuple[Peer, ...]

    def holds(self, address: int) -> bool:
        """Return whether an address is in this rank's memory."""
        return self.memory.address <= address < self.memory.address + self.memory.nbytes

    def close(self) -> None:
        """Retire the mappings of the peers' memory.

        This rank's own memory is freed with the window and the last array over it.
        """
        retired = RETIRED.get()
        retired.add(*(peer.close for peer in self.peers))
        retired.free()


@mpi_bootstrap.interrupts_deferred()
def allocate_window(comm: MPI.Intracomm, device: Device, number: int, nbytes: int) -> Window:
    """Allocate `nbytes` on this rank, and map the peers' allocations (collective).

    `nbytes` may differ between ranks. If a rank fails, all ranks raise the same error and free their memory.
    """
    asked = max(nbytes, 1)
    memory = mpi_bootstrap.agree(comm, lambda: _allocate(device, asked), undo=lambda allocated: allocated.close())
    try:
        offer = memory.address, asked, memory.nbytes, memory.ipc_handle
        offers: list[tuple[int, int, int, bytes]] = mpi_bootstrap.allgather_objects(comm, offer)
        # A device allocates whole pages, so the mapped length may exceed `asked`.
        addresses, sizes, mapped_sizes, ipc_handles = zip(*offers, strict=True)
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        handles = exchange_handles(comm, memory, ipc_handles, others)
        sized = {rank: (handle, mapped_sizes[rank]) for rank, handle in handles.items()}
        peers = mpi_bootstrap.agree(comm, lambda: map_each(device.map_peer, sized), undo=_unmap_all)
    except BaseException:
        memory.close()
        raise
    memory.close_fd()
    owner = device.owner(memory, RETIRED.get().add)
    return Window(number, memory, owner, _bases(comm, memory.address, peers), addresses, sizes, tuple(peers.values()))


def _allocate(device: Device, nbytes: int) -> Shared:
    """Allocate memory; if there is none left, free retired memory first."""
    RETIRED.get().free()
    try:
        return device.allocate_shared(nbytes)
    except Exception:
        RETIRED.get().free(at_once=True)
        return device.allocate_shared(nbytes)


@mpi_bootstrap.interrupts_deferred()
def register_window(comm: MPI.Intracomm, device: Device, number: int, address: int, nbytes: int) -> Window:
    """Map the allocations of all ranks' arrays into all ranks (collective).

    An array may be empty.

    Raises
    ------
    NotSupported
        On all ranks, if other processes cannot open some rank's allocation.
    """
    memory = mpi_bootstrap.agree(comm, lambda: _allocation(device, address) if nbytes else _NOTHING)
    offers: list[tuple[int, int, bytes]] = mpi_bootstrap.allgather_objects(
        comm, (memory.address, memory.nbytes, memory.handle)
    )
    addresses, sizes, exported = zip(*offers, strict=True)
    others = [rank for rank, size in enumerate(sizes) if size and rank != comm.rank]
    sized = {rank: (exported[rank], sizes[rank]) for rank in others}
    peers = mpi_bootstrap.agree(comm, lambda: map_each(device.open_exported, sized), undo=_unmap_all)
    return Window(number, memory, None, _bases(comm, memory.address, peers), addresses, sizes, tuple(peers.values()))


def exchange_handles(
    comm: MPI.Intracomm, memory: Shared, ipc_handles: Sequence[bytes], ranks: Collection[int]
) -> Mapping[int, int | bytes]:
    """Return IPC handles or descriptors to map memory of `ranks` (collective)."""
    if memory.ipc_handle:
        return {rank: ipc_handles[rank] for rank in ranks}
    return mpi_bootstrap.allgather_fds(comm, memory.fd, ranks)


def map_each(map_one: Callable[[Handle, int], Peer], handles: Mapping[Key, tuple[Handle, int]]) -> dict[Key, Peer]:
    """Map memory of several peers by handle and length; if one fails, unmap all.

    Descriptors are closed.
    """
    peers: dict[Key, Peer] = {}
    try:
        for key, (handle, nbytes) in handles.items():
            # map_one closes the descriptor, even if it raises.
            peers[key] = map_one(handle, nbytes)
    except BaseException:
        _unmap_all(peers)
        for unused, _ in islice(handles.values(), len(peers) + 1, None):
            if isinstance(unused, int):
                os.close(unused)
        raise
    return peers


_NOTHING = Exported(0, 0, b"")


def _allocation(device: Device, address: int) -> Exported:
    allocation = device.allocation(address)
    if allocation is None or not allocation.handle:
        raise NotSupported(
            f"Register: the memory at {address:#x} cannot be opened by other processes, as that of cudaMalloc can "
            "(CuPy's and PyTorch's default allocators); use an array from comm.Alloc"
        )
    return allocation


def _bases(comm: MPI.Intracomm, own: int, peers: Mapping[int, Peer]) -> tuple[int, ...]:
    """Return every rank's address in this process; 0 where nothing is mapped."""
    addresses = {comm.rank: own} | {rank: peer.address for rank, peer in peers.items()}
    return tuple(addresses.get(rank, 0) for rank in range(comm.size))


def _unmap_all(peers: Mapping[Key, Peer]) -> None:
    for peer in peers.values():
        peer.close()
