"""Reductions that NCCL can do: rank order shows in no bit or need not be kept."""

from __future__ import annotations

from typing import NamedTuple

# ncclDataType_t and ncclRedOp_t, by the names of elements and operators in kernels.
_INTEGERS = {"signed char": 0, "unsigned char": 1, "int": 2, "unsigned": 3, "long long": 4, "unsigned long long": 5}
_FLOATING = {"Half": 6, "float": 7, "double": 8, "Bfloat16": 9}
_COMPLEX = {"Complex<float>": 7, "Complex<double>": 8}  # sums are those of their parts
_ITEMSIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2)  # bytes, by the number of a datatype
_OPERATORS = {"Sum": 0, "Prod": 1, "Max": 2, "Min": 3}


class NcclReduction(NamedTuple):
    """An operator on elements, as NCCL numbers them."""

    datatype: int
    operator: int

    def count(self, nbytes: int) -> int:
        """Return the number of elements in `nbytes` bytes."""
        return nbytes // _ITEMSIZES[self.datatype]


def nccl_reduction(template: tuple[str, ...], ranks: int, *, deterministic: bool) -> NcclReduction | None:
    """Return NCCL's numbers for a reduction over ranks; None if kernels must do it.

    Integers have the same bits in any order, and so have sums and products of two numbers. More numbers are added in
    its own order, unless the result is to be `deterministic`. Max and Min of floating-point numbers are always left to
    kernels, because results for NaN and signed zeros depend on how two numbers are compared.

    Examples
    --------
    >>> nccl_reduction(("int", "Max"), 8, deterministic=True)
    NcclReduction(datatype=2, operator=2)
    >>> nccl_reduction(("float", "Sum"), 8, deterministic=True) is None
    True
    """
    element, operator = template[0], _OPERATORS.get(template[-1])
    if operator is None:
        return None
    if element in _INTEGERS:
        return NcclReduction(_INTEGERS[element], operator)
    if deterministic and ranks > 2:
        return None
    if element in _FLOATING and template[-1] in ("Sum", "Prod"):
        return NcclReduction(_FLOATING[element], operator)
    return NcclReduction(_COMPLEX[element], operator) if element in _COMPLEX and template[-1] == "Sum" else None
