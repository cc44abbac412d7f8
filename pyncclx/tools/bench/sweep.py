"""Time, check and print all operations of a command line at all sizes."""

from __future__ import annotations

import argparse
import inspect
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from ... import backends
from ...errors import NotSupported
from . import environment, plot, report, timing
from .cases import CASES, FORMS, Case, Options
from .environment import Row
from .memory import memory_of, parse_nbytes, steps
from .peers import Ours, Peer

# From this size on, only a fifth of the operations is timed.
_LONG_NBYTES = 16 << 20
# Maximum padding that gives every rank at least one element.
_MAX_GROWTH_NBYTES = 1 << 10


class Sweep:
    """The operations of a command line at its sizes (collective)."""

    def __init__(self, comm: Any, arguments: argparse.Namespace, peers: dict[str, Peer], about: Row) -> None:
        self._comm, self._arguments, self._peers, self._about = comm, arguments, peers, about
        self._options, self._sizes = options_of(comm, arguments), sizes_of(arguments)
        max_nbytes = max(self._sizes) * (comm.size if arguments.osu else 1) + _MAX_GROWTH_NBYTES
        self._memory = memory_of(comm, arguments.buffers, max_nbytes)
        self._ours, self._say = Ours(comm), partial(environment.say, comm)
        self._header, self._line, self._footer = report.OSU if arguments.osu else report.NCCL_TESTS

    def run(self) -> bool:
        """Time all operations; return whether a result of pyncclx is wrong.

        Rank 0 prints and writes the files.
        """
        given, rows = self._arguments, list[Row]()
        for operation in given.operation:
            rows += self._time_sizes(CASES[operation])
            self._about["heap"] = self._comm.memory_report()["heap"]
            # Write the file after each operation, in case the run is interrupted.
            if self._comm.rank == 0:
                environment.write_json(given.json, self._about, {"results": rows})
        if self._comm.rank == 0 and given.plot:
            plot.write(given.plot, self._about, rows)
        return any(row[form] and row[form]["wrong"] for row in rows for form in FORMS)

    def _time_sizes(self, kind: type[Case]) -> list[Row]:
        scale = self._comm.size if self._arguments.osu and kind.blocks and not kind.reduces else 1
        self._say(self._header(kind, self._about, self._peers, self._options))
        rows: list[Row] = []
        for nbytes in self._sizes:
            try:
                rows.append(self._measure(kind(self._comm, nbytes * scale, self._options, self._memory)))
            except ValueError as error:
                # The given algorithm cannot move so many bytes.
                if not self._options.algorithm:
                    raise
                self._say(f"# {error}")
                break
            self._say(self._line(rows[-1], scale, self._peers))
        self._say(self._footer(rows, self._peers))
        return rows

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
        # The chosen algorithm does not support this case.
        except NotSupported:
            if not self._options.algorithm:
                raise
            return None
        wrong = count_wrong(library, case, call, in_place) if given.check else None
        return {"time_us": times.slowest, "average_us": times.average, "least_us": times.fastest, "wrong": wrong}


def options_of(comm: Any, arguments: argparse.Namespace) -> Options:
    """Return the command line's options; exit if an operation does not allow them."""
    for operation in arguments.operation:
        # A missing method is one of a window.
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


# ---- the check -------------------------------------------------------------------------------------------------------


def count_wrong(library: Peer, case: Case, call: timing.Work, in_place: bool) -> int:
    """Count the wrong elements of a library's result (collective).

    pyncclx's result must have the expected bits; if all ranks have the same result, it must have the bits of rank 0. A
    peer's result may differ by rounding, because the peer may fold in another order, or round less often.
    """
    _run(library, case, call, in_place)
    target = library.target(case, in_place)
    bad = 0 if target is None else int(_differs(library, case, target).sum())
    if library.exact and case.same_everywhere:
        mine = target if isinstance(target, np.ndarray) else target.get()
        first = mine.copy()
        MPI.Comm.Bcast(case.comm, first.view(np.uint8))
        bad += int((mine.view(case.elements.bits) != first.view(case.elements.bits)).sum())
    return int(MPI.Comm.allreduce(case.comm, bad))


def _run(library: Peer, case: Case, call: timing.Work, in_place: bool) -> None:
    case.fill(in_place)
    backends.select().synchronize()
    # One-sided operations do not wait until the target has filled its buffer.
    MPI.Comm.Barrier(case.comm)
    with library.queue:
        call()
        library.queue.synchronize()
    case.comm.synchronize()


def _differs(library: Peer, case: Case, target: Any) -> Any:
    elements, expected = case.elements, case.expected()
    if library.exact or not (case.reduces and elements.precision):
        return target.view(elements.bits) != expected.view(elements.bits)
    values, wanted = (elements.decode(array).astype(np.float64) for array in (target, expected))
    # The negation makes NaN wrong too.
    return ~(abs(values - wanted) <= case.size * elements.precision * abs(wanted))
