"""Layers of experts on all ranks: communication overlaps with matrix products.

    mpiexec -n 4 python examples/moe/moe_overlap.py [--hidden 4096 8192] [--tokens 4096 16384] [--inner 1024]

Every rank has some of the tokens and of the experts. In a layer `dispatch` sends all tokens to their k experts, these
compute max(x @ up, 0) @ down, and `combine` sends the sums back, which are the tokens of the next layer. Each of these
needs the complete result of the one before, so within a batch nothing overlaps. But two batches of tokens can pass
through the same layers at the same time:

    communication  dispatch A | dispatch B | combine A, dispatch A | combine B, dispatch B | combine A, dispatch A |
    products                  | experts A  | experts B             | experts A             | experts B             |

Communication has a stream with a few multiprocessors of its own, products have a stream with all others. The best
division depends on the sizes, so several are tried. If all are slower than no overlap, `overlapped` equals `serial`.

Both ways are compared bit by bit, and some tokens with NumPy. On GPUs, where PyTorch multiplies, they are replayed from
CUDA graphs and timed. The picture also shows experts and communication alone, and each alone on its multiprocessors.
With PYNCCLX_DEVICE=host it runs without a GPU, for small sizes. Tokens are those of a batch on all ranks; times are
those of one layer and one batch.
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
    """Check and time the layers for all sizes; return 1 if a result is wrong."""
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
    """One rank's tokens and experts, with and without overlap. Layers share weights.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    device : moe_overlap_device.Gpu or moe_overlap_device.Cpu
    shape : tuple of int
        Tokens of all ranks in a batch, elements of a token, width of an expert.
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
        self.kept: list[Any] = []  # handles, which graphs need
        self.batches = [Batch(self, inputs) for inputs in each]
        self.steps = [(layer, batch) for layer in range(self.count) for batch in self.batches]
        self.blocks: int | None = None
        self.divide(None)

    def divide(self, blocks: int | None) -> None:
        """Give communication `blocks` multiprocessors. Collective.

        With None, products and communication use all multiprocessors, in turn.
        """
        self.free()
        self.blocks = blocks
        for batch in self.batches:
            batch.prepare(blocks)

    def free(self) -> None:
        """Release the shuffles' memory. Collective."""
        self.kept.clear()
        for batch in self.batches:
            batch.free()

    def products(self) -> None:
        """Run the experts alone, on the rows of the last dispatches."""
        with self.device.leaving(self.blocks):
            for _, batch in self.steps:
                batch.compute()

    def communication(self) -> None:
        """Run the communication alone, with the last results."""
        for layer, batch in self.steps:
            batch.dispatch(layer)
            batch.combine(layer)

    def serial(self) -> None:
        """Run products and communication in turn."""
        for layer, batch in self.steps:
            batch.dispatch(layer)
            batch.compute()
            batch.combine(layer)

    def overlapped(self) -> None:
        """Compute one batch's experts while the other batch's tokens are sent."""
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
        """Dispatch a batch on a stream; return a mark after it."""
        with self.device.on(stream):
            batch.dispatch(layer)
            return self.device.mark(stream)

    def is_right(self, blocks: int) -> bool:
        """Return whether both ways and, for some tokens, NumPy agree. Collective."""
        found = [self.results("serial")]
        self.divide(blocks)
        found += [self.results("overlapped") for _ in range(2)]
        equal = all(np.array_equal(*pair) for each in found for pair in zip(found[0], each, strict=True))
        return all(self.comm.allgather(equal and all(batch.is_right() for batch in self.batches)))

    def results(self, way: str) -> list[Any]:
        """Return the batches' results of one of the ways, on the host."""
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
