"""What a communicator is to its ranks: of many ranks, as little as possible is kept."""

import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.recording.facts import Identity, compact
from pyncclx.team import state


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


def test_a_copied_attribute_of_more_processes_is_that_of_another_communicator():
    """Open MPI copies attributes in Shrink, too."""
    made, keyval = MPI.COMM_SELF.Dup(), state._KEYVAL.get()
    of_more = state._Attribute(state.State(None, Identity("comm", range(4), (), 0)))
    made.Set_attr(keyval, state._copy(made, keyval, of_more))
    shrunk = pyncclx.Communicator(made)
    world = MPI.Group.Translate_ranks(shrunk.Get_group(), [0], MPI.COMM_WORLD.Get_group())
    assert list(state.state_of(shrunk).identity.world) == list(world)
    shrunk.Free()
