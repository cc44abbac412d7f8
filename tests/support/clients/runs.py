"""One run of a client: what it ended with and recorded, and how two runs differ."""

import json
import math
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import launch

TESTS = Path(__file__).resolve().parents[2]
TOO_LONG = "took too long"  # where the code of an end would be, and in verdicts
TOLERANCE = 1e-5  # relative: sums in single precision are in another order

Record = dict[str, dict[str, Any]]


def run(words: Sequence[str], ranks: int, where: str, more: Mapping[str, str], seconds: float) -> dict[str, Any]:
    """What a program on some ranks ended with and recorded."""
    with tempfile.TemporaryDirectory() as scratch:
        path = [str(TESTS), str(TESTS.parent), more["PYTHONPATH"]]
        variables = {**launch.environment(where), **more, "PYTHONPATH": os.pathsep.join(path)}
        variables |= {"CLIENT_RECORD": f"{scratch}/record", "CLIENT_DEVICE": where, "PYNCCLX_TIMEOUT": "30"}
        output = Path(scratch) / "output"
        with output.open("w") as file:
            done = launch.ended(launch.mpiexec(ranks, *words), variables, seconds, stdout=file, stderr=file)
            code = TOO_LONG if done.returncode == launch.TIMED_OUT else done.returncode
        records = [read(path) for path in sorted(Path(scratch).glob("record.*"))]
        return {"code": code, "records": records, "output": output.read_text(errors="replace")[-3000:]}


def read(path: Path) -> Record:
    """What one rank has recorded, by name."""
    record: Record = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        record.setdefault(entry.pop("name"), {}).update(entry)
    return record


def median(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first run that failed; if none did, the first one, with the median of each time."""
    chosen = next((one for one in runs if one["code"] != 0), runs[0])
    for rank, record in enumerate(chosen["records"] if chosen["code"] == 0 else []):
        for name, entry in record.items():
            if "seconds" in entry:
                entry["seconds"] = statistics.median(one["records"][rank][name]["seconds"] for one in runs)
    return chosen


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Where results differ."""
    if ours["code"] != theirs["code"]:
        return [f"ended with {ours['code']}, mpi4py with {theirs['code']}: {cause(ours['output'])}"]
    found = []
    for rank, (own, other) in enumerate(zip(ours["records"], theirs["records"], strict=False)):
        for name, entry in other.items():
            mine = own.get(name, {})
            if entry.get("outcome") == "passed" and mine.get("outcome") != "passed":
                found.append(f"rank {rank}, {name}: {mine.get('outcome', 'missing')} {mine.get('why', '')}")
            elif not close(mine.get("value", []), entry.get("value", [])):
                found.append(f"rank {rank}, {name}: {mine.get('value')}, with mpi4py {entry['value']}")
    return found


def close(some: Sequence[float], others: Sequence[float]) -> bool:
    """Whether numbers are equal, but for rounding."""
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(math.isclose(*pair, rel_tol=TOLERANCE, abs_tol=1e-9) for pair in pairs)


def cause(output: str) -> str:
    """The line of an output that names an exception, or the last one."""
    lines = [line for line in output.splitlines() if line.strip()] or [""]
    return next((line for line in reversed(lines) if "Error" in line or "NotSupported" in line), lines[-1]).strip()[
        :300
    ]


def ratio(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[float | None, dict[str, list[float]]]:
    """Our time to mpi4py's, in all and of what was timed by name, in seconds of the slowest rank."""
    names = [name for name, entry in (theirs["records"] or [{}])[0].items() if "seconds" in entry and "::" not in name]
    times = {
        name: [max(rank[name]["seconds"] for rank in each["records"]) for each in (ours, theirs)]
        for name in names
        if all(each["records"] and all(name in rank for rank in each["records"]) for each in (ours, theirs))
    }
    whole = sum(entry.get("seconds", 0.0) for entry in (theirs["records"] or [{}])[0].values())
    mine = sum(entry.get("seconds", 0.0) for entry in (ours["records"] or [{}])[0].values())
    return (mine / whole if mine and whole else None), times


def tests(outcome: dict[str, Any]) -> int:
    """How many tests passed on the first rank."""
    return sum(entry.get("outcome") == "passed" for entry in (outcome["records"] or [{}])[0].values())
