"""Alltoallv over nodes, with counts on the host or on the device.

The host reads this rank's counts from the device, and sends each rank the number of its rows and where they begin in
sendbuf. From the numbers that it receives, the host computes which rows the exchange moves, and where they go. Rows are
sent once, without padding. `cuda/exchange/rows.cuh` has the same rules for one node.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...failures.kernel_errors import BAD_COUNTS
from ...memory.parameters import AlltoallvArgs
from ...nodes.composition import Composition
from ...nodes.engine import Transfer
from ...nodes.program import SpanningCall
from ...team.base import IntraBase as Intracomm
from ..alltoallv_dynamic import DynamicCall
from ..calls import FixedCounts
from . import movement
from .alltoallv_segments import compose_segments
from .device_numbers import WORD_NBYTES, exchange_numbers, place, read, write, write_outputs
from .exchanges import to_each
from .movement import exchange

HOW = {
    "alltoallv": (
        f"{movement.HOW}; of counts on the device the host reads this rank's, exchanges them, and moves exactly the "
        "rows that they name, whatever the size: no number that all ranks have bounds what two of them move"
    )
}

_PAIR_NBYTES = 2 * WORD_NBYTES  # number of rows for a rank, and where they begin in sendbuf


def alltoallv(comm: Intracomm, given: FixedCounts | DynamicCall) -> SpanningCall:
    """Return the call of Alltoallv over several nodes."""
    if isinstance(given, FixedCounts):
        return to_each("Alltoallv", given)
    arguments, segments, buffers, signature, _ = given
    compose = partial(_compose, arguments=arguments)
    if segments is not None:
        compose = partial(compose_segments, arguments=arguments, segments=segments)
    return SpanningCall(operation="Alltoallv", compose=compose, buffers=buffers, signature=signature)


def _compose(composition: Composition, *, arguments: AlltoallvArgs) -> None:
    announce, move = partial(_announce, arguments=arguments), partial(_move, arguments=arguments)
    exchange_numbers(composition, "exchange of counts", _PAIR_NBYTES, announce, move)


def _announce(composition: Composition, stream: Any, *, arguments: AlltoallvArgs, to: int) -> None:
    """Write each rank's count and displacement; reject rows outside sendbuf."""
    size, most = composition.places.size, arguments.send_rows
    counts = read(composition, arguments.send_counts, size)
    following = np.maximum(counts, 0)
    displs = np.cumsum(following) - following
    if arguments.send_displs:
        displs = read(composition, arguments.send_displs, size)
    pairs = np.zeros((size, 2), np.int64)
    for rank, (count, displ) in enumerate(zip(counts.tolist(), displs.tolist(), strict=True)):
        if count > 0 and 0 <= displ <= most - count:
            pairs[rank] = count, displ
        elif count != 0:
            composition.spanning.refusals.refuse("Alltoallv", BAD_COUNTS, rank, count, most)
    write(composition, to, pairs, stream)


def _move(composition: Composition, stream: Any, *, arguments: AlltoallvArgs, sent: int, received: int) -> None:
    """Move the rows, and write the outputs."""
    places, length = composition.places, arguments.row_nbytes
    leaving = read(composition, sent, 2 * places.size).reshape(places.size, 2).tolist()
    came = read(composition, received, 2 * places.size).reshape(places.size, 2).tolist()
    found = place(composition, arguments, came)
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
    # An engine receives all bytes that a rank sends, so rows that do not fit into recvbuf need memory too.
    for rank, nbytes in cut.items():
        receives[rank] = Transfer(rank, begin, nbytes)
        begin += nbytes
    exchange(composition, "exchange of rows", sends, receives, drops=True)
    for rank in cut:
        composition.copy(kept[rank].address, receives[rank].address, kept[rank].nbytes)
    composition.keep(spill)
    write_outputs(composition, stream, arguments, [count for count, _ in came], found)
