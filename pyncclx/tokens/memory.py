"""The memory of a token shuffle: what all ranks map, and the arrays that one dispatch gives."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..launch.choice import EARLY_THREADS, MOST_EARLY, MOST_EARLY_THREADS
from ..memory import layout
from ..memory.mapped import Window, allocate_window
from ..memory.parameters import NO_PLACES, TeamStruct
from ..team.operations import NUMBERS
from . import layout as token_layout
from .layout import GROUP, SHUFFLE, plan, steps_of
from .row_types import FLOAT8, ITEMSIZE, array_type
from .settings import Settings

# Up to so many tokens half of the threads are enough, with which all blocks can be launched early;
SOME_TOKENS = 4
SOME_OF_ALL = 32  # or if all ranks together have so many.
FEWEST_OF_ALL = 8  # Up to here they are enough for half of the blocks.


class Part(NamedTuple):
    """An array in the memory that a dispatch writes."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def end(self) -> int:
        return self.offset + self.dtype.itemsize * math.prod(self.shape)

    def of(self, memory: Any) -> Any:
        """The array in one dispatch's memory."""
        return memory[self.offset : self.end].view(self.dtype).reshape(self.shape)


class Rows:
    """What a dispatch brought to this rank: device arrays, most of them as long as the capacity.

    Each is made when it is first asked for, since an array costs the host as long as a kernel's launch.

    Attributes
    ----------
    data : array, shape (capacity, hidden)
        The first `total` rows are tokens; what follows is undefined. It is the shuffle's own memory: the next
        dispatch overwrites it.
    scales : array, shape (capacity, ceil(hidden / 128)), float32, or None
        With ``rows_dtype="float8_e4m3"``: a value is its 8-bit float, which `data` has as uint8, times its scale.
    counts : array, int64
        Rows of each local expert, ``shuffle.local_experts``; with ``layout="source"`` of each rank.
    offsets : array, int64
        Where these rows begin, and in the end `total`.
    total : array, shape (1,), int64
    dropped : array, shape (size,), int64
        Rows of each rank that had no room.
    experts : array, shape (capacity,), int32
        The expert of each row, as an index into ``shuffle.local_experts``; -1 past `total`.
    weights : array, shape (capacity,), float32
        The weight of each row; 0 past `total`.
    """

    def __init__(self, data: Any, scales: Any, memory: Any, parts: dict[str, Part]) -> None:
        self.data, self.scales = data, scales
        self._memory, self._parts = memory, parts

    def __getattr__(self, name: str) -> Any:
        part = None if name.startswith("_") else self._parts.get(name)
        if part is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        array = self.__dict__[name] = part.of(self._memory)
        return array


@dataclass(frozen=True, eq=False)
class Handle:
    """What a combine must know of a dispatch, in device memory. Keep it as long as a graph that uses it."""

    rows: Rows
    tokens: int
    addresses: tuple[int, ...]  # of routes, ways, token_counts, and of the rows' counts to weights, in that order
    routing: tuple[Any, ...]  # what the places in there depend on, `Memory.routing`


class Memory:
    """A shuffle's part of its communicator's device memory; made by all ranks together."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.team = settings, settings.comm.team
        device, size = self.team.device, self.team.size
        self.xp: Any = np if device.name == "host" else importlib.import_module("cupy")
        buckets, self.results_of_token = settings.first_buckets[-1], min(settings.k, size)
        sharing = self.team.layout.sharing
        wanted = settings.blocks and max(1, settings.blocks // sharing)
        self.blocks, threads = grid_of(settings.max_tokens, size, self.team.layout.channels, wanted)
        self.threads = min(threads or self.team.threads, self.team.threads)
        self.early = self.blocks * self.threads <= MOST_EARLY_THREADS // sharing
        groups = -(-settings.hidden // GROUP) if settings.rows_dtype == FLOAT8 else 0
        row_nbytes, result_nbytes = (settings.hidden * ITEMSIZE[name] for name in (settings.rows_dtype, settings.dtype))
        results = settings.max_tokens * self.results_of_token * result_nbytes
        rows, scales, values = (
            settings.capacity * row_nbytes,
            settings.capacity * groups * 4,
            settings.max_tokens * settings.k * 4,
        )
        ways = size * settings.max_tokens * settings.k * 4
        lengths = (rows, scales, ways, 2 * ways, results, values)
        steps = max(steps_of(row_nbytes, scaled=groups > 0), steps_of(result_nbytes, scaled=False))
        steps *= self.team.nvlinked  # else there are no lines
        self.parts = plan(size, self.blocks, buckets, (settings.max_tokens, settings.k), steps, lengths)
        self.window: Window = allocate_window(settings.comm, device, 0, self.parts.end)
        self.nbytes = self.window.memory.nbytes
        whole = device.array(self.window.owner, (self.nbytes,), np.uint8)
        self.data = whole[self.parts.rows :][:rows].view(array_type(settings.rows_dtype))
        self.data = self.data.reshape(settings.capacity, settings.hidden)
        self.scales = whole[self.parts.scales :][:scales].view(np.float32).reshape(settings.capacity, groups)
        table = settings.placement.table()
        self.places = device.upload(table)
        self.routing = (size, settings.capacity, settings.k, settings.max_tokens, settings.layout, table)
        self.histograms = self.xp.zeros((self.blocks, buckets), np.int32)
        self.matrix = self.xp.zeros((size, buckets), np.int32)
        self.own_slots = self.xp.zeros((self.blocks, 2, self.parts.lease.slot_packets, 2), np.uint64)
        self.own_rows = self.xp.zeros((self.blocks, 2, self.parts.lease.slot_rows, layout.ROW_NBYTES), np.uint8)
        self.arrays = self._arrays()
        self.routes_offset = list(self.arrays.values())[-1].end + 7 & -8  # (tokens, k) uint64: what choices became
        self.packed = {name: self._pack(name) for name in ("Dispatch", "Combine", "Collect")}
        self.claim = self.window.memory.address + layout.LEASE_OVERFLOW_OFFSET
        self.team.errors.claims.append(self.claim)
        self.team.dependents.append(self)

    def _pack(self, operation: str) -> bytes:
        """The bytes of a `Shuffle`: what both kernels are told first."""
        settings, team, parts = self.settings, self.team, self.parts
        bases = self.window.bases
        packed = TeamStruct.of(
            parts.lease,
            rank=team.rank,
            operation=NUMBERS[operation],
            timeout_ns=team.timeout_ns,
            watch=team.errors.address,
            base=bases,
        ).pack()
        padding = [0] * (layout.MAX_RANKS - team.size)
        offsets = (parts.rows, parts.scales, parts.ways, parts.notes, parts.results, parts.values)
        constants = SHUFFLE.pack(
            *(address for offset in offsets for address in (*(base + offset for base in bases), *padding)),
            *(self.places.address, *map(address_of, (self.histograms, self.matrix, self.own_slots, self.own_rows))),
            *(settings.num_experts, settings.placement.replicas, settings.k, settings.hidden, settings.capacity),
            *(settings.max_tokens, parts.few_tokens, token_layout.ALONE_CHOICES, parts.words, self.results_of_token),
            *(settings.first_buckets[-1], settings.layout == "source", settings.overflow == "drop"),
            *(*settings.first_buckets, *padding),
        )
        return packed + NO_PLACES + constants

    def _arrays(self) -> dict[str, Part]:
        """What a dispatch writes, in the order of `Handle.addresses`."""
        settings, size = self.settings, self.team.size
        groups = size if settings.layout == "source" else len(settings.local_experts)
        shapes = {
            "ways": ((size, settings.max_tokens, settings.k), np.uint32),  # the rows here of all ranks' choices
            "token_counts": ((size,), np.int64),  # of each rank
            "counts": ((groups,), np.int64),
            "offsets": ((groups + 1,), np.int64),
            "total": ((1,), np.int64),
            "dropped": ((size,), np.int64),
            "experts": ((settings.capacity,), np.int32),
            "weights": ((settings.capacity,), np.float32),
        }
        parts, end = {}, 0
        for name, (shape, dtype) in shapes.items():
            parts[name] = Part(end + 7 & -8, shape, np.dtype(dtype))
            end = parts[name].end
        return parts

    def new_handle(self, tokens: int) -> Handle:
        """The arrays that a dispatch of so many tokens writes."""
        memory = self.xp.empty(self.routes_offset + tokens * self.settings.k * 8, np.uint8)
        rows = Rows(self.data, self.scales if self.scales.size else None, memory, self.arrays)
        base = address_of(memory)
        addresses = base + self.routes_offset, *[base + part.offset for part in self.arrays.values()]
        return Handle(rows, tokens, addresses, self.routing)

    def close(self) -> None:
        """Give the memory back; this rank's own when the last array over it has gone."""
        self.team.dependents.remove(self)
        self.team.errors.claims.remove(self.claim)
        self.window.close()
        del self.data, self.scales


def grid_of(max_tokens: int, size: int, most: int, wanted: int | None) -> tuple[int, int | None]:
    """Blocks, as many as are wanted, if anybody says so, and threads of one: None for as many as the device offers."""
    fewest = max_tokens * size <= FEWEST_OF_ALL
    some = max_tokens <= SOME_TOKENS or max_tokens * size <= SOME_OF_ALL
    blocks = wanted or (max(1, most // 2) if fewest else most)
    return blocks, EARLY_THREADS if fewest or (some and blocks > MOST_EARLY) else None


def address_of(array: Any) -> int:
    """Where an array of ours begins."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)
