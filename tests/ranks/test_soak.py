"""Some hundreds of random operations, each compared with mpi4py's; `tests/soak.py` does as many as one likes.

In the sample the elements are of those types of which other tests have compiled all reductions.
"""

from mpi4py import MPI

import soak
from support import sample
from support.everywhere import assert_everywhere
from support.soak_jobs import BATCH, DTYPES


def test_random_operations():
    world, program = MPI.COMM_WORLD, soak.Soak(7, 1 << 14, DTYPES if sample.ALL else ("i4", "f8", "c16"))
    for _ in range(6 if world.size < 8 or sample.ALL else 3):
        wrong = program.batch(BATCH)
        assert_everywhere(world, not wrong, "; ".join(wrong[:3]))
    assert len(program.done) > 15
    program.free()
