"""What a communicator is to its ranks: of many ranks, as little as possible is kept."""

import pytest

from pyncclx.recording.identity import Identity, compact


@pytest.mark.parametrize(
    ("ranks", "is_range"),
    [
        *(((), True), ((5,), True), ((0, 1, 2), True), ((1, 9, 17), True), ((3, 1), True)),
        *(((0, 1, 3), False), ((-32766, -32766), False), ((0, 1, 0), False)),
    ],
)
def test_ranks_that_are_equally_far_apart_are_a_range(ranks, is_range):
    made = compact(ranks)
    assert tuple(made) == ranks
    assert isinstance(made, range) == (is_range and bool(ranks))


def test_a_range_is_written_as_other_ranks_are():
    texts = {Identity("comm", world, (), 3).text("name", 1) for world in (range(4), (0, 1, 2, 3))}
    assert len(texts) == 1
    assert '"world": [0, 1, 2, 3]' in texts.pop()
