"""A layer of experts on all ranks whose communication hides behind its matrix products.

    mpiexec -n 4 python examples/moe_overlap.py [--hidden 4096 8192] [--tokens 1024 4096 16384]

Every rank has a part of the tokens and of the experts. One after the other, `dispatch` brings all tokens to their k
experts, these compute max(x @ up, 0) @ down, and `combine` brings the sums back. Where k is larger than the number of
ranks, nearly every token goes to every rank, so with overlap the copy engines bring them, part by part:

    copies      tokens 0 | tokens 1 | tokens 2 | ........ | sums 0 | ....... | sums 1 | ....... | sums 2 |
    products               experts 0 ........ | experts 1 ........ | experts 2 ........ |

No multiprocessor communicates but for signals, and a `dispatch` of rows of nothing: it tells every rank which rows its
experts get of a part. A kernel spreads the tokens that have come to these rows. Another one adds up the results of each
token here, and what the ranks have of it comes back and is added in their order, as by `combine`. Parts have as many
tokens as keep the GPU busy with their products; where there are too few for two parts, nothing is divided.

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
from moe_overlap_rows import Inbox, Rows
from mpi4py import MPI
from overlap import device_of
from overlap_report import WAYS, draw, line
from token_shuffle import read_options

import pyncclx

REPLAYED = 10  # calls in a graph
LATER = 3  # parts whose products begin before the sums of one are awaited
NOTHING = 16  # numbers of a row that nobody reads: the least that a shuffle has


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
        self.arrivals, self.returns = (Inbox(comm, device, self.count, hidden) for _ in range(2))
        self.kept: list[Any] = []  # handles, as long as graphs
        self.fill(1)
        parts = max(1, min(options.parts, tokens * options.k // options.experts // options.rows))
        cuts = [self.count * part // parts for part in range(parts + 1)]
        self.parts = [slice(*cut) for cut in itertools.pairwise(cuts)]
        self.whole = self.shuffle([slice(0, self.count)], hidden, "bfloat16", None)
        self.routes = self.shuffle(self.parts, NOTHING, "float32", options.blocks)
        self.nothing = device.upload(np.zeros((self.count, NOTHING), "f4"))
        self.rows = Rows(comm, device, self.routes, self.count, hidden)

    def shuffle(self, parts: list[slice], hidden: int, dtype: str, blocks: int | None) -> Any:
        """A token shuffle with room for each of some parts of the tokens."""
        comm, options = self.comm, self.options
        ranks = [self.inputs.ids[part].ravel() * comm.size // options.experts for part in parts]
        loads = comm.allreduce(np.array([np.bincount(each, minlength=comm.size) for each in ranks]))
        most = max(part.stop - part.start for part in parts)
        return comm.Create_token_shuffle(
            options.experts, int(loads.max()), hidden, dtype, k=options.k, max_tokens=most, blocks=blocks
        )

    def fill(self, largest: int) -> None:
        """New tokens and parameters. Up to 1, results are exact in whatever order a product adds."""
        device, (rank, size) = self.device, (self.comm.rank, self.comm.size)
        self.inputs = inputs = Inputs(rank, size, self.count, self.hidden, self.options, largest)
        local = [e for e in range(self.options.experts) if e * size // self.options.experts == rank]
        self.ids, self.weights = device.upload(inputs.ids), device.upload(inputs.weights)
        self.x, self.out = self.arrivals.own, device.put(np.zeros_like(inputs.x))
        with device.on(device.main):
            self.x[...] = device.put(inputs.x)
            up, down = device.put(inputs.up), device.put(inputs.down)
            self.up = device.stack([inputs.up_of(e, up) for e in local])
            self.down = device.stack([inputs.down_of(e, down) for e in local])

    def product(self) -> None:
        """The experts alone, with what the last dispatch has brought."""
        rows = self.handle.rows
        self.results = self.device.experts(rows.data, rows.offsets, self.up, self.down)

    def collective(self) -> None:
        """Communication alone."""
        self.dispatch()
        self.combine()

    def serial(self) -> None:
        """One after the other."""
        self.dispatch()
        self.product()
        self.combine()

    def dispatch(self) -> None:
        """Bring all tokens to their experts."""
        _, self.handle = self.whole.dispatch(self.x, self.ids, self.weights)
        self.kept.append(self.handle)

    def combine(self) -> None:
        """Bring all results back, and add them up."""
        self.whole.combine(self.results, self.handle, out=self.out)

    def overlapped(self) -> None:
        """The faster of both ways."""
        self.serial() if len(self.parts) == 1 else self.pipelined()

    def pipelined(self) -> None:
        """Products wait for their tokens, sums for their products; the stream of copies has no other work."""
        device = self.device
        device.order(device.main, device.copies)
        with device.on(device.copies):
            self.comm.Barrier(device=True)  # nobody needs any more what was put before
        for number, part in enumerate(self.parts):
            self.arrivals.send(number, part, [self.x[part]] * self.comm.size)
        for number, (handle, routed) in enumerate(self.route()):
            device.wait(device.main, routed)
            self.arrivals.wait(number)
            rows = self.rows.spread(handle, self.parts[number], self.arrivals)
            with device.leaving(self.options.blocks):
                results = device.experts(rows, handle.rows.offsets, self.up, self.down)
            sums = self.rows.fold(handle, self.parts[number], results, self.returns)
            device.order(device.main, device.copies)
            self.returns.send(number, self.parts[number], sums)
            if number >= LATER:
                self.add(number - LATER)
        for number in range(max(0, len(self.parts) - LATER), len(self.parts)):
            self.add(number)
        for stream in (device.copies, device.signals):
            device.order(stream, device.main)

    def add(self, number: int) -> None:
        """Add up what the ranks have of a part's tokens, once it is here."""
        part = self.parts[number]
        self.returns.wait(number)
        self.device.add(self.comm.size, self.returns.memory[part.start :], self.count, self.out[part])

    def route(self) -> list[tuple[Any, Any]]:
        """For each part the handle of a dispatch, and when it has been."""
        device, found = self.device, []
        device.order(device.main, device.sums)
        with device.on(device.sums):
            for part in self.parts:
                _, handle = self.routes.dispatch(self.nothing[part], self.ids[part], self.weights[part])
                found.append((handle, device.mark(device.sums)))
        self.kept += found
        return found

    def is_right(self) -> bool:
        """Whether both ways give the same, and what NumPy gives for some tokens of each rank. Collective."""
        found = []
        for way in (self.serial, self.pipelined, self.pipelined):
            with self.device.on(self.device.main):
                self.out[...] = -1
                way()
            found.append(self.device.get(self.out))
        right = self.inputs.agree(found[0]) and all(np.array_equal(each, found[0]) for each in found)
        return all(self.comm.allgather(right))

    def free(self) -> None:
        """Give memory back; that of the windows goes with the communicator."""
        for each in (self.whole, self.routes, self.arrivals, self.returns):
            each.Free()


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
    parser.add_argument("--parts", type=int, default=8, metavar="N", help="parts that the tokens go in, at most")
    parser.add_argument(
        "--rows", type=int, default=8 if on_host else 512, metavar="N", help="rows for an expert, at least"
    )
    parser.add_argument("--blocks", type=int, default=4, metavar="N", help="multiprocessors for communication")
    parser.add_argument("--output", type=Path, default=Path("moe_overlap.png"), metavar="FILE", help="picture")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
