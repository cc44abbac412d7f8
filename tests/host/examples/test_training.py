"""examples/training: where a pipeline is cut, and the program with a slow rank, with all that it writes."""

import itertools
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import launch

pytest.importorskip("torch")
pytest.importorskip("matplotlib")
sys.path.extend(str(Path(__file__).resolve().parents[3] / "examples" / folder) for folder in ("", "training"))
import training_cut
import training_zero

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = str(ROOT / "examples/training/training.py")


def slowest(costs, slowness, segments):
    """The time of the slowest stage."""
    return max(
        factor * sum(costs[each] for each in segment) for factor, segment in zip(slowness, segments, strict=True)
    )


@pytest.mark.parametrize("seed", range(5))
def test_no_cut_is_faster(seed):
    """The cut is as fast as the fastest of all cuts."""
    random = np.random.default_rng(seed)
    costs, slowness = random.uniform(1, 5, 9).tolist(), random.uniform(1, 3, 4).tolist()
    every = [itertools.pairwise([0, *ends, 9]) for ends in itertools.combinations(range(1, 9), 3)]
    fastest = min(slowest(costs, slowness, [range(*each) for each in segments]) for segments in every)
    found = training_cut.cut(costs, slowness)
    assert [layer for segment in found for layer in segment] == list(range(9))
    assert slowest(costs, slowness, found) == pytest.approx(fastest)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_shards_have_each_number_once(replicas):
    """The replicas of all segments have each weight, and each of its means, exactly once."""
    counts, segments = [5, 7, 0, 4, 9], [range(2), range(2, 4), range(4, 5)]
    shards = [training_zero.shard(counts, each, replicas, part) for each in segments for part in range(replicas)]
    for place, count in enumerate(counts * training_zero.KINDS):
        boxes = [shard.boxes[place] for shard in shards]
        assert sorted(n for box in boxes for n in range(box.column, box.column + box.columns)) == list(range(count))


def test_a_slow_rank(tmp_path):
    """The losses are those of one rank, and the picture is there."""
    picture = tmp_path / "folder" / "training.png"
    small = ["--steps=8", "--batch=2", "--blocks=2", "--every=2", "--slow=rank=1,at=4,by=9", f"--output={picture}"]
    command = launch.mpiexec(2, PROGRAM, *small)
    environment = {**launch.environment("host"), "PYTHONPATH": str(ROOT), "PYNCCLX_TIMEOUT": "120"}
    done = launch.ended(command, environment, 300, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "check: PASSED" in done.stdout
    assert "before step 4: rank 1 is slow" in done.stdout
    assert re.search(r"steps 4 to \d: \d+ tokens/s, layers \d \| \d", done.stdout)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_ranks_that_do_not_fit_the_grid():
    """Another number of ranks is refused on all ranks, with the reason."""
    environment = {**launch.environment("host"), "PYTHONPATH": str(ROOT)}
    done = launch.ended([sys.executable, PROGRAM, "--grid=2,1,1"], environment, 100, capture_output=True)
    assert done.returncode == 1
    assert "a grid of 2 x 1 x 1 has not 1 ranks" in done.stderr
