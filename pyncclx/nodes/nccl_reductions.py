"""Reductions that NCCL can do itself: where the order of the ranks cannot show in the bits, or need not be kept."""

from __future__ import annotations

from typing import NamedTuple

# ncclDataType_t and ncclRedOp_t, by the names of elements and operators in kernels.
_INTEGERS = {"signed char": 0, "unsigned char": 1, "int": 2, "unsigned": 3, "long long": 4, "unsigned long long": 5}
_FLOATING = {"Half": 6, "float": 7, "double": 8, "Bfloat16": 9}
_COMPLEX = {"Complex<float>": 7, "Complex<double>": 8}  # sums are those of their parts
_ITEMSIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2)  # by the number of a datatype
_OPERATORS = {"Sum": 0, "Prod": 1, "Max": 2, "Min": 3}


class NcclReduction(NamedTuple):
    """An operator on elements, as NCCL numbers them."""

    datatype: int
    operator: int

    def count(self, nbytes: int) -> int:
        """Return how many elements have so many bytes."""
        return nbytes // _ITEMSIZES[self.datatype]


def nccl_reduction(template: tuple[str, ...], ranks: int, *, deterministic: bool) -> NcclReduction | None:
    """Return what NCCL makes of a reduction over so many ranks; None if that is to be left to kernels.

    Integers have the same bits in any order, and so have sums and products of two numbers. More are added in NCCL's
    order, unless the result is to be `deterministic`. The largest of floating-point numbers is always left to kernels:
    what comes of NaN, and of zeros with a sign, depends on how two numbers are compared.

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
