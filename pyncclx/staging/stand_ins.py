"""What the classes of `pyncclx.MPI` that stand for mpi4py's have in common."""

from __future__ import annotations

from typing import Any, ClassVar

from mpi4py import MPI


class StandInType(type):
    """The class of a class that stands for mpi4py's: objects of mpi4py's class are its instances too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, vars(cls).get("like", ())) or super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, vars(cls).get("like", ())) or super().__subclasscheck__(subclass)


class StandIn(metaclass=StandInType):
    """Base of a class that stands for mpi4py's; it comes before mpi4py's among the bases.

    Attributes
    ----------
    like : type
        mpi4py's class.
    constants : dict of str to object
        Objects of the class that exist once, by name: they stay themselves when pickled, and cannot be freed.
    """

    like: ClassVar[type]
    constants: ClassVar[dict[str, Any]] = {}

    def __reduce__(self) -> str | tuple[Any, ...]:
        equal = [name for name, constant in self.constants.items() if constant == self]
        if not equal:
            return super().__reduce__()
        for name in equal:
            if self.constants[name] is self:
                return constant_of, (type(self), name)
        return copy_of_constant, (type(self), equal[0])

    def free(self) -> None:
        """As mpi4py's, which does nothing to its constants."""
        if not any(constant is self for constant in self.constants.values()):
            super().free()  # type: ignore[misc]

    @classmethod
    def fromhandle(cls, handle: int) -> Any:
        """As mpi4py's."""
        return cls(super().fromhandle(handle))  # type: ignore[misc, call-arg]

    @classmethod
    def fromint(cls, arg: int, /) -> Any:
        """As mpi4py's."""
        return cls(super().fromint(arg))  # type: ignore[misc, call-arg]

    @classmethod
    def f2py(cls, arg: int) -> Any:
        """As mpi4py's."""
        return cls(super().f2py(arg))  # type: ignore[misc, call-arg]


def constants_of(cls: type[StandIn]) -> dict[str, Any]:
    """mpi4py's constants of a class as objects of the class that stands for it, by name."""
    constants = vars(MPI).items()
    return {name: cls(value) for name, value in constants if type(value) is cls.like and not name.startswith("_")}  # type: ignore[call-arg]


def constant_of(cls: type[StandIn], name: str) -> Any:
    """A constant of a class, for pickle."""
    return cls.constants[name]


def copy_of_constant(cls: type[StandIn], name: str) -> Any:
    """An object of a class that equals one of its constants, for pickle."""
    return cls.__new__(cls, cls.constants[name])  # type: ignore[call-arg]
