"""The primitives that JAX differentiates: sums and exchanges."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from mpi4py import MPI

from .primitives import ORDERED, Call, as_bytes, as_numbers, batch_alike, define

__all__ = ["allreduce_p", "sendrecv_p"]

# ---- a sum's transpose is the identity, as in mpi4jax, and the identity's transpose is the sum -----------------------


def _allreduce(call: Call) -> None:
    if call.ins[0].nbytes:
        call.comm.Allreduce(as_numbers(call.ins[0]), as_numbers(call.outs[0]), call.given["op"])


def _jvp_of_sum(primitive: Any, primals: Any, tangents: Any, **given: Any) -> Any:
    _check_sum(given)
    return primitive.bind(*primals, **given), primitive.bind(ad.instantiate_zeros(tangents[0]), **given)


def _transpose_of_sum(other: Any, cotangents: Any, x: Any, **given: Any) -> Any:
    _check_sum(given)
    return other.bind(ad.instantiate_zeros(cotangents[0]), **given)


def _check_sum(given: dict[str, Any]) -> None:
    if given["op"].value != MPI.SUM:
        raise NotImplementedError("allreduce: JAX differentiates it for op=MPI.SUM only")


allreduce_p = define("allreduce", lambda x, **given: [x], _allreduce, batch=batch_alike)

#: The transpose of a sum. It has no effect: XLA may move it.
same_p = Primitive("pyncclx_same")
same_p.multiple_results = True
same_p.def_impl(lambda x, **given: [x])
same_p.def_abstract_eval(lambda x, **given: [x])
mlir.register_lowering(same_p, lambda ctx, x, **given: [x])
batching.primitive_batchers[same_p] = functools.partial(batch_alike, same_p)

for _one, _other in ((allreduce_p, same_p), (same_p, allreduce_p)):
    ad.primitive_jvps[_one] = functools.partial(_jvp_of_sum, _one)
    ad.primitive_transposes[_one] = functools.partial(_transpose_of_sum, _other)

# ---- an exchange's transpose sends the other way ---------------------------------------------------------------------


def _sendrecv(call: Call) -> None:
    given = call.given
    call.comm.Sendrecv(
        as_bytes(call.ins[0]),
        given["dest"],
        given["sendtag"],
        as_bytes(call.outs[0]),
        given["source"],
        given["recvtag"],
        given.get("status"),
    )


def _jvp_of_exchange(primitive: Any, primals: Any, tangents: Any, **given: Any) -> Any:
    zeros = map(ad.instantiate_zeros, tangents)
    return primitive.bind(*primals, **given), tangents_p.bind(*zeros, **{**given, "status": None})


def _transpose_of_exchange(cotangents: Any, sent: Any, received: Any, **given: Any) -> list[Any]:
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


def _refuse(ctx: Any, sent: Any, received: Any, **given: Any) -> NoReturn:
    raise RuntimeError("sendrecv: JAX differentiates it in reverse mode only (jax.grad, jax.vjp, jax.jacrev)")


def _received(sent: Any, received: Any, **given: Any) -> list[Any]:
    return [received]


sendrecv_p = define("sendrecv", _received, _sendrecv, aliases={1: 0}, batch=batch_alike)

#: The exchange of tangents, which is never run: only its transpose is.
tangents_p = Primitive("pyncclx_sendrecv_of_tangents")
tangents_p.multiple_results = True
tangents_p.def_impl(functools.partial(_refuse, None))
tangents_p.def_effectful_abstract_eval(lambda sent, received, **given: ([received], {ORDERED}))
mlir.register_lowering(tangents_p, _refuse)
batching.primitive_batchers[tangents_p] = functools.partial(batch_alike, tangents_p)

ad.primitive_jvps[sendrecv_p] = functools.partial(_jvp_of_exchange, sendrecv_p)
ad.primitive_jvps[tangents_p] = functools.partial(_jvp_of_exchange, tangents_p)
ad.primitive_transposes[sendrecv_p] = ad.primitive_transposes[tangents_p] = _transpose_of_exchange
