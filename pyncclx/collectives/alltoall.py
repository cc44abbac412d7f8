"""Alltoall inside a node."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..arrays.buffers import Buffer
from ..arrays.places import on_host
from ..derived.calls import BLOCKS
from ..errors import NotSupported
from ..launch.call import Call, is_in_place
from ..memory.parameters import MoveArgs
from ..numba_kernels import calls as numba
from ..team.base import IntraBase as Intracomm
from .arguments import check_algorithm, check_fits, resolve_recvbuf, resolve_sendbuf
from .calls import move_call
from .copy_engine import COPY_ENGINE, Copy, Rounds, copy_engine_call, peers_of
from .lowering import lowered_by
from .transformed import Arguments, arguments_of, transformed_call
from .transports import choose_spans

choose = choose_spans("alltoall")


class Exchange(NamedTuple):
    """The checked arguments of Alltoall. In place, both buffers are the same one."""

    send: Buffer
    recv: Buffer
    algorithm: str | None


def _lower(comm: Intracomm, given: Exchange | Arguments) -> Call:
    if isinstance(given, Arguments):
        return transformed_call(given)
    send, recv, algorithm = given
    check_algorithm("Alltoall", algorithm, COPY_ENGINE, numba.NAME)
    nbytes, buffers = recv.nbytes, (send, recv)
    if numba.wanted(algorithm):
        return numba.move(comm, "Alltoall", send.address, nbytes, buffers)

    def rounds_of(bases: list[int]) -> Rounds:
        ranks = [*peers_of(comm), comm.rank]
        return [[Copy(bases[rank] + comm.rank * nbytes, send.address + rank * nbytes, nbytes) for rank in ranks]]

    if algorithm is not None and send is recv:
        raise NotSupported("Alltoall: only the kernel works in place; leave out algorithm")
    copied = None
    if send is not recv:
        copied = copy_engine_call(comm, "Alltoall", algorithm, nbytes=nbytes, buffers=buffers, rounds_of=rounds_of)
    args = MoveArgs(send=send.address, recv=recv.address, nbytes=nbytes)
    return copied or move_call("Alltoall", choose, args, buffers)


@lowered_by(_lower, BLOCKS, BLOCKS)
def alltoall(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, transform: Any = None
) -> Exchange | Arguments | None:
    """Check the arguments of `Intracomm.Alltoall`; return its call."""
    if transform is not None:
        return arguments_of(comm, "Alltoall", sendbuf, recvbuf, transform, algorithm)
    if on_host(sendbuf, recvbuf):
        return None
    recv = resolve_recvbuf("Alltoall", recvbuf, comm.size)
    send = recv if is_in_place(sendbuf) else resolve_sendbuf("Alltoall", sendbuf, comm.size)
    check_fits("Alltoall", send.nbytes, recv.nbytes)
    return Exchange(send, recv, algorithm)
