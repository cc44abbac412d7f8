"""Allgather and Allgatherv inside a node."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..arrays.buffers import Buffer
from ..arrays.places import on_host
from ..derived.calls import BLOCKS, ONE, VECTOR
from ..launch.call import Call, is_in_place
from ..memory.parameters import MoveArgs
from ..numba_kernels import calls as numba
from ..team.base import IntraBase as Intracomm
from .arguments import Blocks, check_algorithm, check_fits, pack_blocks, resolve_blocks, resolve_equal, resolve_sendbuf
from .calls import move_call
from .copy_engine import COPY_ENGINE, Copy, Rounds, copy_engine_call, peers_of
from .lowering import lowered_by
from .transformed import Arguments, arguments_of, transformed_call
from .transports import choose_spans

CHOOSE = {"Allgather": choose_spans("allgather"), "Allgatherv": choose_spans("allgatherv")}


class Gathering(NamedTuple):
    """The checked arguments of Allgather or Allgatherv."""

    operation: str
    send: Buffer  # the receive buffer if in place
    address: int  # address of this rank's data
    blocks: Blocks  # blocks of the receive buffer
    algorithm: str | None = None


def gathering_of(
    comm: Intracomm, operation: str, sendbuf: Any, blocks: Blocks, algorithm: str | None = None
) -> Gathering:
    """Check this rank's data; return the description of the call."""
    send, address = blocks.buffer, blocks.address(comm.rank)
    if not is_in_place(sendbuf):
        send = resolve_sendbuf(operation, sendbuf)
        address = send.address
        check_fits(operation, send.nbytes, blocks.nbytes[comm.rank])
    return Gathering(operation, send, address, blocks, algorithm)


def _lower(comm: Intracomm, given: Gathering | Arguments) -> Call:
    if isinstance(given, Arguments):
        return transformed_call(given)
    _, send, address, (recv, *_), algorithm = given
    check_algorithm("Allgather", algorithm, COPY_ENGINE, numba.NAME)
    nbytes, buffers = recv.nbytes, (send, recv)
    if numba.wanted(algorithm):
        return numba.move(comm, "Allgather", address, nbytes, buffers)

    def rounds_of(bases: list[int]) -> Rounds:
        copies = [Copy(bases[rank] + comm.rank * nbytes, address, nbytes) for rank in peers_of(comm)]
        if send is not recv:
            copies.append(Copy(recv.address + comm.rank * nbytes, address, nbytes))
        return [copies]

    copied = copy_engine_call(comm, "Allgather", algorithm, nbytes=nbytes, buffers=buffers, rounds_of=rounds_of)
    args = MoveArgs(send=address, recv=recv.address, nbytes=nbytes)
    return copied or move_call("Allgather", CHOOSE["Allgather"], args, buffers)


@lowered_by(_lower, ONE, BLOCKS)
def allgather(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, transform: Any = None
) -> Gathering | Arguments | None:
    """Check the arguments of `Intracomm.Allgather`; return its call."""
    if transform is not None:
        return arguments_of(comm, "Allgather", sendbuf, recvbuf, transform, algorithm)
    if on_host(sendbuf, recvbuf):
        return None
    blocks = resolve_equal(comm, recvbuf, "Allgather", "recvbuf")
    return gathering_of(comm, "Allgather", sendbuf, blocks, algorithm)


def _lower_vector(comm: Intracomm, given: Gathering) -> Call:
    blocks = given.blocks
    recv, lengths, _ = blocks
    return Call(
        operation="Allgatherv",
        choose=CHOOSE["Allgatherv"],
        sized=(max(lengths),),
        arguments=pack_blocks(blocks, send=given.address, recv=recv.address, nbytes=lengths[comm.rank]),
        buffers=(given.send, recv),
        signature=(f"{lengths} bytes",),
        moves=True,
    )


@lowered_by(_lower_vector, ONE, VECTOR)
def allgatherv(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> Gathering | None:
    """Check the arguments of `Intracomm.Allgatherv`; return its call."""
    if on_host(sendbuf, recvbuf):
        return None
    blocks = resolve_blocks(comm, recvbuf, "Allgatherv", "recvbuf")
    return gathering_of(comm, "Allgatherv", sendbuf, blocks)
