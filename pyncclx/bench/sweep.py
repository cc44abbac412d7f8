"""One operation after the other, one size after the other: time, check, print."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import NotSupported
from . import check, osu, report, timing
from .cases import CASES, Case, Options
from .memory import memory_of
from .peers import Peer
from .progress import Progress

FORMS = {"out_of_place": False, "in_place": True}
_LONG = 16 << 20  # bytes from which fewer operations are timed together
_ROUNDED_UP = 1 << 10  # bytes by which a size may grow, so that each rank has an element

Row = dict[str, Any]


def run(
    comm: Any,
    arguments: argparse.Namespace,
    peers: dict[str, Peer],
    about: dict[str, Any],
    keep: Callable[[list[Row]], None],
) -> list[Row]:
    """Time all operations that the command line names; rank 0 prints. Collective.

    After each operation `keep` is given all rows so far: a long run that does not come to its end leaves these.
    """
    options = options_of(comm, arguments)
    wanted = list(sizes(arguments))
    most = max(wanted) * (comm.size if arguments.osu else 1) + _ROUNDED_UP
    memory = memory_of(comm, arguments.buffers, most)
    queue = timing.queue_of(comm)
    style = osu if arguments.osu else report
    rows: list[Row] = []
    with Progress(len(wanted) * len(arguments.operation), comm.rank) as progress:
        for operation in arguments.operation:
            kind = CASES[operation]
            begin = len(rows)
            progress.print(style.header(kind, about, peers, options))
            for nbytes in wanted:
                scale = comm.size if arguments.osu and kind.blocks and not kind.reduces else 1
                try:
                    rows.append(measure(kind(comm, nbytes * scale, options, memory), queue, arguments, peers))
                except ValueError as error:  # of an algorithm that cannot move so much
                    if not options.algorithm:
                        raise
                    progress.print(f"# {error}")
                    break
                progress.step(style.line(rows[-1], scale, peers))
            progress.print(style.footer(rows[begin:], peers))
            keep(rows)
    return rows


def options_of(comm: Any, arguments: argparse.Namespace) -> Options:
    """What the command line says of the operations, if they all can be so."""
    for operation in arguments.operation:
        method = getattr(comm, CASES[operation].method, None)  # or a window's
        if arguments.algorithm and (method is None or "algorithm" not in inspect.signature(method).parameters):
            raise SystemExit(f"--algorithm {arguments.algorithm}: {operation} lets nobody choose")
        if CASES[operation].windows_only and arguments.buffers != "windows":
            raise SystemExit(f"{operation}: puts go to arrays from comm.Alloc; give --windows")
    if not 0 <= arguments.root < comm.size:
        raise SystemExit(f"-r {arguments.root}: there are the ranks 0 to {comm.size - 1}")
    options = Options(arguments.datatype, arguments.op, arguments.root, arguments.algorithm)
    if options.op == "avg" and "int" in options.datatype:
        raise SystemExit("-o avg: integers have no average; give another -d")
    return options


def sizes(arguments: argparse.Namespace) -> Iterator[int]:
    """The message sizes of a sweep, in bytes."""
    nbytes, last = parse_size(arguments.minbytes), parse_size(arguments.maxbytes)
    more = parse_size(arguments.stepbytes) if arguments.stepbytes else 0
    if last < nbytes or (not more and (nbytes < 1 or arguments.stepfactor < 2)):
        raise SystemExit("-b, -e, -f, -i: sizes must grow, from 1 byte or more by a factor of 2 or more")
    while nbytes <= last:
        yield nbytes
        nbytes = nbytes + more if more else nbytes * arguments.stepfactor


def parse_size(text: str) -> int:
    """Bytes from "8", "64K", "256M" or "1G"."""
    match = re.fullmatch(r"(\d+)([KMG]?)B?", text.strip().upper())
    if not match:
        raise SystemExit(f"{text!r} is no size; give bytes, or a number with K, M or G")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def measure(case: Case, queue: timing.Queue, arguments: argparse.Namespace, peers: dict[str, Peer]) -> Row:
    """Time one operation at one size, ours and the peers', in each form. Collective."""
    names = [name for name, in_place in FORMS.items() if in_place in case.forms]
    row: Row = {
        "operation": case.method.lower(),
        "nbytes": case.nbytes,
        "count": case.count,
        "datatype": case.elements.name,
        "redop": case.options.op if case.reduces else "none",
        "root": case.root if case.rooted else -1,
        "bus_factor": case.bus_factor,
    }
    row |= {name: _ours(case, queue, FORMS[name], arguments) if name in names else None for name in FORMS}
    row["peers"] = {}
    for who, peer in peers.items():
        theirs = peer.adopt(case)
        found = {name: _theirs(peer, theirs, FORMS[name], arguments) if name in names else None for name in FORMS}
        row["peers"][who] = found
    return row


def _ours(case: Case, queue: timing.Queue, in_place: bool, arguments: argparse.Namespace) -> Row | None:
    call = case.call(in_place)
    case.fill(in_place)
    try:
        cell = _time(case, queue, call, arguments, graph=arguments.graph and case.capturable)
    except NotSupported:  # by the algorithm that was asked for
        if not arguments.algorithm:
            raise
        return None
    cell["wrong"] = check.wrong(case, queue, call, in_place) if arguments.check else None
    return cell


def _theirs(peer: Peer, case: Case, in_place: bool, arguments: argparse.Namespace) -> Row | None:
    call = peer.call(case, in_place)
    if call is None:
        return None
    case.fill(in_place)
    graph = arguments.graph and case.capturable and peer.capturable
    cell = _time(case, peer.queue, call, arguments, graph=graph)
    target = peer.target(case, in_place)
    cell["wrong"] = check.peer_wrong(case, peer.queue, call, in_place, target) if arguments.check else None
    return cell


def _time(case: Case, queue: timing.Queue, call: timing.Work, arguments: argparse.Namespace, *, graph: bool) -> Row:
    iters = arguments.iters if case.nbytes < _LONG else max(3, arguments.iters // 5)
    times = timing.time(case.comm, queue, call, iters, arguments.warmup_iters, graph=graph)
    return {"time_us": times.most, "average_us": times.average, "least_us": times.least}
