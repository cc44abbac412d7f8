"""Replacement of all public methods of pyncclx's classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

_Method = Callable[..., Any]


def is_ours(cls: type) -> bool:
    """Return whether a class is one of pyncclx, not of mpi4py."""
    return cls.__module__.startswith(f"{__name__.partition('.')[0]}.")


def replace_public(classes: Iterable[type], make: Callable[[str, _Method], _Method]) -> Callable[[], None]:
    """Replace every public method of some classes, and of pyncclx's bases of them.

    Return a function that brings the methods back.

    Parameters
    ----------
    classes : iterable of type
    make : callable
        Returns the new function of a method, given its name and function.
    """
    before: list[tuple[type, str, Any]] = []
    for base in {base for cls in classes for base in cls.__mro__ if is_ours(base)}:
        for name, method in list(vars(base).items()):
            if name.startswith("_"):
                continue
            if inspect.isfunction(method):
                new: Any = make(name, method)
            elif isinstance(method, (classmethod, staticmethod)):
                new = type(method)(make(name, method.__func__))
            else:
                continue
            before.append((base, name, method))
            setattr(base, name, new)

    def bring_back() -> None:
        for base, name, method in before:
            setattr(base, name, method)

    return bring_back
