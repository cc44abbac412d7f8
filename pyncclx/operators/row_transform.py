"""`pyncclx.Transform`: a Python function that kernels apply to elements they send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .. import backends
from ..arrays.buffers import Buffer, resolve
from ..arrays.datatypes import Datatype
from ..arrays.readers import check_c_order
from ..backends.compilers.numba_functions import MOST_ARRAYS, RowTypes
from ..errors import NotSupported
from ..system.process import held
from . import linked
from .kept import is_as_kept, kept
from .linked import HALVES, LinkedFunction, computed

_FIRST = ("x", "row", "column")  # arguments of every transform


class Transform:
    """A Python function that an operation applies to each element that it sends.

    Decorate a function with it, and pass the result as ``transform=``; if the function takes arrays, call the result
    with them. The operation's kernel applies the function, which saves a kernel before the operation. Numba compiles
    the function at its first use, and it is inlined into the kernel.

    Parameters
    ----------
    fn : callable
        ``fn(x, row, column, *arrays)`` returns the element that is sent instead of `x`. `x` has the array's type, but
        float32 for float16 and bfloat16. `row` is the element's index in the first dimension of the array that is
        sent, and `column` its index in that row, flattened. A vector is one row. The result is converted to the type of
        the receiving array: rounded to a float, or to an integer by the rules of C. `fn` must not raise, because a
        kernel cannot pass on an exception.

    Raises
    ------
    TypeError
        `fn` does not take these arguments. At the first use, and then on all ranks: `fn` has a ``raise`` or an
        ``assert``, or Numba cannot compile it. The text has Numba's message and the line.

    Notes
    -----
    Captured variables keep the values of the first use. For other values, make another transform, or pass an array.

    The function gets one element at a time. Compute a function of a whole row, such as its mean square, before the
    call, and pass an array with a number for each row.

    Examples
    --------
    >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
    >>> @pyncclx.Transform
    ... def scaled(x, row, column, scales):
    ...     return x * scales[row]
    >>> x, y = np.ones((2, 3), "f4"), np.empty((2, 3), "f4")
    >>> scales = np.array([2, 5], "f4")
    >>> comm.Allgather(x, y, transform=scaled(scales))
    >>> y.tolist()
    [[2.0, 2.0, 2.0], [5.0, 5.0, 5.0]]
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn: Callable[..., Any] = getattr(fn, "py_func", fn)
        code = getattr(self.fn, "__code__", None)
        count = -1 if code is None else code.co_argcount - len(_FIRST)
        if not 0 <= count <= MOST_ARRAYS:
            raise TypeError(f"Transform: fn is {fn!r}; expecting fn(x, row, column) and up to {MOST_ARRAYS} arrays")
        self.name, self.count = self.fn.__name__, count
        self._kept: Callable[..., Any] | None = None

    def __call__(self, *arrays: Any) -> WithArrays:
        """Return the transform with its device arrays, to pass as ``transform=``.

        Pass one array for each parameter of the function after `column`.
        """
        if len(arrays) != self.count:
            raise TypeError(f"{self!r} takes {self.count} arrays, not {len(arrays)}")
        return WithArrays(self, arrays)

    def __repr__(self) -> str:
        return f"pyncclx.Transform({self.name})"

    def as_at_first_use(self) -> Callable[..., Any]:
        """Return a copy of the function, with the captured values of the first call.

        Transforms of one function with equal captured values share the copy, so that kernels are compiled once.
        """
        if self._kept is None:
            with linked.LOCK:
                copy = _KEPT.get(self.fn)
                if copy is None or not is_as_kept(self.fn, copy):
                    copy = _KEPT[self.fn] = kept(self.fn, "Transform")
                self._kept = self._kept or copy
        return self._kept


class WithArrays(NamedTuple):
    """A transform and its arrays, as passed to calls."""

    transform: Transform
    arrays: tuple[Any, ...]


class Applied(NamedTuple):
    """A transform in a call: the kernel's template arguments, and the array addresses."""

    name: str
    template: tuple[str, ...]  # types of elements, and name of the transform
    addresses: tuple[int, ...]  # MOST_ARRAYS addresses
    buffers: tuple[Buffer, ...]


def apply(transform: Any, operation: str, types: tuple[str, str], element: Datatype, result: Datatype) -> Applied:
    """Check a call's `transform` argument, and return it in the form for kernels.

    Parameters
    ----------
    transform : Transform or WithArrays
    operation : str
        Name of the method, for messages.
    types : tuple of str
        The C++ types that are template arguments of the kernel.
    element, result : Datatype
        Datatypes of the transform's input, and of the array that receives its results.

    Raises
    ------
    TypeError
        `transform` is no Transform, lacks arrays, or has arrays that it cannot read.
    NotSupported
        A transform is not possible for these elements.
    """
    bound = transform() if isinstance(transform, Transform) else transform
    if not isinstance(bound, WithArrays):
        raise TypeError(f"{operation}: transform is {transform!r}; expecting a pyncclx.Transform")
    if element.kind != "float" or result.kind not in ("float", "integer"):
        raise NotSupported(
            f"{operation}: a transform makes floats or integers of floats, not {result.name} of {element.name}"
        )
    buffers = tuple(_read(each, operation, bound.transform) for each in bound.arrays)
    row_types = RowTypes(computed(element), computed(result), tuple(computed(each.datatype) for each in buffers))
    addresses = [*(buffer.address for buffer in buffers), *[0] * (MOST_ARRAYS - len(buffers))]
    function = _linked_for(bound.transform.as_at_first_use(), row_types, types)
    return Applied(bound.transform.name, function.template, tuple(addresses), buffers)


#: Used in calls without a transform.
NONE = Applied("", (), (0,) * MOST_ARRAYS, ())


def template_for(applied: Applied, types: tuple[str, ...]) -> tuple[str, ...]:
    """Return another kernel's template arguments for the same transform, if any."""
    function = linked.named(applied.template)
    return types if function is None else _linked_for(function.fn, function.types, types).template


#: The last copy of each function.
_KEPT: dict[Callable[..., Any], Callable[..., Any]] = held({})
#: By a transform's function and the types it is compiled for.
_FUNCTIONS: dict[Any, LinkedFunction] = held({})


def _linked_for(fn: Callable[..., Any], types: RowTypes, cxx: tuple[str, ...]) -> LinkedFunction:
    key = fn, types, cxx
    with linked.LOCK:
        if key not in _FUNCTIONS:
            _FUNCTIONS[key] = linked.add(
                "RowTransform", lambda name: LinkedFunction(fn=fn, types=types, template=(*cxx, name))
            )
        return _FUNCTIONS[key]


def _read(array: Any, operation: str, transform: Transform) -> Buffer:
    buffer = resolve(array, f"{operation}: array of {transform!r}", writable=False, device=backends.select())
    if buffer.datatype.kind not in ("float", "integer") or buffer.datatype.name in HALVES:
        raise TypeError(
            f"{operation}: {transform!r} cannot read an array of {buffer.datatype.name}; expecting float32, float64 or "
            "integers"
        )
    check_c_order(buffer.owner, f"{operation}: array of {transform!r}")
    return buffer
