"""bench-shuffle: the settings of a command line, and the routings that are made for them."""

import numpy as np
import pytest

from pyncclx.tools.bench import shuffle
from pyncclx.tools.cli import parse


def parsed(*arguments):
    return parse(["bench-shuffle", *arguments])


def varied(setting):
    """What the command line can vary."""
    return setting.hidden, setting.k, setting.experts, setting.routing, setting.mode


def test_all_combinations_or_one_option_at_a_time():
    several = ["--hidden", "64", "32", "--k", "4", "2", "1", "--routing", "uniform", "zipf"]
    assert len(shuffle.settings_of(parsed(*several))) == 2 * 3 * 2
    settings = shuffle.settings_of(parsed(*several, "--graph", "--one-at-a-time", "8"))
    assert varied(settings[0]) == (64, 4, 256, "uniform", "graph")
    assert [varied(each) for each in settings[1:]] == [
        (64, 4, 256, "uniform", "eager"),
        (64, 4, 256, "zipf", "graph"),
        (64, 2, 256, "uniform", "graph"),
        (64, 1, 256, "uniform", "graph"),
        (32, 4, 256, "uniform", "graph"),
    ]


@pytest.mark.parametrize("routing", ["uniform", "zipf", "one"])
def test_experts_of_a_token_differ(routing):
    setting = shuffle.settings_of(parsed("--routing", routing, "--experts", "8", "--k", "5"))[0]
    chosen = shuffle.choose(setting, 20, 3)
    assert chosen.shape == (20, 5)
    assert set(chosen.ravel().tolist()) <= set(range(8))
    assert all(len(set(row)) == 5 for row in chosen.tolist())


def test_a_trace_goes_on_from_rank_to_rank(tmp_path):
    path = tmp_path / "routing.npy"
    np.save(path, np.arange(21).reshape(7, 3))
    setting = shuffle.settings_of(parsed("--routing", "trace", "--k", "2"))[0]
    assert shuffle.choose(setting, 3, 2, path).tolist() == [[18, 19], [0, 1], [3, 4]]
    few = shuffle.settings_of(parsed("--routing", "trace", "--k", "2", "--experts", "16"))[0]
    for bad, file in ((few, path), (setting, None)):
        with pytest.raises(ValueError, match="--routing trace needs --trace"):
            shuffle.choose(bad, 3, 0, file)
