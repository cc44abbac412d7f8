"""The memory of a token shuffle: a window that all ranks map, and private memory."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from mpi4py import MPI

import mpi_bootstrap

from ..launch.call import MOST_EARLY_THREADS
from ..memory.called import pack_call
from ..memory.layout import LEASE_OVERFLOW_OFFSET, ROW_NBYTES
from ..memory.mapped import Window, allocate_window
from ..memory.parameters import NO_PLACES, TeamStruct
from ..operations import NUMBERS
from ..team import members
from . import layout
from .parameters import ShuffleStruct
from .rows import Handle, Outputs, Rows, aligned, output_shapes, parts_of
from .settings import Settings, array_type


class Memory:
    """A shuffle's part of its communicator's device memory. Creation is collective."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.team = settings, settings.comm.team
        self._choose_grid()
        self.parts = layout.plan(settings, self.blocks, lines=members.has_lines(self.team.members))
        self.window: Window = allocate_window(settings.comm, self.team.device, 0, self.parts.end)
        self.nbytes = self.window.memory.nbytes
        self.output_parts = parts_of(output_shapes(settings))
        self.output_offsets = [part.offset for part in self.output_parts.values()]
        self.routes_offset = aligned(list(self.output_parts.values())[-1].end)  # shape (tokens, k), uint64
        try:
            mpi_bootstrap.agree(settings.comm, self._fill)
        except BaseException:
            self.window.close()
            raise
        self.claim = self.window.memory.address + LEASE_OVERFLOW_OFFSET
        self.team.errors.claims.append(self.claim)
        self.team.dependents.append(self)

    def _fill(self) -> None:
        """Allocate this rank's private memory, which may fail on one rank only."""
        self._view_rows()
        self._allocate_own()
        self.packed = {name: self._pack(name) for name in ("Dispatch", "Combine", "Collect")}

    def _choose_grid(self) -> None:
        settings, team = self.settings, self.team
        sharing = team.layout.sharing
        # Blocks wait for each other, so all of them must fit on the GPU at once.
        room = min(member.multiprocessors for member in team.members)
        wanted = settings.blocks and max(1, min(settings.blocks, room) // sharing)
        self.blocks, threads = layout.grid_of(settings.max_tokens, team.size, team.layout.channels, wanted)
        self.threads = min(threads or team.threads, team.threads)
        self.early = self.blocks * self.threads <= MOST_EARLY_THREADS // sharing

    def _view_rows(self) -> None:
        """Make the arrays `data` and `scales`, which the rows of all dispatches share."""
        settings, parts = self.settings, self.parts
        capacity, scales = settings.capacity, settings.scales_of_row
        whole = self.team.device.array(self.window.owner, (self.nbytes,), np.uint8)
        rows = whole[parts.offsets["rows"] :][: capacity * settings.row_nbytes]
        self.data = rows.view(array_type(settings.rows_dtype)).reshape(capacity, settings.hidden)
        following = whole[parts.offsets["scales"] :][: capacity * scales * 4]
        self.scales = following.view(np.float32).reshape(capacity, scales)

    def _allocate_own(self) -> None:
        """Allocate this rank's private arrays; cuda/tokens/shuffle.cuh describes them."""
        settings, lease, device = self.settings, self.parts.lease, self.team.device
        self.xp: Any = np if device.name == "host" else importlib.import_module("cupy")
        self.places = device.upload(settings.placement.table())
        self.histograms = self.xp.zeros((self.blocks, settings.buckets), np.int32)
        self.matrix = self.xp.zeros((self.team.size, settings.buckets), np.int32)
        self.own_slots = self.xp.zeros((self.blocks, 2, lease.slot_packets, 2), np.uint64)
        self.own_rows = self.xp.zeros((self.blocks, 2, lease.slot_rows, ROW_NBYTES), np.uint8)

    def _pack(self, operation: str) -> bytes:
        """Return the first bytes of a kernel's parameter: a `Shuffle` for one operation.

        The kernel writes the operation to error records.
        """
        team = self.team
        packed = TeamStruct.of(
            self.parts.lease,
            rank=team.rank,
            operation=NUMBERS[operation],
            timeout_ns=team.timeout_ns,
            watch=team.errors.address,
            base=self.window.bases,
        ).pack()
        return packed + NO_PLACES + pack_call(operation) + self._struct().pack()

    def _struct(self) -> ShuffleStruct:
        settings, parts = self.settings, self.parts
        return ShuffleStruct(
            **{name: [base + offset for base in self.window.bases] for name, offset in parts.offsets.items()},
            places=self.places.address,
            histograms=address_of(self.histograms),
            matrix=address_of(self.matrix),
            own_slots=address_of(self.own_slots),
            own_rows=address_of(self.own_rows),
            experts=settings.num_experts,
            replicas=settings.placement.replicas,
            k=settings.k,
            hidden=settings.hidden,
            capacity=settings.capacity,
            max_tokens=settings.max_tokens,
            few_tokens=parts.few_tokens,
            alone_choices=layout.ALONE_CHOICES,
            words_at=parts.words_at,
            results_of_token=settings.results_of_token,
            buckets=settings.buckets,
            by_source=settings.layout == "source",
            drops=settings.overflow == "drop",
            first=settings.first_buckets,
        )

    def new_handle(self, tokens: int) -> Handle:
        """Allocate the arrays that a dispatch of `tokens` tokens writes."""
        memory = self.xp.empty(self.routes_offset + tokens * self.settings.k * 8, np.uint8)
        rows = Rows(self.data, self.scales if self.scales.size else None, memory, self.output_parts)
        base = address_of(memory)
        outputs = Outputs(base + self.routes_offset, *map(base.__add__, self.output_offsets))
        return Handle(rows, tokens, outputs, self.window)

    def close(self) -> None:
        """Release the memory; private memory lasts until its last array is freed."""
        self.team.dependents.remove(self)
        self.team.errors.claims.remove(self.claim)
        self.window.close()
        del self.data, self.scales


def address_of(array: Any) -> int:
    """Return the address of an array of the device's library."""
    return int(MPI.Get_address(array) if isinstance(array, np.ndarray) else array.data.ptr)
