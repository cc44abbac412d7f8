"""Allgather inside a node."""

from __future__ import annotations

from typing import Any

from ..arrays.places import on_host
from ..derived.calls import BLOCKS, ONE, takes_derived
from ..launch.call import Call, is_in_place
from ..memory.parameters import MoveArgs
from ..numba_kernels import calls as numba
from ..team.base import IntraBase as Intracomm
from .arguments import check_algorithm, check_fits, resolve_recvbuf, resolve_sendbuf
from .calls import move_call
from .copy_engine import COPY_ENGINE, Copy, Rounds, copy_engine_call, peers_of
from .transformed import transformed
from .transports import choose_spans

choose = choose_spans("allgather")


@takes_derived("Allgather", ONE, BLOCKS)
def allgather(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, transform: Any = None
) -> Call | None:
    """See `Intracomm.Allgather`."""
    if transform is not None:
        return transformed(comm, "Allgather", sendbuf, recvbuf, transform, algorithm)
    if on_host(sendbuf, recvbuf):
        return None
    check_algorithm("Allgather", algorithm, COPY_ENGINE, numba.NAME)
    recv = resolve_recvbuf("Allgather", recvbuf, comm.size)
    if is_in_place(sendbuf):
        send, address = recv, recv.address + comm.rank * recv.nbytes
    else:
        send = resolve_sendbuf("Allgather", sendbuf)
        address = send.address
    check_fits("Allgather", send.nbytes, recv.nbytes)
    nbytes = recv.nbytes
    if numba.wanted(algorithm):
        return numba.move(comm, "Allgather", address, nbytes, (send, recv))

    def rounds_of(bases: list[int]) -> Rounds:
        copies = [Copy(bases[rank] + comm.rank * nbytes, address, nbytes) for rank in peers_of(comm)]
        if not is_in_place(sendbuf):
            copies.append(Copy(recv.address + comm.rank * nbytes, address, nbytes))
        return [copies]

    buffers = send, recv
    copied = copy_engine_call(comm, "Allgather", algorithm, nbytes=nbytes, buffers=buffers, rounds_of=rounds_of)
    args = MoveArgs(send=address, recv=recv.address, nbytes=nbytes)
    return copied or move_call("Allgather", choose, args, buffers)
