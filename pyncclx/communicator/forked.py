"""Forked children: calls on the parent's communicators and requests raise."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from mpi4py import MPI

from ..errors import NotSupported
from ..system.process import in_children
from .faults import is_ours


def refuse_in_children(classes: Iterable[type]) -> None:
    """Make all public methods of some classes raise NotSupported in forked children.

    This holds for children that this process forks after MPI was initialized.
    """
    bases = {base for cls in classes for base in cls.__mro__ if is_ours(base)}
    in_children(lambda: _refuse(bases) if MPI.Is_initialized() else None)


def _refuse(bases: Iterable[type]) -> None:
    for base in bases:
        for name, method in list(vars(base).items()):
            if name.startswith("_"):
                continue
            if inspect.isfunction(method):
                setattr(base, name, _refusing(name, method))
            elif isinstance(method, (classmethod, staticmethod)):
                setattr(base, name, staticmethod(_refusing(name, method.__func__)))


def _refusing(name: str, method: Callable[..., Any]) -> Callable[..., NoReturn]:
    @functools.wraps(method)
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotSupported(
            f"{name}: this process was forked by a rank, and is no rank itself: call pyncclx in the parent, and pass "
            "data to it by a pipe or a queue"
        )

    return refuse
