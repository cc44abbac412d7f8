"""Operations over nodes with a row transform: each rank makes what it sends first, and sends it from there."""

from __future__ import annotations

from collections.abc import Callable

from ...nodes.call import SpanningCall
from ...nodes.composition import Composition
from ..transformed import Arguments


def add_transform(composition: Composition, given: Arguments, to: int, nbytes: int) -> int:
    """Add the step that makes what this rank sends: `nbytes` at `to`; return its place."""
    send, columns = given.send.address, given.columns
    return composition.transform(given.applied, given.types, send=send, recv=to, nbytes=nbytes, columns=columns)


def transformed_call(operation: str, given: Arguments, compose: Callable[[Composition], None]) -> SpanningCall:
    """The call of checked arguments."""
    return SpanningCall(
        operation=operation,
        compose=compose,
        buffers=given.buffers,
        signature=given.signature,
        empty=given.recv.nbytes == 0,
    )
