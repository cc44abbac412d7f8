"""Windows: arrays that every rank of a communicator has mapped, so that kernels read and write them in place.

Their memory is allocated for that (`comm.Alloc`), or it is that of arrays that are there already (`comm.Register`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mpi4py import MPI

import mpi_bootstrap

from ..backends import Device, Exported, Peer, Shared
from ..errors import NotSupported


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Memory of each rank of a communicator, of any length, that all of them have mapped.

    Attributes
    ----------
    number : int
        The same on all ranks; counts the communicator's windows from 0, and is not used again.
    memory : Shared or Exported
        This rank's.
    owner : object
        What keeps that memory: the window until the communicator is freed, and each array over it; None if the
        memory is an array's that was registered.
    bases : tuple of int
        Every rank's address, as mapped in this process; this rank's own is `memory.address`.
    addresses : tuple of int
        Every rank's address, as that rank has it.
    sizes : tuple of int
        Every rank's bytes.
    peers : tuple of Peer
        What has to be unmapped in the end.
    """

    number: int
    memory: Shared | Exported
    owner: object
    bases: tuple[int, ...]
    addresses: tuple[int, ...]
    sizes: tuple[int, ...]
    peers: tuple[Peer, ...]

    def holds(self, address: int) -> bool:
        """Tell whether an address is in this rank's memory."""
        return self.memory.address <= address < self.memory.address + self.memory.nbytes

    def close(self) -> None:
        """Unmap the peers' memory. This rank's own goes with the window and the last array over it."""
        _unmap(self.peers)


def allocate_window(comm: MPI.Intracomm, device: Device, number: int, nbytes: int) -> Window:
    """Allocate `nbytes` on this rank and map what the peers allocated. Collective; `nbytes` may differ."""
    asked = max(nbytes, 1)  # what is mapped may be more: GPUs have pages of 2 MiB
    memory = mpi_bootstrap.agree(comm, lambda: device.allocate_shared(asked))
    offer = memory.address, asked, memory.nbytes, memory.ipc_handle
    offers: list[tuple[int, int, int, bytes]] = MPI.Comm.allgather(comm, offer)
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    handles: dict[int, int | bytes] = {rank: offers[rank][3] for rank in others}
    if not memory.ipc_handle:
        handles = {**mpi_bootstrap.allgather_fds(comm, memory.fd, others)}
    peers = mpi_bootstrap.agree(
        comm,
        lambda: {rank: device.map_peer(handle, offers[rank][2]) for rank, handle in handles.items()},
        undo=lambda mapped: _unmap(mapped.values()),
    )
    memory.close_fd()
    bases = tuple(peers[rank].address if rank in peers else memory.address for rank in range(comm.size))
    addresses, sizes, _, _ = zip(*offers, strict=True)
    return Window(number, memory, device.owner(memory), bases, addresses, sizes, tuple(peers.values()))


def register_window(comm: MPI.Intracomm, device: Device, number: int, address: int, nbytes: int) -> Window:
    """Map the allocations that the ranks' arrays are in into all of them. Collective; an array may be empty.

    Raises
    ------
    NotSupported
        On all ranks, if other processes cannot open some rank's.
    """
    memory = mpi_bootstrap.agree(comm, lambda: _allocation(device, address) if nbytes else NOTHING)
    offers: list[tuple[int, int, bytes]] = MPI.Comm.allgather(comm, (memory.address, memory.nbytes, memory.handle))
    there = [rank for rank, (_, size, _) in enumerate(offers) if size and rank != comm.rank]
    peers = mpi_bootstrap.agree(
        comm,
        lambda: {rank: device.open_exported(offers[rank][2], offers[rank][1]) for rank in there},
        undo=lambda mapped: _unmap(mapped.values()),
    )
    own = {comm.rank: memory.address}
    bases = tuple(peers[rank].address if rank in peers else own.get(rank, 0) for rank in range(comm.size))
    addresses, sizes, _ = zip(*offers, strict=True)
    return Window(number, memory, None, bases, addresses, sizes, tuple(peers.values()))


NOTHING = Exported(0, 0, b"")


def _allocation(device: Device, address: int) -> Exported:
    allocation = device.allocation(address)
    if allocation is None or not allocation.handle:
        raise NotSupported(
            f"Register: the memory at {address:#x} cannot be opened by other processes, as that of cudaMalloc can "
            "(CuPy's and PyTorch's default allocators); use an array from comm.Alloc"
        )
    return allocation


def _unmap(peers: Iterable[Peer]) -> None:
    for peer in peers:
        peer.close()
