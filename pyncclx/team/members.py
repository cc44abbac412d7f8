"""Members: the properties of a communicator's ranks before they form a Team."""

from __future__ import annotations

import uuid
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mpi4py import MPI

import mpi_bootstrap

from .. import tuning
from ..backends import Device
from ..errors import NotSupported
from ..failures.detector import DETECTOR
from ..memory import layout
from ..memory.heap import Heap
from ..memory.mapped import exchange_handles
from ..memory.retired import Lease
from ..system import settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """The properties that each rank sends to all others before they make a Team."""

    node: bytes  # mpi_bootstrap.node_identity
    hostname: str
    device: str  # Device.identity
    runs_concurrently: bool  # Device.runs_concurrently
    assigned_processes: int  # Device.assigned_processes
    architecture: str
    max_channels: int
    multiprocessors: int
    threads: int
    nvlinked: frozenset[str] | None  # Device.nvlinked
    uid: bytes  # uid of the heap
    ipc_handle: bytes  # handle of the heap; empty if it is sent as a file descriptor
    heap_nbytes: int
    lease_offset: int
    offer_nbytes: int  # the largest lease that the heap can give
    team_id: bytes  # a new id; all ranks use that of rank 0
    timeout_s: float
    limits: tuning.Limits  # rank 0's are used
    heaps: frozenset[bytes]  # uids of the other processes whose heaps it has mapped
    presences: frozenset[bytes]  # uids of the processes whose presence pages it has mapped
    lines: bool = True  # PYNCCLX_LINES


def meet(comm: MPI.Intracomm, heap: Heap, members: list[Member]) -> list[Member]:
    """Map the heaps of the ranks that can form a Team; return the members. Collective."""
    _check(members)
    _map_heaps(comm, heap, members)
    _map_presences(comm, members)
    return members


def own(comm: MPI.Intracomm, device: Device, heap: Heap, lease: Lease) -> Member:
    """Return this rank's properties; raise if settings or tables cannot be read."""
    return Member(
        node=mpi_bootstrap.node_identity(),
        hostname=MPI.Get_processor_name(),
        device=device.identity,
        runs_concurrently=device.runs_concurrently,
        assigned_processes=device.assigned_processes,
        architecture=device.architecture,
        max_channels=channels(device),
        multiprocessors=device.multiprocessors,
        threads=device.threads,
        nvlinked=device.nvlinked,
        uid=heap.uid,
        ipc_handle=heap.memory.ipc_handle,
        heap_nbytes=heap.memory.nbytes,
        lease_offset=lease.offset,
        offer_nbytes=lease.nbytes,
        team_id=uuid.uuid4().bytes,
        timeout_s=settings.TIMEOUT.get(),
        limits=tuning.limits(device.kind, comm.size) if comm.rank == 0 else (),
        heaps=frozenset(heap.peers),
        presences=frozenset(DETECTOR.get().peers if comm.size > 1 else ()),
        lines=settings.LINES.get(),
    )


def has_settings_of_now(member: Member, device: Device) -> bool:
    """Return whether a new member would have the same timeout and channels."""
    return (member.timeout_s, member.max_channels) == (settings.TIMEOUT.get(), channels(device))


def _map_heaps(comm: MPI.Intracomm, heap: Heap, members: list[Member]) -> None:
    missing = _missing(members, [member.heaps for member in members])
    if any(missing):
        wanted = {rank for rank, member in enumerate(members) if member.uid in missing[comm.rank]}
        handles = exchange_handles(comm, heap.memory, [member.ipc_handle for member in members], wanted)
        peers = {members[rank].uid: (handle, members[rank].heap_nbytes) for rank, handle in handles.items()}
        mpi_bootstrap.agree(comm, lambda: heap.map_all(peers))


def _map_presences(comm: MPI.Intracomm, members: list[Member]) -> None:
    """Map all ranks' presence pages for the detector, which otherwise has to ask MPI."""
    missing = _missing(members, [member.presences for member in members])
    if any(missing):
        wanted = [rank for rank, member in enumerate(members) if member.uid in missing[comm.rank]]
        fds = mpi_bootstrap.allgather_fds(comm, DETECTOR.get().presence.fd, wanted)
        pages = {members[rank].uid: fd for rank, fd in fds.items()}
        mpi_bootstrap.agree(comm, lambda: DETECTOR.get().add_peers(pages))


def _missing(members: list[Member], mapped: list[frozenset[bytes]]) -> list[set[bytes]]:
    """Return for each rank the uids of other processes that it has not mapped."""
    uids = {member.uid for member in members}
    return [uids - has - {member.uid} for member, has in zip(members, mapped, strict=True)]


def channels(device: Device) -> int:
    """Return the most blocks of an operation: PYNCCLX_CHANNELS, or the device's limit."""
    chosen = settings.CHANNELS.get()
    if chosen is None:
        return device.max_channels
    if chosen > device.multiprocessors:
        name, most = settings.CHANNELS.name, device.multiprocessors
        raise ValueError(f"{name} is {chosen}; on this device it can be from 1 to {most}")
    return chosen


def most_ranks_per_device(members: Iterable[Member]) -> int:
    """Return the most ranks that share one GPU; 1 if there are no ranks."""
    return max(Counter(member.device for member in members).values(), default=1)


def sharing(members: Iterable[Member]) -> int:
    """Return the most ranks whose kernels run on one GPU at the same time.

    Ranks of other communicators also run blocks on the GPU, so all processes assigned to it count.
    """
    concurrent = [member for member in members if member.runs_concurrently]
    return max(most_ranks_per_device(concurrent), *(member.assigned_processes for member in concurrent), 1)


def nvlinked(members: Sequence[Member]) -> bool:
    """Return whether NVLink joins all ranks' GPUs, as far as the processes can tell.

    Over PCIe, operations on a peer's memory are not atomic.
    """
    return all(a.nvlinked is None or b.device in a.nvlinked for a in members for b in members)


def has_lines(members: Sequence[Member]) -> bool:
    """Return whether 128 bytes that a warp stores at a peer arrive as a whole.

    This holds if each rank has a GPU of its own, and NVLink joins the GPUs. Inside one GPU the 128 bytes may arrive in
    parts, because of its L2 cache. So ranks that share a GPU use no LL128 lines.
    """
    chosen = all(member.lines for member in members)
    return chosen and nvlinked(members) and most_ranks_per_device(members) == 1


def _check(members: list[Member]) -> None:
    """Raise NotSupported, on all ranks alike, if these ranks cannot form a Team."""
    if len(members) > layout.MAX_RANKS:
        raise NotSupported(
            f"a communicator of {len(members)} ranks: at most {layout.MAX_RANKS} ranks of one node can use device "
            "arrays; Split it by node"
        )
    if len({member.node for member in members}) > 1:
        where = ", ".join(sorted({member.hostname for member in members}))
        raise NotSupported(f"ranks on several nodes ({where}): device arrays move inside one node; Split it by node")
    architectures = sorted({member.architecture for member in members})
    if len(architectures) > 1:
        raise NotSupported(
            f"ranks on unlike devices ({', '.join(architectures)}): use GPUs of one kind, and set PYNCCLX_DEVICE "
            "alike on all ranks"
        )


def warn(members: list[Member]) -> None:
    """Warn of unknown environment variables, and of ranks that time-slice a GPU."""
    for sentence in settings.unknown():
        warnings.warn(sentence, RuntimeWarning, stacklevel=2)
    time_sliced = ", ".join(time_sliced_on(members))
    if time_sliced:
        warnings.warn(
            f"several ranks share a GPU ({time_sliced}) and take turns of milliseconds on it: correct, but slow; "
            "programs that stage leave collectives of up to 16 MB to MPI. With a GPU for each rank, call "
            "comm.select_device() before the first array is made; with fewer, let them run at once by CUDA's "
            "Multi-Process Service: start `nvidia-cuda-mps-control -d` before the program",
            RuntimeWarning,
            stacklevel=2,
        )


def time_sliced_on(members: list[Member]) -> list[str]:
    """Return the GPUs that several ranks share by time slicing."""
    ranks = Counter(member.device for member in members if not member.runs_concurrently)
    return sorted(name for name, count in ranks.items() if count > 1)
