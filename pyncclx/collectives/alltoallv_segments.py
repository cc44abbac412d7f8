"""Alltoallv of segments: lists on the device assign parts of sendbuf to ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, NamedTuple

from ..arrays.buffers import Buffer, resolve
from ..errors import NotSupported
from ..launch.call import Call, Choice
from ..memory.called import describe, pack_call
from ..memory.cstruct import I64, U64, CStruct
from ..memory.layout import Layout
from ..memory.parameters import AlltoallvArgs
from ..team.base import IntraBase as Intracomm
from ..team.plans import Plan
from ..team.team import Team

WORD_NBYTES = 8

_Ways = Annotated[Sequence[int], "2Q"]


@dataclass(slots=True, kw_only=True)
class SegmentsArgs(CStruct):
    """`SegmentsArgs` of cuda/collectives/alltoallv_segments.cu without AlltoallvArgs."""

    lengths: U64
    ids: U64
    all_lengths: U64
    segments: I64
    ids_count: I64
    words: _Ways
    ends: _Ways
    begins: _Ways
    ranges: U64


class Segments(NamedTuple):
    """The `segments` argument."""

    lengths: Buffer
    ids: Buffer
    all_lengths: Buffer | None

    @property
    def number(self) -> int:
        return self.lengths.count


def choose(layout: Layout, name: str) -> Choice:
    """Choose all channels. Another kernel, of one block, has already listed the rows."""
    why = "kernel list_segments announces lengths and destinations, then rows go as chunks"
    return Choice("move_segments", layout.channels, None, why)


def read_segments(segments: Any, size: int, device: Any) -> Segments:
    """Check the `segments` argument.

    Raises
    ------
    TypeError, ValueError
    """
    if not isinstance(segments, (tuple, list)) or len(segments) not in (2, 3):
        raise TypeError(
            f"Alltoallv: segments is {segments!r}; pass (lengths, ids) or (lengths, ids, all_lengths), of device arrays"
        )
    names = ("lengths", "ids", "all_lengths")[: len(segments)]
    read = [
        resolve(array, f"Alltoallv: {name} of segments", writable=name == "all_lengths", device=device)
        for name, array in zip(names, segments, strict=True)
    ]
    for name, buffer in zip(names, read, strict=True):
        if buffer.datatype.name != "int64":
            raise TypeError(f"Alltoallv: {name} of segments is an array of {buffer.datatype.name}; expecting int64")
    found = Segments(read[0], read[1], read[2] if len(read) == 3 else None)
    if found.all_lengths is not None and found.all_lengths.count != size * found.number:
        raise ValueError(
            f"Alltoallv: all_lengths of segments has {found.all_lengths.count} items, expecting {size} ranks times "
            f"{found.number} segments"
        )
    return found


def segments_call(
    comm: Intracomm,
    rows: AlltoallvArgs,
    buffers: tuple[Buffer, ...],
    segments: Segments,
    signature: tuple[Any, ...],
) -> Call:
    """Return the call; the tables of segments are in scratch memory.

    `rows` are the kernels' arguments without segments.
    """
    if rows.send_rows >= 1 << 32:
        raise NotSupported(f"Alltoallv: sendbuf has {rows.send_rows} rows; segments support fewer than 2**32 rows")
    arguments = rows.pack() + _segments_args(comm, segments).pack()
    called = pack_call(describe("Alltoallv", signature))

    def list_segments(team: Team, stream: Any) -> None:
        function = team.functions[("list_segments",)]
        team.launch(Plan("Alltoallv", function, 1, team.threads), (), called, arguments, stream)

    return Call(
        operation="Alltoallv",
        choose=choose,
        sized=("segments",),
        arguments=arguments,
        buffers=buffers,
        signature=signature,
        before=list_segments,
        beside=("list_segments",),
    )


def _segments_args(comm: Intracomm, segments: Segments) -> SegmentsArgs:
    """Return the kernels' arguments for segments, with tables in scratch memory."""
    table = comm.size * segments.number * WORD_NBYTES
    words, ends, begins = (table, table), (table, table), (segments.number * WORD_NBYTES, table)
    lengths = *words, *ends, *begins, 2 * comm.size * WORD_NBYTES
    tables = list(accumulate(lengths, initial=comm.scratch.address(sum(lengths))))
    return SegmentsArgs(
        lengths=segments.lengths.address,
        ids=segments.ids.address,
        all_lengths=0 if segments.all_lengths is None else segments.all_lengths.address,
        segments=segments.number,
        ids_count=segments.ids.count,
        words=tables[0:2],
        ends=tables[2:4],
        begins=tables[4:6],
        ranges=tables[6],
    )
