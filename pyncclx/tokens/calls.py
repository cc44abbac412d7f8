"""Calls of a token shuffle: check arguments, and make the kernel's arguments."""

from __future__ import annotations

from functools import cache
from typing import Any

from .. import backends
from ..arrays import datatypes
from ..arrays.buffers import Buffer, resolve
from ..arrays.readers import check_c_order
from ..operators import row_transform
from .launch import Launching, Move
from .memory import address_of
from .parameters import CollectArgs, CombineArgs, DispatchArgs
from .rows import Handle, Rows
from .settings import CXX, array_type


def dispatch(
    shuffle: Launching, tokens: Any, topk_ids: Any, topk_weights: Any, handle: Handle | None, transform: Any
) -> tuple[Rows, Handle]:
    """Launch a dispatch; if its launch is cached, skip the checks.

    Raises
    ------
    TypeError, ValueError
    """
    key = shuffle.key_of("Dispatch", handle is None, tokens, topk_ids, topk_weights, transform)
    cached = shuffle.cached_moves.get(key)
    if cached is None:
        move = dispatch_move(shuffle, tokens, topk_ids, topk_weights, handle, transform)
        move.key = key
        result: tuple[Rows, Handle] = shuffle.launch(move)
        return result
    if handle is not None:
        _check_tokens(shuffle, cached.tokens, handle)
    written = handle or shuffle.memory().new_handle(cached.tokens)
    shuffle.launch_again(cached, *written.outputs)
    return written.rows, written


def combine(shuffle: Launching, expert_out: Any, handle: Handle, out: Any, weighted: bool, transform: Any) -> Any:
    """Launch a combine; if its launch is cached, skip the checks.

    Raises
    ------
    TypeError, ValueError
    """
    _check_handle(shuffle, "combine", handle)
    key = shuffle.key_of("Combine", handle.tokens, expert_out, out, bool(weighted), transform)
    cached = shuffle.cached_moves.get(key)
    if cached is None:
        move = combine_move(shuffle, expert_out, handle, out, weighted, transform)
        move.key = key
        return shuffle.launch(move)
    address = cached.out
    if out is None:
        out = _new_sums(shuffle, handle)
        address = address_of(out)
    to = handle.outputs
    shuffle.launch_again(cached, to.ways, to.token_counts, to.row_weights, to.routes, address)
    return out


def dispatch_move(
    shuffle: Launching,
    tokens: Any,
    topk_ids: Any,
    topk_weights: Any,
    handle: Handle | None = None,
    transform: Any = None,
    into: Handle | None = None,
) -> Move:
    """Prepare a dispatch of tokens, by their choices or with the routing of a handle.

    A dispatch by choices writes the routing to `into`; default: a new handle.

    Raises
    ------
    TypeError, ValueError
    """
    if (handle is None) == (topk_ids is None) or (handle is not None and topk_weights is not None):
        raise TypeError("dispatch takes topk_ids (and topk_weights), or else the handle of an earlier dispatch")
    sent = _read(tokens, "dispatch: tokens", (None, shuffle.hidden), (shuffle.dtype,))
    count = sent.shape[0]
    _check_tokens(shuffle, count, handle)
    ids = weights = None
    if topk_ids is not None:
        ids = _read(topk_ids, "dispatch: topk_ids", (count, shuffle.k), ("int32", "int64"))
    if topk_weights is not None:
        weights = _read(topk_weights, "dispatch: topk_weights", (count, shuffle.k), ("float32",))
    applied = _applied(shuffle, transform, "dispatch", shuffle.rows_dtype)
    written = handle or into or shuffle.memory().new_handle(count)
    arguments = DispatchArgs(
        tokens=sent.address,
        experts=ids.address if ids else 0,
        weights=weights.address if weights else 0,
        **written.outputs._asdict(),
        token_count=count,
        expert_nbytes=ids.datatype.itemsize if ids else 0,
        reuse=handle is not None,
        transform=applied.addresses,
    )
    return Move(
        operation="Dispatch",
        arguments=arguments,
        buffers=tuple(buffer for buffer in (sent, ids, weights, *applied.buffers) if buffer),
        handle=written,
        result=(written.rows, written),
        applied=applied,
    )


def combine_move(
    shuffle: Launching, expert_out: Any, handle: Handle, out: Any, weighted: bool, transform: Any = None
) -> Move:
    """Prepare a combine of the rows' results.

    Raises
    ------
    TypeError, ValueError
    """
    _check_handle(shuffle, "combine", handle)
    shape, dispatched = (handle.tokens, shuffle.hidden), handle.outputs
    if out is None:
        out = _new_sums(shuffle, handle)
    types = (shuffle.dtype, "float32") if shuffle.dtype != "float32" else ("float32",)
    sent = _read(expert_out, "combine: expert_out", (shuffle.capacity, shuffle.hidden), (shuffle.dtype,))
    summed = _read(out, "combine: out", shape, types, writable=True)
    applied = _applied(shuffle, transform, "combine", summed.datatype.name)
    arguments = CombineArgs(
        results=sent.address,
        ways=dispatched.ways,
        token_counts=dispatched.token_counts,
        row_weights=dispatched.row_weights,
        routes=dispatched.routes,
        out=summed.address,
        token_count=handle.tokens,
        weighted=bool(weighted),
        transform=applied.addresses,
    )
    return Move(
        operation="Combine",
        arguments=arguments,
        buffers=(sent, *applied.buffers, summed),
        handle=handle,
        result=out,
        applied=applied,
    )


def collect_move(shuffle: Launching, values: Any, handle: Handle, out: Any) -> Move:
    """Prepare a collect of one number for each row.

    Raises
    ------
    TypeError, ValueError
    """
    _check_handle(shuffle, "collect", handle)
    shape, dispatched = (handle.tokens, shuffle.k), handle.outputs
    if out is None:
        out = shuffle.memory().xp.empty(shape, "f4")
    sent = _read(values, "collect: values", (shuffle.capacity,), ("float32",))
    collected = _read(out, "collect: out", shape, ("float32",), writable=True)
    arguments = CollectArgs(
        row_values=sent.address,
        ways=dispatched.ways,
        token_counts=dispatched.token_counts,
        routes=dispatched.routes,
        out=collected.address,
        token_count=handle.tokens,
    )
    return Move(operation="Collect", arguments=arguments, buffers=(sent, collected), handle=handle, result=out)


def _new_sums(shuffle: Launching, handle: Handle) -> Any:
    return shuffle.memory().xp.empty((handle.tokens, shuffle.hidden), array_type(shuffle.dtype))


def _check_tokens(shuffle: Launching, count: int, handle: Handle | None) -> None:
    if count > shuffle.max_tokens:
        raise ValueError(f"dispatch: {count} tokens, but max_tokens is {shuffle.max_tokens}; send them in parts")
    if handle is not None:
        _check_handle(shuffle, "dispatch", handle)
        if handle.tokens != count:
            raise ValueError(f"dispatch: {count} tokens, but the handle is of {handle.tokens}; pass its tokens")


def _check_handle(shuffle: Launching, operation: str, handle: Handle) -> None:
    """Raise for a handle of another shuffle, because its rows are in that shuffle."""
    if not isinstance(handle, Handle):
        kind = type(handle).__name__
        raise TypeError(f"{operation}: handle is an object of {kind}; expecting the handle that a dispatch returned")
    if handle.window is not shuffle.memory().window:
        raise ValueError(
            f"{operation}: the handle is of another shuffle; pass one that a dispatch of this shuffle has returned"
        )


def _applied(shuffle: Launching, transform: Any, operation: str, result: str) -> row_transform.Applied:
    """Return a transform for a kernel with results of type `result`.

    Without `transform` it is the identity.
    """
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
    """Return an argument's buffer; raise unless shape, type and order are as expected.

    In `shape`, None is any length.
    """
    buffer = resolve(array, name, writable=writable, device=backends.select(), rows=True)
    found = buffer.shape
    if found != shape and not _fits(found, shape):
        wanted = ["n" if length is None else str(length) for length in shape]
        raise ValueError(f"{name} has the shape {found}; expecting ({', '.join(wanted)})")
    if buffer.datatype.name not in types:
        # If NumPy has no bfloat16, rows and results are arrays of uint16 with the same bits, which programs pass as
        # arguments.
        if buffer.datatype.name != "uint16" or "bfloat16" not in types:
            raise TypeError(f"{name} is an array of {buffer.datatype.name}; expecting {' or '.join(types)}")
        buffer.datatype = datatypes.of("bfloat16")
    check_c_order(buffer.owner, name)
    return buffer


def _fits(found: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    return len(found) == len(shape) and all(want in (None, got) for want, got in zip(shape, found, strict=True))
