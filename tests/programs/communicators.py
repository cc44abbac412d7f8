"""The communicators of a program, which its acts name by a word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .program import Act, Program

if TYPE_CHECKING:
    from .execute import Side

KINDS = ("base", "dup", "reversed", "halves")  # and "own": a duplicate for that act alone


class Communicators:
    """What acts name by a word, made before the first act; later programs use them too, unless they want fresh ones."""

    def __init__(self, side: Side, program: Program) -> None:
        self.world, self.rank = side.world, side.beside.rank
        self.fresh = program.fresh
        self._made: dict[Any, Any] = {} if program.fresh else side.lasting
        used = {act.comm for act in program.acts}
        for kind in KINDS[1:]:
            if kind in used and kind not in self._made:
                self._made[kind] = self._make(kind)
        self._own: dict[tuple[int, int], int] = {}
        for number, act in enumerate(program.acts):
            for which in range(act.duplicates() if act.comm == "own" else 0):
                place = self._own[number, which] = len(self._own)
                if place not in self._made:
                    self._made[place] = self.world.Dup()

    def _make(self, kind: str) -> Any:
        if kind == "dup":
            return self.world.Dup()
        if kind == "reversed":
            return self.world.Split(0, -self.rank)
        return self.world.Split(2 * self.rank // self.world.size, self.rank)

    def of(self, act: Act, number: int, which: int = 0) -> Any:
        """Return the communicator of an act."""
        if act.comm == "base":
            return self.world
        return self._made[self._own[number, which] if act.comm == "own" else act.comm]

    def all(self) -> list[Any]:
        """Return all communicators that an act may have used."""
        return [self.world, *self._made.values()]

    def close(self) -> None:
        """Free what was made for one program."""
        if self.fresh:
            for comm in self._made.values():
                comm.Free()


class Alone(Communicators):
    """One communicator for all acts: a thread's."""

    def __init__(self, comm: Any, rank: int) -> None:
        self.comm, self.rank = comm, rank

    def of(self, act: Act, number: int, which: int = 0) -> Any:
        return self.comm

    def all(self) -> list[Any]:
        return [self.comm]

    def close(self) -> None:
        """Leave it to who has made it."""
