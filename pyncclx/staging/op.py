"""Operators of `pyncclx.MPI`: `Reduce_local` takes device arrays; MPI's may crash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from ..arrays import places
from ..errors import NotSupported
from .arguments import Argument
from .copies import copy_back, copy_in
from .stage import replace
from .stand_ins import StandIn, constants_of

_BUFFERS = [Argument("inbuf", 0, False), Argument("inoutbuf", 1, True)]


class Op(StandIn, MPI.Op):
    """An `mpi4py.MPI.Op`. Operators for kernels are `pyncclx.Op`."""

    like = MPI.Op

    @classmethod
    def Create(cls, function: Callable[..., None], commute: bool = False) -> Op:
        """Create an operator from a Python function (mpi4py's method)."""
        return cls(super().Create(function, commute))

    def Reduce_local(self, inbuf: Any, inoutbuf: Any) -> None:
        """Reduce two arrays of this rank, device arrays on host copies.

        See mpi4py's `Reduce_local`.

        Parameters
        ----------
        inbuf : array or buffer specification
        inoutbuf : array or buffer specification
            Of the same elements; contains the result when the method returns.

        Raises
        ------
        TypeError
            Device arrays whose elements have no arithmetic.
        NotSupported
            One of the arrays is on the device, the other on the host.
        """
        sides = places.where(inbuf), places.where(inoutbuf)
        if places.host_arrays() or "device" not in sides:
            return super().Reduce_local(inbuf, inoutbuf)
        if sides != ("device", "device"):
            raise NotSupported("Reduce_local: one array is on the device, one in host memory; copy one of them")
        copies, args, _ = replace("Reduce_local", _BUFFERS, (inbuf, inoutbuf), {}, computing=self.is_predefined)
        copy_in(copies)
        super().Reduce_local(*args)
        copy_back(copies)
        return None


Op.constants = constants_of(Op)
