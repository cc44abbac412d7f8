"""Messages inside `jax.jit`; see `pyncclx.jax`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from mpi4py import MPI

from .adjoints import sendrecv_p
from .primitives import Call, as_bytes, batch_alike, define
from .statics import comm_of, rank_of, status_of, tag_of

__all__ = ["recv", "send", "sendrecv"]

_SOURCES, _DESTINATIONS, _TAGS = (MPI.ANY_SOURCE, MPI.PROC_NULL), (MPI.PROC_NULL,), (MPI.ANY_TAG,)


def _send(call: Call) -> None:
    call.comm.Send(as_bytes(call.ins[0]), call.given["dest"], call.given["tag"])


def _recv(call: Call) -> None:
    call.comm.Recv(as_bytes(call.outs[0]), call.given["source"], call.given["tag"], call.given.get("status"))


send_p = define("send", lambda x, **given: [], _send, batch=batch_alike)
recv_p = define("recv", lambda x, **given: [x], _recv, aliases={0: 0}, batch=batch_alike)


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
    dest, tag = rank_of(static.value, dest, "Send: dest", _DESTINATIONS), tag_of(tag, "Send: tag")
    send_p.bind(x, dest=dest, tag=tag, comm=static)


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
    source, tag = rank_of(static.value, source, "Recv: source", _SOURCES), tag_of(tag, "Recv: tag", _TAGS)
    return recv_p.bind(x, source=source, tag=tag, comm=static, status=status_of(status))[0]


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
    return sendrecv_p.bind(
        sendbuf,
        recvbuf,
        source=rank_of(static.value, source, "Sendrecv: source", _SOURCES),
        dest=rank_of(static.value, dest, "Sendrecv: dest", _DESTINATIONS),
        sendtag=tag_of(sendtag, "Sendrecv: sendtag"),
        recvtag=tag_of(recvtag, "Sendrecv: recvtag", _TAGS),
        comm=static,
        status=status_of(status),
    )[0]
