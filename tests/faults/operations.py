"""Operations of every package: each makes calls on a communicator, and checks what they give."""

import time

from mpi4py import MPI

import pyncclx
from support.arrays import xp

COUNT, LONG = 1000, 60_000  # elements: some packets, and more than a slot holds


class Work:
    """A communicator, and what operations on it need; making it is collective."""

    def __init__(self, comm):
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.right, self.left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        self.x, self.y = xp.full(COUNT, comm.rank + 1, "f4"), xp.zeros(COUNT, "f4")
        self.long, self.other = xp.full(LONG, comm.rank + 1, "f4"), xp.zeros(LONG, "f4")
        self.all = xp.zeros(COUNT * comm.size, "f4")
        self.made = {}

    def once(self, name, make):
        """What an operation needs, made at its first call."""
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]

    def free(self):
        """Free the communicators among it."""
        for each in self.made.values():
            if isinstance(each, MPI.Comm):
                each.Free()

    def window(self):
        return self.once("window", lambda: pyncclx.Win.Create(self.comm.Alloc(COUNT), 4, comm=self.comm))

    def shuffle(self):
        return self.once(
            "shuffle",
            lambda: self.comm.Create_token_shuffle(2 * self.size, 64, 16, "float32", k=2, max_tokens=8),
        )


def allreduce(work):
    work.comm.Allreduce(work.x, work.y)
    work.comm.synchronize()
    assert (work.y == work.size * (work.size + 1) / 2).all()


def bcast(work):
    work.comm.Bcast(work.y if work.rank else work.x, 0)
    work.comm.Barrier(device=True)
    assert work.rank == 0 or (work.y == 1).all()


def reduce(work):
    work.comm.Reduce(work.x, work.y, root=work.size - 1)
    work.comm.Barrier(device=True)


def allgather(work):
    work.comm.Allgather(work.x, work.all)
    work.comm.synchronize()
    assert (work.all.reshape(work.size, -1) == xp.arange(1, work.size + 1)[:, None]).all()


def alltoallv(work):
    counts, got = xp.full(work.size, 4), xp.zeros(work.size, "i8")
    recv = xp.zeros((8 * work.size, 16), "f4")
    rows = xp.full((4 * work.size, 16), work.rank + 1, "f4")
    work.comm.Alltoallv([rows, counts], [recv, got], layout="packed")
    work.comm.synchronize()
    assert (got == 4).all()
    assert (recv[: 4 * work.size : 4, 0] == xp.arange(1, work.size + 1)).all()


def barrier(work):
    work.comm.Barrier(device=True)


def iallreduce(work):
    work.comm.Iallreduce(work.x, work.y).Wait()
    work.comm.synchronize()
    assert (work.y == work.size * (work.size + 1) / 2).all()


def persistent(work):
    request = work.once("request", lambda: work.comm.Allreduce_init(work.x, work.y))
    request.Start()
    while not request.Test():
        time.sleep(0.001)
    work.comm.synchronize()


def sendrecv(work):
    work.comm.Sendrecv(work.long, work.right, 3, work.other, work.left, 3)
    work.comm.synchronize()
    assert (work.other == work.left + 1).all()
    work.comm.Sendrecv(work.x, work.left, 4, work.y, work.right, 4)
    work.comm.synchronize()
    assert (work.y == work.right + 1).all()


def isend_any(work):
    request = work.comm.Isend(work.long, work.right, 5)
    work.comm.Recv(work.other, MPI.ANY_SOURCE, 5)
    request.Wait()
    work.comm.synchronize()
    assert (work.other == work.left + 1).all()


def objects(work):
    everyone = work.comm.allgather({"rank": work.rank, "array": work.x})
    work.comm.synchronize()
    assert [each["rank"] for each in everyone] == list(range(work.size))
    assert all((each["array"] == rank + 1).all() for rank, each in enumerate(everyone))


def object_messages(work):
    """In a circle: the array is long, so its receiver reads it in the sender's memory."""
    got = work.comm.sendrecv({"array": work.long}, work.right, 6, None, work.left, 6)
    work.comm.synchronize()
    assert (got["array"] == work.left + 1).all()


def plain_objects(work):
    assert work.comm.bcast(work.rank, work.size - 1) == work.size - 1
    assert work.comm.allreduce(1) == work.size


def alloc(work):
    assert work.comm.Alloc(10).size == 10


def dup(work):
    with work.comm.Dup() as duplicate:
        duplicate.Barrier(device=True)


def compile_first(work):
    """The first call of a kind: ranks meet to prepare the kernel."""
    kinds = work.once("kinds", lambda: iter(("i4", "u4", "i8", "u8", "f8", "i2", "u2")))
    array = xp.ones(8, next(kinds))
    work.comm.Allreduce(MPI.IN_PLACE, array)
    work.comm.synchronize()


def fence(work):
    win = work.window()
    win.Fence()
    win.Put(work.x[:10], work.right, 0)
    win.Fence()


def lock(work):
    win = work.window()
    win.Lock(0)
    win.Accumulate(work.x[:10], 0, 0)
    time.sleep(0.01)
    win.Unlock(0)
    work.comm.Barrier(device=True)


def accumulate(work):
    win = work.window()
    win.Lock_all()
    win.Accumulate(work.x[:10], work.right, 0)
    win.Flush_all()
    win.Unlock_all()
    work.comm.Barrier(device=True)


def signals(work):
    win = work.window()
    win.Put_signal(work.x[:10], work.right, 0, signal=2)
    win.Wait_signal(2)
    work.comm.synchronize()


def dispatch(work):
    shuffle = work.shuffle()
    tokens = xp.full((8, 16), work.rank + 1, "f4")
    experts = (xp.arange(16).reshape(8, 2) + work.rank) % (2 * work.size)
    rows, handle = shuffle.dispatch(tokens, experts, xp.full((8, 2), 0.5, "f4"))
    back = shuffle.combine(rows.data, handle)
    work.comm.synchronize()
    assert (back == work.rank + 1).all()


def agree(work):
    assert work.comm.Agree(3) == 3


def alltoall(work):
    work.comm.Alltoall(xp.arange(work.size, dtype="i8") + 10 * work.rank, got := xp.zeros(work.size, "i8"))
    work.comm.synchronize()
    assert (got == 10 * xp.arange(work.size) + work.rank).all()


def gather_scatter(work):
    work.comm.Gather(work.x, work.all if work.rank == 0 else None, 0)
    work.comm.Scatter(work.all if work.rank == 0 else None, work.y, 0)
    work.comm.synchronize()
    assert (work.y == work.rank + 1).all()


def reduce_scatter(work):
    work.comm.Reduce_scatter_block(xp.full(4 * work.size, work.rank + 1, "f4"), got := xp.zeros(4, "f4"))
    work.comm.synchronize()
    assert (got == work.size * (work.size + 1) / 2).all()


def scan(work):
    work.comm.Scan(work.x, work.y)
    work.comm.Barrier(device=True)
    assert (work.y == (work.rank + 1) * (work.rank + 2) / 2).all()


def neighbors(work):
    ring = work.once("ring", lambda: work.comm.Create_cart([work.size], [True]))
    ring.Neighbor_allgather(work.x[:5], got := xp.zeros((2, 5), "f4"))
    ring.synchronize()
    assert (got == xp.array([[work.left + 1], [work.right + 1]])).all()


def derived(work):
    """Every other element."""
    kind = work.once("kind", lambda: MPI.FLOAT.Create_vector(8, 1, 2).Commit())
    got = xp.zeros((work.size, 16), "f4")
    work.comm.Allgather([work.x[:15], 1, kind], [got, 8, MPI.FLOAT])
    work.comm.synchronize()
    assert (got.ravel()[: 8 * work.size].reshape(work.size, 8) == xp.arange(1, work.size + 1)[:, None]).all()


@pyncclx.Transform
def doubled(x, row, column):
    return 2 * x


def transform(work):
    got = xp.zeros((8 * work.size, 4), "f4")
    work.comm.Allgather(xp.full((8, 4), work.rank + 1, "f4"), got, transform=doubled)
    work.comm.synchronize()
    assert (got[::8, 0] == 2 * xp.arange(1, work.size + 1)).all()


def split(work):
    with work.comm.Split(work.rank % 2) as part:
        part.Barrier(device=True)
    work.comm.Barrier(device=True)


def win_create(work):
    pyncclx.Win.Create(work.comm.Alloc(8), 4, comm=work.comm).Free()


def send_long(work):
    """The sender's kernel is over when the receiver has come."""
    request = work.comm.Irecv(work.other, work.left, 7)
    work.comm.Send(work.long, work.right, 7)
    work.comm.synchronize()
    request.Wait()
    work.comm.synchronize()
    assert (work.other == work.left + 1).all()


def sequence(work):
    """Kernels one after another, without a wait of the host between them."""
    work.comm.Allreduce(work.x, work.y)
    work.comm.Allgather(work.x, work.all)
    work.comm.Reduce_scatter_block(work.all, work.other[:COUNT])
    work.comm.synchronize()


def free(work):
    duplicate = work.comm.Dup()
    duplicate.Allreduce(work.x, work.y)
    duplicate.Free()


def object_requests(work):
    """In a circle: MPI's requests, completed one by one and together."""
    for calls in range(2):
        requests = [work.comm.irecv(source=work.left, tag=8), work.comm.issend([work.rank], work.right, 8)]
        got = pyncclx.Request.waitall(requests) if calls else [each.wait() for each in requests]
        assert got == [[work.left], None]


def ibarrier(work):
    pyncclx.Request.Waitall([work.comm.Ibarrier()])
    work.comm.Ibarrier().Wait()


OPERATIONS = {
    each.__name__: each
    for each in (
        allreduce, bcast, reduce, allgather, alltoallv, barrier, iallreduce, persistent, sendrecv, isend_any,
        objects, object_messages, plain_objects, alloc, dup, compile_first, fence, lock, accumulate, signals,
        dispatch, agree, alltoall, gather_scatter, reduce_scatter, scan, neighbors, derived, transform,
        split, win_create, send_long, sequence, free, object_requests, ibarrier,
    )
}
