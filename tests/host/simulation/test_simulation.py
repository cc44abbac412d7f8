"""The simulation of many ranks: what its collectives cost, and what making a communicator takes."""

import json
import math

import pytest

from pyncclx.tools import cli
from pyncclx.tools.simulation import network
from pyncclx.tools.simulation.creation import create
from pyncclx.tools.simulation.network import Network, pause

COSTS = Network(latency_s=1e-6, message_s=0.5e-6, connection_s=0, bandwidth=1e9, reduction=1e9)


def command(monkeypatch, *arguments):
    monkeypatch.setenv("PYNCCLX_DEVICE", "host")
    monkeypatch.setattr("sys.argv", ["pyncclx", "simulate", *arguments])
    cli.main()


def total(made, name):
    return sum(getattr(stage, name) for stage in made.stages)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 9, 1000])
def test_rounds_of_trees(size):
    steps = math.ceil(math.log2(size))
    assert network.rounds(size) == steps
    assert network.barrier(size).hops == network.broadcast(size, 5).hops == steps
    assert network.allreduce(size, 5).hops == 2 * steps


def test_time_of_a_broadcast_by_hand():
    pattern = network.broadcast(8, 1000)  # three hops of 2 us, and of 1 us for the data
    assert COSTS.seconds(pattern, asleep=False) == pytest.approx(9e-6)
    connecting = Network(latency_s=1e-6, message_s=0.5e-6, connection_s=1e-4, bandwidth=1e9)
    assert connecting.seconds(pattern, asleep=False, connects=True) == pytest.approx(309e-6)


def test_a_rank_that_waits_for_long_sleeps_longer():
    assert pause(10e-6) == 0
    assert pause(300e-6) == 50e-6
    assert pause(8e-3) == pytest.approx(1e-3)
    assert pause(1.0) == 5e-3
    pattern = network.barrier(1 << 16)
    assert COSTS.seconds(pattern, asleep=True) <= 16 * (2e-6 + 5e-3)


def test_rounds_and_messages_grow_with_the_logarithm_of_the_ranks():
    few, more, most = (create(ranks, 8, COSTS, 0.0) for ranks in (1024, 4096, 16384))
    for name in ("rounds", "messages"):
        assert total(more, name) - total(few, name) == total(most, name) - total(more, name) > 0
    assert total(most, "rounds") < 40 * math.log2(16384)


def test_what_a_rank_keeps_is_a_small_table():
    few, many = (create(ranks, 8, COSTS, 0.0) for ranks in (8192, 24576))
    slope = (many.kept * many.ranks - few.kept * few.ranks) / (many.ranks - few.ranks)
    assert 0 < slope <= 64


@pytest.mark.parametrize(("ranks", "per_node"), [(9, 4), (13, 4), (17, 16), (7, 1), (2, 1)])
def test_nodes_of_any_size_and_a_last_one_that_is_smaller(ranks, per_node):
    made = create(ranks, per_node, COSTS, 0.5)
    assert made.stages[-1].seconds == 0.5
    assert made.seconds == pytest.approx(sum(stage.seconds for stage in made.stages))


def test_the_command_writes_all_figures(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "sys.argv", ["pyncclx", "simulate", "--ranks", "64", "8192", "--json", str(tmp_path / "s.json")]
    )
    cli.main()
    printed = capsys.readouterr().out
    assert "14.50 s" in printed  # published, beside the row of 8192 ranks
    small, large = json.loads((tmp_path / "s.json").read_text())["simulated"]
    assert (small["ranks"], large["ranks"], large["published_s"]) == (64, 8192, {"NCCLX": 3.97, "NCCL": 14.5})
    for each in (small, large):
        parts = sum(stage["network_s"] + stage["computed_s"] for stage in each["stages"])
        assert each["seconds"] == pytest.approx(parts)


def test_a_picture(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    command(monkeypatch, "--ranks", "64", "128", "--plot", str(tmp_path / "s.png"))
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")


def test_no_ranks_are_refused(monkeypatch):
    with pytest.raises(SystemExit, match="1 at least"):
        command(monkeypatch, "--ranks", "0")
