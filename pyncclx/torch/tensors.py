"""Tensors as arguments of calls, and as places for results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["Result", "Tensor", "Tensors", "counts_of", "counts_of_rows", "flat", "packed"]

Tensor = Any
Tensors = Sequence[Tensor]


def flat(tensor: Tensor) -> Tensor:
    """Return a tensor without gradient, contiguous and resolved; a copy if need be."""
    if _is_dense(tensor):
        return _without_gradient(tensor)
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor is contiguous and resolved."""
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def _without_gradient(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


def packed(tensors: Tensors) -> Tensor:
    """Return the elements of several tensors in one, one tensor behind the other."""
    return torch.cat([flat(tensor).reshape(-1) for tensor in tensors])


class Result:
    """Contiguous memory for a call's result, and tensors that `store` copies it to.

    One contiguous tensor is the memory itself.

    Parameters
    ----------
    tensors : torch.Tensor
        The result, in this order.
    counts : sequence of int, optional
        Elements that each rank sends, for calls that need them.
    is_filled : bool
        Whether the memory begins with the tensors' elements, because the call reads it.
    """

    def __init__(self, *tensors: Tensor, counts: Sequence[int] | None = None, is_filled: bool = False) -> None:
        first, self.tensors = tensors[0], tensors
        self._is_copy = len(tensors) > 1 or not _is_dense(first)
        if not self._is_copy:
            self.memory = _without_gradient(first)
        else:
            self.memory = packed(tensors) if is_filled else first.new_empty(sum(counts_of(tensors)))
        #: What calls take.
        self.argument = self.memory if counts is None else [self.memory, counts]

    def store(self) -> None:
        """Copy the result to the tensors, unless it is there already."""
        if self._is_copy:
            for tensor, part in zip(self.tensors, self.memory.split(counts_of(self.tensors)), strict=True):
                tensor.detach().copy_(part.view(tensor.shape))


def counts_of(tensors: Tensors) -> list[int]:
    """Return the numbers of elements of tensors."""
    return [tensor.numel() for tensor in tensors]


def counts_of_rows(tensor: Tensor, splits: Sequence[int], size: int) -> list[int]:
    """Return how many elements of a tensor belong to each of `size` ranks.

    `splits` are their numbers of rows, that is of places of the first dimension; empty for equally many. A ValueError
    says that they do not fit the tensor.
    """
    rows = tensor.shape[0]
    if not splits and rows % size == 0:
        return [tensor.numel() // size] * size
    if len(splits) != size or sum(splits) != rows:
        how = f"as {list(splits)}" if splits else "equally"
        raise ValueError(f"all_to_all: {rows} rows cannot be divided {how} among {size} ranks")
    width = math.prod(tensor.shape[1:])
    return [width * each for each in splits]
