"""Replace all public methods of pyncclx's classes.

In forked children, calls on the parent's communicators and requests raise.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from ..errors import NotSupported
from ..system.mpi_library import is_child
from ..system.process import in_children

_Method = Callable[..., Any]


def is_ours(cls: type) -> bool:
    """Return whether a class is one of pyncclx, not of mpi4py."""
    return cls.__module__.startswith(f"{__name__.partition('.')[0]}.")


def replace_public(classes: Iterable[type], make: Callable[[str, _Method], _Method]) -> Callable[[], None]:
    """Replace every public method of classes and of their base classes in pyncclx.

    Return a function that restores the methods.

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


def refuse_in_children(classes: Iterable[type]) -> None:
    """Make all public methods of the classes raise NotSupported in forked children.

    This holds for children that this process forks after MPI was initialized.
    """
    classes = tuple(classes)
    in_children(lambda: replace_public(classes, _refusing) if is_child() else None)


def _refusing(name: str, method: Callable[..., Any]) -> Callable[..., NoReturn]:
    @functools.wraps(method)
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotSupported(
            f"{name}: this process was forked by a rank, and is no rank itself: call pyncclx in the parent, and pass "
            "data to it by a pipe or a queue"
        )

    return refuse
