"""Return the state of several requests without completing any."""

from __future__ import annotations

from collections.abc import Sequence

from mpi4py import MPI

from .completing import OwnRequest, Statuses, as_many
from .host_receive import HostReceive
from .status import check_status, check_statuses, copy_status, fill_empty, has_ended


class Queries(OwnRequest):
    """Class methods for the statuses of many requests, added in MPI 4.1."""

    @classmethod
    def Get_status_all(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> bool:
        """Return whether all requests have ended, without completing any.

        Like mpi4py's `Get_status_all`. If they have, set `statuses`.
        """
        if statuses is not None:
            check_statuses(statuses)
        found, over = _look(requests)
        if False in over:
            return False
        _set_first(statuses, found)
        return True

    @classmethod
    def Get_status_any(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, bool]:
        """Return the index of a request that has ended, and True; complete none.

        Like mpi4py's `Get_status_any`. Return MPI.UNDEFINED and False if no request has ended, and MPI.UNDEFINED and
        True if no request is active.
        """
        if status is not None:
            check_status(status)
        found, over = _look(requests)
        index = over.index(True) if True in over else MPI.UNDEFINED
        is_any_active = any(each is not None for each in over)
        if status is not None and index != MPI.UNDEFINED:
            copy_status(status, found[index])
        elif status is not None and not is_any_active:
            fill_empty(status)
        return index, index != MPI.UNDEFINED or not is_any_active

    @classmethod
    def Get_status_some(cls, requests: Sequence[MPI.Request], statuses: Statuses = None) -> list[int] | None:
        """Return the indices of the requests that have ended, without completing any.

        Like mpi4py's `Get_status_some`. Return None if no request is active.
        """
        if statuses is not None:
            check_statuses(statuses)
        found, over = _look(requests)
        if all(each is None for each in over):
            return None
        indices = [index for index, each in enumerate(over) if each]
        _set_first(statuses, [found[index] for index in indices])
        return indices

    get_status_all, get_status_any, get_status_some = Get_status_all, Get_status_any, Get_status_some


def _look(requests: Sequence[MPI.Request]) -> tuple[list[MPI.Status], list[bool | None]]:
    """Return the requests' statuses, and whether each has ended (None if inactive).

    Raises
    ------
    NotImplementedError
        If the MPI library lacks these calls.
    """
    MPI.Request.Get_status_any([])
    found = [MPI.Status() for _ in requests]
    return found, [_is_over(request, status) for request, status in zip(requests, found, strict=True)]


def _is_over(request: MPI.Request, status: MPI.Status) -> bool | None:
    """Return whether a request has ended, and set its status if so.

    Return None if the request is inactive.
    """
    if isinstance(request, OwnRequest):
        return request.Get_status(status) if request.is_active else None
    if isinstance(request, HostReceive):
        return None if request.has_come(status) is None else request.Get_status(status)
    if isinstance(request, MPI.Prequest):
        index, over = MPI.Request.Get_status_any([request], status)
        return over if index != MPI.UNDEFINED or not over else None
    return has_ended(request, status) if request else None


def _set_first(statuses: Statuses, found: Sequence[MPI.Status]) -> None:
    """Set the first statuses of a list, and append the rest if the list is too short."""
    if statuses is not None:
        for status, other in zip(as_many(statuses, found), found, strict=False):
            copy_status(status, other)
