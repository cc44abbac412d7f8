"""Fold the nodes' pieces over the rails, in the middle of a reduction.

Two nodes send each other their pieces, and both fold both pieces. More than two nodes exchange parts of the piece: each
node folds one part and sends the result to all. So a link carries a piece about twice for any number of nodes.
"""

from __future__ import annotations

from ...nodes.composition import Composition, Vectors
from ...nodes.engine import Transfer
from .folding import Folding, part_of_node
from .pieces import Span, aligned

# Pieces up to this length are sent to all nodes whole, in one trip instead of two. Not measured.
WHOLE_NBYTES = 16 << 10


class RailFold:
    """The fold of a rank's piece in segments, at most `at_once` of them in flight."""

    def __init__(self, composition: Composition, folding: Folding, longest: int, *, at_once: int) -> None:
        places = composition.places
        self._composition, self._folding, self._places = composition, folding, places
        self._stride = aligned(longest)
        self._whole = places.count == 2 or longest <= WHOLE_NBYTES
        # The additional vector is this node's own, which lies apart if it is cut into parts.
        each = (places.count + 1) * self._stride
        (base,) = composition.memory(at_once * each)
        self._slots = [base + number * each for number in range(at_once)]
        # Address of the node's vector and place of the exchange, by segment in flight.
        self._begun: dict[int, tuple[int, int]] = {}
        # The last step on the slots of each segment.
        self._ended: list[int] = []

    def begin(self, spans: list[Span], send: int, segment: int) -> None:
        """Reduce a segment of the vectors inside the node, and start its exchange.

        The rank with local index r reduces ``spans[r]`` and exchanges it with its peers on the other nodes. `send` is
        the address of this rank's vector, `segment` the segment's number.
        """
        places, slots = self._places, self._slots[segment % len(self._slots)]
        mine = spans[places.local_rank]
        slot = slots + (places.node if self._whole else places.count) * self._stride
        before = segment - len(self._slots)  # segment that used the same slots
        free = (self._ended[before],) if before >= 0 else ()
        own, after = part_of_node(self._composition, self._folding, send, spans, slot, free)
        sends, receives = [], []
        for node, peer in self._peers():
            part = Span(0, mine.nbytes) if self._whole else self._parts(mine)[node]
            length = mine.nbytes if self._whole else self._parts(mine)[places.node].nbytes
            sends.append(Transfer(peer, own + part.begin, part.nbytes))
            receives.append(Transfer(peer, slots + node * self._stride, length))
        exchanged = self._composition.exchange(
            "exchange over the rails", sends, receives, on_rail=True, aside=True, after=after
        )
        self._begun[segment] = own, exchanged

    def end(self, mine: Span, result: int, segment: int) -> int:
        """Fold the received vectors of a segment; return the place of the last step.

        This rank's span goes to `result`.
        """
        composition, places = self._composition, self._places
        slots, (own, begun) = self._slots[segment % len(self._slots)], self._begun.pop(segment)
        if self._whole:
            self._ended.append(self._fold(slots, own, mine.nbytes, result, begun))
            return self._ended[-1]
        parts = self._parts(mine)
        part = parts[places.node]
        folded = self._fold(slots, own + part.begin, part.nbytes, result + part.begin, begun)
        self._ended.append(folded)
        sends = [Transfer(peer, result + part.begin, part.nbytes) for _, peer in self._peers()]
        receives = [Transfer(peer, result + parts[node].begin, parts[node].nbytes) for node, peer in self._peers()]
        return composition.exchange(
            "exchange of results over the rails", sends, receives, on_rail=True, aside=True, after=(folded,)
        )

    def _fold(self, slots: int, own: int, nbytes: int, result: int, begun: int) -> int:
        places = self._places
        count = places.count if places.local_rank < places.lanes else 0
        vectors = Vectors(slots, count, self._stride, (places.node, own))
        return self._composition.fold(self._folding.template, vectors, nbytes, result, after=(begun,))

    def _parts(self, mine: Span) -> list[Span]:
        return Span(0, mine.nbytes).cut(self._places.count, self._folding.unit_nbytes)

    def _peers(self) -> list[tuple[int, int]]:
        """Return the other nodes, and the rank of this rank's rail on each.

        A rank without a rail has no peers.
        """
        places = self._places
        if places.local_rank >= places.lanes:
            return []
        return [(node, places.peer_on(node, places.local_rank)) for node in places.other_nodes]
