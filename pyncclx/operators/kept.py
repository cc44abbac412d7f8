"""Copy functions so that they keep the captured values of their first use."""

from __future__ import annotations

import dis
import hashlib
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any

import numpy as np

Function = Callable[..., Any]


def kept(fn: Function, what: str) -> Function:
    """Return a copy of a function with the current values of captured variables.

    Numba reads globals and closure whenever it compiles: once for each kernel and each type of elements. From the copy
    it always reads the same values.

    Parameters
    ----------
    fn : callable
    what : str
        "Op" or "Transform", for error messages.

    Raises
    ------
    TypeError
        If the function, or one compiled by Numba that it calls, has a ``raise`` or an ``assert``.
    """
    _check_raises_nothing(fn, what)
    names = set(_names(fn.__code__))
    captured = {name: _copied(value) for name, value in fn.__globals__.items() if name in names}
    closure = tuple(map(_copied_cell, fn.__closure__ or ()))
    made = FunctionType(fn.__code__, captured, fn.__name__, fn.__defaults__, closure)
    made.__kwdefaults__, made.__module__, made.__qualname__ = fn.__kwdefaults__, fn.__module__, fn.__qualname__
    return made


def is_as_kept(fn: Function, copy: Function) -> bool:
    """Return whether a function's captured values are still those of its `copy`."""
    values = [fn.__globals__.get(name) for name in copy.__globals__ if name != "__builtins__"]
    copies = [value for name, value in copy.__globals__.items() if name != "__builtins__"]
    cells = zip(map(_contents, fn.__closure__ or ()), map(_contents, copy.__closure__ or ()), strict=True)
    return all(_equal(*pair) for pair in (*zip(values, copies, strict=True), *cells))


def fingerprint(copy: Function) -> bytes:
    """Return a hash of a function's code and captured values: a key for its kernels.

    `copy` is a result of `kept`. Captured numbers, strings and NumPy arrays count by value, other objects by type.
    """
    cells = map(_contents, copy.__closure__ or ())
    captured = [each for name, each in sorted(copy.__globals__.items()) if name != "__builtins__"]
    values = [*_constants(copy.__code__), *captured, *cells]
    return hashlib.blake2b(b"\0".join(map(_in_bytes, values)), digest_size=16).digest()


def _constants(code: CodeType) -> Iterator[Any]:
    """Yield the instructions and constants of a function and of its inner functions."""
    yield code.co_code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _constants(value)
        else:
            yield value


def _in_bytes(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}".encode() + value.tobytes()
    simple = isinstance(value, (int, float, complex, str, bytes, np.generic))
    return (repr(value) if simple else type(value).__name__).encode()


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function and its inner functions look up."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def _copied_cell(cell: CellType) -> CellType:
    try:
        return CellType(_copied(cell.cell_contents))
    except ValueError:  # unassigned
        return cell


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return a is b or (type(a) is type(b) and isinstance(a, (int, float, complex, np.generic)) and bool(a == b))


def _check_raises_nothing(fn: Function, what: str) -> None:
    for function in _called_by(fn, {}):
        line = _line_that_raises(function.__code__)
        if line:
            where = f"{function.__code__.co_filename}, line {line}"
            raise TypeError(
                f"{what}: {function.__name__} has a raise or an assert ({where}), and kernels pass no exceptions on; "
                "return a value that stands for the error, such as NaN"
            )


def _called_by(fn: Function, seen: dict[int, Function]) -> Iterator[Function]:
    """Yield a function, and the functions compiled by Numba that it has captured."""
    seen[id(fn)] = fn
    yield fn
    names = set(_names(fn.__code__))
    captured = [value for name, value in fn.__globals__.items() if name in names]
    for value in (*captured, *map(_contents, fn.__closure__ or ())):
        inner = getattr(value, "py_func", None)
        if isinstance(inner, FunctionType) and id(inner) not in seen:
            yield from _called_by(inner, seen)


def _line_that_raises(code: CodeType) -> int:
    """Return the line of a function's first ``raise`` or ``assert``; 0 without one."""
    line, lines = code.co_firstlineno, dict(dis.findlinestarts(code))
    for instruction in dis.get_instructions(code):
        line = lines.get(instruction.offset) or line
        if instruction.opname == "RAISE_VARARGS":
            return line
    return next(filter(None, (_line_that_raises(each) for each in code.co_consts if isinstance(each, CodeType))), 0)
