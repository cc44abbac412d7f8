"""Gradients of the primitives that JAX differentiates: sums and exchanges.

Both are linear, so the tangents of their results are their results for the tangents of their arguments.
"""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import jax.numpy as jnp
from jax.interpreters import ad
from mpi4py import MPI

from .primitives import batch_alike, define_lowered

__all__ = ["differentiate_exchange", "differentiate_sum"]


def _jvp(primitive: Any, of_tangents: Any, primals: Any, tangents: Any, **given: Any) -> Any:
    _check_sum(given)
    return primitive.bind(*primals, **given), of_tangents.bind(*map(ad.instantiate_zeros, tangents), **given)


def _check_sum(given: dict[str, Any]) -> None:
    if "op" in given and given["op"].value != MPI.SUM:
        raise NotImplementedError("allreduce: JAX differentiates it for op=MPI.SUM only")


# ---- a sum's transpose is the identity, as in mpi4jax, and the identity's transpose is the sum -----------------------


def differentiate_sum(allreduce_p: Any) -> None:
    """Let JAX differentiate sums over all ranks.

    Their transpose has no effect: XLA may move it.
    """
    same_p = define_lowered("same", _alike, lambda ctx, x, **given: [x], is_ordered=False, batch=batch_alike)
    for primitive, transposed in ((allreduce_p, same_p), (same_p, allreduce_p)):
        ad.primitive_jvps[primitive] = functools.partial(_jvp, primitive, primitive)
        ad.primitive_transposes[primitive] = functools.partial(_transpose_of_sum, transposed)


def _alike(*arguments: Any, **given: Any) -> list[Any]:
    """Return the type of the last argument, which is that of the result."""
    return [arguments[-1]]


def _transpose_of_sum(transposed: Any, cotangents: Any, x: Any, **given: Any) -> Any:
    _check_sum(given)
    return transposed.bind(ad.instantiate_zeros(cotangents[0]), **given)


# ---- an exchange's transpose sends the other way ---------------------------------------------------------------------


def differentiate_exchange(sendrecv_p: Any) -> None:
    """Let JAX differentiate exchanges in reverse mode.

    The exchange of tangents is never run: only its transpose is.
    """
    tangents_p = define_lowered("sendrecv_of_tangents", _alike, _refuse, is_ordered=True, batch=batch_alike)
    for primitive in (sendrecv_p, tangents_p):
        ad.primitive_jvps[primitive] = functools.partial(_jvp, primitive, tangents_p)
        ad.primitive_transposes[primitive] = functools.partial(_transpose_of_exchange, sendrecv_p)


def _refuse(ctx: Any, sent: Any, received: Any, **given: Any) -> NoReturn:
    raise RuntimeError("sendrecv: JAX differentiates it in reverse mode only (jax.grad, jax.vjp, jax.jacrev)")


def _transpose_of_exchange(sendrecv_p: Any, cotangents: Any, sent: Any, received: Any, **given: Any) -> list[Any]:
    cotangent = ad.instantiate_zeros(cotangents[0])
    of_sent = of_received = None
    if ad.is_undefined_primal(sent):
        back = {**given, "source": given["dest"], "dest": given["source"], "status": None}
        if given["source"] == MPI.ANY_SOURCE:
            raise ValueError("sendrecv: JAX cannot differentiate a receive from MPI.ANY_SOURCE; give a rank")
        if given["recvtag"] != MPI.ANY_TAG:
            back["sendtag"], back["recvtag"] = given["recvtag"], given["sendtag"]
        nothing = jnp.zeros(sent.aval.shape, sent.aval.dtype)
        (of_sent,) = sendrecv_p.bind(cotangent, nothing, **back)
    if ad.is_undefined_primal(received):
        # From MPI.PROC_NULL nothing arrives, and the result is the receive buffer.
        of_received = cotangent if given["source"] == MPI.PROC_NULL else ad.Zero(received.aval)
    return [of_sent, of_received]
