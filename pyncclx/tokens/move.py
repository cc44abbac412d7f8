"""One operation of a token shuffle, ready to be launched."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..arrays.buffers import Buffer


class Move(NamedTuple):
    """One dispatch or combine: what its kernel needs, and what the caller gets."""

    operation: str
    template: tuple[str, ...]  # of the kernel
    arguments: bytes
    buffers: tuple[Buffer, ...]
    result: Any
    transform: str = ""  # its name
