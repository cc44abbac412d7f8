"""Base classes for the classes of `pyncclx.MPI` that replace mpi4py's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from mpi4py import MPI


class StandInType(type):
    """Metaclass; instances of mpi4py's class are instances of the stand-in too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, vars(cls).get("like", ())) or super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, vars(cls).get("like", ())) or super().__subclasscheck__(subclass)


class WithConstants(metaclass=StandInType):
    """Base of classes with constants in `pyncclx.MPI`, such as COMM_WORLD.

    Attributes
    ----------
    like : type
        mpi4py's class.
    constants : dict of str to object
        Unique objects of the class by name; pickle preserves their identity, and `free` ignores them.
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

    @property
    def _is_constant(self) -> bool:
        return any(constant is self for constant in self.constants.values())


class StandIn(WithConstants):
    """Base of a class that replaces mpi4py's; list it before mpi4py's class."""

    def free(self) -> None:
        """Free the object; do nothing for constants, as in mpi4py."""
        # `MPI.Request.free(request)` may get a request of a device array, or one of mpi4py's.
        if StandIn not in type(self).__mro__:
            return self.free()
        if not self._is_constant:
            super().free()  # type: ignore[misc]
        return None

    @classmethod
    def fromhandle(cls, handle: int) -> Any:
        """Return the object of an MPI handle."""
        return cls(super().fromhandle(handle))  # type: ignore[misc, call-arg]

    @classmethod
    def fromint(cls, arg: int, /) -> Any:
        """Return the object of an integer handle."""
        return cls.fromhandle(super().fromint(arg).handle)  # type: ignore[misc]

    @classmethod
    def f2py(cls, arg: int) -> Any:
        """Return the object of a Fortran handle."""
        return cls.fromhandle(super().f2py(arg).handle)  # type: ignore[misc]


def given_ours(callback: Any, adopt: Callable[[Any], Any]) -> Any:
    """Wrap a callback of MPI so that `adopt` converts its first argument."""
    if not callable(callback):
        return callback
    return lambda first, *rest: callback(adopt(first), *rest)


def constants_of(cls: type[StandIn]) -> dict[str, Any]:
    """Return mpi4py's constants as objects of the stand-in class, by name."""
    constants = vars(MPI).items()
    return {name: cls(value) for name, value in constants if type(value) is cls.like and not name.startswith("_")}  # type: ignore[call-arg]


def constant_of(cls: type[WithConstants], name: str) -> Any:
    """Return a constant of a class; pickle calls this."""
    return cls.constants[name]


def copy_of_constant(cls: type[WithConstants], name: str) -> Any:
    """Return a new object that equals a constant of its class; pickle calls this."""
    return cls.__new__(cls, cls.constants[name])  # type: ignore[call-arg]
