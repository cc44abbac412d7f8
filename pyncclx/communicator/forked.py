"""Forked children: calls on the parent's communicators and requests raise."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from ..errors import NotSupported
from ..system.mpi_library import is_child
from ..system.process import in_children
from ..system.replacing import replace_public


def refuse_in_children(classes: Iterable[type]) -> None:
    """Make all public methods of some classes raise NotSupported in forked children.

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
