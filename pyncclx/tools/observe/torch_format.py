"""Write dumps in the format of PyTorch's flight recorder 2.10, for `torchfrtrace`."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...operations import COLLECTIVES
from .job import Comm, Entry, Job, Rank
from .verdict import Words

VERSION = "2.10"
PREFIX = "pyncclx_rank_"
# The analyser accepts no other name before PyTorch 2.15.
LIBRARY = "nccl"

# PyTorch's names of operations. The analyser rejects other operations, so they are omitted.
_NAMES = {row.name: row.pytorch for row in COLLECTIVES.values() if row.pytorch}
_TYPES = {
    "float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int32": "Int",
    "int64": "Long", "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool",
}


def write(job: Job, folder: Path) -> None:
    """Write a file for each rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in job:
        (folder / f"{PREFIX}{rank.number}").write_bytes(pickle.dumps(dump(job, rank)))


def dump(job: Job, rank: Rank) -> dict[str, Any]:
    """Return the dump that PyTorch would write for a rank."""
    comms = [comm for comm in job.comms if comm.kind == "comm"]
    words, listed = Words(job), list(_entries(rank, comms))
    return {
        "version": VERSION,
        "entries": listed,
        "pg_config": {str(number): _group(number, comm, words) for number, comm in enumerate(comms)},
        "pg_status": {str(number): _status(rank, comm) for number, comm in enumerate(comms)},
        "comm_lib_version": rank.record["process"]["versions"].get("pyncclx", ""),
    }


def _group(number: int, comm: Comm, words: Words) -> dict[str, str]:
    return {"name": str(number), "desc": words.comm_name(comm), "ranks": str(list(comm.members))}


def _status(rank: Rank, comm: Comm) -> dict[str, int]:
    last, progress = rank.last(comm), rank.progress(comm)
    over = min(last, progress["epoch"] + progress["skipped"]) if progress else last
    names = "last_enqueued_collective", "last_started_collective", "last_completed_collective"
    return dict(zip(names, (last, min(last, over + 1), over), strict=True))


def _entries(rank: Rank, comms: list[Comm]) -> Iterator[dict[str, Any]]:
    messages = 0
    for entry in rank.entries:
        is_message = entry["kind"] == "message"
        name = _message_name(rank, entry) if is_message else _NAMES.get(entry["operation"])
        if entry["comm"] not in comms or entry["kind"] == "access" or name is None:
            continue
        messages += is_message
        status = _status(rank, entry["comm"])
        yield {
            "record_id": entry["sequence"],
            "pg_id": comms.index(entry["comm"]),
            "process_group": (str(comms.index(entry["comm"])), "pyncclx"),
            "collective_seq_id": 0 if is_message else entry["number"],
            "p2p_seq_id": messages if is_message else 0,
            "op_id": entry["sequence"],
            "is_p2p": is_message,
            "profiling_name": f"{LIBRARY}:{name}",
            **_shapes(entry, name),
            **_times(entry, status),
            "timeout_ms": 0,
            "frames": [_frame(entry["site"])],
            "thread_id": "0",
            "thread_name": "",
        }


def _message_name(rank: Rank, entry: Entry) -> str:
    if entry["operation"].lower().endswith("recv"):
        return f"recv {rank.number}<-{entry['peer'] if entry['peer'] >= 0 else '?'}"
    return f"send {rank.number}->{entry['peer']}"


def _shapes(entry: Entry, name: str) -> dict[str, Any]:
    """Return shapes and types of an entry.

    The entry has the length of one block if there is one for each rank.
    """
    elements, size = entry["elements"], len(entry["comm"].members)
    sent = elements * size if name == "reduce_scatter" else elements
    received = elements * size if name == "all_gather" else elements
    types = [_TYPES.get(entry["datatype"], "Byte")]
    return {
        "input_sizes": [[sent] if sent else []],
        "output_sizes": [[received] if received else []],
        "input_dtypes": types,
        "output_dtypes": types,
    }


def _times(entry: Entry, status: dict[str, int]) -> dict[str, Any]:
    number, began_ns, ended_ns = entry["number"], entry["began_ns"], entry["ended_ns"]
    over = ended_ns is not None or 0 < number <= status["last_completed_collective"]
    started = over or number == status["last_started_collective"]
    return {
        "state": "completed" if over else "started" if started else "scheduled",
        "time_created_ns": began_ns,
        "time_discovered_started_ns": began_ns if started else None,
        "time_discovered_completed_ns": ended_ns if over else None,
        "duration_ms": (ended_ns - began_ns) / 1e6 if ended_ns is not None else None,
        "retired": over,
    }


def _frame(site: str) -> dict[str, Any]:
    path, _, rest = site.rpartition(":")
    line, _, function = rest.partition(" in ")
    return {"name": function or "?", "filename": path or "?", "line": int(line) if line.isdecimal() else 0}
