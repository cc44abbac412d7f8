"""What a token shuffle was made with: the same on all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mpi4py import MPI

from ..arrays import datatypes
from ..errors import CollectiveMismatch, NotSupported
from ..team.base import IntraBase
from .layout import MAX_ALL_CHOICES, MAX_CHOICES, MAX_EXPERTS, check_buckets, place_experts, whole
from .row_types import FLOAT8, ROW_TYPES

LEAST_HIDDEN = 16  # rows are moved by 16 bytes, and an element has one at least


class Settings:
    """Checked, and agreed upon by all ranks; `pyncclx.TokenShuffle` says what each is."""

    def __init__(
        self,
        comm: IntraBase,
        num_experts: int,
        capacity: int,
        hidden: int,
        dtype: Any = "bfloat16",
        *,
        k: int,
        max_tokens: int,
        rows_dtype: Any = None,
        layout: str = "expert",
        overflow: str = "raise",
        placement: Any = None,
        blocks: int | None = None,
    ) -> None:
        self.comm = comm
        self.num_experts = whole(num_experts, "num_experts", 1, MAX_EXPERTS)
        self.capacity = whole(capacity, "capacity", 1, 2**31 - 1)
        self.hidden = whole(hidden, "hidden", LEAST_HIDDEN)
        self.k = whole(k, "k", 1, MAX_CHOICES)
        self.max_tokens = whole(max_tokens, "max_tokens", 0, MAX_ALL_CHOICES // (self.k * comm.size))
        self.dtype = _one_of(_type_name(dtype), "dtype", ROW_TYPES)
        self.rows_dtype = _one_of(_type_name(rows_dtype or self.dtype), "rows_dtype", ROW_TYPES[self.dtype])
        self.layout = _one_of(layout, "layout", ("expert", "source"))
        self.overflow = _one_of(overflow, "overflow", ("raise", "drop"))
        self.placement = place_experts(placement, self.num_experts, comm.size)
        self.blocks = blocks if blocks is None else whole(blocks, "blocks", 1, 64)
        if self.hidden % LEAST_HIDDEN:
            raise NotSupported(
                f"Create_token_shuffle: hidden is {self.hidden}; pad tokens to a multiple of {LEAST_HIDDEN} elements"
            )
        self.first_buckets = self.placement.first_buckets(by_source=layout == "source")
        check_buckets(self.first_buckets)
        self._agree()

    def _agree(self) -> None:
        mine = {name: value for name, value in vars(self).items() if name != "comm" and not name.startswith("_")}
        others = MPI.Comm.allgather(self.comm, mine)
        wrong = sorted({name for other in others for name in mine if other[name] != others[0][name]})
        if wrong:
            raise CollectiveMismatch(f"Create_token_shuffle: the ranks gave different values for {', '.join(wrong)}")

    @property
    def local_experts(self) -> list[int]:
        """The experts of this rank."""
        return self.placement.local_experts[self.comm.rank]


def _one_of(value: str, name: str, values: Iterable[str]) -> str:
    if value not in values:
        raise ValueError(f"Create_token_shuffle: {name} is {value!r}; it can be {' or '.join(map(repr, values))}")
    return value


def _type_name(dtype: Any) -> str:
    """The name of a type of rows, from a string, a dtype of NumPy or of PyTorch."""
    text = str(dtype)
    return FLOAT8 if FLOAT8 in text else datatypes.of(dtype).name
