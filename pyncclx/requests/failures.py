"""Keep the exceptions of requests until all requests of a call are complete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from mpi4py import MPI

from mpi_bootstrap.own_errors import own_error

from ..errors import MPIError, RankFailed, Revoked


def of_request(error: Exception, index: int) -> Exception:
    """Store a request's index in its error, for `team.handlers`; return the error."""
    vars(error)["of_request"] = index
    return error


class Failures:
    """Exceptions of the requests of one call.

    Attributes
    ----------
    of_requests : mapping of int to MPI.Exception
        Errors that MPI reports in statuses, by the index of the request.
    of_call : Exception or None
        The first of all other errors. They concern the communicator (PeerTimeout, RankFailed) or an object.
    """

    of_requests: Mapping[int, MPI.Exception] = MappingProxyType({})
    of_call: Exception | None = None
    _index = 0  # index of the request that has raised `of_call`, or 0
    _pending: frozenset[int] = frozenset()

    def add(self, error: Exception, index: int) -> None:
        """Record an error that the request with this index has raised."""
        if isinstance(error, MPI.Exception) and not isinstance(error, (RankFailed, Revoked)):
            # Keep a request's first error.
            self.of_requests = {index: error, **self.of_requests}
        else:
            self.add_of_call(error, index)

    def add_own(self, error: BaseException, index: int) -> None:
        """Record a request's own error; raise an exception that a signal handler raised."""
        own = own_error(error)
        if own is None:
            raise error
        self.add(own, index)

    def add_of_call(self, error: Exception, index: int = 0) -> None:
        """Record an error that concerns all requests."""
        if self.of_call is None:
            self.of_call, self._index = error, index

    def update(self, other: Failures, indices: Sequence[int]) -> None:
        """Add the failures of a subset of the requests, whose indices are `indices`."""
        self.of_requests = {**self.of_requests, **{indices[index]: each for index, each in other.of_requests.items()}}
        self._pending |= {indices[index] for index in other._pending}
        if other.of_call is not None:
            self.add_of_call(other.of_call, indices[other._index])

    @contextmanager
    def keeping(self, index: int) -> Iterator[None]:
        """Record exceptions of the block as errors of the request with this index."""
        try:
            yield
        except BaseException as error:
            self.add_own(error, index)

    def add_of_mpi(self, error: MPI.Exception, statuses: Iterable[tuple[int, MPI.Status]]) -> None:
        """Record the error of an MPI call for several requests.

        `statuses` are pairs of a request's index and status.
        """
        codes = [(index, status.Get_error()) for index, status in statuses]
        failed = {index: MPI.Exception(code) for index, code in codes if code not in (MPI.SUCCESS, MPI.ERR_PENDING)}
        if error.Get_error_class() != MPI.ERR_IN_STATUS or not failed:
            self.add_of_call(error)
            return
        self.of_requests = {**self.of_requests, **failed}
        self._pending |= {index for index, code in codes if code == MPI.ERR_PENDING}

    def set_errors(self, statuses: Iterable[tuple[int, MPI.Status]]) -> None:
        """Set the errors of statuses, which are pairs of a request's index and status.

        If no request has failed, the statuses keep what MPI has set.
        """
        for index, status in statuses if self.of_requests else ():
            error = self.of_requests.get(index)
            code = MPI.ERR_PENDING if index in self._pending else MPI.SUCCESS
            status.Set_error(code if error is None else error.Get_error_code())

    def raise_of(self, call: str) -> None:
        """Raise the error of a call for the recorded failures, if there are any.

        Raises
        ------
        MPI.Exception
            Class ERR_IN_STATUS, if requests have failed. The text lists all errors; `__cause__` is the first.
        Exception
            `of_call`, if it is set.
        """
        if self.of_call is not None:
            raise of_request(self.of_call, self._index)
        if self.of_requests:
            texts = [f"request {index}: {error}" for index, error in sorted(self.of_requests.items())]
            first = min(self.of_requests)
            error = MPIError(MPI.ERR_IN_STATUS, f"{call}: {'; '.join(texts)}")
            raise of_request(error, first) from self.of_requests[first]
