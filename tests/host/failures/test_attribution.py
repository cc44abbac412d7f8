"""The rank that a timeout names."""

from types import SimpleNamespace

import pytest

from pyncclx.errors import PeerTimeout
from pyncclx.failures import attribution


@pytest.mark.parametrize(
    ("waiting", "peer", "behind", "named"),
    [
        (1, 0, [], 0),
        (1, 0, [0], 0),
        (1, 0, [2], 2),
        (1, 0, [2, 0], 0),
        (1, 0, [1], 0),  # as rank 0 sees it, the rank that gave up is behind: it does not wait for itself
        (1, 0, [1, 2], 2),
    ],
)
def test_a_rank_that_is_behind(monkeypatch, waiting, peer, behind, named):
    detector = SimpleNamespace(stood_still_ns=0, stood_still_s=0.0, peers={})
    monkeypatch.setattr(attribution, "DETECTOR", SimpleNamespace(made=detector))
    error = PeerTimeout("Reduce", 3, waiting, peer, 3, 2)
    found = attribution.with_evidence(error, 0, [b"a", b"b", b"c"], lambda: (behind, []))
    assert (found.rank, found.peer) == (waiting, named)
