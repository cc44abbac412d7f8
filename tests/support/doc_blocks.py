"""The code of the documentation: finds it in pages of Markdown, and runs it on every rank.

    mpiexec -n 2 python tests/support/doc_blocks.py

The blocks of a page run one after the other, in one namespace with `comm`, `xp`, `np`, `MPI` and `pyncclx`. Readers do
not see the comments of HTML: `<!-- setup … -->` has code that runs too. A block after `<!-- needs a GPU -->` is only
compiled, and one after `<!-- needs PyTorch -->` or `<!-- needs JAX -->` too, where there is none.
The programs of examples/first_steps run as they are.
"""

from __future__ import annotations

import importlib.util
import re
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted(
    page for folder in ("guide", "howto", "reference", "tutorial") for page in (ROOT / "docs" / folder).glob("*.md")
)
FIRST_STEPS = sorted((ROOT / "examples" / "first_steps").glob("*.py"))
PARTS = re.compile(
    r"<!-- setup\n(?P<setup>.*?)^-->|(?:<!-- needs (?P<needs>a GPU|PyTorch|JAX) -->\n)?^```python\n(?P<code>.*?)^```",
    re.MULTILINE | re.DOTALL,
)


@dataclass
class Block:
    """A piece of code and where it is."""

    page: Path
    line: int
    code: str
    shown: bool
    needs: str | None

    def can_run(self) -> bool:
        """Whether what the block needs is there."""
        module = {"PyTorch": "torch", "JAX": "jax"}.get(self.needs or "")
        return self.needs is None or (module is not None and importlib.util.find_spec(module) is not None)


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in their order, and what is set up between them."""
    text = page.read_text()
    found = []
    for part in PARTS.finditer(text):
        kind = "setup" if part["code"] is None else "code"
        line = text.count("\n", 0, part.start(kind)) + 1
        found.append(Block(page, line, part[kind], kind == "code", part["needs"]))
    return found


def run_page(page: Path, comm: Any) -> None:
    """Run the blocks of a page."""
    import numpy as np  # noqa: PLC0415
    from mpi4py import MPI  # noqa: PLC0415

    import pyncclx  # noqa: PLC0415

    names: dict[str, Any] = {"__name__": "__main__", "np": np, "xp": np, "MPI": MPI, "pyncclx": pyncclx, "comm": comm}
    for block in blocks_of(page):
        lines_before = "\n" * (block.line - 1)  # so that a traceback has the place in the page
        code = compile(lines_before + block.code, str(page), "exec")
        if block.can_run():
            exec(code, names)


def main() -> None:
    """Run everything; the first error ends the run."""
    from mpi4py import MPI  # noqa: PLC0415

    import pyncclx  # noqa: PLC0415

    for page in PAGES:
        with pyncclx.Communicator(MPI.COMM_WORLD.Dup()) as comm:
            run_page(page, comm)
            comm.synchronize()
    sys.path.insert(0, str(ROOT / "examples" / "first_steps"))
    for program in FIRST_STEPS:
        runpy.run_path(str(program), run_name="__main__")


if __name__ == "__main__":
    main()
