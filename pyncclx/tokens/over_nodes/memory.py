"""Memory of a token shuffle over nodes, inside the node and between nodes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from mpi4py import MPI

import mpi_bootstrap

from ...memory.called import NONE
from ...memory.layout import HEADER_NBYTES, LEASE_OVERFLOW_OFFSET, Layout
from ...memory.parameters import NO_LOCATIONS, TeamStruct
from ...nodes.spanning import Spanning
from ...operations import NUMBERS
from ..memory import Memory, address_of
from ..parameters import CrossingArgs
from ..placement import Proxies
from ..rows import Handle, Outputs, Part, Rows, output_shapes, parts_of
from ..settings import ITEMSIZE, Settings

VALUE_NBYTES = 4  # bytes of a number that a collect moves


@dataclass(frozen=True, eq=False)
class SpanningHandle(Handle):
    """The handle of a dispatch over nodes, with addresses that `CrossingArgs` needs."""

    where: int
    crossing: int


def settings_inside(settings: Settings, spanning: Spanning, proxies: Proxies) -> Settings:
    """Return the settings of the shuffle inside this node: its experts are the ranks.

    The dispatches of that shuffle get their routing from the token map, not from choices.
    """
    return Settings.agreed(
        spanning.local,
        spanning.places.local_size,
        settings.capacity,
        settings.hidden,
        settings.dtype,
        k=settings.k,
        max_tokens=proxies.slots * settings.max_tokens,
        rows_dtype=settings.rows_dtype,
        blocks=settings.blocks,
    )


class SpanningMemory:
    """A shuffle's memory on this rank. Creation is collective."""

    def __init__(self, settings: Settings, spanning: Spanning) -> None:
        comm = cast(MPI.Intracomm, settings.comm)
        self.settings, self.spanning, self.team = settings, spanning, spanning.team
        self.proxies = Proxies(spanning.places)
        self.inner = mpi_bootstrap.agree(
            comm, lambda: Memory(settings_inside(settings, spanning, self.proxies)), undo=Memory.close
        )
        self.xp, self.window = self.inner.xp, self.inner.window
        self._arrays: list[Any] = []
        try:
            mpi_bootstrap.agree(comm, self._allocate)
        except BaseException:
            self.inner.close()
            raise
        self.nbytes = sum(array.nbytes for array in self._arrays)
        spanning.refusals.claims.append(self.claim)
        self.team.dependents.append(self)

    def _allocate(self) -> None:
        """Allocate this rank's private memory, which may fail on one rank only."""
        settings, device = self.settings, self.team.device
        self.words_nbytes = 8 * (1 + settings.max_tokens * settings.k)  # bytes of a rank's number of tokens and choices
        self.row_nbytes = settings.hidden * ITEMSIZE[settings.dtype]
        self.header = self._zeros(HEADER_NBYTES)
        self.claim = self.header + LEASE_OVERFLOW_OFFSET
        self._places = device.upload(settings.placement.table())
        tables = self._tables_of_ranks()
        self._tables = {name: device.upload(np.array(table, np.int32).tobytes()) for name, table in tables.items()}
        all_tokens = np.full(self.spanning.places.local_size, self.proxies.slots * settings.max_tokens, np.int64)
        # Inside the node, each rank dispatches all of its slots.
        self._token_counts = device.upload(all_tokens.tobytes())
        self.constants = self._constants(buckets=tables["first"][-1])
        self.handle_parts = self._handle_parts()

    def _tables_of_ranks(self) -> dict[str, list[int]]:
        """Return the tables of `CrossingArgs` with a number for each rank, by their names."""
        places, proxies, firsts = self.spanning.places, self.proxies, self.settings.first_buckets
        on_node = list(places.ranks_of(places.node))
        local = {rank: index for index, rank in enumerate(on_node)}
        return {
            "local_of": [local.get(rank, -1) for rank in range(places.size)],
            "node_of": [places.node_of(rank) for rank in range(places.size)],
            "proxy_of": proxies.of,
            "slot_of": proxies.slot_of,
            "first": [0, *itertools.accumulate(firsts[rank + 1] - firsts[rank] for rank in on_node)],
        }

    def _constants(self, *, buckets: int) -> CrossingArgs:
        """Allocate the kernels' memory, and return the arguments that all calls share."""
        settings, proxies, places = self.settings, self.proxies, self.spanning.places
        size, most = places.size, settings.max_tokens
        longest = max(self.row_nbytes, VALUE_NBYTES * settings.k)
        return CrossingArgs(
            places=self._places.address,
            **{name: table.address for name, table in self._tables.items()},
            words=self._zeros(size * self.words_nbytes),
            matrix=self._zeros(4 * size * buckets),
            numbers=self._zeros(4 * size * most),
            inbox=self._zeros(proxies.slots * most * longest),
            outbox=self._zeros((places.count - 1) * most * longest),
            rank=places.rank,
            size=size,
            node=places.node,
            nodes=places.count,
            local_rank=places.local_rank,
            local_size=places.local_size,
            slots=proxies.slots,
            experts=settings.num_experts,
            replicas=settings.placement.replicas,
            k=settings.k,
            max_tokens=most,
            capacity=settings.capacity,
            buckets=buckets,
            by_source=settings.layout == "source",
            drops=settings.overflow == "drop",
        )

    def _handle_parts(self) -> dict[str, Part]:
        """Return the arrays that a dispatch writes.

        They are the arrays of a dispatch inside a node, with a token map of all slots, and the rows to exchange.
        """
        settings, places, slots = self.settings, self.spanning.places, self.proxies.slots
        tokens = slots * settings.max_tokens
        shapes = output_shapes(settings)
        del shapes["token_counts"]
        shapes["ways"] = (places.local_size, tokens, settings.k), np.uint32
        shapes["routes"] = (tokens, settings.k), np.uint64
        shapes["where"] = (places.count, settings.max_tokens), np.int32
        shapes["crossing"] = (places.count + slots,), np.int64
        return parts_of(shapes)

    def _zeros(self, nbytes: int) -> int:
        """Allocate zeroed private memory; return its address."""
        self._arrays.append(self.xp.zeros(max(nbytes, 1), np.uint8))
        return address_of(self._arrays[-1])

    def new_handle(self, tokens: int) -> SpanningHandle:
        """Allocate the arrays that a dispatch of `tokens` tokens writes."""
        memory = self.xp.empty(self.handle_nbytes(tokens), np.uint8)
        return self.handle_at(address_of(memory), tokens, memory)

    def handle_nbytes(self, tokens: int) -> int:
        """Return the length of the memory of a handle, the same for any number of tokens."""
        return max(part.end for part in self.handle_parts.values())

    def handle_at(self, address: int, tokens: int, memory: Any = None) -> SpanningHandle:
        """Return a handle in memory at an address, as `Memory.handle_at` does."""
        inner, parts = self.inner, self.handle_parts
        at = {name: address + part.offset for name, part in parts.items()}
        rows = Rows(inner.data, inner.scales if inner.scales.size else None, memory, parts)
        where, crossing = at.pop("where"), at.pop("crossing")
        outputs = Outputs(**at, token_counts=self._token_counts.address)
        return SpanningHandle(rows, tokens, outputs, self.window, where, crossing)

    def pack(self, operation: str, **of_call: int) -> bytes:
        """Return the parameter of a kernel of cuda/tokens/over_nodes.cu."""
        team = TeamStruct.of(
            Layout(0, 1, 1, 0, 0),
            rank=0,
            operation=NUMBERS[operation],
            timeout_ns=self.team.timeout_ns,
            watch=self.spanning.refusals.address,
            base=[self.header],
        )
        return team.pack() + NO_LOCATIONS + NONE + replace(self.constants, **of_call).pack()

    def close(self) -> None:
        """Release the memory."""
        self.team.dependents.remove(self)
        self.spanning.refusals.claims.remove(self.claim)
        if self.inner in self.team.dependents:
            self.inner.close()
