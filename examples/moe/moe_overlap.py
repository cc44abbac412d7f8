"""Layers of experts on all ranks whose communication hides behind their matrix products.

    mpiexec -n 4 python examples/moe/moe_overlap.py [--hidden 4096 8192] [--tokens 4096 16384] [--inner 1024]

Every rank has a part of the tokens and of the experts. In a layer `dispatch` brings all tokens to their k experts,
these compute max(x @ up, 0) @ down, and `combine` brings the sums back, which are the tokens of the next layer. Each
step needs all of the one before, so nothing is left to do beside it. But two batches of tokens, on their way through
the same layers, need not wait for each other:

    communication  dispatch A | dispatch B | combine A, dispatch A | combine B, dispatch B | combine A, dispatch A |
    products                  | experts A  | experts B             | experts A             | experts B             |

Communication has a stream with a few multiprocessors of its own, products one with all others. How few are best depends
on the sizes, so some numbers are tried. Where all are slower than one after the other, `overlapped` is `serial`.

Both ways are compared, bit by bit, and some tokens with NumPy. On GPUs, where PyTorch multiplies, they are replayed
from CUDA graphs, timed, and drawn beside experts and communication alone, and beside the same on the multiprocessors
that they have. With PYNCCLX_DEVICE=host it runs without a GPU, for small sizes. Tokens are those of a batch on all
ranks, times those of a layer and a batch.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where common/ is
import pyncclx
from common.overlap_report import add_outputs, warn_if_emulated, write_json
from common.program import read_options
from moe_overlap_batch import Batch, Inputs
from moe_overlap_device import device_of
from moe_overlap_report import Divided, draw, measure

BATCHES = 2


def main() -> int:
    """Check and time the layers for all sizes; 1 if a result is wrong."""
    world = pyncclx.Communicator(MPI.COMM_WORLD)
    options = read_options(world, parse)
    world.select_device()
    device, wrong = device_of(world), 0
    points: dict[str, dict[int, Divided]] = {}
    rows = []
    for inner, hidden, tokens in itertools.product(options.inner, options.hidden, options.tokens):
        comm = world.Dup()
        layers = Layers(comm, device, (tokens, hidden, inner), options)
        wrong += not layers.is_right(options.blocks[0])
        found = measure(layers, options.blocks)
        points.setdefault(f"hidden {hidden}, inner {inner}", {})[tokens] = found
        rows.append({"hidden": hidden, "inner": inner, "tokens": tokens, **found.row()})
        layers.free()
        comm.Free()
        if world.rank == 0:
            print(f"hidden {hidden}, inner {inner}, {tokens:5} tokens: {found.line()}", flush=True)
    write_json(options.json, world, rows)
    warn_if_emulated(world)
    if world.rank == 0:
        print(f"check: {'FAILED' if wrong else 'PASSED'}")
        draw(options.output, world, points)
    return int(wrong > 0)


class Layers:
    """One rank's tokens and experts, and both ways to bring them together. Layers have the same parameters.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    device : moe_overlap_device.Gpu or moe_overlap_device.Cpu
    shape : tuple of int
        Tokens of all ranks in a batch, numbers of a token, width of an expert.
    options : argparse.Namespace
    """

    def __init__(self, comm: Any, device: Any, shape: tuple[int, int, int], options: argparse.Namespace) -> None:
        self.comm, self.device, self.options, self.count = comm, device, options, options.layers
        tokens, self.hidden, inner = shape
        each = [Inputs(comm, batch, (tokens // comm.size, self.hidden, inner), options) for batch in range(BATCHES)]
        up, down = (device.put(matrix) for matrix in (each[0].up, each[0].down))
        local = [expert for expert in range(options.experts) if each[0].rank_of(expert) == comm.rank]
        self.up = device.stack([each[0].up_of(expert, up) for expert in local])
        self.down = device.stack([each[0].down_of(expert, down) for expert in local])
        self.kept: list[Any] = []  # handles, as long as graphs
        self.batches = [Batch(self, inputs) for inputs in each]
        self.steps = [(layer, batch) for layer in range(self.count) for batch in self.batches]
        self.blocks: int | None = None
        self.divide(None)

    def divide(self, blocks: int | None) -> None:
        """Let communication have so many multiprocessors; None: all, one after the other. Collective."""
        self.free()
        self.blocks = blocks
        for batch in self.batches:
            batch.prepare(blocks)

    def free(self) -> None:
        """Give the shuffles' memory back. Collective."""
        self.kept.clear()
        for batch in self.batches:
            batch.free()

    def products(self) -> None:
        """The experts alone, with what the last dispatches have brought."""
        with self.device.leaving(self.blocks):
            for _, batch in self.steps:
                batch.compute()

    def communication(self) -> None:
        """Communication alone, with the last results."""
        for layer, batch in self.steps:
            batch.dispatch(layer)
            batch.combine(layer)

    def serial(self) -> None:
        """One after the other."""
        for layer, batch in self.steps:
            batch.dispatch(layer)
            batch.compute()
            batch.combine(layer)

    def overlapped(self) -> None:
        """Experts compute on one batch while the tokens of the other one are on their way."""
        device = self.device
        main, beside = device.divide(self.blocks)
        for stream in (main, beside):
            device.order(device.main, stream)
        here = {batch: self.bring(batch, 0, beside) for batch in self.batches}
        for layer, batch in self.steps:
            device.wait(main, here[batch])
            with device.on(main), device.leaving(self.blocks):
                batch.compute()
            device.order(main, beside)
            with device.on(beside):
                batch.combine(layer)
            if layer + 1 < self.count:
                here[batch] = self.bring(batch, layer + 1, beside)
        for stream in (main, beside):
            device.order(stream, device.main)

    def bring(self, batch: Batch, layer: int, stream: Any) -> Any:
        """Dispatch a batch on a stream; returns a mark behind it."""
        with self.device.on(stream):
            batch.dispatch(layer)
            return self.device.mark(stream)

    def is_right(self, blocks: int) -> bool:
        """Whether both ways give the same, and what NumPy gives for some tokens of each rank. Collective."""
        found = [self.results("serial")]
        self.divide(blocks)
        found += [self.results("overlapped") for _ in range(2)]
        equal = all(np.array_equal(*pair) for each in found for pair in zip(found[0], each, strict=True))
        return all(self.comm.allgather(equal and all(batch.is_right() for batch in self.batches)))

    def results(self, way: str) -> list[Any]:
        """What one of the ways makes of the batches, on the host."""
        with self.device.on(self.device.main):
            for batch in self.batches:
                batch.x[-1][...] = -1
            getattr(self, way)()
        return [self.device.get(batch.x[-1]) for batch in self.batches]


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_host = os.environ.get("PYNCCLX_DEVICE") == "host"
    hidden, tokens = ([32], [48, 96]) if on_host else ([4096, 8192], [4096, 8192, 16384])
    inner, experts, blocks = ([16], 16, [1, 2]) if on_host else ([1024], 32, [16, 24, 32, 40])
    parser.add_argument("--hidden", type=int, nargs="+", default=hidden, metavar="N", help="numbers in a token")
    parser.add_argument("--tokens", type=int, nargs="+", default=tokens, metavar="N", help="of a batch, on all ranks")
    parser.add_argument("--inner", type=int, nargs="+", default=inner, metavar="N", help="width of an expert")
    parser.add_argument("--experts", type=int, default=experts, metavar="N", help="of a layer, on all ranks")
    parser.add_argument("--k", type=int, default=4 if on_host else 8, metavar="N", help="experts for each token")
    parser.add_argument("--layers", type=int, default=2 if on_host else 8, metavar="N", help="one behind the other")
    parser.add_argument("--blocks", type=int, nargs="+", default=blocks, metavar="N", help="multiprocessors to try")
    parser.add_argument(
        "--largest", type=int, default=100, metavar="N", help="128ths that numbers have at most; zeros take less power"
    )
    add_outputs(parser, "moe_overlap.png")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
