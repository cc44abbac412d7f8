"""Operators of MPI whose `Reduce_local` takes device arrays: MPI would crash at them where it is not CUDA-aware."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from ..arrays.buffers import where
from ..arrays.readers import host_arrays
from ..errors import NotSupported
from .copies import Copy
from .requests import LikeMpi4py


class Op(MPI.Op, metaclass=LikeMpi4py):
    """An `mpi4py.MPI.Op`. Operators for kernels are `pyncclx.Op`."""

    like = MPI.Op

    def __reduce__(self) -> str | tuple[Any, ...]:
        for name, constant in CONSTANTS.items():
            if constant == self:
                return (_named, (name,)) if constant is self else (_copy_of, (type(self), name))
        return super().__reduce__()

    def free(self) -> None:
        """As mpi4py's, which does nothing to its constants."""
        if not any(constant is self for constant in CONSTANTS.values()):
            super().free()

    @classmethod
    def Create(cls, function: Callable[..., None], commute: bool = False) -> Op:
        """As mpi4py's."""
        return cls(super().Create(function, commute))

    @classmethod
    def fromhandle(cls, handle: int) -> Op:
        """As mpi4py's."""
        return cls(super().fromhandle(handle))

    @classmethod
    def fromint(cls, arg: int, /) -> Op:
        """As mpi4py's."""
        return cls(super().fromint(arg))

    @classmethod
    def f2py(cls, arg: int) -> Op:
        """As mpi4py's."""
        return cls(super().f2py(arg))

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
            specs.append([copies[-1].stand(), *others] if others else copies[-1].stand())
        super().Reduce_local(*specs)
        copies[1].upload()
        return None


#: mpi4py's constants, by name.
CONSTANTS: dict[str, Op] = {
    name: Op(value) for name, value in vars(MPI).items() if isinstance(value, MPI.Op) and not name.startswith("_")
}


def _named(name: str) -> Op:
    return CONSTANTS[name]


def _copy_of(cls: type[Op], name: str) -> Op:
    return cls.__new__(cls, CONSTANTS[name])
