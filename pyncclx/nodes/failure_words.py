"""Failures of kernels on other nodes: each exchange carries a failure word.

The results of a kernel that has failed are undefined, but an engine sends them nevertheless. So each rank sends its
failure word with the data, and the receivers raise at their next check. On a node with one rank no kernel waits for a
peer. So no kernel fails this way, and no word is sent.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..backends import Device
from ..errors import Aborted
from ..failures.kernel_errors import FAILURE
from .engine import Transfer
from .places import Places

WORD_NBYTES = 8
_MOST_WORDS = 512  # with more ranks, several share a word


class FailureWords:
    """Failure words of this rank's peers, as received with the last exchange of each.

    Parameters
    ----------
    device : Device
    own : int
        The address of this rank's error record.
    places : Places
    """

    def __init__(self, device: Device, own: int, places: Places) -> None:
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
            text = f"kernels on rank {', '.join(map(str, ranks))} have given up a step of an earlier call"
            raise Aborted(f"{text}, which raises the reason there; what came from there is undefined")
