"""Failures of ranks and of kernels on other nodes.

The detector finds failed ranks with MPI (ULFM). Exchanges report failures of kernels. The results of a kernel that has
failed are undefined, but an engine sends them nevertheless. So each rank sends its failure word with the data, and the
receivers raise at their next check. On a node with one rank no kernel waits for a peer. So no kernel fails this way,
and no word is sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from mpi4py import MPI

from ..backends import Device
from ..errors import Aborted
from ..failures import ulfm
from ..failures.comm_failures import CommFailure, Monitored
from ..failures.detector import DETECTOR
from ..failures.kernel_errors import FAILURE
from ..system.mpi_library import goes_on_after_failures
from .engine import Transfer
from .rails import NodeMap

# Seconds that a rank waits, after an unexplained error, for MPI to find a failed rank. MPI may find it on other ranks
# earlier.
_PATIENCE_S = 0.5
_PAUSE_S = 0.01
WORD_NBYTES = 8
_MOST_WORDS = 512  # with more ranks, several share a word


class FailureWords:
    """The peers' failure words, as received in the last exchange with each peer.

    Parameters
    ----------
    device : Device
    own : int
        The address of this rank's error record.
    places : NodeMap
    """

    def __init__(self, device: Device, own: int, places: NodeMap) -> None:
        self._places = places
        self._own = own + WORD_NBYTES * FAILURE
        self._watch = device.allocate_watch(WORD_NBYTES * _MOST_WORDS)
        self._ranks: dict[int, int] = {}  # number of each peer's word

    def sends(self, transfers: Iterable[Transfer]) -> list[Transfer]:
        """Return the transfers that send this rank's word along with `transfers`."""
        peers = dict.fromkeys(each.peer for each in transfers) if self._places.local_size > 1 else ()
        return [Transfer(peer, self._own, WORD_NBYTES) for peer in peers]

    def receives(self, transfers: Iterable[Transfer]) -> list[Transfer]:
        """Return the transfers that receive the peers' words along with `transfers`."""
        places = self._places
        nodes = {each.peer: places.node_of(each.peer) for each in transfers}
        peers = [peer for peer, node in nodes.items() if len(places.ranks_of(node)) > 1]
        return [Transfer(peer, self._watch.address + WORD_NBYTES * self._word(peer), WORD_NBYTES) for peer in peers]

    def _word(self, peer: int) -> int:
        return self._ranks.setdefault(peer, len(self._ranks) % _MOST_WORDS)

    def note(self, peer: int) -> None:
        """Set the word of a peer whose failure a host exchange has shown."""
        self._watch.array[self._word(peer)] = 1

    @property
    def is_clear(self) -> bool:
        """Whether no peer's kernels have failed."""
        return not (self._ranks and self._watch.array.any())

    def check(self) -> None:
        """Raise Aborted, at every call, if a peer sent data after its kernels had failed."""
        if not self.is_clear:
            ranks = [peer for peer, word in self._ranks.items() if self._watch.array[word]]
            text = f"kernels on rank {', '.join(map(str, ranks))} have failed in a step of an earlier call"
            raise Aborted(f"{text}, which raises the reason there; what came from there is undefined")


class RanksElsewhere(Monitored):
    """All ranks of a communicator over nodes, for the failure detector.

    The ranks of this node also form a Team, which the detector watches separately.

    Parameters
    ----------
    comm : MPI.Intracomm
    failed : callable
        Called with the failure, in the detector's thread.
    is_busy : callable
        Returns whether a step may be in progress. Any thread may call it.
    """

    def __init__(self, comm: MPI.Intracomm, failed: Callable[[CommFailure], None], is_busy: Callable[[], bool]) -> None:
        self.rank, self._failed, self.is_busy = comm.rank, failed, is_busy
        if goes_on_after_failures():
            self.comm, self.world_ranks = MPI.Comm(comm), ulfm.world_ranks(comm)
        elif isinstance(comm, MPI.Comm):  # not a simulated one
            self.handle = MPI.Comm(comm)
        self._may_wait = self.comm is not None
        DETECTOR.get().watch(self)

    def fail(self, failure: CommFailure) -> None:
        """Record that ranks have failed or that the communicator was revoked."""
        if self.comm_failure is None or len(failure.ranks) > len(self.comm_failure.ranks):
            # The detector has no host names of other nodes.
            self.comm_failure = replace(failure, host="")
            self._failed(self.comm_failure)

    def wait(self) -> CommFailure | None:
        """Return the failure; the first call waits up to half a second for it."""
        end = time.monotonic() + _PATIENCE_S
        while self.comm_failure is None and self._may_wait and time.monotonic() < end:
            time.sleep(_PAUSE_S)
        self._may_wait = False
        return self.comm_failure

    def close(self) -> None:
        """Stop watching: the communicator may be freed."""
        if DETECTOR.made is not None:
            DETECTOR.made.forget(self)
