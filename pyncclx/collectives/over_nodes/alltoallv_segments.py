"""Alltoallv of segments over nodes.

The host reads the destinations of segments. It sends each rank a word per segment: the number of rows, and whether they
go to that rank. The rows for a rank are packed before the exchange and unpacked after it.
`cuda/collectives/alltoallv_segments.cu` has the same rules for one node.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...failures.kernel_errors import BAD_SEGMENT
from ...memory.parameters import SENDER, AlltoallvArgs
from ...nodes.composition import Composition
from ...nodes.engine import Transfer
from ..alltoallv_segments import WORD_NBYTES, Segments
from .device_numbers import Integers, exchange_numbers, fitting, place, read, write, write_outputs
from .movement import exchange

_Copies = list[tuple[int, int, int]]  # source row, destination row, number of rows


def compose_segments(composition: Composition, *, arguments: AlltoallvArgs, segments: Segments) -> None:
    """Add the steps of an Alltoallv of segments to a composition."""
    announce = partial(_announce, arguments=arguments, segments=segments)
    move = partial(_move, arguments=arguments, segments=segments)
    exchange_numbers(composition, "exchange of lengths", segments.number * WORD_NBYTES, announce, move)


def _announce(composition: Composition, stream: Any, *, arguments: AlltoallvArgs, segments: Segments, to: int) -> None:
    """Write words for each rank: twice a segment's rows, plus 1 if that rank gets it."""
    size = composition.places.size
    words = np.tile(_lengths(composition, arguments, segments) * 2, (size, 1))
    counts = read(composition, arguments.send_counts, size).tolist()
    ids, begin = read(composition, segments.ids.address, segments.ids.count).tolist(), 0
    for rank, given in enumerate(counts):
        room = len(ids) - begin
        count = given if 0 <= given <= room else 0
        if count != given:
            _refuse(composition, rank, given, room)
        for place_in_ids in range(begin, begin + count):
            if 0 <= ids[place_in_ids] < segments.number:
                words[rank, ids[place_in_ids]] |= 1
            else:
                _refuse(composition, place_in_ids, ids[place_in_ids], segments.number - 1)
        begin += count
    write(composition, to, words, stream)


def _lengths(composition: Composition, arguments: AlltoallvArgs, segments: Segments) -> Integers:
    """Return the segments' lengths; 0 for segments outside sendbuf."""
    room, used, found = arguments.send_rows, 0, []
    for number, given in enumerate(read(composition, segments.lengths.address, segments.number).tolist()):
        used += given if 0 <= given <= room else 0
        found.append(given if 0 <= given <= room and used <= room else 0)
        if found[-1] != given:
            _refuse(composition, number, given, room)
    return np.array(found, np.int64)


def _refuse(composition: Composition, entry: int, found: int, most: int) -> None:
    composition.spanning.refusals.refuse("Alltoallv", BAD_SEGMENT, entry, found, most)


def _move(
    composition: Composition,
    stream: Any,
    *,
    arguments: AlltoallvArgs,
    segments: Segments,
    sent: int,
    received: int,
) -> None:
    """Move the rows, and write the outputs."""
    size, number, row = composition.places.size, segments.number, arguments.row_nbytes
    leaving, coming = (read(composition, words, size * number).reshape(size, number) for words in (sent, received))
    outbox, sends = _room(composition, stream, leaving, row)
    inbox, receives = _room(composition, stream, coming, row)
    for begin, to, count in _together(leaving):
        composition.copy(outbox + to * row, arguments.send + begin * row, count * row)
    exchange(composition, "exchange of rows", sends, receives)
    came = _rows(coming)
    found, copies = _places(composition, arguments, coming, came)
    for begin, to, count in copies:
        composition.copy(arguments.recv + to * row, inbox + begin * row, count * row)
    if segments.all_lengths is not None:
        write(composition, segments.all_lengths.address, coming >> 1, stream)
    write_outputs(composition, stream, arguments, came, found)


def _rows(words: Integers) -> list[int]:
    """Return the number of rows sent to each rank, or received from it."""
    counts: list[int] = ((words >> 1) * (words & 1)).sum(axis=1).tolist()
    return counts


def _room(composition: Composition, stream: Any, words: Integers, row_nbytes: int) -> tuple[int, list[Transfer]]:
    """Allocate memory for the rows, sorted by rank."""
    counts, transfers, begin = _rows(words), [], 0
    memory = composition.spanning.team.device.allocate_temporary(max(1, sum(counts) * row_nbytes), stream)
    composition.keep(memory)
    for rank, count in enumerate(counts):
        transfers.append(Transfer(rank, memory.address + begin, count * row_nbytes))
        begin += count * row_nbytes
    return memory.address, transfers


def _together(leaving: Integers) -> _Copies:
    """Return the copies that pack rows for the ranks; adjacent rows share a copy."""
    copies: _Copies = []
    to = 0
    for words in leaving.tolist():
        begin = 0
        for word in words:
            count = word >> 1
            if word & 1 and count:
                if copies and copies[-1][0] + copies[-1][2] == begin and copies[-1][1] + copies[-1][2] == to:
                    copies[-1] = *copies[-1][:2], copies[-1][2] + count
                else:
                    copies.append((begin, to, count))
                to += count
            begin += count
    return copies


def _places(
    composition: Composition, arguments: AlltoallvArgs, coming: Integers, rows: list[int]
) -> tuple[list[tuple[int, int]], _Copies]:
    """Return where each rank's rows begin, how many fit, and how to unpack them."""
    begins = (np.cumsum(rows) - rows).tolist()
    if arguments.placement != SENDER:
        found = place(composition, arguments, [(count, 0) for count in rows])
        return found, [(begin, to, fit) for begin, (to, fit) in zip(begins, found, strict=True)]
    found, copies = [], []
    for rank, words in enumerate(coming.tolist()):
        slot, at, kept, begin = rank * arguments.slot_rows, 0, 0, begins[rank]
        for word in words:
            count = word >> 1
            if word & 1:
                fit = fitting(count, at, arguments.capacity)
                copies.append((begin, slot + at, fit))
                kept, begin = kept + fit, begin + count
            at += count
        found.append((slot, kept))
    return found, copies
