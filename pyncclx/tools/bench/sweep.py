"""Time, check and print all operations of a command line at all sizes."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator
from typing import Any

from ...errors import NotSupported
from . import check, osu, report, timing
from .cases import CASES, FORMS, Case, Options
from .memory import memory_of
from .peers import Ours, Peer
from .sizes import parse_nbytes, steps

# From this size on, a fifth of the operations is timed.
_LONG_NBYTES = 16 << 20
# Maximum padding that gives every rank at least one element.
_MAX_GROWTH_NBYTES = 1 << 10

Row = dict[str, Any]


class Sweep:
    """The operations of a command line at its sizes (collective)."""

    def __init__(self, comm: Any, arguments: argparse.Namespace, peers: dict[str, Peer], about: dict[str, Any]) -> None:
        self._comm, self._arguments, self._peers, self._about = comm, arguments, peers, about
        self._options, self._sizes = options_of(comm, arguments), sizes_of(arguments)
        max_nbytes = max(self._sizes) * (comm.size if arguments.osu else 1) + _MAX_GROWTH_NBYTES
        self._memory = memory_of(comm, arguments.buffers, max_nbytes)
        self._ours = Ours(comm)
        self._table = osu if arguments.osu else report

    def run(self) -> Iterator[list[Row]]:
        """Time all operations; after each, yield all rows so far. Rank 0 prints."""
        rows: list[Row] = []
        for operation in self._arguments.operation:
            rows += self._time_sizes(CASES[operation])
            yield rows

    def _time_sizes(self, kind: type[Case]) -> list[Row]:
        scale = self._comm.size if self._arguments.osu and kind.blocks and not kind.reduces else 1
        self._print(self._table.header(kind, self._about, self._peers, self._options))
        rows: list[Row] = []
        for nbytes in self._sizes:
            try:
                rows.append(self._measure(kind(self._comm, nbytes * scale, self._options, self._memory)))
            except ValueError as error:
                # The given algorithm cannot move so many bytes.
                if not self._options.algorithm:
                    raise
                self._print(f"# {error}")
                break
            self._print(self._table.line(rows[-1], scale, self._peers))
        self._print(self._table.footer(rows, self._peers))
        return rows

    def _print(self, text: str) -> None:
        if self._comm.rank == 0:
            print(text, flush=True)

    def _measure(self, case: Case) -> Row:
        """Time an operation at one size in each form, for pyncclx and the peers."""
        row: Row = {
            "operation": case.method.lower(),
            "nbytes": case.nbytes,
            "count": case.count,
            "datatype": case.elements.name,
            "redop": case.options.op if case.reduces else "none",
            "root": case.root if case.rooted else -1,
            "bus_factor": case.bus_factor,
        }
        row |= self._forms_of(self._ours, case)
        return row | {"peers": {name: self._forms_of(peer, peer.adopt(case)) for name, peer in self._peers.items()}}

    def _forms_of(self, library: Peer, case: Case) -> Row:
        return {name: self._cell(library, case, form) if form in case.forms else None for name, form in FORMS.items()}

    def _cell(self, library: Peer, case: Case, in_place: bool) -> Row | None:
        """Time and check one form; return None if the library does not have it."""
        call, given = library.call(case, in_place), self._arguments
        if call is None:
            return None
        case.fill(in_place)
        iters = given.iters if case.nbytes < _LONG_NBYTES else max(3, given.iters // 5)
        graph = given.graph and case.capturable and library.capturable
        try:
            times = timing.time(case.comm, library.queue, call, iters, given.warmup_iters, graph=graph)
        # The given algorithm raises it.
        except NotSupported:
            if not self._options.algorithm:
                raise
            return None
        wrong = check.wrong(library, case, call, in_place) if given.check else None
        return {"time_us": times.slowest, "average_us": times.average, "least_us": times.fastest, "wrong": wrong}


def options_of(comm: Any, arguments: argparse.Namespace) -> Options:
    """Return the command line's options; exit if an operation does not allow them."""
    for operation in arguments.operation:
        # Otherwise it is a method of a window.
        method = getattr(comm, CASES[operation].method, None)
        if arguments.algorithm and (method is None or "algorithm" not in inspect.signature(method).parameters):
            raise SystemExit(f"--algorithm {arguments.algorithm}: {operation} has no choice of algorithms")
        if CASES[operation].windows_only and arguments.buffers != "windows":
            raise SystemExit(f"{operation}: puts go to arrays from comm.Alloc; give --windows")
    if not 0 <= arguments.root < comm.size:
        raise SystemExit(f"-r {arguments.root}: the ranks are 0 to {comm.size - 1}")
    check_nodes(comm, arguments)
    options = Options(arguments.datatype, arguments.op, arguments.root, arguments.algorithm)
    if options.op == "avg" and "int" in options.datatype:
        raise SystemExit("-o avg: integers have no average; give another -d")
    return options


def check_nodes(comm: Any, arguments: argparse.Namespace) -> None:
    """Exit if there are several nodes and an option needs one node (collective)."""
    spanning, names = comm.spanning, arguments.operation
    if spanning is None:
        return
    reasons = {
        "put_signal: signals work inside one node": any(CASES[name].windows_only for name in names),
        "--algorithm: it names a kernel inside one node": arguments.algorithm is not None,
        "--graph: no CUDA graph holds what MPI moves between nodes": arguments.graph and not spanning.rails.uses_nccl,
        "--graph: over nodes the host reads the counts of alltoallv": arguments.graph and "alltoallv" in names,
    }
    for reason in (text for text, applies in reasons.items() if applies):
        raise SystemExit(f"{reason}, and the ranks are on {spanning.places.count}; leave it out")


def sizes_of(arguments: argparse.Namespace) -> list[int]:
    """Return the message sizes of the command line, in bytes."""
    first, last = parse_nbytes(arguments.minbytes), parse_nbytes(arguments.maxbytes)
    difference = parse_nbytes(arguments.stepbytes) if arguments.stepbytes else 0
    if last < first or (not difference and (first < 1 or arguments.stepfactor < 2)):
        raise SystemExit("-b, -e, -f, -i: sizes must grow, from 1 byte or more by a factor of 2 or more")
    return list(steps(first, last, factor=arguments.stepfactor, difference=difference))
