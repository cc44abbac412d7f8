"""The watchdog of programs that the host does not wait for: what it raises for one that does not end."""

from types import SimpleNamespace

import pytest

from pyncclx.errors import StepTimeout
from pyncclx.nodes.engine import Transfer
from pyncclx.nodes.program import Placed, Program
from pyncclx.nodes.steps import CopyStep, ExchangeStep, Traffic
from pyncclx.nodes.watchdog import Awaited

RANK = 1


class Engine:
    """Nothing that it is given ends."""

    follows_streams = True

    def __init__(self):
        self.aborted = []

    def check(self):
        pass

    def abort(self, step, reason):
        self.aborted.append((step, reason))


def exchange(engine, name, peer):
    return Placed(ExchangeStep(engine, name, [Transfer(peer, 0, 8)], [Transfer(peer, 8, 8)], Traffic()))


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["Allreduce, exchange"], "Allreduce, exchange: rank 1 waited in vain for rank"),
        (["Reduce, exchange", "Reduce, gather"], "Reduce, exchange or Reduce, gather: rank 1 waited in vain for rank"),
        (["Allreduce, exchange"] * 3, "Allreduce, exchange: rank 1 waited in vain for rank"),
    ],
)
def test_it_names_the_steps_and_the_ranks(names, text):
    engine = Engine()
    steps = [exchange(engine, name, 2 + number) for number, name in enumerate(names)]
    program = Program("Allreduce", [Placed(CopyStep(0, 0, 0)), *steps], (), follows_streams=True)
    never = SimpleNamespace(is_over=lambda: False)
    awaited = Awaited(program.waits, never, 0.0, program.watched, RANK, program.peers)
    assert awaited.is_over()
    (step, reason), *more = engine.aborted
    assert not more
    assert step == program.waits
    assert isinstance(reason, StepTimeout)
    assert reason.peers == tuple(range(2, 2 + len(names)))
    assert str(reason).replace("rank 2", "rank", 1).startswith(text)


def test_a_program_in_time_goes_on():
    engine = Engine()
    program = Program("Bcast", [exchange(engine, "Bcast, exchange", 0)], (), follows_streams=True)
    never = SimpleNamespace(is_over=lambda: False)
    assert not Awaited(program.waits, never, float("inf"), program.watched, RANK, program.peers).is_over()
    assert engine.aborted == []
