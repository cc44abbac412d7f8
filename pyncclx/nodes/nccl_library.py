"""NCCL through nccl4py: presence, version, settings, and the reductions it can do."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from ..system import settings
from ..system.process import cached

OLDEST = 22800  # NCCL 2.28.0, in NCCL's own notation
_HOST_ID = "NCCL_HOSTID"

# ncclDataType_t and ncclRedOp_t, by the names of elements and operators in kernels.
_INTEGERS = {"signed char": 0, "unsigned char": 1, "int": 2, "unsigned": 3, "long long": 4, "unsigned long long": 5}
_FLOATING = {"Half": 6, "float": 7, "double": 8, "Bfloat16": 9}
_COMPLEX = {"Complex<float>": 7, "Complex<double>": 8}  # NCCL sums them as two floats or doubles
_ITEMSIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2)  # bytes, by the number of a datatype
_OPERATORS = {"Sum": 0, "Prod": 1, "Max": 2, "Min": 3}


@cached
def bindings() -> Any:
    """Return the functions of NCCL, which take addresses and streams as integers.

    Raises
    ------
    ImportError
        If nccl4py is not installed, or finds no NCCL.
    """
    _set_variables()
    from nccl.bindings import nccl  # noqa: PLC0415  an optional dependency

    return nccl


def refusal() -> str | None:
    """Return why this process cannot use NCCL between nodes; None if it can."""
    try:
        version = int(bindings().get_version())
    # nccl4py raises errors of its own when it loads NCCL.
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None if version >= OLDEST else f"NCCL {version // 10000}.{version // 100 % 100} is older than 2.28"


def version_text() -> str:
    """Return the version of NCCL as text, such as 2.28.3."""
    version = int(bindings().get_version())
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def _set_variables() -> None:
    """Set the environment variables that NCCL reads once."""
    node = settings.NODE.get()
    if node:
        settings.set_foreign(_HOST_ID, f"{os.uname().nodename} {node}")
    # A rail has one GPU of a node. Without this, NCCL may give two rails the same network interface.
    settings.set_foreign("NCCL_NETDEVS_POLICY", "MAX:1")
    # Connect the ranks for all collectives when the communicator is made: see `nccl_engine.py`.
    settings.set_foreign("NCCL_RUNTIME_CONNECT", "0")
    # Make messages as long as those of NCCL's collectives: sends and receives through sockets take up to a third less.
    settings.set_foreign("NCCL_P2P_NET_CHUNKSIZE", str(512 << 10))


class NcclReduction(NamedTuple):
    """An operator on elements, as NCCL numbers them."""

    datatype: int
    operator: int

    def count(self, nbytes: int) -> int:
        """Return the number of elements in `nbytes` bytes."""
        return nbytes // _ITEMSIZES[self.datatype]


def nccl_reduction(template: tuple[str, ...], ranks: int, *, deterministic: bool) -> NcclReduction | None:
    """Return NCCL's numbers for a reduction over ranks; None if kernels must do it.

    NCCL chooses its own order. For integers, and for sums and products of two numbers, every order gives the same bits,
    so NCCL computes these. It computes other sums and products of floating-point numbers only if the result need not be
    `deterministic`. Kernels always compute Max and Min of floating-point numbers, because the results for NaN and
    signed zeros depend on how two numbers are compared.

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
