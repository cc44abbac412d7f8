"""What the page of versions calls public is what there is, and programs for users need nothing else."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpi4py import MPI

import pyncclx
import pyncclx.device
import pyncclx.MPI
from pyncclx.device import functions
from support import doc_blocks

ROOT = doc_blocks.ROOT
PAGE = (ROOT / "docs" / "reference" / "versions.md").read_text()
MODULES = set(re.findall(r"^\| `import ([\w.]+)` \|", PAGE, re.MULTILINE))
#: Programs that measure pyncclx, and so use its own clocks and choices.
MEASURING = ("examples/benchmarks/", "examples/common/overlap_report", "examples/moe/token_shuffle_report")
MEASURING += ("examples/operators/row_transforms",)
PROGRAMS = [
    path
    for path in sorted((ROOT / "examples").rglob("*.py"))
    if not str(path.relative_to(ROOT)).startswith(MEASURING)
]


def imported(source: str) -> Iterator[str]:
    """The modules of pyncclx and mpi_bootstrap from which a program takes names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [taken_from(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] in ("pyncclx", "mpi_bootstrap"))


def taken_from(module: str, name: str) -> str:
    """`module.name` where that is a module, as in ``from pyncclx import MPI``; otherwise `module`."""
    inside = module in ("pyncclx", "mpi_bootstrap") and name not in importlib.import_module(module).__all__
    return f"{module}.{name}" if inside else module


def described(text: str) -> set[str]:
    """The functions in a table of calls such as ``put_*, get_*(team)`` and ``atomic_add_u32, _u64(team)``."""
    names: list[str] = []
    for listed in re.findall(r"([a-z_][\w*]*(?:, [\w*]+)*)\(", text):
        for name in listed.split(", "):
            short = name.startswith("_") and names
            names.append(names[-1].rpartition("_")[0] + name if short else name)
    return {name.replace("*", who) for name in names for who in ("thread", "warp", "block")}


def test_imports_are_recognised() -> None:
    source = "import pyncclx\nfrom pyncclx import MPI, Op\nimport numpy\nfrom pyncclx.launch.run import by_kernel\n"
    assert [*imported(source)] == ["pyncclx", "pyncclx.MPI", "pyncclx", "pyncclx.launch.run"]


def test_the_modules_of_the_page_exist() -> None:
    assert {"pyncclx", "pyncclx.MPI", "pyncclx.device"} <= MODULES
    for name in MODULES:
        importlib.import_module(name)


@pytest.mark.parametrize("page", doc_blocks.PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_public_modules_alone(page: Path) -> None:
    used = {name for block in doc_blocks.blocks_of(page) if block.shown for name in imported(block.code)}
    assert used - MODULES == set()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_use_public_modules_alone(program: Path) -> None:
    assert {*imported(program.read_text())} - MODULES == set()


def test_pyncclx_mpi_has_all_names_of_mpi4py() -> None:
    names = {name for name in dir(MPI) if not name.startswith("_")}
    assert names - set(dir(pyncclx.MPI)) == set()


def test_every_device_function_is_described() -> None:
    assert set(functions.SIGNATURES) - described(str(pyncclx.device.__doc__)) == set()


def test_the_version_is_a_semantic_one() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", pyncclx.__version__)


def test_exceptions_of_the_package_are_those_of_the_module() -> None:
    """`pyncclx.PeerTimeout` and `pyncclx.errors.PeerTimeout` are one class."""
    own = [value for value in vars(pyncclx.errors).values() if getattr(value, "__module__", "") == "pyncclx.errors"]
    assert own
    for error in own:
        assert getattr(pyncclx, error.__name__, error) is error
