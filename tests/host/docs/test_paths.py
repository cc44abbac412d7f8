"""Every file and heading exists to which README, CONTRIBUTING, the documentation and the READMEs of examples refer."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mpi_bootstrap
import pyncclx
import pyncclx.device

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGES.md", "SECURITY.md")]
PAGES += [page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts]
PAGES += sorted((ROOT / "examples").rglob("README.md"))
TOPS = ("docs", "tests", "examples", "pyncclx", "cuda", "mpi_bootstrap")
PACKAGES = sorted({path.parent for top in ("pyncclx", "mpi_bootstrap") for path in (ROOT / top).rglob("__init__.py")})
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMED = re.compile(rf"(?<![\w./<-])((?:{'|'.join(TOPS)})/[\w./-]+)")
VERSIONS = (("setup.cfg", " ="), ("CITATION.cff", ":"))
MADE = "docs/_build"  # by a command


def anchors(page: Path) -> set[str]:
    """What a link can name in a page: its headings, as GitHub and the site write them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """Links of a page to files, or to headings, that do not exist."""
    broken = []
    for target in LINK.findall(page.read_text()):
        if re.match(r"https?:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            broken.append(target)
    return broken


def missing_files(page: Path) -> list[str]:
    """Paths from the root that a page names and that do not exist."""
    text = re.sub(r"^```python\n.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    names = (name.rstrip(".") for name in NAMED.findall(LINK.sub("", text)))
    named = [name for name in names if "NAME" not in name and not name.startswith(MADE)]
    return [name for name in named if not (ROOT / name).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths(page):
    assert broken_links(page) == []
    assert missing_files(page) == []


def test_versions_agree():
    """Those of the package, of its metadata and of the citation."""
    for name, sign in VERSIONS:
        assert f"\nversion{sign} {pyncclx.__version__}\n" in (ROOT / name).read_text(), name


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("program", ["speed.py", "measured.py", "clients.py", "diagrams.py"])
def test_pictures_are_what_their_programs_draw(program):
    """The pictures, and the tables of benchmarks, are what is made of the committed measurements."""
    command = [sys.executable, str(ROOT / "docs" / program), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("module", [pyncclx, pyncclx.device, mpi_bootstrap], ids=lambda module: module.__name__)
def test_every_public_name_is_in_the_reference(module):
    reference = " ".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    listed = set(re.findall(r"auto\w+:: ([\w.]+)", reference))
    members = set(dir(pyncclx.errors)) if "pyncclx.errors" in listed else set()
    names = [f"{module.__name__}.{name}" for name in module.__all__ if name not in members]
    assert [name for name in names if name not in listed] == []


def test_design_notes_that_sources_name_exist():
    """Comments name a note by how it begins; of a comment's line breaks nothing is left."""
    notes = " ".join((ROOT / "docs" / "design_notes.md").read_text().split())
    sources = [path for top in ("pyncclx", "cuda") for path in (ROOT / top).rglob("*.*") if path.suffix != ".json"]
    missing = []
    for path in sources:
        if path.suffix in (".py", ".cu", ".cuh", ".h"):
            text = re.sub(r"\s+", " ", re.sub(r"\n\s*(//|#:?)", " ", path.read_text()))
            names = re.findall(r'(?:CHANGES|design_notes)\.md, "([^"]+)"', text)
            missing += [f"{path.name}: {name}" for name in names if name.rstrip(" ….,") not in notes]
    assert missing == []


def unlisted(package: Path) -> list[str]:
    """Files that the docstring of a package's `__init__.py` omits, if it names three or more of the others."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    files = {path.stem for path in package.glob("*.py")} - {"__init__"}
    named = files & set(re.findall(r"`(\w+)(?:\.py)?`", text))
    return sorted(files - named) if len(named) >= 3 else []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_packages_that_list_files_list_all(package):
    assert unlisted(package) == []


def test_unlisted_files_are_found(tmp_path):
    for name in ("one", "two", "three", "four"):
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "__init__.py").write_text('"""`one.py`, then `two`."""\n')
    assert unlisted(tmp_path) == []
    (tmp_path / "__init__.py").write_text('"""`one.py`, then `two` and `three.py`."""\n')
    assert unlisted(tmp_path) == ["four"]
