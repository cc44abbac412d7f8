"""Broadcast of objects with device arrays: a collective moves the arrays' data.

Before it, mpi4py's method has moved the rest of the objects. Signal handlers are deferred until both have ended.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeVar, cast

from mpi4py import MPI

import mpi_bootstrap

from ..arrays.buffers import Buffer
from ..collectives.allgather import allgatherv
from ..collectives.bcast import bcast
from ..errors import NotSupported
from ..failures.policy import explains_failures, raise_explained
from ..launch.run import by_new_kernel
from ..team.base import IntraBase
from ..team.state import state_of
from ..team.team import Team
from .libraries import Form
from .packed_arrays import MOVED, PackedArrays, block, temporary
from .pickled import Pickled, Short, is_plain, put_together


class Share(tuple[bytes, list[Any], tuple[tuple[Any, ...], ...]]):
    """The part of an object that MPI transfers: all but the data of its device arrays.

    After the share has arrived, the ranks run a collective together. A share is a tuple, so C code unpickles it. During
    Python code a signal handler could raise, and the share would be lost.
    """

    __slots__ = ()

    @classmethod
    def of(cls, comm: IntraBase, contents: Pickled, operation: str) -> tuple[Share | Short, PackedArrays]:
        """Return an object's share (`Short` for short arrays) and its packed arrays."""
        packed = PackedArrays.of(contents.arrays)
        if packed.is_short:
            return Short.of(comm, contents, packed, operation), packed
        return cls((contents.stream, contents.buffers, tuple(map(tuple, packed.forms)))), packed

    @property
    def forms(self) -> tuple[Form, ...]:
        """The forms of the arrays."""
        return tuple(map(Form._make, self[2]))

    def open(self, arrays: list[Any]) -> Any:
        """Restore the object, with `arrays` as its device arrays."""
        return put_together(self[0], self[1], arrays)


def with_shares(
    step: Callable[..., Any], arguments: Sequence[Any], has_shares: Callable[[Any], bool], opened: Callable[[Any], Any]
) -> Any:
    """Call mpi4py's method and return its result; `opened` opens its shares.

    `opened` is called even if a signal handler raises just after mpi4py's method.
    """
    results: list[Any] = []
    try:
        # The list holds the result before a signal handler can run.
        results.extend(map(step, *[[argument] for argument in arguments]))
    finally:
        if results and has_shares(results[0]):
            with mpi_bootstrap.interrupts_deferred(to_the_end=True):
                results[0] = opened(results[0])
    return results[0]


def open_broadcast(comm: IntraBase, share: Share, own: PackedArrays | None, root: int) -> Any:
    """Receive root's arrays, and return the object of an arrived `share` (collective).

    `own` are root's packed arrays, None on other ranks. The ranks first agree that all have allocated memory for the
    arrays; otherwise kernels would wait for a rank that failed.
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

    `own` are this rank's packed arrays; they are used if this rank has sent a share.
    """
    shares = {rank: item for rank, item in enumerate(items) if type(item) is Share}
    own = own if comm.rank in shares else None
    if not has_kernels(comm):
        _open_by_mpi(comm, items, shares, own)
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


def _open_by_mpi(comm: IntraBase, items: list[Any], shares: dict[int, Share], own: PackedArrays | None) -> None:
    """Open the shares in `items`, with the arrays' data moved by MPI (collective)."""
    everything = MPI.Comm.allgather(comm, None if own is None else own.download())
    for rank, share in shares.items():
        new = PackedArrays.like(share.forms)
        items[rank] = share.open(new.upload(everything[rank]))


def has_kernels(comm: IntraBase) -> bool:
    """Return whether kernels support these ranks; equal on all of them (collective).

    The first call creates the communicator's team.
    """
    if state_of(comm).team is None:
        try:
            _ = comm.team
        except NotSupported:
            return False
    return True


def finished(comm: IntraBase, packed: PackedArrays) -> list[Any]:
    """Return the arrays; wait for their copies if the communicator's calls block."""
    arrays = packed.finish()
    if comm.blocking == "host":
        packed.device.synchronize(packed.stream)
    return arrays


_Method = TypeVar("_Method", bound=Callable[..., Any])


def in_step(method: _Method) -> _Method:
    """Decorate a collective of objects so that signal handlers run only after it.

    Handlers are deferred during MPI's collective, and during the collective that the ranks may run after it. A failure
    of a rank raises the same exception as with `explains_failures`.
    """

    @functools.wraps(method)
    def call(self: MPI.Comm, *args: Any, **kwargs: Any) -> Any:
        with mpi_bootstrap.interrupts_deferred(to_the_end=True):
            try:
                return method(self, *args, **kwargs)
            except MPI.Exception as error:
                raise_explained(self, error, method.__name__)

    return cast(_Method, call)


def in_step_with_arrays(method: _Method) -> _Method:
    """Decorate a collective like `in_step`, but only if objects may have arrays.

    Deferring handlers takes 3.6 µs (2026-11-29, CPU). So a process that has sent and received no arrays in objects so
    far does not defer them. If it then receives its first arrays, `broadcast.with_shares` defers handlers during the
    collective after MPI's.
    """
    alone, in_steps = explains_failures(method), in_step(method)

    @functools.wraps(method)
    def call(self: MPI.Comm, *args: Any, **kwargs: Any) -> Any:
        is_alone = not MOVED and args and is_plain(args[0])
        return (alone if is_alone else in_steps)(self, *args, **kwargs)

    return cast(_Method, call)
