"""Alltoall inside a node."""

from __future__ import annotations

from typing import Any

from ..arrays.places import on_host
from ..derived.calls import BLOCKS, takes_derived
from ..errors import NotSupported
from ..launch.call import Call, is_in_place
from ..memory.parameters import MoveArgs
from ..numba_kernels import calls as numba
from ..team.base import IntraBase as Intracomm
from .arguments import check_algorithm, check_fits, resolve_recvbuf, resolve_sendbuf
from .calls import move_call
from .copy_engine import COPY_ENGINE, Copy, Rounds, copy_engine_call, peers_of
from .transformed import transformed
from .transports import choose_spans

choose = choose_spans("alltoall")


@takes_derived("Alltoall", BLOCKS, BLOCKS)
def alltoall(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, transform: Any = None
) -> Call | None:
    """See `Intracomm.Alltoall`."""
    if transform is not None:
        return transformed(comm, "Alltoall", sendbuf, recvbuf, transform, algorithm)
    if on_host(sendbuf, recvbuf):
        return None
    check_algorithm("Alltoall", algorithm, COPY_ENGINE, numba.NAME)
    recv = resolve_recvbuf("Alltoall", recvbuf, comm.size)
    send = recv
    if not is_in_place(sendbuf):
        send = resolve_sendbuf("Alltoall", sendbuf, comm.size)
    check_fits("Alltoall", send.nbytes, recv.nbytes)
    nbytes = recv.nbytes
    if numba.wanted(algorithm):
        return numba.move(comm, "Alltoall", send.address, nbytes, (send, recv))

    def rounds_of(bases: list[int]) -> Rounds:
        ranks = [*peers_of(comm), comm.rank]
        return [[Copy(bases[rank] + comm.rank * nbytes, send.address + rank * nbytes, nbytes) for rank in ranks]]

    if algorithm is not None and send is recv:
        raise NotSupported("Alltoall: only the kernel works in place; leave out algorithm")
    buffers, copied = (send, recv), None
    if send is not recv:
        copied = copy_engine_call(comm, "Alltoall", algorithm, nbytes=nbytes, buffers=buffers, rounds_of=rounds_of)
    args = MoveArgs(send=send.address, recv=recv.address, nbytes=nbytes)
    return copied or move_call("Alltoall", choose, args, buffers)
