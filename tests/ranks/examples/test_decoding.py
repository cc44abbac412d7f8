"""examples/decoding: each exchange decodes the tokens of one rank alone, and an error in one would be seen."""

import argparse
import re
import sys
from pathlib import Path

import pytest

from support.arrays import xp
from support.everywhere import assert_everywhere

pytest.importorskip("matplotlib")
sys.path.extend(str(Path(__file__).resolve().parents[3] / "examples" / folder) for folder in ("", "decoding"))
import decoding_comparison
import exchange
from decoding_model import PRESETS
from exchange_gathers import Gathered
from exchange_mpi4py import Staged
from exchange_pyncclx import Shuffled

pytestmark = pytest.mark.parametrize("comm", ["reversed"], indirect=True)
BATCH = 5


@pytest.fixture
def comparison(comm):
    """All exchanges on a small model; sequences end, and others begin, within the steps."""
    options = argparse.Namespace(preset="tiny", seed=3, nodes=None, steps=10, repeat=1, room=1)
    sizes = PRESETS["tiny"]._replace(experts=3 * comm.size)
    made = decoding_comparison.Comparison(comm, xp, sizes, options)
    yield made
    made.free()


def test_same_tokens(comm, comparison):
    """By all four exchanges as by one rank alone, for one sequence and for several; with exact sums."""
    for batch in (1, BATCH):
        points, right = comparison.run(batch)
        assert_everywhere(comm, right, f"{batch} sequences a rank")
        assert_everywhere(comm, len({point.way for point in points}) == 4)
        assert_everywhere(comm, all(point.batch == batch and min(point.parts) >= 0 for point in points))
    assert_everywhere(comm, comparison.is_exact())


class Heavier(Shuffled):
    """One weight of one row of one rank is twice what it should be."""

    def dispatch(self, x, chosen, weights):
        weights[-1, -1] *= 2 if self.comm.rank == 0 else 1
        return super().dispatch(x, chosen, weights)


class Elsewhere(Gathered):
    """One row of one rank has its experts in the other order, with the weights as they were."""

    def dispatch(self, x, chosen, weights):
        if self.comm.rank == 0:
            chosen[-1] = chosen[-1][::-1].copy()
            weights[-1, 0], weights[-1, 1] = 1, 0.125
        return super().dispatch(x, chosen, weights)


@pytest.mark.parametrize("way", [Heavier, Elsewhere])
def test_an_error_is_seen(comm, comparison, way, monkeypatch):
    """A wrong weight, or a wrong expert, of one choice of one rank makes the check fail on all ranks."""
    monkeypatch.setattr(decoding_comparison, "WAYS", (way,))
    assert_everywhere(comm, not comparison.run(BATCH)[1])


@pytest.mark.parametrize("way", [Gathered, Staged])
def test_too_little_room_is_seen(comm, comparison, way, monkeypatch, capsys):
    """Choices without room are counted, and make the check fail."""
    monkeypatch.setattr(decoding_comparison, "WAYS", (way,))
    monkeypatch.setattr(exchange, "room", lambda *sizes, least: 1)
    assert_everywhere(comm, not comparison.run(BATCH)[1])
    assert comm.rank > 0 or re.search(r"; [1-9]\d* choices had no room", capsys.readouterr().out)


def test_requests_end(comm, comparison):
    """Within the steps the sequences of a batch end at different times, and others begin in their places."""
    requests = comparison.requests(BATCH, comm.rank)
    assert requests.length.min() < comparison.options.steps
    assert len(set(requests.length[:, 0].tolist())) > 1
