"""Attribution of a timeout to a rank, from the pages of this node's processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from mpi_bootstrap.presence import COMPUTING, RUNNING, STOPPED, UNKNOWN, PeerPresence

from ..errors import PeerTimeout
from ..system import settings
from .detector import DETECTOR, STOOD_STILL_S

_FOR_FAILURE_S = 2.0  # seconds from a death to its detection, on a busy machine


def look_now() -> None:
    """Poll the other processes now instead of at the detector's next poll."""
    detector = DETECTOR.made
    if detector is not None:
        detector.look()


def failure_behind(error: Exception, find: Callable[[], Exception | None]) -> Exception:
    """Return the failure that `find` returns within two seconds, else the error.

    `error` says that a rank's memory cannot be opened, perhaps because the rank has died.
    """
    end = time.monotonic() + _FOR_FAILURE_S
    while (failure := find()) is None and time.monotonic() < end:
        look_now()
        time.sleep(0.01)
    return failure or error


def with_evidence(
    error: Exception, rank: int, uids: Sequence[bytes], late: Callable[[], tuple[Sequence[int], Sequence[int]]]
) -> Exception:
    """Return a timeout with facts about the late process, and about this process.

    If this process has been stopped, its deadlines have passed when it continues. The rank that it waited for is then
    not late, so `peer` becomes this rank itself. Otherwise the candidates are the ranks that have not begun the
    operation: the rank that this one waited for may itself wait for one of them. If all have begun it, the candidates
    are those that have not ended it. `peer` becomes a candidate whose process stands still, or whose program has ended;
    without one, the rank furthest behind, if any has not begun. `late` returns the ranks that have not begun the
    operation, furthest behind first, and those that have ended it.
    """
    detector = DETECTOR.made
    if detector is None or type(error) is not PeerTimeout:
        return error
    ago_s = (time.monotonic_ns() - detector.stood_still_ns) / 1e9
    if detector.stood_still_s > settings.TIMEOUT.get() / 2 and ago_s < settings.TIMEOUT.get():
        error.peer = rank
        error.detail = f"this process itself stood still for {detector.stood_still_s:.1f} s: stopped, or swapped out"
        return error
    peers = {other: detector.peers.get(uid) for other, uid in enumerate(uids)}  # some pages may be gone by now
    # Only collective operations have a number (epoch), and calls on record.
    behind, ended = late() if error.epoch > 0 else ((), ())
    behind = [each for each in behind if each != error.rank]  # `error` may be another rank's; no rank waits for itself
    absent = {
        other: peer
        for other, peer in peers.items()
        if peer
        and other != error.rank
        and (other in behind if behind else other not in ended)
        and _is_absent(peer, is_waited_for=other == error.peer)
    }
    # The awaited rank may itself have waited for an absent rank, and may have ended since.
    if absent:
        error.peer = min(absent, key=lambda other: absent[other].beat_ns)
        peer = absent[error.peer]
        error.detail = "its program has ended" if peer.state != RUNNING else _standing_still(peer)
    elif behind and error.peer not in behind:
        error.peer = behind[0]
    return error


def _is_absent(peer: PeerPresence, *, is_waited_for: bool) -> bool:
    """Return whether a process's program has ended, or has not run for a long time."""
    return peer.state != RUNNING or _still_s(peer) > (STOOD_STILL_S if is_waited_for else settings.TIMEOUT.get() / 2)


def _still_s(peer: PeerPresence) -> float:
    return (time.monotonic_ns() - peer.beat_ns) / 1e9


def _standing_still(peer: PeerPresence) -> str:
    seconds = f"{_still_s(peer):.1f} s"
    return f"its process, {peer.pid}, {_STILL[peer.why_still()].format(seconds)}"


_STILL = {
    STOPPED: "has not run for {}: stopped (SIGSTOP, or a debugger)",
    COMPUTING: "computes, and has run no Python code for {}: it is in a call that keeps the interpreter (GIL)",
    UNKNOWN: "has run no Python code for {}: swapped out, starved, or in a call that keeps the interpreter (GIL)",
}
