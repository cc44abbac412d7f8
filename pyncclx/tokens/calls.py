"""The calls of a token shuffle: arguments are checked, and become what a kernel is told."""

from __future__ import annotations

from functools import cache
from typing import Any

from .. import backends
from ..arrays import datatypes
from ..arrays.buffers import Buffer, resolve
from ..arrays.readers import in_c_order
from ..operators import row_transform
from .launch import Launching
from .layout import COLLECT, COMBINE, DISPATCH
from .memory import Handle
from .move import Move
from .row_types import CXX, array_type


def dispatch_move(
    shuffle: Launching, tokens: Any, topk_ids: Any, topk_weights: Any, handle: Handle | None, transform: Any
) -> Move:
    """A dispatch: of tokens by their choices, or by the handle of an earlier one.

    Raises
    ------
    TypeError, ValueError
    """
    if (handle is None) == (topk_ids is None) or (handle is not None and topk_weights is not None):
        raise TypeError("dispatch takes topk_ids (and topk_weights), or else the handle of an earlier dispatch")
    sent = _read(tokens, "dispatch: tokens", (None, shuffle.hidden), (shuffle.dtype,))
    count = sent.shape[0]
    if count > shuffle.max_tokens:
        raise ValueError(f"dispatch: {count} tokens, but max_tokens is {shuffle.max_tokens}; send them in parts")
    if handle is not None:
        _check_handle(shuffle, "dispatch", handle)
        if handle.tokens != count:
            raise ValueError(f"dispatch: {count} tokens, but the handle is of {handle.tokens}; pass its tokens")
    ids = weights = None
    if topk_ids is not None:
        ids = _read(topk_ids, "dispatch: topk_ids", (count, shuffle.k), ("int32", "int64"))
    if topk_weights is not None:
        weights = _read(topk_weights, "dispatch: topk_weights", (count, shuffle.k), ("float32",))
    applied = _applied(shuffle, transform, "dispatch", shuffle.rows_dtype)
    reuse, handle = handle is not None, handle or shuffle.held().new_handle(count)
    arguments = DISPATCH.pack(
        *(sent.address, ids.address if ids else 0, weights.address if weights else 0),
        *handle.addresses,
        *(count, ids.datatype.itemsize if ids else 0, reuse),
        *applied.addresses,
    )
    buffers = tuple(buffer for buffer in (sent, ids, weights, *applied.buffers) if buffer)
    return Move("Dispatch", applied.template, arguments, buffers, (handle.rows, handle), applied.name)


def combine_move(shuffle: Launching, expert_out: Any, handle: Handle, out: Any, weighted: bool, transform: Any) -> Move:
    """A combine: of the rows' results.

    Raises
    ------
    TypeError, ValueError
    """
    _check_handle(shuffle, "combine", handle)
    count = handle.tokens
    if out is None:
        out = shuffle.held().xp.empty((count, shuffle.hidden), array_type(shuffle.dtype))
    types = (shuffle.dtype, "float32") if shuffle.dtype != "float32" else ("float32",)
    sent = _read(expert_out, "combine: expert_out", (shuffle.capacity, shuffle.hidden), (shuffle.dtype,))
    summed = _read(out, "combine: out", (count, shuffle.hidden), types, writable=True)
    routes, ways, token_counts, *_, weights = handle.addresses
    applied = _applied(shuffle, transform, "combine", summed.datatype.name)
    arguments = COMBINE.pack(
        *(sent.address, ways, token_counts, weights, routes, summed.address, count, bool(weighted)),
        *applied.addresses,
    )
    return Move("Combine", applied.template, arguments, (sent, *applied.buffers, summed), out, applied.name)


def collect_move(shuffle: Launching, values: Any, handle: Handle, out: Any) -> Move:
    """A collect: of one number for each row.

    Raises
    ------
    TypeError, ValueError
    """
    _check_handle(shuffle, "collect", handle)
    count = handle.tokens
    if out is None:
        out = shuffle.held().xp.empty((count, shuffle.k), "f4")
    sent = _read(values, "collect: values", (shuffle.capacity,), ("float32",))
    collected = _read(out, "collect: out", (count, shuffle.k), ("float32",), writable=True)
    routes, ways, token_counts, *_ = handle.addresses
    arguments = COLLECT.pack(sent.address, ways, token_counts, routes, collected.address, count)
    return Move("Collect", (), arguments, (sent, collected), out)


def _check_handle(shuffle: Launching, operation: str, handle: Handle) -> None:
    """Its places may be outside of the memory of a shuffle with other settings."""
    if handle.routing != shuffle.held().routing:
        raise ValueError(
            f"{operation}: the handle is of a shuffle with another capacity, k, max_tokens, layout or placement; pass "
            "one that a dispatch of this shuffle has returned"
        )


def _applied(shuffle: Launching, transform: Any, operation: str, result: str) -> row_transform.Applied:
    """A transform of elements of the shuffle's dtype, in a kernel that makes `result` of them; or none."""
    names = CXX[shuffle.dtype], CXX[result]
    if transform is None:
        return _untransformed(names)
    element = datatypes.of(shuffle.dtype)
    return row_transform.apply(transform, operation, names, element, element)


@cache
def _untransformed(names: tuple[str, str]) -> row_transform.Applied:
    return row_transform.NONE._replace(template=names)


def _read(
    array: Any, name: str, shape: tuple[int | None, ...], types: tuple[str, ...], *, writable: bool = False
) -> Buffer:
    """An argument's buffer, if it has the shape (None: any length) and one of the types, in C order."""
    buffer = resolve(array, name, writable=writable, device=backends.select())
    found = buffer.shape
    if found != shape and not _fits(found, shape):
        wanted = ["n" if length is None else str(length) for length in shape]
        raise ValueError(f"{name} has the shape {found}; expecting ({', '.join(wanted)})")
    if buffer.datatype.name not in types:
        raise TypeError(f"{name} is an array of {buffer.datatype.name}; expecting {' or '.join(types)}")
    if not in_c_order(array):
        raise ValueError(f"{name} is in Fortran order; pass an array in C order")
    return buffer


def _fits(found: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    return len(found) == len(shape) and all(want in (None, got) for want, got in zip(shape, found, strict=True))
