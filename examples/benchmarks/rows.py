"""Count results in which pyncclx is faster than the best peer; print the others.

    python examples/benchmarks/rows.py examples/benchmarks/results/h200-x4-*.json

A row is one operation of one size, out of place or in place. The ratio is the time of the fastest peer over pyncclx's,
in the same run; below 1, pyncclx is slower. Other kinds of files (token shuffles, the host's time) are ignored.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One operation of one size, beside the fastest peer."""

    ratio: float
    operation: str
    nbytes: int
    place: str
    time_us: float
    wrong: int


def rows(results: list[dict[str, Any]]) -> Iterator[Row]:
    """Yield the rows that have a peer."""
    for result in results:
        for place in ("out_of_place", "in_place"):
            ours = result.get(place)
            peers = [peer[place]["time_us"] for peer in result.get("peers", {}).values() if peer.get(place)]
            if ours and peers:
                ratio = min(peers) / ours["time_us"]
                yield Row(ratio, result["operation"], result["nbytes"], place, ours["time_us"], ours["wrong"])


def main() -> None:
    parser = argparse.ArgumentParser(description="count the rows ahead, and print those behind")
    parser.add_argument("files", nargs="+", type=Path, help="what `python -m pyncclx bench --json` has written")
    for file in parser.parse_args().files:
        results = json.loads(file.read_text()).get("results", [])
        found = [] if "operation" not in next(iter(results), {}) else sorted(rows(results))
        if not found:
            continue
        ahead = sum(row.ratio >= 1 for row in found)
        print(f"{file.name}: {ahead} of {len(found)} ahead, {sum(row.wrong for row in found)} elements wrong")
        for row in found[: len(found) - ahead]:
            form = row.place.replace("_", " ")
            print(f"    {row.ratio:.2f}  {row.operation} {row.nbytes} B, {form}: {row.time_us:.1f} us")


if __name__ == "__main__":
    main()
