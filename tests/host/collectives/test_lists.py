"""Lists of operations beside the table in operations.py say of each operation what it does."""

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import tuning
from pyncclx.collectives import CHOOSE, FUNCTIONS, copy_engine, over_nodes, rooted
from pyncclx.operations import COLLECTIVES
from support import forms


def test_lists_name_operations_of_the_table():
    listed = {*copy_engine.OPERATIONS, *over_nodes._WHOLE_BY_NCCL, *map(str.capitalize, tuning.ALGORITHMS)}
    assert listed <= set(COLLECTIVES)
    assert set(FUNCTIONS) == set(CHOOSE) == set(over_nodes._FILE) == set(COLLECTIVES)
    assert set(rooted.CHOOSE) == {name for name, row in COLLECTIVES.items() if row.module == "rooted"}


@pytest.mark.parametrize("name", [*forms.NAMES, "Bcast"])
def test_operations_on_copy_engines_are_those_listed(name):
    """They refuse an array in no window; the others refuse the algorithm."""
    with pyncclx.Communicator(MPI.COMM_SELF).Dup() as comm:
        if name == "Bcast":
            args, options = [np.zeros(3)], {}
        else:
            sent, received, more, options = forms.arguments(comm, name)
            args = [forms.spec(np.zeros(forms.total(length)), length) for length in (sent, received)] + [*more]
        with pytest.raises((ValueError, TypeError, pyncclx.NotSupported), match="algorithm") as refusal:
            getattr(comm, name)(*args, **options, algorithm=copy_engine.COPY_ENGINE)
    assert ("is in no window" in str(refusal.value)) == (name in copy_engine.OPERATIONS)
