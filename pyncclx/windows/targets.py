"""Which elements of a rank's memory a one-sided operation takes: the target argument as mpi4py has it."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from ..arrays.datatypes import Datatype


@dataclass(slots=True)
class TargetSpec:
    """A target argument, taken apart; None for what it leaves out."""

    disp: int = 0
    count: int | None = None
    datatype: Any = None


@dataclass(slots=True)
class Target:
    """Elements in a rank's memory."""

    address: int  # as mapped here
    count: int
    datatype: Datatype


def parse(operation: str, target: Any) -> TargetSpec:
    """Take a target argument apart: None, disp, or a list of disp, count, datatype, or of the first ones of these.

    Raises
    ------
    TypeError, ValueError
        As mpi4py does: disp or count in a list is no integer; it is none of these, or a longer list.
    """
    expecting = f"{operation}: target is {target!r}; expecting None, disp, or (disp, count, datatype)"
    if target is None:
        return TargetSpec()
    if not isinstance(target, (list, tuple)):
        try:
            return TargetSpec(operator.index(target))
        except TypeError:
            raise ValueError(expecting) from None
    if len(target) > 3:
        raise ValueError(f"{expecting}, 3 items at most")
    try:
        numbers = [operator.index(each) for each in target[:2]]
    except TypeError:
        raise TypeError(expecting) from None
    return TargetSpec(*numbers, *target[2:])
