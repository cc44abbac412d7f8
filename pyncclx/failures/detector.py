"""The failure detector: a thread that polls whether ranks have failed.

Inside a node it reads a word in the page of each other process. If MPI tolerates failures, it also asks MPI, which
detects failures on other nodes. The thread starts with the first communicator of several ranks that uses the device.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence, Set

from mpi4py import MPI

from mpi_bootstrap.failure_note import Note
from mpi_bootstrap.presence import ENDED, ENDING, RAISED, RUNNING, PeerPresence, Presence

from ..system import threads
from ..system.mpi_library import goes_on_after_failures
from ..system.process import PerProcess
from ..system.signals import Interrupts
from . import ulfm
from .comm_failures import INTERRUPTED, LOCK, REVOKED, CommFailure, Monitored, ended_by, make_reports, of_ranks

PAUSE_S = 0.1  # between polls, which take 0.10 % of a core (4 ranks, host device, 2 overloaded CPUs, 24 November 2026)
OVER_S = 1.0  # seconds after a program's end, until all that it sent has arrived
STOOD_STILL_S = 1.0  # seconds without a poll after which a process counts as stopped or starved
_OF_CPU = 0.05  # a process that did not poll was stopped or starved if it used at most this share of a processor
_FOR_END_S = 10.0  # longest wait for the end of a dead process and its work
ENDED_BY_ITSELF = "its program has ended"
KILLED = "its process died without MPI_Finalize (killed, crashed, or out of memory)"


class Detector:
    """The detector's thread, and the processes and communicators that it watches.

    Attributes
    ----------
    presence : Presence
        This process's page.
    peers : dict of bytes to PeerPresence
        Pages of other processes, by the uids of the processes.
    stood_still_ns : int
        When this process continued after it had stood still; 0: never.
    """

    def __init__(self) -> None:
        self.presence = Presence()
        self.peers: dict[bytes, PeerPresence] = {}
        self.stood_still_ns, self.stood_still_s = 0, 0.0
        self._failed: dict[bytes, str] = {}  # reasons by uid
        self._failed_world: dict[int, str] = {}
        self._uids: dict[int, bytes] = {}  # keys: ranks in MPI.COMM_WORLD
        self._watched: weakref.WeakSet[Monitored] = weakref.WeakSet()
        self._asks_mpi = goes_on_after_failures() and MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._interrupts = Interrupts()
        self._last_ns, self._last_cpu_ns = time.monotonic_ns(), time.process_time_ns()
        self._ended, held = False, threads.Bell()
        if threads.start("pyncclx detector", self._run, held) is not None:
            held.wait()
        elif threading.current_thread() is threading.main_thread():  # the interpreter is ending, so nothing polls
            self.presence.hold()
        sys.pyncclx_end = self.presence.end_with_interpreter()  # type: ignore[attr-defined]  # deleted after all else

    # The watched communicators and processes

    def watch(self, watched: Monitored) -> None:
        """Watch a communicator."""
        with LOCK:
            self._watched.add(watched)
            self._uids.update((rank, uid) for rank, uid in zip(watched.world_ranks, watched.uids, strict=False))
            self._fail_comms([watched])
        make_reports()

    def forget(self, watched: Monitored) -> None:
        """Stop watching a communicator, which may then be freed."""
        with LOCK:
            self._watched.discard(watched)

    def add_peers(self, fds: Mapping[bytes, int]) -> None:
        """Watch more processes by their pages, which are mapped from file descriptors.

        `fds` has a descriptor for each process, by its identifier. This call closes all descriptors. If one page cannot
        be mapped, it raises, and watches none of these processes.
        """
        left, pages = dict(fds), dict[bytes, PeerPresence]()
        try:
            while left:
                uid, fd = left.popitem()
                # `PeerPresence` closes the descriptor, even if it raises.
                pages[uid] = PeerPresence(fd)
        finally:
            for unused in left.values():
                os.close(unused)
        with LOCK:
            self.peers.update(pages)

    def gone(self) -> set[bytes]:
        """Return identifiers of failed processes that no longer run, not even on a GPU."""
        return {uid for uid in list(self._failed) if uid not in self.peers or self.peers[uid].is_gone()}

    def are_gone(self, world_ranks: Sequence[int]) -> bool:
        """Return whether all these COMM_WORLD ranks have ended, with their work on GPUs.

        It is False if this process does not watch one of them.
        """
        peers = [self.peers.get(self._uids.get(rank, b"")) for rank in world_ranks]
        return all(peer is not None and peer.is_gone() for peer in peers)

    def standing_still(self, world_ranks: Sequence[int]) -> list[int]:
        """Return the indices of the COMM_WORLD ranks whose processes show no heartbeat."""
        before_ns = time.monotonic_ns() - STOOD_STILL_S * 1e9
        peers = ((index, self.peers.get(self._uids.get(rank, b""))) for index, rank in enumerate(world_ranks))
        return [index for index, peer in peers if peer and peer.state == RUNNING and peer.beat_ns < before_ns]

    @property
    def has_failed(self) -> bool:
        """Whether a process is known to have failed."""
        return bool(self._failed_world or self._failed)

    def shares_node(self, world_rank: int) -> bool:
        """Return whether a COMM_WORLD rank is on this node, as far as this process knows."""
        return world_rank in self._uids

    def failed_among(self, world_ranks: Sequence[int], *, with_ended: bool = False) -> dict[int, str]:
        """Return index and reason of each failed rank in a list of COMM_WORLD ranks.

        With `with_ended`, ranks whose programs ended normally a while ago count as well.
        """
        failed = dict(self._failed_world)
        if with_ended:
            failed = {rank: ENDED_BY_ITSELF for rank, uid in list(self._uids.items()) if self._is_over(uid)} | failed
        return {index: failed[rank] for index, rank in enumerate(world_ranks) if rank in failed} if failed else {}

    def _is_over(self, uid: bytes) -> bool:
        peer = self.peers.get(uid)
        return peer is not None and peer.state == ENDED and time.monotonic_ns() - peer.beat_ns > OVER_S * 1e9

    def failure_of(self, comm: MPI.Comm) -> CommFailure | None:
        """Return why a communicator's ranks can no longer meet; None if that is unknown."""
        found = [each.comm_failure for each in self.watched_of(comm)]
        return next((failure for failure in found if failure and (failure.ranks or failure.is_revoked)), None)

    def watched_of(self, comm: MPI.Comm) -> list[Monitored]:
        """Return the `Monitored` objects of a communicator."""
        with LOCK:
            return [watched for watched in self._watched if comm in (watched.comm, watched.handle)]

    def await_end(self, uids: Set[bytes]) -> None:
        """Wait, at most 10 s, until failed processes and their work on GPUs have ended."""
        end = time.monotonic() + _FOR_END_S
        with LOCK:
            for uid in uids:
                self._failed.setdefault(uid, KILLED)  # MPI has found it
        while not self.gone().issuperset(uids) and time.monotonic() < end:
            time.sleep(0.005)

    def drop(self, uid: bytes) -> None:
        """Stop watching the page of a process that is gone."""
        with LOCK:
            self.peers.pop(uid, None)

    # The polls

    def look(self) -> None:
        """Poll once; any thread may call it."""
        with LOCK:
            now_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
            since_ns, used_ns = now_ns - self._last_ns, cpu_ns - self._last_cpu_ns
            if since_ns > STOOD_STILL_S * 1e9 and used_ns < _OF_CPU * since_ns:
                self.stood_still_s, self.stood_still_ns = since_ns / 1e9, now_ns
            self._last_ns, self._last_cpu_ns = now_ns, cpu_ns
            self.presence.beat(now_ns)
            self._look_at_pages()
            self._publish()
        make_reports()

    def _look_at_pages(self) -> None:
        loud = [uid for uid, peer in self.peers.items() if not (peer.is_quiet() or uid in self._failed)]
        if not loud:
            return
        fresh: list[Note] = []
        failed = False
        for uid in loud:
            peer = self.peers[uid]
            if peer.has_died or peer.state == RAISED:
                died = peer.state == RUNNING
                self._failed[uid] = KILLED if died else f"its program ended with {peer.text}"
                failed = True
            fresh += peer.new_notes()
        if failed:
            self._fail_comms(list(self._watched))
        for note in sorted(fresh, key=lambda each: each.when_ns):
            for watched in list(self._watched):
                if watched.id == note.group:
                    watched.fail(CommFailure(note=note))

    def _fail_comms(self, among: Sequence[Monitored]) -> None:
        """Make those communicators fail that have a rank whose process has failed."""
        for watched in among:
            reasons = {rank: self._failed[uid] for rank, uid in enumerate(watched.uids) if uid in self._failed}
            for rank, reason in reasons.items():
                self.record_failure(watched.world_ranks[rank], reason)
            self._fail(watched, {**self.failed_among(watched.world_ranks), **reasons})

    def _fail(self, watched: Monitored, reasons: Mapping[int, str]) -> None:
        if reasons:
            watched.fail(of_ranks(reasons, watched.world_ranks))

    def _publish(self) -> None:
        """Publish failures of this process's kernels to other processes."""
        for watched in self._watched:
            if (note := watched.given_up()) is not None:
                self.presence.note(note)

    def ask_mpi(self) -> None:
        """Ask MPI for failed ranks and revoked communicators.

        Any thread may call it, if MPI allows that.
        """
        with LOCK:
            for watched in list(self._watched):
                if watched.comm is None or MPI.Is_finalized():
                    continue
                if ulfm.is_revoked(watched.comm):
                    watched.fail(ended_by(-1, REVOKED))
                ranks = ulfm.failed_ranks(watched.comm)
                if ranks:
                    self._fail(watched, {rank: self._reason(watched, rank) for rank in ranks})
        make_reports()

    def _reason(self, watched: Monitored, rank: int) -> str:
        """Return the reason of a rank's failure that MPI has found."""
        known = self._failed.get(watched.uids[rank]) if watched.uids else None
        reason = known or self._failed_world.get(watched.world_ranks[rank]) or KILLED
        self.record_failure(watched.world_ranks[rank], reason)
        return reason

    def record_failure(self, world_rank: int, reason: str = KILLED) -> None:
        """Record that a rank has failed; ignore -1, a rank of another MPI world."""
        if world_rank >= 0:
            self._failed_world.setdefault(world_rank, reason)

    def is_busy(self, ended: Monitored | None = None) -> bool:
        """Return whether kernels of this process run, or may be launched by the program.

        Kernels of `ended` do not count.
        """
        with LOCK:
            return any(each.may_launch() or each.is_busy() for each in self._watched if each is not ended)

    def waits_in_collectives(self) -> bool:
        """Return whether a kernel of this process may wait for calls of other ranks."""
        with LOCK:
            return any(watched.is_busy() for watched in self._watched if not watched.is_of_messages)

    def _interrupt(self) -> None:
        """End the waits of kernels that keep the program from handling a signal."""
        with LOCK:
            for watched in list(self._watched):
                if watched.is_busy():
                    watched.give_up(INTERRUPTED)
        make_reports()

    # The thread

    def _run(self, held: threads.Bell) -> None:
        self.presence.hold()
        held.ring()
        while not self._ended:
            self._interrupts.pause(PAUSE_S)
            self.look()
            if self._interrupts.is_overdue():
                self._interrupt()
            if self._asks_mpi:
                self.ask_mpi()
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        # Sleep until the process ends: Linux marks the mutex when this thread ends. The sleep needs no interpreter.
        select.poll().poll()

    def end(self) -> None:
        """Publish that the program ends, and the exception that ends it."""
        interactive = hasattr(sys, "ps1")  # an exception does not end an interactive session
        error = None if interactive else getattr(sys, "last_value", None)
        self._ended = True
        self._interrupts.wake()
        with LOCK:
            self._asks_mpi = False
        if error is None:
            self.presence.end(ENDED if MPI.Is_finalized() else ENDING)
        else:
            self.presence.end(RAISED, f"{type(error).__name__}: {error}")


DETECTOR = PerProcess(Detector, lasting=True)
