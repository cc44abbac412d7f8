"""Verdicts over all ranks: a check that fails on one rank fails on every rank, so that no rank goes on alone."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from mpi4py import MPI


def assert_everywhere(comm: MPI.Intracomm, ok: object, message: str = "") -> None:
    """Assert on all ranks that `ok` holds on all ranks. Collective.

    Use it in the middle of a test, before ranks enter the next collective operation. At the end of a test
    a plain assert does: outcomes are compared there anyway.
    """
    # mpi4py's own methods: what is under test must not carry the verdict on itself.
    come = MPI.Comm.Ibarrier(comm)
    while not come.Test():  # the slowest rank may need this one's processor
        time.sleep(1e-4)
    verdicts = MPI.Comm.allgather(comm, None if ok else message or "does not hold")
    failed = [f"rank {rank}: {verdict}" for rank, verdict in enumerate(verdicts) if verdict is not None]
    if failed:
        pytest.fail("\n".join(failed))


@contextmanager
def raises_everywhere(
    comm: MPI.Intracomm, expected: type[Exception] | tuple[type[Exception], ...], match: str | None = None
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """`pytest.raises` on all ranks: if one raises nothing, or something else, all fail. Collective."""
    problem = ""
    try:
        with pytest.raises(expected, match=match) as raised:
            yield raised
    except (Exception, pytest.fail.Exception) as error:
        problem = f"{type(error).__name__}: {error}"
    assert_everywhere(comm, not problem, problem)
