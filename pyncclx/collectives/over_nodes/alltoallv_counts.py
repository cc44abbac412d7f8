"""Alltoallv over nodes with counts on the device.

The host reads this rank's counts, and sends each rank how many rows it gets and where they begin in sendbuf. From what
comes it computes where rows belong, and then it knows all that the exchange has to move: no row that stays travels
twice, and none is padded. `cuda/exchange/rows.cuh` has the same rules for one node.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import NotSupported
from ...memory.parameters import PACKED, PLACED, SENDER, SLOTS, AlltoallvArgs
from ...nodes.call import SpanningCall
from ...nodes.composition import Composition
from ...nodes.engine import Transfer
from ...team.base import IntraBase as Intracomm
from ...team.kernel_errors import BAD_COUNTS, CUT
from ..alltoallv_dynamic import resolve_call
from ..alltoallv_options import DynamicOptions
from .movement import exchange
from .options import check_no_choice

HOW = (
    "of counts on the device the host reads this rank's, exchanges them, and moves exactly the rows that they name, "
    "whatever the size: no number that all ranks know bounds what two of them move"
)

WORD_NBYTES = 8
_PAIR_NBYTES = 2 * WORD_NBYTES  # of a rank's rows: how many, and where they begin in sendbuf
_Integers = npt.NDArray[np.int64]


def alltoallv_counts(comm: Intracomm, sendbuf: Any, recvbuf: Any, options: DynamicOptions) -> SpanningCall:
    """The call of the dynamic form."""
    arguments, _, segments, buffers, signature = resolve_call(comm, sendbuf, recvbuf, options)
    check_no_choice("Alltoallv", options.algorithm)
    if segments is not None:
        raise NotSupported(
            "Alltoallv: segments work inside one node, and these ranks are on several; send rows by counts and displs"
        )
    return SpanningCall(
        operation="Alltoallv",
        compose=partial(_compose, arguments=arguments),
        buffers=buffers,
        signature=signature,
    )


def _compose(composition: Composition, *, arguments: AlltoallvArgs) -> None:
    size = composition.places.size
    sent, received = composition.memory(size * _PAIR_NBYTES, size * _PAIR_NBYTES)
    announced = composition.on_host(partial(_announce, arguments=arguments, to=sent))
    sends = [Transfer(rank, sent + rank * _PAIR_NBYTES, _PAIR_NBYTES) for rank in range(size)]
    receives = [Transfer(rank, received + rank * _PAIR_NBYTES, _PAIR_NBYTES) for rank in range(size)]
    came = exchange(composition, "exchange of counts", sends, receives, after=(announced,))
    move = partial(_move, arguments=arguments, sent=sent, received=received)
    composition.on_host(move, on_rail=False, peers=composition.places.away, after=(came,))


def _announce(composition: Composition, stream: Any, *, arguments: AlltoallvArgs, to: int) -> None:
    """Write what each rank gets: only rows that sendbuf has."""
    size, most = composition.places.size, arguments.send_rows
    counts = _read(composition, arguments.send_counts, size)
    following = np.maximum(counts, 0)
    displs = np.cumsum(following) - following
    if arguments.send_displs:
        displs = _read(composition, arguments.send_displs, size)
    pairs = np.zeros((size, 2), np.int64)
    for rank, (count, displ) in enumerate(zip(counts.tolist(), displs.tolist(), strict=True)):
        if count > 0 and 0 <= displ <= most - count:
            pairs[rank] = count, displ
        elif count != 0:
            composition.spanning.refusals.refuse("Alltoallv", BAD_COUNTS, rank, count, most)
    _write(composition, to, pairs, stream)


def _move(composition: Composition, stream: Any, *, arguments: AlltoallvArgs, sent: int, received: int) -> None:
    """Move the rows, and write the outputs."""
    places, length = composition.places, arguments.row_nbytes
    leaving = _read(composition, sent, 2 * places.size).reshape(places.size, 2).tolist()
    came = _read(composition, received, 2 * places.size).reshape(places.size, 2).tolist()
    found = _place(composition, arguments, came)
    sends = [
        Transfer(rank, arguments.send + displ * length, count * length) for rank, (count, displ) in enumerate(leaving)
    ]
    kept = [Transfer(rank, arguments.recv + begin * length, fit * length) for rank, (begin, fit) in enumerate(found)]
    cut = {
        rank: count * length
        for rank, ((count, _), (_, fit)) in enumerate(zip(came, found, strict=True))
        if fit < count and places.node_of(rank) != places.node
    }
    spill = composition.spanning.team.device.allocate_temporary(max(1, sum(cut.values())), stream) if cut else None
    receives, begin = list(kept), spill.address if spill else 0
    for rank, nbytes in cut.items():  # an engine receives all that is sent
        receives[rank] = Transfer(rank, begin, nbytes)
        begin += nbytes
    exchange(composition, "exchange of rows", sends, receives, drops=True)
    for rank in cut:
        composition.copy(kept[rank].address, receives[rank].address, kept[rank].nbytes)
    composition.keep(spill)
    _write_outputs(composition, stream, arguments, came, found)


def _place(composition: Composition, arguments: AlltoallvArgs, came: list[list[int]]) -> list[tuple[int, int]]:
    """Of the rows of each rank: where they begin in recvbuf, and how many fit; `came` has the pairs that it sent."""
    capacity, slot = arguments.capacity, arguments.slot_rows
    if arguments.placement == PLACED:
        begins = _read(composition, arguments.recv_displs, len(came)).tolist()
        return [(begin, _fitting(count, begin, capacity)) for (count, _), begin in zip(came, begins, strict=True)]
    if arguments.placement == SLOTS:
        return [(rank * slot, min(count, capacity)) for rank, (count, _) in enumerate(came)]
    if arguments.placement == SENDER:
        return [(rank * slot + displ, _fitting(count, displ, capacity)) for rank, (count, displ) in enumerate(came)]
    assert arguments.placement == PACKED
    before, found = 0, []
    for count, _ in came:
        begin = min(before, capacity)
        found.append((begin, min(count, capacity - begin)))
        before += count
    return found


def _fitting(count: int, begin: int, end: int) -> int:
    return 0 if begin < 0 or begin >= end else min(count, end - begin)


def _write_outputs(
    composition: Composition, stream: Any, arguments: AlltoallvArgs, came: list[list[int]], found: list[tuple[int, int]]
) -> None:
    counts, begins, kept = ([pair[i] for pair in pairs] for pairs, i in ((came, 0), (found, 0), (found, 1)))
    dropped = [count - fit for count, fit in zip(counts, kept, strict=True)]
    outputs = {arguments.recv_counts: kept, arguments.status: dropped, arguments.total: [sum(kept)]}
    if arguments.placement != PLACED:
        outputs[arguments.recv_displs] = begins
    for address, numbers in outputs.items():
        if address:
            _write(composition, address, np.array(numbers, np.int64), stream)
    for rank, missing in enumerate(dropped):
        if missing and not arguments.drop:
            composition.spanning.refusals.refuse("Alltoallv", CUT, rank, counts[rank], kept[rank])


def _read(composition: Composition, address: int, count: int) -> _Integers:
    return np.frombuffer(composition.spanning.team.device.peek(address, count * WORD_NBYTES), np.int64)


def _write(composition: Composition, address: int, numbers: _Integers, stream: Any) -> None:
    composition.spanning.team.device.copy(address, numbers.ctypes.data, numbers.nbytes, stream)
