"""Some hundreds of random operations, each compared with mpi4py's; `tests/soak.py` does as many as one likes."""

from mpi4py import MPI

import soak
from support.everywhere import assert_everywhere
from support.soak_jobs import BATCH


def test_random_operations():
    world, program = MPI.COMM_WORLD, soak.Soak(seed=7, most=1 << 14)
    for _ in range(6):
        wrong = program.batch(BATCH)
        assert_everywhere(world, not wrong, "; ".join(wrong[:3]))
    assert len(program.done) > 15
    program.free()
