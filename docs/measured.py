"""Write the tables in examples/benchmarks/README.md from the measurements in examples/benchmarks/results.

Each table stands below a comment with its name, which is that of a function in measured_tables.py or
measured_overlap.py.

    python docs/measured.py            write the tables again
    python docs/measured.py --check    exit with 1 if one differs from what the measurements give
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

import measured_overlap  # noqa: F401  adds its tables
from measured_tables import TABLES, Line
from speed import RESULTS

PAGE = RESULTS.parent / "README.md"
MARK = "<!-- docs/measured.py: {} -->\n"


def written(lines: Iterable[Line]) -> str:
    """Return a table in Markdown."""
    head, *others = ["| " + " | ".join(line) + " |" for line in lines]
    rule = "|" + "---|" * (head.count(" | ") + 1)
    return "\n".join(re.sub(r"\|  (?=\|)", "| ", line) for line in (head, rule, *others)) + "\n"


def page(before: str) -> str:
    """Return the page with its tables written again."""
    for name, function in TABLES.items():
        mark = MARK.format(name)
        pattern = re.compile(re.escape(mark) + r"(\|.*\n)*")
        if len(pattern.findall(before)) != 1:
            raise SystemExit(f"{PAGE.name} needs one comment {mark.strip()}")
        content = mark + written(function())
        before = pattern.sub(lambda _, content=content: content, before)
    return before


def main() -> int:
    """Write the page, or compare it with what it should be."""
    before = PAGE.read_text()
    after = page(before)
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(after)
    elif after != before:
        print("run python docs/measured.py: tables differ from the measurements", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
