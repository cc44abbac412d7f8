"""Reduce."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .. import backends
from ..arrays.buffers import on_host, resolve, where
from ..arrays.datatypes import Datatype
from ..errors import MPIError
from ..launch.call import Call, check_equal, check_root, is_in_place
from ..launch.choice import Choice
from ..memory.layout import PACK_NBYTES, Layout
from ..memory.parameters import ReduceArgs
from ..operators import ops, user_op
from .ladders import BESIDE_WINDOWS_NBYTES, Rung, chain, climb, in_lines, pipeline

if TYPE_CHECKING:
    from ..team.base import IntraBase as Intracomm

# root receives the vector size - 1 times: worth it for the trip it saves while it is short.
ONE_SHOT_NBYTES = 1200 << 10  # that reach root
TWO_SHOT_NBYTES = 48 << 20  # of the vector: a longer one is worth the time that a chain takes to begin


@lru_cache  # the same few sizes come again and again
def choose(layout: Layout, nbytes: int, algorithm: str | None = None, chained: bool = True) -> Choice:
    """One shot while short, then two shots of lines, a pipeline when long, a chain when very long, if any."""
    limit = ONE_SHOT_NBYTES // max(1, layout.size - 1)
    channel_most = (layout.line_nbytes - 32) * layout.peers  # what the parts are rounded up by is left free
    one_shot = Rung("reduce_one_shot", limit, layout.packet_nbytes, layout.slot_nbytes)
    two_shots = in_lines(layout, "reduce_two_shot_lines", channel_most, BESIDE_WINDOWS_NBYTES)
    rungs = [one_shot, two_shots, pipeline("reduce_two_shot")]
    if chained and layout.size > 2:
        rungs[-1:] = rungs[-1]._replace(chosen=TWO_SHOT_NBYTES), chain("reduce_chain")
    choice = climb(layout, nbytes, tuple(rungs), algorithm)
    of_two = layout.size == 2 and choice.kernel == "reduce_two_shot"
    return choice._replace(kernel="reduce_two_shot_to_root") if of_two else choice


def can_chain(size: int, root: int, datatype: Datatype, template: tuple[str, ...]) -> bool:
    """Whether partial results can go from rank to rank, once over each link (cuda/collectives/reduce_chain.cu)."""
    operator = user_op.named(template)
    whole = operator is None or operator.group_nbytes == PACK_NBYTES
    return root in (0, 1, size - 1) and whole and datatype.name not in ops.HALVES


def reduce(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, root: int = 0, *, algorithm: str | None = None
) -> Call | None:
    """See `Intracomm.Reduce`."""
    at_root = comm.rank == root
    if on_host(sendbuf, recvbuf if at_root or where(sendbuf) is None else None):
        return None
    root = check_root(comm, "Reduce", root)
    device = backends.select()
    if at_root:
        recv = resolve(recvbuf, "Reduce: recvbuf", writable=True, device=device)
        send = recv if is_in_place(sendbuf) else resolve(sendbuf, "Reduce: sendbuf", writable=False, device=device)
        check_equal("Reduce", send, recv)
    else:
        if is_in_place(sendbuf):
            text = f"Reduce: sendbuf is {sendbuf!r} on rank {comm.rank}; only root can reduce in place"
            raise MPIError(MPI.ERR_ARG, text)
        recv = send = resolve(sendbuf, "Reduce: sendbuf", writable=False, device=device)
    reduction = ops.of(op, "Reduce")
    template = ops.template("Reduce", reduction, send)
    return Call(
        operation="Reduce",
        choose=choose,
        sized=(send.nbytes, algorithm, can_chain(comm.size, root, send.datatype, template)),
        template=template,
        arguments=ReduceArgs(send=send.address, recv=recv.address, nbytes=send.nbytes, root=root).pack(),
        buffers=(send, recv),
        signature=(send.count, send.datatype.name, reduction.name, root, algorithm),
        empty=send.nbytes == 0,
    )
