"""The program's functions that are linked into kernels: operators, row transforms."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ..arrays.datatypes import Datatype
from ..errors import NotSupported
from ..system.process import PerProcess, lock

# Types whose elements are computed in float32, and rounded once.
HALVES = ("float16", "bfloat16")

_Function = TypeVar("_Function", bound="LinkedFunction")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LinkedFunction:
    """A function of the program, and the element types that it is compiled for.

    Attributes
    ----------
    fn : callable
    types : numpy.dtype or RowTypes
        The types that Numba compiles it for.
    template : tuple of str
        Template arguments of the kernels that call it: C++ types, and the function's name, such as "UserOp#3".
    """

    fn: Callable[..., Any]
    types: Any
    template: tuple[str, ...]

    def cxx_name(self, kernel: str) -> str:
        """Return the C++ name of a kernel that calls the function.

        An example is ``allreduce_one_shot<float, UserOp>``.
        """
        *types, name = self.template
        return f"{kernel}<{', '.join(types)}, {name.partition('#')[0]}>"


def unnumbered(name: str) -> str:
    """Return a kernel's name without numbers of functions, which differ by process."""
    return re.sub(r"#\d+", "", name)


# Functions by template parameter. Kernels are cached by template arguments, so the functions of one parameter need
# different names: the parameter and an index in this list. Lasting, because a program's operators keep their names.
_FUNCTIONS: PerProcess[dict[str, list[LinkedFunction]]] = PerProcess(lambda: defaultdict(list), lasting=True)
# Held while a function gets its name: if two functions had one name, a thread would reduce with the other's operator.
# Also held while a function is looked up, so that threads share one copy.
LOCK = lock()


def add(parameter: str, make: Callable[[str], _Function]) -> _Function:
    """Create a function with a new name, and register it for `named`."""
    with LOCK:
        functions = _FUNCTIONS.get()[parameter]
        made = make(f"{parameter}#{len(functions)}")
        functions.append(made)
        return made


def named(template: tuple[str, ...]) -> LinkedFunction | None:
    """Return the program's function that a kernel calls, or None if it calls none.

    Its name is the last of the kernel's template arguments.

    Raises
    ------
    NotSupported
        If the template has other elements than the function, because the operation has no kernels for users' operators.
    """
    parameter, _, index = template[-1].partition("#") if template else ("", "", "")
    if not index:
        return None
    found = _FUNCTIONS.get()[parameter][int(index)]
    if found.template != template:
        raise NotSupported(f"this operation cannot reduce {found.types} with an operator of the user")
    return found


def computed(datatype: Datatype) -> np.dtype[Any]:
    """Return the dtype in which the program's functions compute a datatype."""
    return np.dtype("f4" if datatype.name in HALVES else datatype.name)
