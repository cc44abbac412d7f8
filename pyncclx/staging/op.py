"""Operators of MPI whose `Reduce_local` takes device arrays: MPI would crash at them where it is not CUDA-aware."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from ..arrays.places import host_arrays, where
from ..errors import NotSupported
from .copies import Copy
from .stand_ins import StandIn, constants_of


class Op(StandIn, MPI.Op):
    """An `mpi4py.MPI.Op`. Operators for kernels are `pyncclx.Op`."""

    like = MPI.Op

    @classmethod
    def Create(cls, function: Callable[..., None], commute: bool = False) -> Op:
        """As mpi4py's."""
        return cls(super().Create(function, commute))

    def Reduce_local(self, inbuf: Any, inoutbuf: Any) -> None:
        """As mpi4py's; of device arrays, on host copies: the result is there when it returns.

        Raises
        ------
        NotSupported
            One of the arrays is on the device, the other on the host.
        """
        places = where(inbuf), where(inoutbuf)
        if host_arrays() or "device" not in places:
            return super().Reduce_local(inbuf, inoutbuf)
        if places != ("device", "device"):
            raise NotSupported("Reduce_local: one array is on the device, one in host memory; copy one of them")
        specs, copies = [], []
        for spec, name in ((inbuf, "inbuf"), (inoutbuf, "inoutbuf")):
            array, *others = spec if isinstance(spec, (list, tuple)) else (spec,)
            copies.append(Copy(array, f"Reduce_local: {name}", written=name == "inoutbuf", whole=not others))
            copies[-1].download()
            host = copies[-1].host_array()
            specs.append([host, *others] if others else host)
        super().Reduce_local(*specs)
        copies[1].upload()
        return None


Op.constants = constants_of(Op)
