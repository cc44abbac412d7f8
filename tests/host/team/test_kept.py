"""Arrays of kernels in flight are kept until then, at the same cost however many there are."""

from pyncclx.team.kept import AT_A_LOOK, Kept


class End:
    def __init__(self, over=False):
        self.over, self.asked = over, 0

    def is_over(self):
        self.asked += 1
        return self.over


def test_a_call_asks_a_few_events():
    kept, ends = Kept(), [End() for _ in range(1000)]
    for end in ends:
        kept.keep(end, "array")
    assert sum(end.asked for end in ends) <= AT_A_LOOK * len(ends)
    assert len(kept.entries) == len(ends)


def test_an_event_that_never_comes_keeps_no_other_array():
    kept, first, ends = Kept(), End(), [End() for _ in range(100)]
    for end in (first, *ends):
        kept.keep(end, "array")
    for end in ends:
        end.over = True
    for _ in range(len(ends)):
        kept.sweep()
    assert [end for end, _ in kept.entries.values()] == [first]


def test_arrays_do_not_accumulate():
    kept = Kept()
    for number in range(500):
        kept.keep(End(over=True), number)
        assert len(kept.entries) <= 1
