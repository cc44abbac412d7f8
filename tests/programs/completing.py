"""All ways to complete requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .execute import Run

ALONE = ("Wait", "Test", "wait", "test", "Get_status")
UPPER = ("Waitall", "Waitany", "Waitsome", "Testall", "Testany", "Testsome")
LOWER = tuple(way.lower() for way in UPPER)
MORE = tuple(f"{way}+" for way in UPPER)  # with inactive and null requests in the list
OWN = ("mpi4py Waitall",)  # the class method of mpi4py, not of the library


@dataclass
class Entry:
    """A request to be completed, and what is then to be done with its status and its object."""

    name: str
    request: Any
    finish: Callable[[Any, Any], None]
    has_object: bool = False
    is_persistent: bool = False
    is_mixed: bool = False  # a host array that receives a device array


def complete(run: Run, entries: list[Entry], way: str) -> None:
    """Complete requests in one way; their results are noted in the order of the list."""
    if way in ALONE:
        statuses, objects = zip(*[_alone(run, entry, way) for entry in entries], strict=True)
    else:
        statuses, objects = _together(run, entries, way)
    for entry, status, found in zip(entries, statuses, objects, strict=True):
        # mpi4py's own Waitall sets another length then, as messages/host/receive.py says
        entry.finish(None if entry.is_mixed and way in OWN else status, found)
        if entry.is_persistent:
            run.inactive.append(entry.request)


def _alone(run: Run, entry: Entry, way: str) -> tuple[Any, Any]:
    """Complete one request by its own methods."""
    status, request = run.MPI.Status(), entry.request
    if way == "Get_status":
        run.loop(lambda: request.Get_status(status))
        way = "Wait"
    if entry.has_object:
        way = way.lower()
    found = None
    if way == "Wait":
        request.Wait(status)
    elif way == "Test":
        run.loop(lambda: request.Test(status))
    elif way == "wait":
        found = request.wait(status)
    else:
        found = run.loop(lambda: _if_over(request.test(status)))[0]
    return status, found


def _together(run: Run, entries: list[Entry], way: str) -> tuple[list[Any], list[Any]]:
    """Complete several requests by a method of the class."""
    MPI = run.MPI
    requests = [entry.request for entry in entries]
    kind = MPI.Request
    if way.startswith("mpi4py"):
        kind, way = run.mpi.Request, "Waitall"
        if any(entry.is_persistent for entry in entries):
            kind = MPI.Request
    before = 0
    if way.endswith("+"):
        way, extra = way[:-1], [*run.inactive, MPI.REQUEST_NULL]
        requests, before = [*extra, *requests], len(extra)
    if any(entry.has_object for entry in entries):
        way = way.lower()
    count = len(requests)
    if way.lower().endswith("all"):
        statuses = [MPI.Status() for _ in requests]
        objects = _all(run, getattr(kind, way), requests, statuses)
    else:
        statuses, objects = [None] * count, [None] * count
        _some(run, getattr(kind, way), way, requests, statuses, objects)
    return statuses[before:], objects[before:]


def _all(run: Run, method: Any, requests: list[Any], statuses: list[Any]) -> list[Any]:
    name = method.__name__
    if name == "Waitall":
        method(requests, statuses)
        return [None] * len(requests)
    if name == "waitall":
        return list(method(requests, statuses))
    if name == "Testall":
        run.loop(lambda: method(requests, statuses))
        return [None] * len(requests)
    return list(run.loop(lambda: _if_over(method(requests, statuses)))[0])


def _if_over(answer: tuple[bool, Any]) -> tuple[Any] | None:
    """Return the object of an answer of `test` or `testall` in a tuple, if there is one."""
    return (answer[1],) if answer[0] else None


def _some(
    run: Run, method: Any, way: str, requests: list[Any], statuses: list[Any], objects: list[Any]
) -> None:
    """Call a method until it says that no request is left."""
    is_lower, any_only, tests = way.islower(), way.lower().endswith("any"), way.lower().startswith("test")

    def once() -> bool:
        found: list[Any] = [run.MPI.Status()] if any_only else [run.MPI.Status() for _ in requests]
        answer = method(requests, found[0] if any_only else found)
        indices, values = _parts(answer, is_lower, any_only, tests)
        if indices is None or indices == run.MPI.UNDEFINED:
            return not (tests and any_only and answer[1] is False)
        for place, index in enumerate([indices] if any_only else indices):
            if statuses[index] is not None:
                raise AssertionError(f"{way}: request {index} is over a second time")
            statuses[index], objects[index] = found[place], values[place] if values else None
        return False

    run.loop(once)


def _parts(answer: Any, is_lower: bool, any_only: bool, tests: bool) -> tuple[Any, Any]:
    """Return the indices and the objects of an answer."""
    if not is_lower:
        return (answer[0] if tests and any_only else answer), None
    if any_only:
        return answer[0], [answer[-1]]
    return answer
