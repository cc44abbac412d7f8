"""Messages inside `jax.jit`; see `pyncclx.jax`."""

from __future__ import annotations

import operator
from typing import Any

import jax.numpy as jnp
from mpi4py import MPI

from ..errors import MPIError
from .adjoints import differentiate_exchange
from .primitives import Call, batch_alike, define
from .statics import comm_of, static_of

__all__ = ["recv", "send", "sendrecv"]

_SOURCES, _TAGS = (MPI.ANY_SOURCE, MPI.PROC_NULL), (MPI.ANY_TAG,)
#: The constants that an argument may be, besides a rank or a tag.
_CONSTANTS = {"Recv: source": _SOURCES, "Recv: tag": _TAGS, "Send: dest": (MPI.PROC_NULL,)}
_CONSTANTS |= {"Sendrecv: source": _SOURCES, "Sendrecv: dest": (MPI.PROC_NULL,), "Sendrecv: recvtag": _TAGS}


def _send(call: Call) -> None:
    call.comm.Send(call.ins[0].owner, **call.given)


def _recv(call: Call) -> None:
    call.comm.Recv(call.outs[0].owner, **call.given)


def _sendrecv(call: Call) -> None:
    call.comm.Sendrecv(call.ins[0].owner, recvbuf=call.outs[0].owner, **call.given)


send_p = define("send", lambda x, **given: [], _send, batch=batch_alike)
recv_p = define("recv", lambda x, **given: [x], _recv, aliases={0: 0}, batch=batch_alike)
sendrecv_p = define("sendrecv", lambda sent, into, **given: [into], _sendrecv, aliases={1: 0}, batch=batch_alike)
differentiate_exchange(sendrecv_p)


def _checked(operation: str, comm: Any, **given: Any) -> dict[str, int]:
    """Return ranks and tags as numbers, by the arguments' names.

    Raises
    ------
    TypeError
        If one is not an integer, for example a traced value.
    MPI.Exception
        If the communicator has no such rank (class ERR_RANK), or a tag is negative (class ERR_TAG).
    """
    numbers = {name: operator.index(value) for name, value in given.items()}
    for name, number in numbers.items():
        if number in _CONSTANTS.get(f"{operation}: {name}", ()):
            continue
        if name.endswith("tag"):
            if number < 0:
                raise MPIError(MPI.ERR_TAG, f"{operation}: {name} is {number}; tags are not negative")
        elif not 0 <= number < comm.size:
            raise MPIError(MPI.ERR_RANK, f"{operation}: {name} is {number}; the communicator has {comm.size} ranks")
    return numbers


def send(x: Any, dest: int, *, tag: int = 0, comm: MPI.Intracomm | None = None) -> None:
    """Send an array to another rank.

    Parameters
    ----------
    x : array
    dest : int
    tag : int
    comm : MPI.Intracomm, default MPI.COMM_WORLD

    Raises
    ------
    TypeError, MPI.Exception
        While JAX traces the call, for a rank or a tag that is not valid.
    """
    x, static = jnp.asarray(x), comm_of(comm)
    send_p.bind(x, comm=static, **_checked("Send", static.value, dest=dest, tag=tag))


def recv(
    x: Any,
    source: int = MPI.ANY_SOURCE,
    *,
    tag: int = MPI.ANY_TAG,
    comm: MPI.Intracomm | None = None,
    status: MPI.Status | None = None,
) -> Any:
    """Return an array that another rank has sent.

    Parameters
    ----------
    x : array
        Its shape and dtype are those of the result. Elements that the message does not reach are those of `x`.
    source : int, default MPI.ANY_SOURCE
    tag : int, default MPI.ANY_TAG
    comm : MPI.Intracomm, default MPI.COMM_WORLD
    status : MPI.Status, optional
        Filled in when the message has arrived, by each run of the compiled program.

    Examples
    --------
    >>> received = recv(jnp.zeros(3), source=0, tag=7)  # doctest: +SKIP
    """
    x, static = jnp.asarray(x), comm_of(comm)
    numbers = _checked("Recv", static.value, source=source, tag=tag)
    return recv_p.bind(x, comm=static, status=static_of("status", status), **numbers)[0]


def sendrecv(
    sendbuf: Any,
    recvbuf: Any,
    source: int,
    dest: int,
    *,
    sendtag: int = 0,
    recvtag: int = MPI.ANY_TAG,
    comm: MPI.Intracomm | None = None,
    status: MPI.Status | None = None,
) -> Any:
    """Send an array, and return a received one; JAX differentiates the call.

    The transpose sends the other way: the gradient of the result at `dest` becomes the gradient of `sendbuf`. It
    exchanges the tags, unless `recvtag` is MPI.ANY_TAG.

    Parameters
    ----------
    sendbuf : array
    recvbuf : array
        Its shape and dtype are those of the result. Elements that the message does not reach are those of `recvbuf`.
    source, dest : int
        Ranks, or MPI.PROC_NULL.
    sendtag, recvtag : int
    comm : MPI.Intracomm, default MPI.COMM_WORLD
    status : MPI.Status, optional
        Filled in when the message has arrived, by each run of the compiled program.

    Raises
    ------
    ValueError
        If JAX differentiates a receive from MPI.ANY_SOURCE.

    Examples
    --------
    >>> left = sendrecv(x, x, source=(rank - 1) % size, dest=(rank + 1) % size)  # doctest: +SKIP
    """
    sendbuf, recvbuf, static = jnp.asarray(sendbuf), jnp.asarray(recvbuf), comm_of(comm)
    numbers = _checked("Sendrecv", static.value, source=source, dest=dest, sendtag=sendtag, recvtag=recvtag)
    return sendrecv_p.bind(sendbuf, recvbuf, comm=static, status=static_of("status", status), **numbers)[0]
