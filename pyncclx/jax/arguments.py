"""Checks of arguments, made while JAX traces a call."""

from __future__ import annotations

import operator
from typing import Any

from mpi4py import MPI

from ..arrays.buffers import Buffer
from ..arrays.datatypes import of
from ..errors import MPIError, NotSupported
from ..operators import ops
from .statics import Static

__all__ = ["check_blocks", "check_operator", "rank_of", "tag_of"]


def rank_of(comm: Any, value: Any, name: str, also: tuple[int, ...] = ()) -> int:
    """Return a rank of a communicator, or one of the constants in `also`, as a number.

    Raises
    ------
    TypeError
        It is no integer, for example a traced value.
    MPI.Exception
        The communicator has no such rank (class ERR_ROOT or ERR_RANK).
    """
    rank = operator.index(value)
    if not (0 <= rank < comm.size or rank in also):
        code = MPI.ERR_ROOT if name.endswith("root") else MPI.ERR_RANK
        raise MPIError(code, f"{name} is {rank}; the communicator has {comm.size} ranks")
    return rank


def tag_of(value: Any, name: str, also: tuple[int, ...] = ()) -> int:
    """Return a tag, or one of the constants in `also`, as a number.

    Raises
    ------
    TypeError
        It is no integer.
    MPI.Exception
        It is negative (class ERR_TAG).
    """
    tag = operator.index(value)
    if tag < 0 and tag not in also:
        raise MPIError(MPI.ERR_TAG, f"{name} is {tag}; tags are not negative")
    return tag


def check_blocks(x: Any, size: int, name: str) -> None:
    """Raise ValueError unless the first dimension has an index for each rank."""
    if x.ndim == 0 or x.shape[0] != size:
        raise ValueError(f"{name} input must have shape (nproc, ...): it has {x.shape}, and there are {size} ranks")


def check_operator(op: Static, x: Any, name: str) -> None:
    """Raise as MPI does if an operator is not defined on an array's elements."""
    elements = Buffer(0, 0, of(x.dtype), (0,), False, None, None)
    try:
        ops.template(name, ops.of(op.value, name), elements)
    except NotSupported:  # MPI reduces copies on the host
        return
