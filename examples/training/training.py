"""Train a transformer with data, tensor and pipeline parallelism at once.

    mpiexec -n 8 python examples/training/training.py [--grid 2,2,2] [--slow rank=2,at=40,by=2]

The ranks are a grid: data parallel x tensor parallel x pipeline parallel, in this order. The ranks of a tensor parallel
group divide the weights of each layer. The stages of a pipeline have segments of the layers, and run micro-batches in
1F1B order. The replicas divide the batch, and by ZeRO (stage 1) the state of Adam.

The layers are divided into segments by their measured times, so segments may be unequal. With --slow a rank becomes
slower by a factor. Then layers move to other stages, with their weights and state, while training continues. With
--kill a rank dies, so its replica is lost, and the others continue. That needs two replicas or more, and Open MPI's
fault tolerance:

    mpirun --with-ft ulfm --mca pml ob1 -n 4 python examples/training/training.py --grid 2,1,2 --kill rank=1,at=60

At the end the losses are compared with those of one rank that trains in plain PyTorch. With PYNCCLX_DEVICE=host it runs
without a GPU.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the folder with common/
import pyncclx
from common.program import array_module, read_options, stop
from training_model import Sizes, batch_of, loss_of, make_layer, read_text
from training_replicas import FAILURES, Replicas
from training_report import draw, print_speeds
from training_trainer import Trainer
from training_zero import DECAYS, RATE, TINY

PAGES = Path(__file__).resolve().parents[2] / "docs"
TOLERANCE = 1e-9  # allowed difference of losses; rounding causes about 1e-13


class Event(NamedTuple):
    """An event before a step, on a rank of MPI.COMM_WORLD; `by` is a factor of time."""

    rank: int = -1
    at: int = -1
    by: float = 1.0


def main() -> int:
    """Train, compare with one rank, and report; return 1 if a loss is wrong."""
    comm = pyncclx.Communicator(MPI.COMM_WORLD).Dup()
    options = read_options(comm, parse)
    check(comm, options)
    everyone = comm.Dup() if options.keep else None
    code = compare(comm, options)
    if everyone is not None:
        # Ranks of a lost replica end early. MPI_Finalize would wait for the other ranks, which still compute.
        with suppress(*FAILURES):
            everyone.Agree(1)
    return code


def compare(comm: Any, options: argparse.Namespace) -> int:
    """Train on all ranks and on one; return 1 if a loss differs."""
    array_module(comm, "float64")  # ends the program if there is no GPU
    device = torch.device("cpu") if comm.device == "host" else torch.device("cuda", comm.select_device())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(1)  # ranks share the processors
    text = read_text(PAGES)
    trainer = Trainer(comm, text, options, device)
    if not train(trainer, options):
        return 0
    code = None
    if trainer.cart.rank == 0:
        code = report(trainer, losses_alone(text, options))
    code = trainer.cart.bcast(code)
    trainer.free()
    return int(code)


def train(trainer: Trainer, options: argparse.Namespace) -> bool:
    """Make all steps; return False on the other ranks of a lost replica."""
    replicas = Replicas(trainer) if options.keep else None
    while len(trainer.losses) < options.steps:
        happen(trainer, options)
        try:
            trainer.step()
            if replicas is not None:
                replicas.keep()
        except FAILURES:
            if replicas is None:
                raise
            if not replicas.recover():
                return False
    return True


def happen(trainer: Trainer, options: argparse.Namespace) -> None:
    """Slow down or kill this rank, if it is time."""
    step, slow, kill = len(trainer.losses), options.slow, options.kill
    if step == slow.at and trainer.clock.slowness != slow.by:
        trainer.clock.slowness = slow.by if MPI.COMM_WORLD.rank == slow.rank else 1.0
        trainer.events.append((step, f"rank {slow.rank} is slow"))
    if (MPI.COMM_WORLD.rank, step) == (kill.rank, kill.at):
        os.kill(os.getpid(), signal.SIGKILL)


def losses_alone(text: Any, options: argparse.Namespace) -> list[float]:
    """Train in plain PyTorch, with whole batches and all layers; return the losses."""
    model = nn.Sequential(*(make_layer(options.sizes, number) for number in range(options.sizes.layers)))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=DECAYS, eps=TINY)
    losses = []
    for step in range(options.steps):
        tokens = batch_of(text, options.sizes, step, options.batch)
        loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:], options.batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def report(trainer: Trainer, expected: list[float]) -> int:
    """Print and draw the results; return 1 if a loss is wrong."""
    options = trainer.options
    error = float(np.abs(np.array(trainer.losses) / expected - 1).max())
    print(f"grid {options.grid}, {trainer.cart.size} ranks at the end: loss {expected[0]:.3f} to {expected[-1]:.3f}")
    for step, text in trainer.events:
        print(f"before step {step}: {text}")
    print_speeds(trainer)
    draw(options.output, trainer, expected)
    print(f"losses differ by {error:.0e} from those of one rank; check: {'PASSED' if error < TOLERANCE else 'FAILED'}")
    return int(error >= TOLERANCE)


def check(comm: Any, options: argparse.Namespace) -> None:
    """End the program on all ranks if their number does not fit the options."""
    data, tensor, pipe = options.grid = options.grid or tuple(MPI.Compute_dims(comm.size, 3)[::-1])
    sizes, parts = options.sizes, options.sizes.context if options.sequence_parallel else 0
    if data * tensor * pipe != comm.size:
        stop(comm, f"a grid of {data} x {tensor} x {pipe} has not {comm.size} ranks; see --grid")
    if sizes.heads % tensor or parts % tensor:
        stop(comm, f"{tensor} ranks cannot divide {sizes.heads} heads, or sequences of {sizes.context} tokens")
    if pipe > sizes.layers or data > options.batch:
        stop(comm, f"{pipe} stages for {sizes.layers} layers, {data} replicas for {options.batch} sequences")
    if options.keep and data < 2:
        stop(comm, "--kill and --keep need two replicas or more; see --grid")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", type=grid_of, metavar="D,T,P", help="data, tensor and pipeline parallel ranks")
    parser.add_argument("--sequence-parallel", action="store_true", help="Allgather and Reduce_scatter, no Allreduce")
    parser.add_argument("--steps", type=int, default=80, metavar="N")
    parser.add_argument("--batch", type=int, default=12, metavar="N", help="sequences of a step, of all replicas")
    parser.add_argument("--micro", type=int, default=1, metavar="N", help="sequences of a micro-batch")
    parser.add_argument("--every", type=int, default=10, metavar="N", help="steps between two looks at the cut")
    parser.add_argument("--least", type=float, default=0, metavar="MS", help="least time of a layer: emulates devices")
    parser.add_argument("--slow", type=event_of, default=Event(), metavar="rank=R,at=STEP,by=FACTOR")
    parser.add_argument("--kill", type=event_of, default=Event(), metavar="rank=R,at=STEP")
    parser.add_argument("--keep", action="store_true", help="go on if ranks die in another way than by --kill")
    parser.add_argument("--blocks", type=int, default=6, metavar="N", help="layers between embedding and head")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and batches")
    parser.add_argument("--output", type=Path, default=Path("training.png"), metavar="FILE", help="picture")
    options = parser.parse_args()
    options.keep |= options.kill.rank >= 0
    options.sizes = Sizes(blocks=options.blocks, seed=options.seed)
    return options


def grid_of(text: str) -> tuple[int, ...]:
    """Read a grid, as "2,1,2"."""
    data, tensor, pipe = map(int, text.split(","))
    return data, tensor, pipe


def event_of(text: str) -> Event:
    """Read an event, as "rank=2,at=40,by=2"."""
    pairs = dict(each.split("=") for each in text.split(","))
    return Event(int(pairs.pop("rank")), int(pairs.pop("at")), **{name: float(value) for name, value in pairs.items()})


if __name__ == "__main__":
    sys.exit(main())
