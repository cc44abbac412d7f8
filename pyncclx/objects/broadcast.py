"""Broadcast of objects with device arrays: a collective moves the arrays' data.

mpi4py's method has moved the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..collectives.allgatherv import allgatherv
from ..collectives.bcast import bcast
from ..errors import NotSupported
from ..launch.run import by_new_kernel
from ..team.base import IntraBase
from ..team.state import state_of
from ..team.team import Team
from .libraries import Form
from .packed_arrays import PackedArrays, block, temporary
from .pickled import Pickled, Short, put_together


@dataclass
class Share:
    """Part of an object with device arrays that MPI transfers: all but their data."""

    stream: bytes
    buffers: list[Any]
    forms: tuple[Form, ...]

    @classmethod
    def of(cls, comm: IntraBase, contents: Pickled, operation: str) -> tuple[Share | Short, PackedArrays]:
        """Return an object's share, or a `Short` of a short one, and its packed arrays."""
        packed = PackedArrays.of(contents.arrays)
        if packed.is_short:
            return Short.of(comm, contents, packed, operation), packed
        return cls(contents.stream, contents.buffers, packed.forms), packed

    def open(self, arrays: list[Any]) -> Any:
        """Return the object."""
        return put_together(self.stream, self.buffers, arrays)


def open_broadcast(comm: IntraBase, share: Share, own: PackedArrays | None, root: int) -> Any:
    """Return the object that root broadcasts; its `share` has arrived (collective).

    `own` are root's packed arrays, None on other ranks. Before the kernel, the ranks agree that each could allocate
    memory for the arrays: otherwise they would wait for a rank that failed.
    """
    if not has_kernels(comm):
        data = MPI.Comm.bcast(comm, None if own is None else own.download(), root)
        return share.open(PackedArrays.like(share.forms).upload(data))

    def prepare(team: Team) -> tuple[PackedArrays, Buffer]:
        made = PackedArrays.like(share.forms)
        data = made.block()
        if own is not None:
            own.pack(data.address)
        return made, data

    _, (made, data) = comm.meet(prepare)
    by_new_kernel(comm, bcast, data, root)
    if len(made.arrays) > 1:
        made.unpack(data.address)
    return share.open(finished(comm, made))


def open_shares(comm: IntraBase, items: list[Any], own: PackedArrays | None) -> list[Any]:
    """Return all ranks' objects, some of which arrived as shares (collective).

    `own` are the packed arrays of a rank that has sent a share.
    """
    shares = {rank: item for rank, item in enumerate(items) if type(item) is Share}
    own = own if comm.rank in shares else None
    if not has_kernels(comm):
        everything = MPI.Comm.allgather(comm, None if own is None else own.download())
        for rank, share in shares.items():
            new = PackedArrays.like(share.forms)
            items[rank] = share.open(new.upload(everything[rank]))
        return items

    def prepare(team: Team) -> tuple[dict[int, PackedArrays], Buffer, Buffer]:
        device = team.device
        made = {rank: PackedArrays.like(share.forms) for rank, share in shares.items()}
        stream = next(iter(made.values())).stream
        data = temporary(device, sum(packed.nbytes for packed in made.values()), stream)
        mine = block(0, 0, None)
        if own is not None:
            mine = own.block()
            if len(own.arrays) > 1:
                own.pack(mine.address)
        return made, mine, data

    _, (made, mine, data) = comm.meet(prepare)
    counts = [made[rank].nbytes if rank in made else 0 for rank in range(comm.size)]
    displs = [0, *accumulate(counts)][:-1]
    by_new_kernel(comm, allgatherv, mine, [data, (counts, displs), MPI.BYTE])
    for rank, packed in made.items():
        packed.unpack(data.address + displs[rank])
        items[rank] = shares[rank].open(finished(comm, packed))
    return items


def has_kernels(comm: IntraBase) -> bool:
    """Return whether kernels work for these ranks, equal on all of them (collective).

    The first call makes the team.
    """
    if state_of(comm).team is None:
        try:
            _ = comm.team
        except NotSupported:
            return False
    return True


def finished(comm: IntraBase, packed: PackedArrays) -> list[Any]:
    """Return arrays whose data is enqueued; wait for it if the communicator blocks."""
    arrays = packed.finish()
    if comm.blocking == "host":
        packed.device.synchronize(packed.stream)
    return arrays
