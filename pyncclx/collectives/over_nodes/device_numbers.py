"""Exchange counts and displacements in device memory, for Alltoallv over nodes.

They are exchanged before the rows, because the host needs them to move the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from ...failures.kernel_errors import CUT
from ...memory.parameters import PACKED, PLACED, SENDER, SLOTS, AlltoallvArgs
from ...nodes.composition import Composition
from .movement import blocks_at, exchange

WORD_NBYTES = 8
Integers = npt.NDArray[np.int64]


def exchange_numbers(
    composition: Composition, name: str, nbytes: int, announce: Callable[..., None], move: Callable[..., None]
) -> None:
    """Add steps that exchange counts, then the data that these describe.

    Parameters
    ----------
    composition : Composition
        The call to which the steps are added.
    name : str
        Name of the first exchange, for error messages.
    nbytes : int
        Length of the counts and displacements for one rank.
    announce : callable
        ``announce(composition, stream, to=address)`` writes the numbers for each rank to `address`.
    move : callable
        ``move(composition, stream, sent=address, received=address)`` is called after the numbers of all ranks arrived.
    """
    size = composition.places.size
    sent, received = composition.memory(size * nbytes, size * nbytes)
    announced = composition.on_host(partial(announce, to=sent))
    sends, receives = (blocks_at(address, nbytes, size) for address in (sent, received))
    came = exchange(composition, name, sends, receives, after=(announced,))
    move = partial(move, sent=sent, received=received)
    composition.on_host(move, on_rail=False, peers=composition.places.away, after=(came,))


def place(composition: Composition, arguments: AlltoallvArgs, came: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return where each sender's rows begin in recvbuf, and how many of them fit.

    `came` has, for each rank, the number of rows that it sends, and their displacement in the sender's buffer.
    Both results are in rows.
    """
    capacity, slot = arguments.capacity, arguments.slot_rows
    if arguments.placement == PLACED:
        begins = read(composition, arguments.recv_displs, len(came)).tolist()
        return [(begin, fitting(count, begin, capacity)) for (count, _), begin in zip(came, begins, strict=True)]
    if arguments.placement == SLOTS:
        return [(rank * slot, min(count, capacity)) for rank, (count, _) in enumerate(came)]
    if arguments.placement == SENDER:
        return [(rank * slot + displ, fitting(count, displ, capacity)) for rank, (count, displ) in enumerate(came)]
    assert arguments.placement == PACKED
    before, found = 0, []
    for count, _ in came:
        begin = min(before, capacity)
        found.append((begin, min(count, capacity - begin)))
        before += count
    return found


def fitting(count: int, begin: int, end: int) -> int:
    """Return how many of `count` rows that start at `begin` lie before `end`."""
    return 0 if begin < 0 or begin >= end else min(count, end - begin)


def write_outputs(
    composition: Composition, stream: Any, arguments: AlltoallvArgs, counts: list[int], found: list[tuple[int, int]]
) -> None:
    """Write the outputs other than rows: counts, displacements, total and status.

    `counts` are the rows that each rank sent, `found` is what `place` returned.
    """
    begins, kept = ([pair[i] for pair in found] for i in range(2))
    dropped = [count - fit for count, fit in zip(counts, kept, strict=True)]
    outputs = {arguments.recv_counts: kept, arguments.status: dropped, arguments.total: [sum(kept)]}
    if arguments.placement != PLACED:
        outputs[arguments.recv_displs] = begins
    for address, numbers in outputs.items():
        if address:
            write(composition, address, np.array(numbers, np.int64), stream)
    for rank, missing in enumerate(dropped):
        if missing and not arguments.drop:
            composition.spanning.refusals.refuse("Alltoallv", CUT, rank, counts[rank], kept[rank])


def read(composition: Composition, address: int, count: int) -> Integers:
    """Return `count` int64 numbers at a device address, written by a completed step."""
    return np.frombuffer(composition.spanning.team.device.peek(address, count * WORD_NBYTES), np.int64)


def write(composition: Composition, address: int, numbers: Integers, stream: Any) -> None:
    """Enqueue a write of numbers on a stream."""
    numbers = np.ascontiguousarray(numbers)
    composition.spanning.team.device.copy(address, MPI.Get_address(numbers), numbers.nbytes, stream)
