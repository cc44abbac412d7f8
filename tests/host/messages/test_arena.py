"""Memory for channels and partitioned messages is used again once nothing uses it."""

import pytest

from pyncclx.backends import select
from pyncclx.messages.memory.arena import ARENA_NBYTES, Arena


class LastUse:
    """The event behind the last use of a piece."""

    over = False

    def is_over(self):
        return self.over


@pytest.fixture
def arena():
    return Arena(select())


@pytest.mark.parametrize("nbytes", [100, ARENA_NBYTES + 1])
def test_one_piece_in_use_keeps_no_other(arena, nbytes):
    """What a stream that waits may still use is not handed out; those behind it are, however often."""
    used, first, last_use = arena.take(nbytes), arena.take(nbytes), LastUse()
    arena.give_back(used, last_use)
    arena.give_back(first)
    for _ in range(5):
        piece = arena.take(nbytes)
        assert piece == first
        arena.give_back(piece)
    last_use.over = True
    assert {arena.take(nbytes), arena.take(nbytes)} == {used, first}
