"""The operations of soak.py, done on device arrays and again on host arrays to compare."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from pyncclx import Prequest, backends
from support.arrays import HOST, get, xp

BATCH = 50  # operations that are enqueued without waiting
POISON = 77
DTYPES = ("i1", "u1", "i2", "i4", "i8", "f4", "f8", "c8", "c16")
OPS = (MPI.SUM, MPI.PROD, MPI.MAX)  # the last has no meaning for complex numbers
NEVER_NONBLOCKING = ("Sendrecv", "Barrier")
TOKENS, HIDDEN, EXPERTS_EACH = 48, 64, 3  # of a shuffle: most of a rank, elements of one, its experts


class Pair(NamedTuple):
    """An array on the device, and its equal on the host."""

    device: Any
    host: np.ndarray


def side(argument: Any, which: int) -> Any:
    """An argument with all its pairs replaced by one of the two."""
    if isinstance(argument, Pair):
        return argument[which]
    return [side(each, which) for each in argument] if isinstance(argument, list) else argument


class Job:
    """One operation, with what it is called and what to compare."""

    def __init__(self, name: str, outputs: Sequence[Pair]) -> None:
        self.name, self.outputs = name, outputs

    @property
    def kind(self) -> str:
        """How it is counted and named."""
        return self.name

    def start(self, comm: Any, *, nonblocking: bool) -> list[MPI.Request]:
        """Do it on device arrays; what is left to wait for."""
        raise NotImplementedError

    def repeat(self, comm: MPI.Intracomm) -> None:
        """Do it on host arrays, by mpi4py."""
        raise NotImplementedError

    def wrong(self) -> list[str]:
        """What the operation has got wrong."""
        texts = []
        for output in self.outputs:
            found = get(output.device)
            places = np.flatnonzero(found != output.host)
            if places.size:
                first = places[0]
                what = f"{found.flat[first]} instead of {output.host.flat[first]}"
                texts.append(f"element {first} of {found.dtype} is {what}, {places.size} of {found.size} in all")
        return texts


class Call(Job):
    """A method with its arguments, on the device and on the host."""

    def __init__(
        self, name: str, arguments: Sequence[Any], host: Sequence[Any], outputs: Sequence[Pair], **keywords: Any
    ) -> None:
        super().__init__(name, outputs)
        self.arguments, self.host, self.keywords = arguments, host, keywords

    def start(self, comm: Any, *, nonblocking: bool) -> list[MPI.Request]:
        nonblocking = nonblocking and self.name not in NEVER_NONBLOCKING
        name = f"I{self.name.lower()}" if nonblocking else self.name
        request = getattr(comm, name)(*self.arguments, **self.keywords)
        return [request] if nonblocking else []

    def repeat(self, comm: MPI.Intracomm) -> None:
        getattr(comm, self.name)(*self.host)


class Messages(Job):
    """Messages between some ranks, each with a tag of its own: every other one may come from anywhere."""

    def __init__(self, receives: Sequence[tuple[Pair, int, int]], sends: Sequence[tuple[Pair, int, int]]) -> None:
        super().__init__("Irecv", [room for room, _, _ in receives])
        self.receives, self.sends = receives, sends

    def _begin(self, comm: MPI.Intracomm, which: int) -> list[MPI.Request]:
        requests = [comm.Irecv(room[which], source, tag) for room, source, tag in self.receives]
        return requests + [comm.Isend(sent[which], dest, tag) for sent, dest, tag in self.sends]

    def start(self, comm: Any, *, nonblocking: bool) -> list[MPI.Request]:
        return self._begin(comm, 0)

    def repeat(self, comm: MPI.Intracomm) -> None:
        MPI.Request.Waitall(self._begin(comm, 1))


class Persistent(Messages):
    """Messages by persistent requests, which are started together."""

    @property
    def kind(self) -> str:
        return "Recv_init"

    def start(self, comm: Any, *, nonblocking: bool) -> list[MPI.Request]:
        requests = [comm.Recv_init(room.device, source, tag) for room, source, tag in self.receives]
        requests += [comm.Send_init(sent.device, dest, tag) for sent, dest, tag in self.sends]
        Prequest.Startall(requests)
        return requests


class Registered(Call):
    """A method on an array whose memory is registered for it."""

    def __init__(self, registered: Any, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.registered = registered

    @property
    def kind(self) -> str:
        return f"{self.name} in registered memory"

    def start(self, comm: Any, *, nonblocking: bool) -> list[MPI.Request]:
        with comm.Register(self.registered):
            return super().start(comm, nonblocking=False)


class Freed(Call):
    """A method on a communicator of its own, which a handle of mpi4py's frees at once."""

    @property
    def kind(self) -> str:
        return f"{self.name} before MPI frees the communicator"

    def start(self, comm: Any, *, nonblocking: bool) -> list[MPI.Request]:
        own = comm.Dup()
        own.Alloc(100)
        super().start(own, nonblocking=False)
        MPI.Comm.f2py(own.py2f()).Free()
        return []


class Shuffled(Job):
    """Tokens to their experts, which leave them as they are, and back: a token times the sum of its weights."""

    def __init__(
        self, shuffle: Any, tokens: Pair, experts: np.ndarray, weights: np.ndarray, counts: np.ndarray
    ) -> None:
        sums = np.where(experts >= 0, weights, 0).sum(1, keepdims=True)
        self.out = Pair(xp.full(tokens.host.shape, -1, "f4"), tokens.host * sums)
        self.counts = Pair(xp.full(len(counts), -1, "i8"), counts)
        super().__init__("dispatch", [self.out, self.counts])
        self.shuffle, self.arguments = shuffle, (tokens.device, xp.asarray(experts), xp.asarray(weights))

    def start(self, comm: Any, *, nonblocking: bool) -> list[MPI.Request]:
        rows, handle = self._dispatch(in_two=nonblocking)
        self.counts.device[...] = rows.counts
        self.shuffle.combine(rows.data, handle, out=self.out.device)
        return []

    def _dispatch(self, *, in_two: bool) -> Any:
        if not in_two:
            return self.shuffle.dispatch(*self.arguments)
        self.shuffle.dispatch_begin(*self.arguments)
        return self.shuffle.dispatch_end()

    def repeat(self, comm: MPI.Intracomm) -> None:
        """Nothing: all ranks compute the expected results themselves."""


class Captured(Job):
    """Three equal jobs on three streams: at once, in a graph, at once; then the graph runs, or is thrown away."""

    def __init__(self, jobs: Sequence[Job], streams: Sequence[Any], runs: int) -> None:
        super().__init__(jobs[1].name, [output for job in jobs for output in job.outputs])
        self.jobs, self.streams, self.runs = jobs, streams, runs
        self.graph: Any = None  # kept until it has run

    @property
    def kind(self) -> str:
        return f"{self.jobs[1].kind} captured"

    def start(self, comm: Any, *, nonblocking: bool) -> list[MPI.Request]:
        first, second, third = self.jobs
        ready = xp.cuda.get_current_stream().record()
        for stream in self.streams:
            stream.wait_event(ready)
        with self.streams[0]:
            first.start(comm, nonblocking=False)
        with self.streams[1] as stream:
            stream.begin_capture()
            second.start(comm, nonblocking=False)
            self.graph = stream.end_capture()
        with self.streams[2]:
            third.start(comm, nonblocking=False)
        self.streams[1].wait_event(self.streams[2].record())  # the order of graphs is the program's business
        for _ in range(self.runs):
            self.graph.launch(self.streams[1])
        for stream in self.streams:
            xp.cuda.get_current_stream().wait_event(stream.record())
        return []

    def repeat(self, comm: MPI.Intracomm) -> None:
        first, second, third = self.jobs
        for job in (first, *([second] * bool(self.runs)), third):
            job.repeat(comm)

    def wrong(self) -> list[str]:
        places = ("before the capture", f"in the graph, which ran {self.runs} times", "after the capture")
        jobs = zip(self.jobs, places, strict=True)
        return [f"{place}: {text}" for job, place in jobs for text in job.wrong()]


def shareable(nbytes: int) -> Any:
    """Bytes on the device that other processes can open."""
    if not HOST:
        return xp.zeros(nbytes, "u1")
    device = backends.select()
    return device.array(device.allocate_exported(nbytes).memory, (nbytes,), "u1")


class Maker:
    """Makes the jobs of one communicator. `shared` draws the same on all ranks, `own` does not."""

    def __init__(self, comm: Any, seed: int, most: int, dtypes: Sequence[str] = DTYPES) -> None:
        self.comm, self.size, self.rank = comm, comm.size, comm.rank
        self.shared = np.random.default_rng(seed)
        self.own = np.random.default_rng([seed, MPI.COMM_WORLD.rank])
        self.most, self.dtypes = most, dtypes
        data = self.own.integers(0, 3, 2 * most)
        self.pools = {dtype: Pair(xp.asarray(data.astype(dtype)), data.astype(dtype)) for dtype in DTYPES}
        self.window = comm.Alloc(4 * BATCH * most, "u1")
        self.used = 0  # bytes of the window
        self.shareable = shareable(most)
        self.messages = 0  # so far, which have a tag each
        self.streams = [] if HOST else [xp.cuda.Stream(non_blocking=True) for _ in range(3)]
        experts, room = 2 * comm.size + 1, TOKENS * EXPERTS_EACH * comm.size
        self.shuffle = comm.Create_token_shuffle(experts, room, HIDDEN, "f4", k=EXPERTS_EACH, max_tokens=TOKENS)

    def draw(self) -> None:
        """Draw what most operations have."""
        self.dtype = self.dtypes[self.shared.integers(len(self.dtypes))]
        self.itemsize = np.dtype(self.dtype).itemsize
        self.op = OPS[self.shared.integers(2 if self.dtype[0] == "c" else 3)]
        self.root = int(self.shared.integers(self.size))
        self.in_place = bool(self.shared.integers(4) == 0)

    def count(self, blocks: int = 1) -> int:
        """Elements of a block, sometimes none, more often few than many."""
        most = self.most // (self.itemsize * blocks)
        return 0 if self.shared.integers(20) == 0 else int(2 ** self.shared.uniform(0, np.log2(most)))

    def counts(self) -> np.ndarray:
        """What each rank sends to each."""
        return np.array([[self.count(self.size) for _ in range(self.size)] for _ in range(self.size)])

    def sent(self, count: int) -> Pair:
        """Something to send, which begins anywhere."""
        pool = self.pools[self.dtype]
        begin = int(self.own.integers(len(pool.host) - count))
        return Pair(pool.device[begin : begin + count], pool.host[begin : begin + count])

    def room(self, count: int) -> Pair:
        """Something to receive, poisoned; sometimes in a window."""
        nbytes = count * self.itemsize
        begin = (self.used + 15) // 16 * 16 + int(self.own.integers(4)) * self.itemsize
        if self.own.integers(3) == 0 and begin + nbytes <= len(self.window):
            self.used = begin + nbytes
            device = self.window[begin : begin + nbytes].view(self.dtype)
        else:
            device = xp.empty(count, self.dtype)
        device[...] = POISON
        return Pair(device, np.full(count, POISON, self.dtype))

    def both(self, count: int) -> Pair:
        """Something to receive that has something to send in it."""
        sent, room = self.sent(count), self.room(count)
        room.device[...], room.host[...] = sent
        return room
