"""The symmetric heap: memory of this process that its peers map, and the leases communicators take of it.

A process has one heap, made at the first operation on device arrays. Two processes map each other's heap once, whatever
the number of communicators they share. A communicator leases a region of each member's heap, all of one length; its
members exchange where theirs begin.

Two threads may lease for two communicators at once. So a member reserves what it offers, and gives back what exceeds
the smallest offer once it has them all; it holds no lock while it waits for them.
"""

from __future__ import annotations

import threading
import uuid
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .. import backends
from ..backends import Device, Peer, Shared
from ..errors import NotSupported
from ..recovery.detector import DETECTOR
from ..system import settings
from ..system.process import PerProcess
from .mapped import map_each
from .quarantine import Abandoned, Dropped, Lease, Present, left_by_all
from .retired import RETIRED

ALIGNMENT = 4096

# Most programs have one communicator with much to do, and perhaps many others. In parts of the heap: the first lease is
# large, three are middling, and 28 more fit into the rest. Not measured; short leases have shorter chunks.
PARTS = 128
SHARES = (88, 4, 4, 4)
SMALLEST_SHARE = 1
# Of tracks. The first ones are those of programs with few persistent calls. They leave KEPT_PARTS to communicators. Of
# these they take only what they need at least, some kilobytes each, and leave LAST_PARTS.
SHARES_BESIDE = (4, 1, 1, 1)
SMALLEST_SHARE_BESIDE = 1 / 4
KEPT_PARTS, LAST_PARTS = 12, 6


@dataclass(slots=True)
class Heap:
    """This process's heap, its leases, and the peers' heaps it has mapped.

    Attributes
    ----------
    uid : bytes
        Its name among the heaps of all processes.
    leases : list of Lease
        In order of their offsets.
    peers : dict of bytes to Peer
        By the heap's uid.
    living : set of bytes
        The communicators that this rank is in, by their `team_id`.
    abandoned : dict of bytes to Abandoned
        Communicators that were freed without a meeting of their ranks; their leases are in `leases`, too.
    members : Counter of bytes
        How many communicators each process's heap belongs to, by its uid.
    """

    device: Device
    nbytes: int = field(default_factory=settings.HEAP.get)
    uid: bytes = field(default_factory=lambda: uuid.uuid4().bytes)
    leases: list[Lease] = field(default_factory=list)
    peers: dict[bytes, Peer] = field(default_factory=dict)
    living: set[bytes] = field(default_factory=set)
    abandoned: dict[bytes, Abandoned] = field(default_factory=dict)
    members: Counter[bytes] = field(default_factory=Counter)
    memory: Shared = field(init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)  # of leases and peers

    def __post_init__(self) -> None:
        self.memory = self.device.allocate_shared(self.nbytes)
        self.nbytes = self.memory.nbytes  # a device allocates whole pages, and those of a GPU are large

    def offer(self, least: int, *, is_beside: bool = False) -> int:
        """Return the length of the lease that a communicator can have now, `least` or more; 0 if there is no room.

        The members of a communicator use the smallest of their offers. `is_beside` is as of `Lease`.
        """
        least = -(-least // ALIGNMENT) * ALIGNMENT
        with self._lock:
            shares = (*SHARES_BESIDE, SMALLEST_SHARE_BESIDE) if is_beside else (*SHARES, SMALLEST_SHARE)
            share = shares[min(self._count(is_beside), len(shares) - 1)]
            free = self.nbytes - sum(lease.nbytes for lease in self.leases)
            most = free - self.nbytes * KEPT_PARTS // PARTS if is_beside else free
            for parts in sorted({each for each in shares if each <= share}, reverse=True):
                nbytes = max(least, int(self.nbytes * parts) // PARTS // ALIGNMENT * ALIGNMENT)
                if nbytes <= most and self.find(nbytes) is not None:
                    return nbytes
            has_room = is_beside and least <= free - self.nbytes * LAST_PARTS // PARTS
            return least if has_room and self.find(least) is not None else 0

    def _count(self, is_beside: bool) -> int:
        return sum(lease.is_beside == is_beside for lease in self.leases)

    def find(self, nbytes: int) -> int | None:
        """Return the offset of the first gap between the leases that holds `nbytes`; None if none does."""
        begin = 0
        for lease in self.leases:  # kept in order of offset
            if lease.offset - begin >= nbytes > 0:
                return begin
            begin = lease.offset + lease.nbytes
        return begin if self.nbytes - begin >= nbytes > 0 else None

    def reserve(self, least: int, *, is_beside: bool = False) -> Lease:
        """Lease what `offer` returns, until the smallest of the members' offers is known."""
        with self._lock:
            return self._lease(self.offer(least, is_beside=is_beside), is_beside)

    def trim(self, lease: Lease, nbytes: int) -> Lease:
        """Give back the end of a reserved lease; return the rest, `nbytes` long."""
        with self._lock:
            rest = self.leases[self.leases.index(lease)] = replace(lease, nbytes=nbytes)
            return rest

    def clear(self, lease: Lease) -> None:
        """Zero a lease. Not under the lock: it waits for the current stream, on which a kernel may wait for a peer.

        It waits for no other stream: a peer may begin a collective that is under way there only after this call. The
        kernels that used this memory before have ended, or it would not have been released.
        """
        self.device.fill_zero(self.memory.address + lease.offset, lease.nbytes)

    def _lease(self, nbytes: int, is_beside: bool) -> Lease:
        offset = self.find(nbytes)
        if offset is None:
            waiting = (
                f"; {len(self.abandoned)} of them were freed through handles of mpi4py's, and end when all their ranks "
                "make or Free a communicator of pyncclx"
            )
            raise NotSupported(
                f"the symmetric heap of {self.nbytes} bytes has no room for another communicator: "
                f"Free one, or set {settings.HEAP.name} higher (now {self._count(False)} communicators hold leases"
                f"{waiting if self.abandoned else ''})"
            )
        lease = Lease(offset, nbytes, is_beside)
        insort(self.leases, lease, key=lambda other: other.offset)
        return lease

    def begin(self, team_id: bytes) -> None:
        """Count a communicator among those that this rank is in."""
        with self._lock:
            self.living.add(team_id)

    def release(self, lease: Lease, team_id: bytes = b"") -> None:
        """Give a lease back, and leave its communicator. No kernel of this process or a peer may use it any more."""
        with self._lock:
            self.living.discard(team_id)
            self.leases.remove(lease)

    def abandon(self, abandoned: Abandoned) -> None:
        """Keep the memory of a communicator that has been freed, until its ranks have met."""
        with self._lock:
            self.living.discard(abandoned.team_id)
            self.abandoned[abandoned.team_id] = abandoned

    def present(self, dropped: Mapping[bytes, Dropped] | None = None) -> Present:
        """Return what this rank sends to a meeting; `dropped` is as of `Present`."""
        with self._lock:
            return Present(self.uid, tuple(self.living), dropped or {})

    def meet(self, present: Sequence[Present]) -> None:
        """Give back what waited for a meeting of the ranks that have sent these."""
        with self._lock:
            waiting = dict(self.abandoned)
        for each in left_by_all(present, waiting, self._failed()):
            with self._lock:
                if self.abandoned.pop(each.team_id, None) is not None:  # else another thread has met them, too
                    self.leases.remove(each.lease)

        self._unmap_failed()
        RETIRED.get().free()

    def _failed(self) -> set[bytes]:
        """Return the uids of processes that have failed, and no longer write to this heap."""
        detector = DETECTOR.made
        return detector.gone() if detector is not None else set()

    def _unmap_failed(self) -> None:
        """Unmap the heaps of processes that have failed, once they belong to no communicator."""
        for uid in self._failed():
            with self._lock:
                peer = self.peers.pop(uid, None) if not self.members[uid] else None
            if peer is not None:
                RETIRED.get().add(peer.close)
                DETECTOR.get().drop(uid)

    def join(self, uids: Iterable[bytes]) -> None:
        """Count a communicator of these processes."""
        with self._lock:
            self.members.update(uids)

    def part(self, uids: Iterable[bytes]) -> None:
        """Count it no more."""
        with self._lock:
            self.members.subtract(uids)
            self.members = +self.members

    def map_all(self, handles: dict[bytes, tuple[int | bytes, int]]) -> None:
        """Map other processes' heaps: by uid, the handle as it was sent, and the bytes behind it."""
        for uid, peer in map_each(self.device.map_peer, handles).items():
            with self._lock:
                first = self.peers.setdefault(uid, peer)
            if first is not peer:  # another thread has mapped it, and may use it
                RETIRED.get().add(peer.close)

    def base(self, uid: bytes) -> int:
        """Return the address in this process of the heap named `uid`."""
        return self.memory.address if uid == self.uid else self.peers[uid].address


HEAP = PerProcess(lambda: Heap(backends.select()))


def memory_held() -> dict[str, int]:
    """Return the bytes of the process's heap, of its leased part, and of abandoned memory; 0 without a heap."""
    heap = HEAP.made
    if heap is None:
        return {"heap": 0, "leased": 0, "abandoned": 0}
    return {
        "heap": heap.nbytes,
        "leased": sum(lease.nbytes for lease in heap.leases),
        "abandoned": sum(each.nbytes for each in heap.abandoned.values()),
    }
