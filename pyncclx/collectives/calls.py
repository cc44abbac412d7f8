"""Calls of operations that move data."""

from __future__ import annotations

from typing import Any

from ..arrays.buffers import Buffer
from ..launch.call import Call
from ..memory.parameters import MoveArgs
from .transports import Choose


def move_call(
    operation: str, choose: Choose, args: MoveArgs, buffers: tuple[Buffer, ...], root: int | None = None
) -> Call:
    """Return the call of an operation whose message length and root all ranks share."""
    return Call(
        operation=operation,
        choose=choose,
        sized=(args.nbytes,),
        arguments=args.pack(),
        buffers=buffers,
        signature=(f"{args.nbytes} bytes", None if root is None else f"root {root}"),
        root=root,
    )


def announced_call(
    operation: str,
    choose: Choose,
    arguments: bytes,
    buffers: tuple[Buffer, ...],
    signature: tuple[Any, ...],
    root: int | None = None,
) -> Call:
    """Return the call of an operation whose messages carry their lengths.

    Each rank chooses by its own buffers.
    """
    # Rounding the longest buffer up to a power of two keeps the number of plans small.
    nbytes = 1 << max(buffer.nbytes for buffer in buffers).bit_length()
    return Call(
        operation=operation,
        choose=choose,
        sized=(nbytes,),
        arguments=arguments,
        buffers=buffers,
        signature=signature,
        root=root,
    )
