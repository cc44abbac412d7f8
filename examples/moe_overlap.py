"""A layer of experts on all ranks whose dispatch and combine hide behind its matrix products.

    mpiexec -n 4 python examples/moe_overlap.py [--hidden 4096 8192] [--tokens 1024 4096 16384]

Every rank has a part of the tokens and of the experts. One after the other, `dispatch` brings all tokens to their k
experts, these compute max(x @ up, 0) @ down, and `combine` brings the sums back. With overlap the tokens go in parts,
each with a token shuffle of its own, and communication has a stream of its own:

    communication   dispatch 0 | dispatch 1 | dispatch 2 | ........ | combine 0 | combine 1 | combine 2 |
    products                   | experts 0 ....... | experts 1 ....... | experts 2 ........ |

There the kernels of communication take few blocks, and the products leave them these multiprocessors. Parts have enough
tokens for products that are efficient; where there are too few for two parts, they are not divided.

Both ways are compared, bit by bit, and some tokens with NumPy. On GPUs, where PyTorch multiplies, they are replayed
from CUDA graphs, timed, and drawn beside experts and communication alone. With PYNCCLX_DEVICE=host it runs without a
GPU, for small sizes.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from moe_overlap_inputs import Inputs
from mpi4py import MPI
from overlap import device_of
from overlap_report import WAYS, draw, line
from token_shuffle import read_options

import pyncclx

REPLAYED = 10  # calls in a graph


def main() -> int:
    """Check and time the layer for all sizes; 1 if a result is wrong."""
    world = pyncclx.Communicator(MPI.COMM_WORLD)
    options = read_options(world, parse)
    world.select_device()
    device, wrong = device_of(world), 0
    points: dict[str, list[list[float]]] = {}
    for hidden, tokens in itertools.product(options.hidden, options.tokens):
        comm, title = world.Dup(), f"experts, hidden {hidden}"
        layer = Layer(comm, device, tokens, hidden, options)
        wrong += not layer.is_right()
        layer.fill(100)
        with device.on(device.main):
            layer.serial()  # what the experts alone will compute with
        times = [1e6 * device.seconds(comm, getattr(layer, way), REPLAYED) for way in WAYS]
        points.setdefault(title, []).append([tokens, *times])
        layer.free()
        comm.Free()
        if world.rank == 0:
            print(line(title, tokens, *times), flush=True)
    if world.rank == 0:
        print(f"check: {'FAILED' if wrong else 'PASSED'}")
        draw(options.output, points)
    return int(wrong > 0)


class Part:
    """Some of a rank's tokens, with a shuffle of their own.

    Parameters
    ----------
    layer : Layer
    tokens : slice
    blocks : int or None
        Of the shuffle's kernels; None: as many as are fastest.
    """

    def __init__(self, layer: Layer, tokens: slice, blocks: int | None) -> None:
        self.layer, self.tokens, comm, options = layer, tokens, layer.comm, layer.options
        ids = layer.inputs.ids[tokens]
        loads = comm.allreduce(np.bincount(ids.ravel() * comm.size // options.experts, minlength=comm.size))
        self.shuffle = comm.Create_token_shuffle(
            *(options.experts, max(loads), layer.hidden),
            k=options.k,
            max_tokens=len(ids),
            blocks=blocks,
        )

    def dispatch(self) -> None:
        """Bring the tokens to their experts."""
        layer, own = self.layer, self.tokens
        self.rows, self.handle = self.shuffle.dispatch(layer.x[own], layer.ids[own], layer.weights[own])
        layer.kept.append(self.handle)

    def compute(self) -> None:
        """What this rank's experts make of the rows that have come."""
        layer = self.layer
        self.results = layer.device.experts(self.rows.data, self.rows.offsets, layer.up, layer.down)

    def combine(self) -> None:
        """Bring the results back, and add them up."""
        self.shuffle.combine(self.results, self.handle, out=self.layer.out[self.tokens])


class Layer:
    """One rank's tokens and experts, and both ways to bring them together.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    device : overlap.Gpu or overlap.Cpu
    tokens, hidden : int
        Of all ranks; numbers of a token.
    options : argparse.Namespace
    """

    def __init__(self, comm: Any, device: Any, tokens: int, hidden: int, options: argparse.Namespace) -> None:
        self.comm, self.device, self.hidden, self.options = comm, device, hidden, options
        self.count = tokens // comm.size
        self.kept: list[Any] = []  # handles, as long as graphs
        self.fill(1)
        parts = max(1, min(options.parts, tokens * options.k // options.experts // options.rows))
        cuts = [self.count * part // parts for part in range(parts + 1)]
        self.whole = Part(self, slice(0, self.count), None)
        self.parts = [Part(self, slice(*cut), options.blocks) for cut in itertools.pairwise(cuts)]

    def fill(self, largest: int) -> None:
        """New tokens and parameters. Up to 1, results are exact in whatever order a product adds."""
        device, (rank, size) = self.device, (self.comm.rank, self.comm.size)
        self.inputs = Inputs(rank, size, self.count, self.hidden, self.options, largest)
        self.ids, self.weights = device.upload(self.inputs.ids), device.upload(self.inputs.weights)
        self.x, self.out = device.put(self.inputs.x), device.put(np.zeros_like(self.inputs.x))
        up, down = map(device.put, (self.inputs.up, self.inputs.down))
        local = [e for e in range(self.options.experts) if e * size // self.options.experts == rank]
        self.up = device.stack([self.inputs.up_of(e, up) for e in local])
        self.down = device.stack([self.inputs.down_of(e, down) for e in local])

    def product(self) -> None:
        """The experts alone, with what the last dispatch has brought."""
        self.whole.compute()

    def collective(self) -> None:
        """Communication alone."""
        self.whole.dispatch()
        self.whole.combine()

    def serial(self) -> None:
        """One after the other."""
        self.whole.dispatch()
        self.whole.compute()
        self.whole.combine()

    def overlapped(self) -> None:
        """Communication waits for products only where it needs their results, and products only for their rows."""
        if len(self.parts) == 1:
            return self.serial()
        device, done = self.device, []
        beside = device.copies[0]
        device.order(device.main, beside)
        for part in self.parts:
            with device.on(beside):
                part.dispatch()
            device.order(beside, device.main)
            with device.leaving(self.options.blocks):
                part.compute()
            done.append(device.mark(device.main))
        for part, mark in zip(self.parts, done, strict=True):
            device.wait(beside, mark)
            with device.on(beside):
                part.combine()
        device.order(beside, device.main)
        return None

    def is_right(self) -> bool:
        """Whether both ways give the same, and what NumPy gives for some tokens of each rank. Collective."""
        found = []
        for way in (self.serial, self.overlapped, self.overlapped):
            with self.device.on(self.device.main):
                self.out[...] = -1
                way()
            found.append(self.device.get(self.out))
        right = self.inputs.agree(found[0]) and all(np.array_equal(each, found[0]) for each in found)
        return all(self.comm.allgather(right))

    def free(self) -> None:
        """Give the shuffles' memory back."""
        for part in (self.whole, *self.parts):
            part.shuffle.Free()


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_host = os.environ.get("PYNCCLX_DEVICE") == "host"
    hidden, tokens = ([32], [48, 96]) if on_host else ([4096, 8192], [1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--hidden", type=int, nargs="+", default=hidden, metavar="N", help="numbers in a token")
    parser.add_argument("--tokens", type=int, nargs="+", default=tokens, metavar="N", help="of all ranks")
    parser.add_argument("--inner", type=int, default=16 if on_host else 1024, metavar="N", help="width of an expert")
    parser.add_argument("--experts", type=int, default=16 if on_host else 32, metavar="N", help="of all ranks")
    parser.add_argument("--k", type=int, default=4 if on_host else 8, metavar="N", help="experts for each token")
    parser.add_argument("--parts", type=int, default=4, metavar="N", help="parts that the tokens go in, at most")
    parser.add_argument(
        "--rows", type=int, default=8 if on_host else 128, metavar="N", help="rows for an expert, at least"
    )
    parser.add_argument("--blocks", type=int, default=24, metavar="N", help="multiprocessors for communication")
    parser.add_argument("--output", type=Path, default=Path("moe_overlap.png"), metavar="FILE", help="picture")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
