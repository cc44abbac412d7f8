"""The arguments of a token shuffle, equal on all ranks, and types of rows."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, cast

import numpy as np
from mpi4py import MPI

import mpi_bootstrap

from ..arrays import datatypes
from ..errors import CollectiveMismatch, NotSupported
from ..team.base import IntraBase
from .placement import MAX_EXPERTS, place_experts

FLOAT8 = "float8_e4m3"
GROUP = 128  # 8-bit floats with one scale: kGroup of cuda/elements/cast.cuh
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, FLOAT8: 1}
# Possible types of rows, by the type of tokens.
ROW_TYPES = {
    "float32": ("float32", "float16", "bfloat16", FLOAT8),
    "float16": ("float16", FLOAT8),
    "bfloat16": ("bfloat16", FLOAT8),
}
CXX = {"float32": "float", "float16": "Half", "bfloat16": "Bfloat16", FLOAT8: "Float8"}


def array_type(name: str) -> Any:
    """Return NumPy's dtype for a type of tokens or rows.

    If NumPy has no such type, return one of unsigned integers.

    8-bit floats are always stored as uint8: float8_e4m3 of ml_dtypes is a different type, which has infinities.
    """
    try:
        return np.dtype("u1" if name == FLOAT8 else name)
    except TypeError:
        return np.dtype(f"u{ITEMSIZE[name]}")


# Kernels move rows in units of 16 bytes, and an element has at least one byte.
HIDDEN_MULTIPLE = 16
MAX_BUCKETS = 1024  # kMaxBuckets of cuda/tokens/shuffle.cuh
MAX_CHOICES = 128  # choices of a token: kMaxChoices
MAX_ALL_CHOICES = 2**31 - 1  # choices of all ranks, which kernels count as int
MAX_BLOCKS = 64


class Settings:
    """The arguments of a token shuffle, checked and compared among the ranks.

    `pyncclx.TokenShuffle` describes them.
    """

    def __init__(self, comm: IntraBase, *args: Any, **options: Any) -> None:
        self.comm = comm
        mpi_bootstrap.agree(cast(MPI.Intracomm, comm), lambda: self._take(*args, **options))
        self._compare()

    @classmethod
    def agreed(cls, comm: IntraBase, *args: Any, **options: Any) -> Settings:
        """Return settings that need no comparison, because all ranks derive equal ones."""
        settings = cls.__new__(cls)
        settings.comm = comm
        settings._take(*args, **options)
        return settings

    def _take(
        self,
        num_experts: int,
        capacity: int,
        hidden: int,
        dtype: Any,
        k: int,
        max_tokens: int,
        rows_dtype: Any = None,
        layout: str = "expert",
        overflow: str = "raise",
        placement: Any = None,
        blocks: int | None = None,
    ) -> None:
        size = self.comm.size
        self.num_experts = _whole(num_experts, "num_experts", 1, MAX_EXPERTS)
        self.capacity = _whole(capacity, "capacity", 1, 2**31 - 1)
        self.hidden = _whole(hidden, "hidden", HIDDEN_MULTIPLE)
        self.k = _whole(k, "k", 1, MAX_CHOICES)
        self.max_tokens = _whole(max_tokens, "max_tokens", 0, MAX_ALL_CHOICES // (self.k * size))
        self.dtype = _one_of(_type_name(dtype), "dtype", ROW_TYPES)
        self.rows_dtype = _one_of(_type_name(rows_dtype or self.dtype), "rows_dtype", ROW_TYPES[self.dtype])
        self.layout = _one_of(layout, "layout", ("expert", "source"))
        self.overflow = _one_of(overflow, "overflow", ("raise", "drop"))
        self.placement = place_experts(placement, self.num_experts, size)
        self.blocks = blocks if blocks is None else _whole(blocks, "blocks", 1, MAX_BLOCKS)
        self.first_buckets = self.placement.first_buckets(by_source=layout == "source")
        self._check_supported()

    def _check_supported(self) -> None:
        if self.hidden % HIDDEN_MULTIPLE:
            raise NotSupported(
                f"Create_token_shuffle: hidden is {self.hidden}; pad tokens to a multiple of {HIDDEN_MULTIPLE} elements"
            )
        if self.buckets > MAX_BUCKETS:
            raise NotSupported(
                f"Create_token_shuffle: {self.buckets} experts, replicas counted: at most {MAX_BUCKETS} are possible "
                "with layout='expert'; use layout='source'"
            )

    def _compare(self) -> None:
        mine = {name: value for name, value in vars(self).items() if name != "comm" and not name.startswith("_")}
        others = mpi_bootstrap.allgather_objects(self.comm, mine)
        wrong = sorted({name for other in others for name in mine if other[name] != others[0][name]})
        if wrong:
            raise CollectiveMismatch(f"Create_token_shuffle: the ranks gave different values for {', '.join(wrong)}")

    @property
    def local_experts(self) -> list[int]:
        """The experts of this rank."""
        return self.placement.local_experts[self.comm.rank]

    @property
    def buckets(self) -> int:
        """The number of groups of rows on all ranks: one per local expert, or per rank."""
        return self.first_buckets[-1]

    @property
    def results_of_token(self) -> int:
        """The largest number of ranks that send results of a token."""
        return min(self.k, self.comm.size)

    @property
    def scales_of_row(self) -> int:
        """The number of scales of a row: one for each group of 8-bit floats."""
        return -(-self.hidden // GROUP) if self.rows_dtype == FLOAT8 else 0

    @property
    def row_nbytes(self) -> int:
        """The bytes of a token in a dispatch, without its scales."""
        return self.hidden * ITEMSIZE[self.rows_dtype]

    @property
    def result_nbytes(self) -> int:
        """The bytes of a result in a combine."""
        return self.hidden * ITEMSIZE[self.dtype]


def _whole(value: Any, name: str, least: int, most: int | None = None) -> int:
    number = operator.index(value)
    if number < least or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"Create_token_shuffle: {name} is {number}; it must be {bounds}")
    return number


def _one_of(value: str, name: str, values: Iterable[str]) -> str:
    if value not in values:
        raise ValueError(f"Create_token_shuffle: {name} is {value!r}; it can be {' or '.join(map(repr, values))}")
    return value


def _type_name(dtype: Any) -> str:
    """Return the name of a row type, given a string or a dtype of NumPy or PyTorch."""
    text = str(dtype)
    return FLOAT8 if FLOAT8 in text else datatypes.of(dtype).name
