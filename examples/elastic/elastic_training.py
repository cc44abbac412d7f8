"""Data-parallel training that continues when replicas die, and repeats one step.

    mpirun --with-ft ulfm --mca pml ob1 -n 4 python examples/elastic/elastic_training.py [--grow]

All ranks have the same weights. In each step they divide the batch, and `Allreduce` sums the gradients. When ranks die,
the others shrink the communicator, take the state of the rank that is furthest ahead, and repeat the step with the
whole batch, of which each now has a larger share. So the losses equal those of a run without failures, except for
rounding, because the sums have other parts. With `--grow`, new processes replace the dead ones, and get the state from
the others. To try it, let a rank die: PYNCCLX_FAULT="rank=1,call=Allreduce,nth=20,do=kill".
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import pyncclx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where common/ is
from common.program import array_module, figure, read_options, share, sign
from go_on import FAILURES, begin, end, with_new, without_failed

Array = Any  # NumPy's or CuPy's
INPUTS, HIDDEN, BATCH = 2, 32, 120
SIZES = (INPUTS * HIDDEN, HIDDEN, HIDDEN)  # numbers of weights
RATE, MOMENTUM = 0.05, 0.9


def batch_of(step: int) -> tuple[Array, Array]:
    """Return the inputs and the targets of a step."""
    x = np.random.default_rng(step).uniform(-2, 2, (BATCH, INPUTS))
    return x, np.sin(2 * x[:, 0]) * np.cos(x[:, 1])


def gradient(xp: Any, weights: Array, x: Array, target: Array) -> Array:
    """Return the summed gradient of the squared errors, and their sum at its end."""
    inner, bias, outer = xp.split(weights, np.cumsum(SIZES)[:-1].tolist())
    inner = inner.reshape(INPUTS, HIDDEN)
    hidden = xp.tanh(x @ inner + bias)
    error = hidden @ outer - target
    back = error[:, None] * outer * (1 - hidden**2)
    parts = [(x.T @ back).ravel(), back.sum(0), hidden.T @ error, 0.5 * (error**2).sum(keepdims=True)]
    return xp.concatenate(parts)


class Replica:
    """The state of the training: weights and velocities, equal on all ranks.

    Attributes
    ----------
    losses : list of float
        Loss of each step so far.
    attempts : int
        Steps that this process has begun.
    """

    def __init__(self, comm: Any, xp: Any, *, is_new: bool = False) -> None:
        self.comm, self.xp, self.has_changed = comm, xp, is_new
        weights = np.random.default_rng(99).normal(0, 0.5, sum(SIZES))
        self.state = xp.asarray(np.stack([weights, np.zeros_like(weights)]))
        self.losses: list[float] = []
        self.attempts = self.failures = 0

    def step(self) -> None:
        """Make a step; the state changes only when the step is complete."""
        if self.has_changed:
            self._catch_up()
        self.attempts += 1
        first, count = share(BATCH, self.comm.size, self.comm.rank)
        x, target = (self.xp.asarray(each[first : first + count]) for each in batch_of(len(self.losses)))
        sums = gradient(self.xp, self.state[0], x, target)
        self.comm.Allreduce(MPI.IN_PLACE, sums)
        self.comm.synchronize()
        self.state[1] = MOMENTUM * self.state[1] - RATE * sums[:-1] / BATCH
        self.state[0] += self.state[1]
        self.losses.append(float(sums[-1]) / BATCH)

    def _catch_up(self) -> None:
        """Take the state of the rank that is furthest ahead."""
        steps = self.comm.allgather(len(self.losses))
        furthest = steps.index(max(steps))
        self.comm.Bcast(self.state, furthest)
        self.comm.synchronize()
        self.losses, self.failures = self.comm.bcast((self.losses, self.failures), furthest)
        self.has_changed = False

    def recover(self, *, grow: bool) -> None:
        """Continue with the living ranks, and with new ones if `grow`."""
        before = self.comm.size
        self.comm = without_failed(self.comm)
        self.failures += 1
        self.has_changed = True
        if grow:
            self.comm = with_new(self.comm, before - self.comm.size)


def train(replica: Replica, steps: int, *, grow: bool) -> None:
    """Make `steps` steps, even if ranks die."""
    while replica.has_changed or len(replica.losses) < steps:
        try:
            replica.step()
        except FAILURES:
            replica.recover(grow=grow)


def main() -> int:
    """Train and compare with a run of one rank; return 1 if the losses differ."""
    comm, is_new = begin()
    options = read_options(MPI.COMM_WORLD, parse_options)
    # Collective over the ranks that have started together.
    xp = array_module(pyncclx.Communicator(), "float64")
    replica = Replica(comm, xp, is_new=is_new)
    train(replica, options.steps, grow=options.grow)
    code = 0
    if replica.comm.rank == 0:
        expected = losses_alone(options.steps)
        error = float(np.abs(np.array(replica.losses) / expected - 1).max())
        again = replica.attempts - options.steps
        print(f"{options.steps} steps, {replica.failures} failures, {replica.comm.size} ranks: ", end="")
        print(f"{again} steps repeated, losses differ by {error:.0e} from those of one rank", flush=True)
        draw(options, replica, expected)
        code = int(error > 1e-9 or again > replica.failures)
    if options.grow:
        end(replica.comm, code)
    return code


def losses_alone(steps: int) -> Array:
    """Return the losses of one rank without communication."""
    replica = Replica(None, np)
    weights, velocity = replica.state
    for step in range(steps):
        sums = gradient(np, weights, *batch_of(step))
        velocity[:] = MOMENTUM * velocity - RATE * sums[:-1] / BATCH
        weights += velocity
        replica.losses.append(float(sums[-1]) / BATCH)
    return np.array(replica.losses)


def draw(options: argparse.Namespace, replica: Replica, expected: Array) -> None:
    """Draw the losses, and those of one rank."""
    if options.output is None:
        return
    drawing, axes = figure(1)
    axes.semilogy(replica.losses, label=f"{replica.failures} failures")
    axes.semilogy(expected, "--", label="one rank")
    axes.set(title="A replica dies, the training goes on", xlabel="step", ylabel="loss")
    axes.legend()
    sign(drawing, replica.comm)
    drawing.savefig(options.output, dpi=120)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="elastic_training.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--grow", action="store_true", help="start a process in the place of each that dies")
    parser.add_argument("--output", metavar="FILE", help="draw the losses into a PNG file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
