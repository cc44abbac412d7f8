"""The symmetric heap: memory that peers map and communicators lease.

A process has one heap, allocated at the first operation on device arrays. Two processes map each other's heap once, for
all communicators that they share. A communicator leases a region of equal length in each member's heap; its members
exchange the offsets.

Two threads may lease for two communicators at once. So a member first reserves the region that it offers. When it has
received the offers of all members, it shortens its region to the smallest offer. It holds no lock while it waits for
the offers.
"""

from __future__ import annotations

import threading
import time
import uuid
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .. import backends
from ..backends import Device, Peer, Shared
from ..errors import NotSupported
from ..failures.detector import DETECTOR
from ..system import settings
from ..system.process import PerProcess
from .mapped import map_each
from .retired import RETIRED, Abandoned, Dropped, Lease, Present, left_by_all

ALIGNMENT = 4096

# Most programs have one busy communicator, and perhaps many others. So the first lease is a large part of the heap, the
# next three are medium, and the rest has room for 28 more. Not measured; short leases have short chunks.
PARTS = 128
SHARES = (88, 4, 4, 4)
SMALLEST_SHARE = 1
# Leases of tracks. The first ones are longer, for programs with few persistent calls, and leave KEPT_PARTS of the heap
# to communicators. Later tracks lease only their minimum, some kilobytes, and leave LAST_PARTS.
SHARES_BESIDE = (4, 1, 1, 1)
SMALLEST_SHARE_BESIDE = 1 / 4
_PATIENCE_S, _PAUSE_S = 0.1, 0.001  # how long `await_others` waits, and between two looks
KEPT_PARTS, LAST_PARTS = 12, 6


@dataclass(slots=True)
class Heap:
    """This process's heap, its leases, and the mapped heaps of peers.

    Attributes
    ----------
    uid : bytes
        Identifier of the heap among the heaps of all processes.
    leases : list of Lease
        Sorted by offset.
    peers : dict of bytes to Peer
        Mapped heaps, by the heap's uid.
    living : set of bytes
        The `team_id` of each communicator that this rank is in.
    abandoned : dict of bytes to Abandoned
        Communicators freed without a rendezvous of their ranks, by `team_id`. `leases` includes their leases.
    members : Counter of bytes
        Number of communicators that this process shares with each process, by the uid of that process's heap.
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
    # Guards leases and peers.
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False)

    def __post_init__(self) -> None:
        self.memory = self.device.allocate_shared(self.nbytes)
        # A device allocates whole pages; a GPU's pages are large.
        self.nbytes = self.memory.nbytes

    def offer(self, least: int, *, is_beside: bool = False) -> int:
        """Return the length of a lease that fits now, at least `least`; 0 if none fits.

        A communicator's leases have the length of its members' smallest offer. For `is_beside` see `Lease`.
        """
        least = -(-least // ALIGNMENT) * ALIGNMENT
        self.sweep()
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
        """Return the offset of the first gap of at least `nbytes` between leases, or None."""
        begin = 0
        # The leases are in order of offset.
        for lease in self.leases:
            if lease.offset - begin >= nbytes > 0:
                return begin
            begin = lease.offset + lease.nbytes
        return begin if self.nbytes - begin >= nbytes > 0 else None

    def reserve(self, least: int, *, is_beside: bool = False) -> Lease:
        """Lease as much as `offer` returns; `trim` it once the smallest offer is known."""
        with self._lock:
            return self._lease(self.offer(least, is_beside=is_beside), is_beside)

    def trim(self, lease: Lease, nbytes: int) -> Lease:
        """Shorten a reserved lease to `nbytes`, and return it."""
        with self._lock:
            rest = self.leases[self.leases.index(lease)] = replace(lease, nbytes=nbytes)
            return rest

    def clear(self, lease: Lease) -> None:
        """Fill a lease with zeros. Do not hold the lock: this may wait for a peer.

        It waits for the current stream only. A collective on another stream may wait for a peer that begins it only
        after this call. The lease can be cleared now, because the kernels that used its memory have ended.
        """
        self.device.fill_zero(self.memory.address + lease.offset, lease.nbytes)

    def _lease(self, nbytes: int, is_beside: bool) -> Lease:
        offset = self.find(nbytes)
        if offset is None:
            waiting = f"; {len(self.abandoned)} of them end when other ranks free them, too"
            raise NotSupported(
                f"the symmetric heap of {self.nbytes} bytes has no room for another communicator: "
                f"Free one, or set {settings.HEAP.name} higher (now {self._count(False)} communicators hold leases"
                f"{waiting if self.abandoned else ''})"
            )
        lease = Lease(offset, nbytes, is_beside)
        insort(self.leases, lease, key=lambda other: other.offset)
        return lease

    def begin(self, team_id: bytes) -> None:
        """List a communicator that this rank is in, also on the process's page."""
        with self._lock:
            self.living.add(team_id)
        if DETECTOR.made is not None:  # it has the page
            DETECTOR.made.presence.enter(team_id)

    def release(self, lease: Lease, team_id: bytes = b"") -> None:
        """Release a lease, and record that this rank has left the communicator `team_id`.

        Call this when no kernel of this process or a peer uses the lease any more.
        """
        with self._lock:
            self._leave(team_id)
            self.leases.remove(lease)

    def abandon(self, abandoned: Abandoned) -> None:
        """Leave a communicator; keep its memory until the other ranks have left, too.

        Call this when no kernel of this process uses peers' memory any more.
        """
        with self._lock:
            self.abandoned[abandoned.team_id] = abandoned
            self._leave(abandoned.team_id)
        self.sweep()

    def _leave(self, team_id: bytes) -> None:
        self.living.discard(team_id)
        if DETECTOR.made is not None:
            DETECTOR.made.presence.leave(team_id)

    def sweep(self) -> None:
        """Release the memory of communicators that all processes have left.

        The processes' pages list what they are in.
        """
        if not self.abandoned:
            return
        with self._lock:
            for each in list(self.abandoned.values()):
                if self._is_left(each):
                    self._give_back(each)
        RETIRED.get().free()

    def await_others(self, team_id: bytes) -> None:
        """Wait, at most a tenth of a second, until all ranks have left a communicator.

        Return at once if only its lease is kept, because the program has no use for that memory.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while (kept := self.abandoned.get(team_id)) is not None and kept.memory and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
            self.sweep()

    def _is_left(self, abandoned: Abandoned) -> bool:
        pages = DETECTOR.made.peers if DETECTOR.made is not None else {}
        others = abandoned.uids - self._failed() - {self.uid}
        return all(uid in pages and not pages[uid].may_be_in(abandoned.team_id) for uid in others)

    def _give_back(self, abandoned: Abandoned) -> None:
        # Another thread may have released it at a rendezvous of the same ranks.
        if self.abandoned.pop(abandoned.team_id, None) is not None:
            self.leases.remove(abandoned.lease)

    def present(self, dropped: Mapping[bytes, Dropped] | None = None) -> Present:
        """Return this rank's data to send to a rendezvous; for `dropped` see `Present`."""
        with self._lock:
            return Present(self.uid, tuple(self.living), dropped or {})

    def meet(self, present: Sequence[Present]) -> None:
        """Release abandoned memory that no rank uses any more.

        `present` is the data that the ranks of a rendezvous have sent (`Heap.present`). Also unmap the heaps of failed
        processes, and free retired memory if possible.
        """
        with self._lock:
            waiting = dict(self.abandoned)
        for each in left_by_all(present, waiting, self._failed()):
            with self._lock:
                self._give_back(each)
        self._unmap_failed()
        RETIRED.get().free()

    def _failed(self) -> set[bytes]:
        """Return the heap uids of processes that failed and no longer write to this heap."""
        detector = DETECTOR.made
        return detector.gone() if detector is not None else set()

    def _unmap_failed(self) -> None:
        """Unmap the heaps of failed processes that belong to no communicator."""
        for uid in self._failed():
            with self._lock:
                peer = self.peers.pop(uid, None) if not self.members[uid] else None
            if peer is not None:
                RETIRED.get().add(peer.close)
                DETECTOR.get().drop(uid)

    def join(self, uids: Iterable[bytes]) -> None:
        """Count one more communicator for the processes with these heaps."""
        with self._lock:
            self.members.update(uids)

    def part(self, uids: Iterable[bytes]) -> None:
        """Remove one communicator from the counts of the processes with these heaps."""
        with self._lock:
            self.members.subtract(uids)
            self.members = +self.members

    def map_all(self, handles: dict[bytes, tuple[int | bytes, int]]) -> None:
        """Map heaps of other processes, from handle and length for each uid."""
        for uid, peer in map_each(self.device.map_peer, handles).items():
            with self._lock:
                first = self.peers.setdefault(uid, peer)
            # Another thread has mapped the heap, and may already use that mapping.
            if first is not peer:
                RETIRED.get().add(peer.close)

    def base(self, uid: bytes) -> int:
        """Return the address in this process of the heap with this uid."""
        return self.memory.address if uid == self.uid else self.peers[uid].address


HEAP = PerProcess(lambda: Heap(backends.select()))


def memory_held() -> dict[str, int]:
    """Return the bytes of the heap, of its leases, and of abandoned memory.

    They are 0 without a heap.
    """
    heap = HEAP.made
    if heap is None:
        return {"heap": 0, "leased": 0, "abandoned": 0}
    heap.sweep()
    return {
        "heap": heap.nbytes,
        "leased": sum(lease.nbytes for lease in heap.leases),
        "abandoned": sum(each.nbytes for each in heap.abandoned.values()),
    }
