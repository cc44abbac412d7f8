"""A planted error."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`before`, which occurs once in `file`, becomes `after`."""

    file: str
    before: str
    after: str
    tests: str  # files and folders below tests/
    ranks: int = 2  # that those in tests/ranks run on
    mpich: bool = False  # on MPICH, not Open MPI
