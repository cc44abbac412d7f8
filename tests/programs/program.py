"""A program is data: acts in the order in which all ranks begin them. Its listing can be read back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .execute import Run


class Listed:
    """Base of the data of a program: its text names only the fields that differ from their defaults."""

    def __repr__(self) -> str:
        fields = [(each, getattr(self, each.name)) for each in dataclasses.fields(self)]
        texts = [f"{each.name}={value!r}" for each, value in fields if value != each.default]
        return f"{type(self).__name__}({', '.join(texts)})"


@dataclass(frozen=True, repr=False)
class Buffer(Listed):
    """What an array is like; its length is the act's."""

    place: str = "device"  # or host, or alloc: from comm.Alloc
    dtype: str = "f8"
    layout: str = "plain"  # or a derived datatype, see memory.LAYOUTS
    named: bool = False  # whether the call names count and datatype


PLAIN = Buffer()


class OneOf(NamedTuple):
    """In the notes of mpi4py's ranks: values of which each is right."""

    values: tuple[Any, ...]


@dataclass(frozen=True, repr=False)
class Act(Listed):
    """One happening between ranks.

    All ranks perform the acts of a program in one order, so that what blocks in an act may wait for whatever ranks
    begin in it or have begun before. `perform` yields the number of acts after which it goes on.
    """

    comm: str = "base"  # or dup, reversed, halves, own: see communicators.py
    late: int = -1  # a rank that begins some milliseconds late

    def legal(self) -> Act:
        """Return the nearest act that MPI allows, and that ends."""
        return self

    def duplicates(self) -> int:
        """Return the number of communicators of its own."""
        return 1

    def perform(self, run: Run, index: int) -> Iterator[int]:
        raise NotImplementedError


@dataclass(frozen=True)
class Program:
    """Acts of some ranks."""

    ranks: int
    acts: tuple[Act, ...]
    fresh: bool = False  # whether its communicators are its own, instead of those of the programs before

    def listing(self) -> str:
        """Return the program as text that `read` takes."""
        lines = "".join(f"    {act!r},\n" for act in self.acts)
        fresh = ", fresh=True" if self.fresh else ""
        return f"Program({self.ranks}, (\n{lines}){fresh})\n"


def names() -> dict[str, Any]:
    """Return what a listing may name."""
    found: dict[str, Any] = {"Program": Program, "Buffer": Buffer}
    kinds = [Act]
    while kinds:
        kind = kinds.pop()
        found[kind.__name__] = kind
        kinds += kind.__subclasses__()
    return found


def read(text: str) -> Program:
    """Return the program of a listing. Lines that begin with # are comments."""
    program = eval(text, {"__builtins__": {}, "nan": float("nan")} | names())  # a listing of our own
    assert isinstance(program, Program)
    return program
