"""A program that loads the kernels of other programs.

CUDA loads no kernel while the process has work on the GPU, which in a program may wait for what comes after the
loading (docs/sharp_bits.md). So on GPUs each job performs this program first, in which nothing waits for a later act.
"""

from programs.acts.collectives import MOVES, REDUCTIONS, Collective
from programs.acts.objects import COLLECTIVES, SUMMABLE, ObjectCollective
from programs.acts.windows import OPERATIONS, Window
from programs.draw.collectives import DTYPES, OPERATORS
from programs.program import Act, Buffer, Program

COUNTS = (1, 600, 5000)  # a kernel is chosen by the size


def program(ranks: int) -> Program:
    """Return the program for a number of ranks."""
    acts: list[Act] = [
        Collective(name=name, count=count, counts=(count,), op=op, sendbuf=Buffer(dtype=dtype))
        for name in REDUCTIONS
        for dtype in DTYPES
        for op in OPERATORS
        for count in COUNTS
    ]
    acts += [Collective(name=name, count=count, counts=(count,)) for name in MOVES for count in COUNTS]
    acts += [ObjectCollective(name=name, kind=kind) for name in COLLECTIVES for kind in SUMMABLE]
    acts += [Window(operations=OPERATIONS)]
    return Program(ranks, tuple(dict.fromkeys(act.legal() for act in acts)))
