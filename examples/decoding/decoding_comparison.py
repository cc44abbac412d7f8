"""Compare the tokens of each exchange with those of one rank, and time it."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from mpi4py import MPI

import pyncclx
from common.program import to_host
from decoding_collectives import Mpi, Nccl, collectives_of
from decoding_model import EXACT, Decoder, Preset, make_model, make_requests
from decoding_report import Point, measure
from decoding_steps import prepare
from exchange import Alone, Exchange, Shape, experts_of
from exchange_gathers import Gathered
from exchange_mpi4py import Staged
from exchange_padded import Padded
from exchange_pyncclx import Shuffled

Array = Any  # NumPy's or CuPy's
Decoded = tuple[Array, Array]  # tokens of each step, and the rows after the last
WAYS: tuple[type[Exchange], ...] = (Shuffled, Gathered, Padded, Staged)


class Comparison:
    """The model's weights, and the comparison of all exchanges.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    xp : module
        numpy or cupy.
    sizes : Preset
        The number of experts is a multiple of the number of ranks.
    options : argparse.Namespace
    """

    def __init__(self, comm: Any, xp: Any, sizes: Preset, options: argparse.Namespace) -> None:
        self.comm, self.xp, self.sizes, self.options = comm, xp, sizes, options
        self.dtype = "float32" if xp is np else "float16"
        own = experts_of(sizes.experts, comm.size, comm.rank)
        # Rank 0 has all experts, for comparison.
        made = range(sizes.experts) if comm.rank == 0 else own
        self.whole = make_model(xp, sizes, self.dtype, options.seed, made)
        self.model = self.whole.part(0, len(own)) if comm.rank == 0 else self.whole
        self.collectives: Mpi | Nccl = collectives_of(comm)
        self.largest = 0.0  # the largest sum so far
        self.title = f"{options.preset}: hidden {sizes.hidden}, top {sizes.k} of {sizes.experts} experts, "
        self.title += f"{sizes.layers} layers, {self.dtype}" + (f", nodes {options.nodes}" if options.nodes else "")

    def run(self, batch: int) -> tuple[list[Point], bool]:
        """Decode and time with each exchange; return whether all are right. Collective."""
        expected, points, right = self.expected(batch), [], True
        for make in WAYS:
            exchange = self.exchange(make, batch)
            decoder = Decoder(self.model, exchange, self.requests(batch, self.comm.rank))
            step = prepare(self.xp, exchange, decoder.step)
            found = self.decode(decoder, step)
            right &= self.agrees(exchange, found, expected)
            points.append(measure(decoder, step, self.options.repeat))
            self.comm.synchronize()
            exchange.free()
        return points, right

    def exchange(self, make: type[Exchange], batch: int) -> Exchange:
        """Make one of the exchanges, for batches of one size. Collective."""
        more = [self.collectives] if issubclass(make, Gathered | Padded) else []
        return make(self.comm, self.xp, self.shape(batch), *more)

    def shape(self, batch: int) -> Shape:
        """Return the shape of the rows that are exchanged in a layer."""
        return Shape(batch, self.sizes.k, self.sizes.hidden, self.sizes.experts, self.dtype, self.options.room)

    def requests(self, batch: int, rank: int) -> Any:
        """Return the requests of a rank."""
        return make_requests(self.sizes, batch, self.options.seed, rank)

    def decode(self, decoder: Decoder, step: Any) -> Decoded:
        """Run all steps, beginning with the first sequences; return tokens and last rows."""
        decoder.reset()
        tokens = []
        for _ in range(self.options.steps):
            step.run()
            tokens.append(to_host(decoder.tokens).copy())
        return np.array(tokens), to_host(decoder.rows).copy()

    def expected(self, batch: int) -> Decoded:
        """Return the result of rank 0 alone for this rank's requests. Collective."""
        each: list[Decoded] | None = None
        if self.comm.rank == 0:
            alone = pyncclx.Communicator(MPI.COMM_SELF)
            exchange = Alone(alone, self.xp, self.shape(batch), capacity=batch)
            asked = [self.requests(batch, rank) for rank in range(self.comm.size)]
            each = [self.decode_alone(Decoder(self.whole, exchange, requests)) for requests in asked]
        result: Decoded = MPI.Comm.scatter(self.comm, each)
        return result

    def decode_alone(self, decoder: Decoder) -> Decoded:
        """Run the steps, and keep the largest sum."""
        decoder.largest = self.xp.zeros((), "f4")
        found = self.decode(decoder, prepare(self.xp, decoder.exchange, decoder.step))
        self.largest = max(self.largest, float(decoder.largest))
        return found

    def is_exact(self) -> bool:
        """Return whether all sums of rank 0 alone were exact. Collective."""
        exact: bool = MPI.Comm.bcast(self.comm, self.largest < EXACT[self.dtype])
        return exact

    def agrees(self, exchange: Exchange, found: Decoded, expected: Decoded) -> bool:
        """Compare tokens and rows with those of one rank; print differences. Collective."""
        tokens, rows = (int((one != other).sum()) for one, other in zip(found, expected, strict=True))
        lost = int(exchange.lost[0])
        tokens, rows, lost = np.sum(MPI.Comm.allgather(self.comm, (tokens, rows, lost)), axis=0)
        if self.comm.rank == 0 and (tokens or rows or lost):
            print(
                f"{exchange.name}: {tokens} tokens and {rows} numbers differ; {lost} choices had no room: raise --room"
            )
        return not (tokens or rows or lost)

    def free(self) -> None:
        """Close NCCL's connections. Collective."""
        self.collectives.free()
