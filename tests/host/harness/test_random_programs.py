"""What random programs note on a rank and send to the process that compares."""

import pickle
from types import SimpleNamespace

import numpy as np
from mpi4py import MPI

from programs.compare import same
from programs.execute import plain
from programs.program import OneOf


def test_values_of_which_each_is_right():
    """They are copies, which can be sent."""
    run, array = SimpleNamespace(MPI=MPI), np.array([1.0, np.nan])
    noted = plain(run, (OneOf((np.array([np.nan, np.nan]), array)), 3))
    array[:] = 7.0
    noted = pickle.loads(pickle.dumps(noted))
    assert same(noted, (np.array([1.0, np.nan]), 3))
    assert same(noted, (np.array([np.nan, np.nan]), 3))
    assert not same(noted, (np.array([1.0, 2.0]), 3))
