"""The kinds of operations that soak.py draws from: `KINDS`, functions that make a job with a `Maker`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from support.arrays import HOST, xp
from support.soak_jobs import (
    EXPERTS_EACH,
    HIDDEN,
    TOKENS,
    Call,
    Captured,
    Freed,
    Job,
    Maker,
    Messages,
    Pair,
    Persistent,
    Registered,
    Shuffled,
    side,
)

HIGHEST_TAG = 1 << 14
FEW_TOKENS = 3


def draw(maker: Maker) -> Job:
    """One of a random kind."""
    maker.draw()
    kind = KINDS[maker.shared.integers(len(KINDS))]
    return kind(maker)


def call(method: str, arguments: Sequence[Any], outputs: Sequence[Pair], **keywords: Any) -> Call:
    """A call with the same arguments for both."""
    device, host = ([side(argument, which) for argument in arguments] for which in (0, 1))
    return Call(method, device, host, outputs, **keywords)


def bcast(m: Maker) -> Job:
    buffer = m.both(m.count())
    return call("Bcast", (buffer, m.root), [buffer])


def allreduce(m: Maker) -> Job:
    count = m.count()
    recv = m.both(count)
    return call("Allreduce", (MPI.IN_PLACE if m.in_place else m.sent(count), recv, m.op), [recv])


def reduce(m: Maker) -> Job:
    count = m.count()
    recv = m.both(count)
    in_place = m.in_place and m.rank == m.root
    return call("Reduce", (MPI.IN_PLACE if in_place else m.sent(count), recv, m.op, m.root), [recv])


def prefix(m: Maker) -> Job:
    count = m.count()
    recv = m.both(count)
    return call(("Scan", "Exscan")[m.shared.integers(2)], (m.sent(count), recv, m.op), [recv])


def reduce_scatter_block(m: Maker) -> Job:
    count = m.count(m.size)
    recv = m.room(count)
    return call("Reduce_scatter_block", (m.sent(count * m.size), recv, m.op), [recv])


def reduce_scatter(m: Maker) -> Job:
    counts = m.counts()[0].tolist()
    if m.in_place:
        whole = m.both(sum(counts))
        mine = Pair(*(each[: counts[m.rank]] for each in whole))  # MPI leaves the rest undefined
        return call("Reduce_scatter", (MPI.IN_PLACE, whole, counts, m.op), [mine])
    recv = m.room(counts[m.rank])
    return call("Reduce_scatter", (m.sent(sum(counts)), recv, counts, m.op), [recv])


def allgather(m: Maker) -> Job:
    count = m.count(m.size)
    recv = m.both(count * m.size)
    return call("Allgather", (MPI.IN_PLACE if m.in_place else m.sent(count), recv), [recv])


def allgatherv(m: Maker) -> Job:
    counts = m.counts()[0].tolist()
    recv = m.room(sum(counts))
    return call("Allgatherv", (m.sent(counts[m.rank]), [recv, counts]), [recv])


def gather(m: Maker) -> Job:
    count = m.count(m.size)
    recv = m.room(count * m.size)
    return call("Gather", (m.sent(count), recv if m.rank == m.root else None, m.root), [recv])


def gatherv(m: Maker) -> Job:
    counts = m.counts()[0].tolist()
    recv = m.room(sum(counts))
    return call("Gatherv", (m.sent(counts[m.rank]), [recv, counts] if m.rank == m.root else None, m.root), [recv])


def scatter(m: Maker) -> Job:
    count = m.count(m.size)
    recv = m.room(count)
    return call("Scatter", (m.sent(count * m.size) if m.rank == m.root else None, recv, m.root), [recv])


def scatterv(m: Maker) -> Job:
    counts = m.counts()[0].tolist()
    recv = m.room(counts[m.rank])
    return call("Scatterv", ([m.sent(sum(counts)), counts] if m.rank == m.root else None, recv, m.root), [recv])


def alltoall(m: Maker) -> Job:
    count = m.count(m.size)
    recv = m.both(count * m.size)
    return call("Alltoall", (MPI.IN_PLACE if m.in_place else m.sent(count * m.size), recv), [recv])


def alltoallv(m: Maker) -> Job:
    matrix = m.counts()
    sends, recvs = matrix[m.rank].tolist(), matrix[:, m.rank].tolist()
    recv = m.room(sum(recvs))
    return call("Alltoallv", ([m.sent(sum(sends)), sends], [recv, recvs]), [recv])


def dynamic(m: Maker) -> Job:
    """Counts on the device, more room than is needed."""
    matrix = m.counts()
    sends, recvs = matrix[m.rank], matrix[:, m.rank]
    send, recv = m.sent(int(sends.sum())), m.room(int(recvs.sum()) + 3)
    found = Pair(xp.full(m.size, -1, "i8"), recvs)
    arguments = [send.device, xp.asarray(sends)], [recv.device, found.device]
    host = [send.host, sends.tolist()], [recv.host, recvs.tolist()]
    return Call("Alltoallv", arguments, host, [recv, found], layout="packed")


def sendrecv(m: Maker) -> Job:
    """Around a ring, with a stride."""
    count, step = m.count(), int(m.shared.integers(m.size))
    recv = m.room(count)
    to, source, tag = (m.rank + step) % m.size, (m.rank - step) % m.size, step
    return call("Sendrecv", (m.sent(count), to, tag, recv, source, tag), [recv])


def barrier(m: Maker) -> Job:
    return Call("Barrier", (), (), [], device=True)


def messages(m: Maker) -> Job:
    """Of random ranks to random ranks."""
    receives, sends = [], []
    for _ in range(m.shared.integers(1, 2 * m.size + 1)):
        source, dest = m.shared.integers(m.size, size=2).tolist()
        count, any_source = m.count(m.size), m.shared.integers(2)
        m.messages += 1
        tag = m.messages % HIGHEST_TAG
        if dest == m.rank:
            receives.append((m.room(count), MPI.ANY_SOURCE if any_source else source, tag))
        if source == m.rank:
            sends.append((m.sent(count), dest, tag))
    return (Messages, Persistent)[m.shared.integers(2)](receives, sends)


def shuffled(m: Maker) -> Job:
    """Tokens of random numbers, of some ranks or of all few, to random experts or to none."""
    most = (FEW_TOKENS, TOKENS)[m.shared.integers(2)]
    tokens = m.shared.integers(0, most + 1, m.size)
    chosen = [m.shared.integers(-1, m.shuffle.num_experts, (n, EXPERTS_EACH)) for n in tokens]
    weights = m.shared.integers(0, 3, (TOKENS, EXPERTS_EACH)).astype("f4")[: tokens[m.rank]]
    every = np.concatenate([each.reshape(-1) for each in chosen])
    counts = np.array([np.count_nonzero(every == expert) for expert in m.shuffle.local_experts], "i8")
    m.dtype, shape = "f4", (int(tokens[m.rank]), HIDDEN)
    sent = Pair(*(each.reshape(shape) for each in m.sent(shape[0] * HIDDEN)))
    return Shuffled(m.shuffle, sent, chosen[m.rank], weights, counts)


def registered(m: Maker) -> Job:
    """A sum of an array that is registered for it; it is over when `Free` returns, and the next may write there."""
    count = m.count()
    sent, recv = m.sent(count), m.room(count)
    memory = m.shareable[: count * m.itemsize].view(m.dtype)
    memory[...] = sent.device  # in the order of the stream; the call before has ended
    arguments, host = (memory, recv.device, m.op), (sent.host, recv.host, m.op)
    return Registered(m.shareable, "Allreduce", arguments, host, [recv])


def freed(m: Maker) -> Job:
    """A sum on a communicator that MPI frees without this library."""
    count = m.count()
    sent, recv = m.sent(count), m.room(count)
    arguments, host = (sent.device, recv.device, m.op), (sent.host, recv.host, m.op)
    return Freed("Allreduce", arguments, host, [recv])


def captured(m: Maker) -> Job:
    """Three equal calls but for what they send: at once, in a graph, at once."""
    m.in_place = False  # so that a graph may run any number of times
    kinds = [kind for kind in IN_GRAPHS if m.comm.spanning is None or _in_graphs_over_nodes(m, kind)]
    kind = kinds[m.shared.integers(len(kinds))]
    runs = int(m.shared.integers(int(kind in (dynamic, shuffled)), 4))  # these have their results beforehand
    drawn, jobs = m.shared.bit_generator.state, []
    for _ in range(3):
        m.shared.bit_generator.state = drawn
        jobs.append(kind(m))
    return Captured(jobs, m.streams, runs)


def _in_graphs_over_nodes(m: Maker, kind: Callable[[Maker], Job]) -> bool:
    """Whether no host has a part in it: it reads the counts of a dynamic all-to-all, and waits for MPI's steps."""
    return kind is not dynamic and (kind not in ANY_TO_ANY or m.comm.spanning.rails.flat_uses_nccl)


ANY_TO_ANY = prefix, gather, gatherv, scatter, scatterv, alltoall, alltoallv
IN_GRAPHS: tuple[Callable[[Maker], Job], ...] = (
    *(bcast, allreduce, reduce, prefix, reduce_scatter_block, reduce_scatter, allgather, allgatherv, gather, gatherv),
    *(scatter, scatterv, alltoall, alltoallv, dynamic, shuffled, barrier),
)
KINDS: tuple[Callable[[Maker], Job], ...] = (
    *IN_GRAPHS,
    *(sendrecv, messages, registered, freed),
    *(() if HOST else (captured,)),
)
