"""examples/training: the losses of one rank in every grid, while segments change, and when a replica leaves."""

import argparse
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

from support.arrays import HOST, xp
from support.everywhere import assert_everywhere

pytest.importorskip("torch")
pytest.importorskip("matplotlib")
sys.path.extend(str(Path(__file__).resolve().parents[3] / "examples" / folder) for folder in ("", "training"))
import torch

import training
import training_trainer
from training_model import Sizes
from training_pipeline import Stage

pytestmark = pytest.mark.parametrize("comm", ["reversed"], indirect=True)
STEPS = 4
KINDS = ("data", "tensor", "pipeline", "all", "sequence")  # of grids: what is divided


def grid_of(kind, size):
    """A grid of all ranks, the first of three dimensions last where they are of several kinds."""
    if kind in ("all", "sequence"):
        halves = [each for each in range(size, 0, -1) if size % each == 0 and each * each <= size]
        pair = (halves[0], size // halves[0])
        return (1, pair[1], pair[0]) if kind == "sequence" else (pair[0], 1, pair[1])
    return tuple(size if kind == each else 1 for each in KINDS[:3])


def options_of(size, grid, **changed):
    """A small model that every number of ranks divides, with micro-batches of unequal lengths."""
    sizes = Sizes(hidden=4 * size, heads=size, blocks=size, context=2 * size, seed=7)
    made = {"sizes": sizes, "grid": grid, "steps": STEPS, "batch": 2 * size + 1, "micro": 2, "every": 100, "least": 0}
    return argparse.Namespace(**{**made, "sequence_parallel": False, **changed})


def device():
    """The device of this rank's tensors."""
    return torch.device("cpu") if HOST else torch.device("cuda", xp.cuda.Device().id)


@pytest.fixture
def text():
    """Text that no grid has to read from files."""
    return np.random.default_rng(1).integers(97, 123, 500)


@pytest.fixture
def trained(comm, text):
    """Makes a trainer, and some steps of it, with something that happens before each."""
    trainers = []

    def train(options, change=lambda trainer, step: None):
        trainers.append(trainer := training_trainer.Trainer(comm, text, options, device()))
        for step in range(STEPS):
            change(trainer, step)
            trainer.step()
        return trainer

    yield train
    for each in trainers:
        each.free()


def agree(trainer, text, options):
    """Whether the losses are those of one rank."""
    expected = training.losses_alone(text, options)
    return np.allclose(trainer.losses, expected, rtol=training.TOLERANCE, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_losses(comm, text, trained, kind):
    """Each kind of parallelism alone, and several at once, have the losses of one rank at every step."""
    grid = grid_of(kind, comm.size)
    options = options_of(comm.size, grid, sequence_parallel=kind == "sequence")
    trainer = trained(options)
    assert_everywhere(comm, agree(trainer, text, options), f"{kind}, {grid}")
    assert trainer.losses[-1] < trainer.losses[0]


def move_cut(trainer, step):
    """Another cut before each step, the same on all ranks."""
    layers, stages = trainer.sizes.layers, trainer.pipe.size
    ways = list(itertools.combinations(range(1, layers), stages - 1))
    ends = [0, *ways[(2 * step + 1) % len(ways)], layers]
    trainer.resplit([range(*each) for each in itertools.pairwise(ends)])


@pytest.mark.parametrize("kind", ["pipeline", "all"])
def test_the_cut_moves(comm, text, trained, kind):
    """Weights and state go to other stages, and to other replicas' parts, before every step."""
    options = options_of(comm.size, grid_of(kind, comm.size))
    trainer = trained(options, move_cut)
    assert_everywhere(comm, agree(trainer, text, options))
    assert comm.size == 1 or len(set(map(str, trainer.history.values()))) > 1


def test_lost_state_is_seen(comm, text, trained, monkeypatch):
    """Weights that move without Adam's means make losses differ."""
    real = training_trainer.move

    def without_means(*arguments):
        state = real(*arguments)
        state[1:] = 0
        return state

    monkeypatch.setattr(training_trainer, "move", without_means)
    options = options_of(comm.size, (1, 1, comm.size))
    assert_everywhere(comm, not agree(trained(options, move_cut), text, options))


def test_few_micro_batches_are_open(comm, trained, monkeypatch):
    """In 1F1B order a stage keeps the activations of no more micro-batches than there are stages from it on."""
    most, real = [], Stage.backward
    monkeypatch.setattr(Stage, "backward", lambda stage: (most.append(len(stage.open)), real(stage)))
    trainer = trained(options_of(comm.size, (1, 1, comm.size), micro=1))
    assert max(most) == min(comm.size - trainer.pipe.rank, trainer.options.batch)


def test_a_slow_stage_gets_fewer_layers(comm, text, trained):
    """By times that a clock has been told: the cut moves away from the last stage, and once only."""
    options = options_of(comm.size, (1, 1, comm.size), every=1)
    options.sizes = options.sizes._replace(blocks=4 * comm.size)
    slow = comm.size - 1

    def tell(trainer, step):
        factor = 3 if step >= 2 and trainer.pipe.rank == slow else 1
        own = trainer.segments[trainer.pipe.rank]
        trainer.clock.seconds = lambda layers: [factor * (layer in own) for layer in range(layers)]

    trainer = trained(options, tell)
    lengths = [len(segment) for segment in trainer.segments]
    assert_everywhere(comm, agree(trainer, text, options))
    assert sum(lengths) == options.sizes.layers
    assert len(trainer.events) == (comm.size > 1), trainer.events
    assert comm.size == 1 or lengths[slow] < min(lengths[:slow])
