"""Primitives of token shuffles, and their gradients.

A dispatch writes the library's handle into an array of JAX, the table of its routing. Combines and the dispatches of
gradients read it. So JAX may keep several routings, and carry them through loops.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from ..arrays.buffers import Buffer
from ..tokens import calls
from ..tokens.launch import Move
from ..tokens.memory import address_of
from .primitives import Call, define, like
from .statics import Static

__all__ = ["combine", "dispatch", "part_of"]

# ---- what XLA calls --------------------------------------------------------------------------------------------------


def _handle_of(call: Call, table: Buffer, tokens: int) -> Any:
    """Return the library's handle in the memory of a table."""
    call.check_device("TokenShuffle")
    return call.given["shuffle"].memory().handle_at(table.address, tokens)


def _launch_dispatch(call: Call, move: Move) -> None:
    """Launch a dispatch, and copy its rows into JAX's memory.

    The next dispatch overwrites the rows in the shuffle's memory.
    """
    shuffle, result = call.given["shuffle"], call.outs[0]
    rows, _ = shuffle.launch(move)
    shuffle.memory().team.device.copy(result.address, address_of(rows.data), result.nbytes, call.comm.stream)


def _dispatch(call: Call) -> None:
    tokens, ids, *weights = call.ins
    handle, given = _handle_of(call, call.outs[1], tokens.shape[0]), weights[0] if weights else None
    _launch_dispatch(call, calls.dispatch_move(call.given["shuffle"], tokens, ids, given, into=handle))


def _dispatch_again(call: Call) -> None:
    tokens, table = call.ins
    handle = _handle_of(call, table, tokens.shape[0])
    _launch_dispatch(call, calls.dispatch_move(call.given["shuffle"], tokens, None, None, handle))


def _combine(call: Call) -> None:
    shuffle, (results, table, *weights), (out,) = call.given["shuffle"], call.ins, call.outs
    handle = _handle_of(call, table, out.shape[0])
    if weights:
        handle = replace(handle, outputs=handle.outputs._replace(row_weights=weights[0].address))
    shuffle.launch(calls.combine_move(shuffle, results, handle, out, weighted=bool(weights)))


def _collect(call: Call) -> None:
    shuffle, (values, table), (out,) = call.given["shuffle"], call.ins, call.outs
    shuffle.launch(calls.collect_move(shuffle, values, _handle_of(call, table, out.shape[0]), out))


# ---- primitives ------------------------------------------------------------------------------------------------------


def _rows_like(tokens: Any, *others: Any, shuffle: Static) -> list[Any]:
    return [like((shuffle.value.capacity, shuffle.value.hidden), tokens)]


def _dispatched(tokens: Any, ids: Any, *weights: Any, shuffle: Static) -> list[Any]:
    nbytes = shuffle.value.memory().handle_nbytes(tokens.shape[0])
    return [*_rows_like(tokens, shuffle=shuffle), like((nbytes // 4,), ids)]


dispatch_p = define("dispatch", _dispatched, _dispatch)
dispatch_again_p = define("dispatch_again", _rows_like, _dispatch_again)
combine_p = define("combine", lambda x, *_, tokens, shuffle: [like((tokens, shuffle.value.hidden), x)], _combine)
collect_p = define("collect", lambda x, _, tokens, shuffle: [like((tokens, shuffle.value.k), x)], _collect)


def part_of(shuffle: Static, table: Any, name: str) -> Any:
    """Return an array of a table as int32; of 64-bit numbers, the low words."""
    part = shuffle.value.memory().handle_parts[name]
    return table[part.offset // 4 : part.end // 4 : part.dtype.itemsize // 4]


def _zeroed(data: Any, table: Any, shuffle: Static) -> Any:
    """Return rows with zeros past the last one, where there may be anything, NaN too."""
    return jnp.where(part_of(shuffle, table, "row_experts")[:, None] < 0, 0, data)


# ---- gradients -------------------------------------------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def dispatch(tokens: Any, ids: Any, weights: tuple[Any, ...], shuffle: Static) -> Any:
    """Return the received rows, their weights and the table.

    `weights` has one array, or none.
    """
    data, table = dispatch_p.bind(tokens, ids, *weights, shuffle=shuffle)
    row_weights = jax.lax.bitcast_convert_type(part_of(shuffle, table, "row_weights"), jnp.float32)
    return _zeroed(data, table, shuffle), row_weights, table


def _dispatch_forward(tokens: Any, ids: Any, weights: Any, shuffle: Static) -> Any:
    results = dispatch(tokens, ids, weights, shuffle)
    return results, (ids, weights, results[2])


def _dispatch_backward(shuffle: Static, kept: Any, cotangents: Any) -> Any:
    """Add up the gradients of each token's rows, and collect those of its weights."""
    ids, weights, table = kept
    of_rows, of_row_weights, _ = cotangents
    given = {"tokens": len(ids), "shuffle": shuffle}
    (of_tokens,) = combine_p.bind(of_rows, table, **given)
    of_weights = collect_p.bind(of_row_weights, table, **given) if weights else ()
    return of_tokens, None, tuple(of_weights)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def combine(results: Any, weights: tuple[Any, ...], table: Any, tokens: int, shuffle: Static) -> Any:
    """Return the sums of each token's results.

    If `weights` has an array, the rows' weights, results are multiplied by it.
    """
    return combine_p.bind(results, table, *weights, tokens=tokens, shuffle=shuffle)[0]


def _combine_forward(results: Any, weights: Any, table: Any, *given: Any) -> Any:
    return combine(results, weights, table, *given), (results, weights, table)


def _combine_backward(tokens: int, shuffle: Static, kept: Any, cotangent: Any) -> Any:
    """Send the gradients of the sums to the rows.

    The gradient of a row's weight is the product of this gradient and the row's result.
    """
    results, weights, table = kept
    (sent,) = dispatch_again_p.bind(cotangent, table, shuffle=shuffle)
    sent = _zeroed(sent, table, shuffle)
    if not weights:
        return sent, (), None
    products = sent.astype(jnp.float32) * _zeroed(results, table, shuffle)
    return (sent * weights[0][:, None]).astype(results.dtype), (products.sum(1),), None


dispatch.defvjp(_dispatch_forward, _dispatch_backward)
combine.defvjp(_combine_forward, _combine_backward)
